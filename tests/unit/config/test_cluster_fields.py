"""`proxy.cluster`: what a store has no use for is named once, and a shared key is refused with the way to certificates."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbctl.base.errors import ConfigError, Diagnostic
from sbctl.config.load import load


def found(directory: Path, cluster: str) -> tuple[Diagnostic, ...]:
    path = directory / "sb.yml"
    path.write_text(
        "fleet: {identity: {directory: ./cluster}, hosts: {a: {address: local, roles: [gateway, worker, authority]}}}\n"
        f"proxy: {{http_bind_port: 8080, cluster: {{cluster_id: prod{cluster}}}}}\n"
    )
    try:
        return load(path, environ={}).notes
    except ConfigError as error:
        return error.diagnostics


def test_what_gossip_needed_is_one_note(tmp_path: Path) -> None:
    (note,) = [
        one
        for one in found(
            tmp_path,
            ", seeds: ['10.0.0.1:7946'], gossip_port: 7946, transport_port: 8946, advertise_addr: '10.0.0.1:7946', dead_peer_gc_secs: 300,"
            " replication: {factor: 3}, enrollment: {authority_dir: ./state},"
            " security: {mode: mtls, shared_key: 'env:KEY', cert_file: ./a.pem, key_file: ./b.pem, ca_file: ./c.pem}",
        )
        if one.code == "config.no_effect"
    ]
    for name in ("seeds", "gossip_port", "dead_peer_gc_secs", "replication", "security.shared_key", "enrollment"):
        assert name in note.message
    assert "proxy.cluster.store" in note.message


def test_a_plain_cluster_has_nothing_to_note(tmp_path: Path) -> None:
    assert [one for one in found(tmp_path, ", store: {port: 4333}") if one.code == "config.no_effect"] == []


def test_a_shared_key_is_refused_with_the_next_step(tmp_path: Path) -> None:
    key = ", security: {mode: shared_key, development: true, shared_key: 'env:KEY'}"
    (refused,) = [one for one in found(tmp_path, key) if one.severity == "error"]
    assert "shared key" in refused.message
    assert "sbctl cluster init" in refused.notes[0]


@pytest.mark.parametrize(
    "store", ["{port: 0}", "{port: 70000}", "{bind_address: everywhere}", "{cluster_port: x}", "{ports: 1}"]
)
def test_a_bad_value_of_the_store_is_an_error(tmp_path: Path, store: str) -> None:
    assert any(one.severity == "error" for one in found(tmp_path, f", store: {store}"))
