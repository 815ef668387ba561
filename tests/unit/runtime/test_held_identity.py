"""The identity a running daemon holds: taken up at start, again when asked, and kept when the new one is no good."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from sbctl.base.errors import SbctlError
from sbctl.node.paths import PREFIX_VARIABLE, NodePaths, node_paths
from sbctl.runtime.identity import HeldIdentity, with_identity
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.trust.authority import Authority
from sbctl.trust.identity import Grant
from sbctl.trust.node_identity import NodeIdentityFiles
from tests.simulators.fleet import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    return node_paths(os.getuid(), {PREFIX_VARIABLE: str(tmp_path / "node")})


@pytest.fixture
def authority(tmp_path: Path, clock: ManualClock) -> Authority:
    grant = Grant(node_id="authority", roles=("authority",))
    return Authority.create(tmp_path / "cluster", cluster_id="prod", grant=grant, server_name="mesh", now=clock.now())


def install(authority: Authority, paths: NodePaths, clock: ManualClock) -> str:
    files = IdentityFiles(paths)
    pending = files.ask("gpu-a")
    issued = authority.issue(pending.request, Grant(node_id="gpu-a", roles=("worker",)), now=clock.now())
    content = NodeIdentityFiles(
        certificate=issued.certificate,
        ca=authority.bundle(authority.facts().ca),
        identity=issued.identity,
        authority_key=authority.verifying_key,
        revocations=authority.revocations()[0],
    )
    files.switch(files.stage(content, pending.key))
    files.tidy()
    return issued.fingerprint


def test_none_or_a_broken_one_is_told_and_stops_nothing(
    authority: Authority, paths: NodePaths, clock: ManualClock
) -> None:
    held = HeldIdentity(paths, clock)
    held.start()
    assert held.current is None
    assert held.status()["problem"]
    install(authority, paths, clock)
    held.reload()
    assert held.status()["problem"] is None
    clock.advance(timedelta(days=91).total_seconds())
    late = HeldIdentity(paths, clock)
    late.start()
    assert "expired" in late.status()["problem"]


def test_what_is_no_good_leaves_the_one_that_is_held(
    authority: Authority, paths: NodePaths, clock: ManualClock
) -> None:
    first = install(authority, paths, clock)
    held = HeldIdentity(paths, clock)
    held.start()
    second = install(authority, paths, clock)
    assert held.status()["fingerprint"] == first
    (IdentityFiles(paths).link / "ca.pem").write_text("nonsense")
    with pytest.raises(SbctlError):
        held.reload()
    assert held.status()["fingerprint"] == first
    third = install(authority, paths, clock)
    assert held.reload()["fingerprint"] == third != second


async def test_the_control_socket_takes_it_up(authority: Authority, paths: NodePaths, clock: ManualClock) -> None:
    held = HeldIdentity(paths, clock)
    async with TestClient(TestServer(with_identity(web.Application(), held))) as client:
        answer = await client.post("/control/v1/identity")
        assert (answer.status, (await answer.json())["error"]["code"]) == (409, "file.missing")
        fingerprint = install(authority, paths, clock)
        answer = await client.post("/control/v1/identity")
        assert (answer.status, (await answer.json())["fingerprint"]) == (200, fingerprint)
    async with TestClient(TestServer(with_identity(web.Application(), None))) as client:
        answer = await client.post("/control/v1/identity")
        assert (await answer.json())["error"]["code"] == "runtime.no_identity"
