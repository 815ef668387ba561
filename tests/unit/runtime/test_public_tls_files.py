"""The pair of chain and key on a host: one file, replaced at once, and files of somebody else that are taken only when they are whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbctl.base.errors import HostError
from sbctl.base.secret import Secret
from sbctl.node.messages import RuntimeConfig
from sbctl.node.paths import NodePaths
from sbctl.runtime.nodeops.units import SOCKET_NAME, UNIT_NAME, render_units, socket_addresses
from sbctl.runtime.public_tls_files import (
    NodeFiles,
    installed_fingerprint,
    joined,
    node_files_of,
    pair_path,
    read_pair,
    write_pair,
)
from sbctl.trust.public_certificate import check_pair, read_public_certificate, split_pair
from tests.simulators.public_ca import issue


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    return NodePaths(tmp_path / "etc", tmp_path / "state", tmp_path / "cache", tmp_path / "opt")


def test_what_is_written_is_read_back_and_told_by_its_fingerprint(paths: NodePaths) -> None:
    assert installed_fingerprint(paths) is None
    made = issue("a.example")
    pair = joined(made.chain, Secret(made.key))
    assert write_pair(paths, pair)
    assert not write_pair(paths, pair)
    assert pair_path(paths).stat().st_mode & 0o777 == 0o600
    assert check_pair(*split_pair(read_pair(paths, {}).reveal())) == read_public_certificate(made.chain)
    assert installed_fingerprint(paths) == read_public_certificate(made.chain).fingerprint
    pair_path(paths).write_bytes(b"damaged")
    assert installed_fingerprint(paths) == "unreadable"


def test_a_credential_comes_before_the_file(paths: NodePaths, tmp_path: Path) -> None:
    write_pair(paths, Secret(b"file"))
    (tmp_path / "tls_api.pem").write_bytes(b"credential")
    assert read_pair(paths, {"CREDENTIALS_DIRECTORY": str(tmp_path)}).reveal() == b"credential"


def test_files_of_somebody_else_are_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path / "fullchain.pem", tmp_path / "privkey.pem")
    with pytest.raises(HostError, match="cannot be read") as missing:
        files.read()
    assert missing.value.place == str(files.chain)
    made, stamp = issue("a.example"), files.stamp()
    files.chain.write_bytes(made.chain)
    files.key.write_bytes(issue("a.example").key)
    with pytest.raises(HostError, match="cannot be used"):
        files.read()
    files.key.write_bytes(made.key)
    assert files.read() == joined(made.chain, Secret(made.key))
    assert files.stamp() != stamp


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"https_bind_port": 8443}, None),
        ({"tls_cert_file": "/a", "tls_key_file": "/b"}, None),
        ({"admin_tls": True, "tls_cert_file": "/a", "tls_key_file": "/b"}, None),
        (
            {"admin_enabled": True, "admin_tls": True, "tls_cert_file": "/a", "tls_key_file": "/b"},
            (Path("/a"), Path("/b")),
        ),
        ({"https_bind_port": 8443, "tls_cert_file": "/a", "tls_key_file": "/b"}, (Path("/a"), Path("/b"))),
    ],
)
def test_which_files_are_somebody_elses(fields: dict[str, object], expected: object) -> None:
    found = node_files_of(RuntimeConfig.model_validate({"lineage": "l", "host": "h", **fields}))
    assert (None if found is None else (found.chain, found.key)) == expected


def test_the_socket_unit_owns_the_https_port_and_the_service_gets_the_pair_as_a_credential(paths: NodePaths) -> None:
    config = RuntimeConfig(lineage="l", host="h", https_bind_port=8443)
    units = render_units("system", paths, paths.version("1"), config)
    assert socket_addresses(units) == {"127.0.0.1:8080", "127.0.0.1:8443"}
    assert f"LoadCredential=tls_api.pem:{pair_path(paths)}\n".encode() in units[UNIT_NAME]
    plain = render_units("system", paths, paths.version("1"), RuntimeConfig(lineage="l", host="h"))
    assert b"tls_api" not in plain[UNIT_NAME]
    assert socket_addresses(plain) == {"127.0.0.1:8080"}
    assert SOCKET_NAME in plain
    admin = RuntimeConfig(lineage="l", host="h", admin_enabled=True, admin_tls=True, admin_bind="10.0.0.5")
    units = render_units("system", paths, paths.version("1"), admin)
    assert f"LoadCredential=tls_api.pem:{pair_path(paths)}\n".encode() in units[UNIT_NAME]
    assert socket_addresses(units) == {"127.0.0.1:8080", "10.0.0.5:9090"}
