"""Answers about the bundle of a cluster, by the codes of its admin API."""

from __future__ import annotations

from typing import Any

import pytest

from sbctl.base.errors import InputError, SbctlError
from sbctl.base.limits import BUNDLE_MAX_BYTES
from sbctl.runtime.cluster.fences import KeptBundle
from sbctl.runtime.cluster.publication import key_id, published, refused, shown
from sbctl.trust.cluster_bundle import verify_cluster_bundle
from sbctl.trust.verifier import Fence
from tests.simulators.cluster_bundles import OPS, TRUST, cluster_payload, signed_bundle
from tests.simulators.cluster_trust import NOW


def test_a_key_is_named_by_the_digest_of_its_bytes() -> None:
    assert (
        key_id("ed25519:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=") == "Zmh6rfhivXdsj8GLjp-OIAiXFIVu4jOzkCpZHQ1fKSU"
    )


def test_what_was_taken_and_what_is_active() -> None:
    text = signed_bundle()
    verified = verify_cluster_bundle(text, trust=TRUST, cluster_id="prod", fence=None, now=NOW)
    answer = published(verified, node_id="gw-a", trust=TRUST)
    assert answer == {
        "schema_version": 1,
        "revision": 7,
        "content_digest": verified.payload.content_digest,
        "signer_node_id": "gw-a",
        "signer_key_id": key_id(OPS.public_text),
        "signer": "ops",
        "status": "published",
    }
    active = shown(KeptBundle(verified.payload, "ops", text), node_id="gw-a", trust=TRUST, read_only=True)
    assert (active["bundle"]["revision"], active["read_only"]) == (7, True)
    gone = shown(KeptBundle(verified.payload, "left", text), node_id="gw-a", trust=TRUST, read_only=True)
    assert gone["signer_key_id"] is None


@pytest.mark.parametrize(
    ("changed", "fence", "expected"),
    [
        pytest.param({"revision": 6}, Fence(3, 7, "x"), (409, "stale_revision"), id="C6"),
        pytest.param({}, Fence(3, 7, "x"), (409, "revision_conflict"), id="C7"),
        pytest.param({"key_epoch": 2}, None, (409, "stale_revision"), id="C16"),
        pytest.param({"revision": 0}, None, (400, "invalid_bundle"), id="C9"),
        pytest.param({"scope": "x", "cluster_id": "x"}, None, (400, "invalid_bundle"), id="C13"),
        pytest.param({"expires_at": "2020-01-01T00:00:00Z"}, None, (400, "invalid_bundle"), id="C10"),
        pytest.param({"lineage": "l" * (BUNDLE_MAX_BYTES + 1)}, None, (413, "invalid_bundle"), id="C15"),
    ],
)
def test_C6_to_C16_a_refusal_has_the_code_of_the_admin_api(
    changed: dict[str, Any], fence: Fence | None, expected: tuple[int, str]
) -> None:
    text = signed_bundle(cluster_payload(**changed))
    with pytest.raises(SbctlError) as caught:
        verify_cluster_bundle(text, trust=TRUST, cluster_id="prod", fence=fence, now=NOW)
    assert refused(caught.value) == expected


def test_a_text_that_is_no_bundle_is_invalid_and_a_disk_or_a_store_is_not_the_bundle_s_fault() -> None:
    assert refused(InputError("json.invalid", "x")) == (400, "invalid_bundle")
    for code in ("cluster.state_not_written", "disk.full", "bundle.no_trust"):
        assert refused(SbctlError(code, "x")) == (500, "publication_failed")
    assert refused(SbctlError("store.unreachable", "x")) == (503, "store_unavailable")
