"""An authority's bundles of before: damage of the file stops nothing, and the bundle that counts comes back into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbctl.base.errors import SbctlError
from sbctl.runtime.cluster.bundle_archive import BundleArchive
from sbctl.trust.cluster_bundle import verify_cluster_bundle
from tests.simulators.cluster_bundles import TRUST, signed_bundle
from tests.simulators.cluster_trust import NOW

TEXT = signed_bundle()
VERIFIED = verify_cluster_bundle(TEXT, trust=TRUST, cluster_id="prod", fence=None, now=NOW)


def test_a_damaged_file_is_taken_aside_and_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "bundles.db").write_bytes(b"noise, and long enough to be taken for a database" * 200)
    archive = BundleArchive(tmp_path / "bundles.db")
    assert archive.listing() == ()
    archive.keep(VERIFIED, TEXT)
    archive.close()
    again = BundleArchive(tmp_path / "bundles.db")
    assert again.envelope(3, 7) == TEXT
    assert (tmp_path / "bundles.db.damaged").exists()


def test_a_place_that_cannot_be_written_is_tried_again_with_each_bundle(tmp_path: Path) -> None:
    archive = BundleArchive(tmp_path / "not yet" / "bundles.db")
    assert (archive.listing(), archive.envelope(3, 7)) == ((), None)
    with pytest.raises(SbctlError, match="could not be kept") as caught:
        archive.keep(VERIFIED, TEXT)
    assert caught.value.code == "cluster.state_not_written"
    (tmp_path / "not yet").mkdir()
    archive.keep(VERIFIED, TEXT)
    assert archive.envelope(3, 7) == TEXT
    archive.close()
