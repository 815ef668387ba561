"""A damaged file of an authority is named, with the way back."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from sbctl.base.errors import SbctlError
from sbctl.trust.authority import Authority
from sbctl.trust.authority_directory import AuthorityFiles
from sbctl.trust.certificate_making import create_ca
from sbctl.trust.identity import Grant

NOW = datetime(2026, 11, 30, tzinfo=UTC)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "cluster"
    grant = Grant(node_id="authority", roles=("authority",))
    Authority.create(path, cluster_id="prod", grant=grant, server_name="mesh", now=NOW)
    return path


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("ca.pem", "garbage\n", "certificate.invalid"),
        ("ca-key.pem", "garbage\n", "certificate.key_invalid"),
        ("ca-key.pem", create_ca("other", now=NOW).key.reveal().decode(), "authority.invalid"),
        ("authority-signing.key", "garbage\n", "key.invalid"),
        ("authority-verifying.key", "garbage\n", "key.invalid"),
        ("authority.json", "{\n", "json.invalid"),
    ],
)
def test_a_damaged_file_is_named_with_the_way_back(directory: Path, name: str, content: str, code: str) -> None:
    (directory / name).write_text(content)
    files = AuthorityFiles(directory)
    with pytest.raises(SbctlError) as caught:
        files.settings(), files.text("ca.pem"), files.key_pair("ca"), files.signing_key(), files.verifying_key()
    assert (caught.value.code, caught.value.place) == (code, str(directory / name))
    assert "restore the file" in (caught.value.next_step or "")
