"""The peer plane over the trust and the fences that a node keeps on its disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from sbctl.base import fs
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import SbctlError
from sbctl.node.cluster_documents import BundleMark
from sbctl.node.paths import NodePaths
from sbctl.runtime.binding import bind_tcp
from sbctl.runtime.cluster.directory import Directory
from sbctl.runtime.cluster.fences import ClusterFences
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.drain import Drain
from sbctl.runtime.gateway.ports import Outcome
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.runtime.peer.candidates import KnownNode
from sbctl.runtime.peer.client import PeerClient
from sbctl.runtime.peer.dispatch import Dispatcher
from sbctl.runtime.peer.envelope import Audience
from sbctl.runtime.peer.identity import PlaneIdentity
from sbctl.runtime.peer.known import KnownCluster
from sbctl.runtime.peer.listener import PeerListener
from sbctl.runtime.peer.metrics import PeerMetrics
from sbctl.runtime.peer.worker import PeerWorker
from sbctl.trust.peer_kinds import SNAPSHOT
from tests.simulators.cluster_trust import NodeKit
from tests.simulators.engine_world import facts
from tests.simulators.peer_snapshots import node, replica
from tests.simulators.peer_world import PATIENCE_S, Caller, Engine, GatewayNode, PeerWorld, Served
from tests.simulators.runtime_world import member


class Node:
    """A node's directories and what stands on them."""

    def __init__(self, folder: Path, kit: NodeKit) -> None:
        prefix = folder / kit.claims.node_id
        self.paths = NodePaths(prefix / "etc", prefix / "state", prefix / "cache", prefix / "opt")
        fs.ensure_directory(self.paths.state)
        files = IdentityFiles(self.paths)
        files.switch(files.stage(kit.files, kit.key))
        self.trust = HeldTrust("prod", files, self.paths.state, now=SYSTEM_CLOCK.now())
        self.here = Audience(kit.claims.node_id, 5)
        self.fences = ClusterFences(self.paths.state / "cluster.db")
        self.identity = PlaneIdentity(self.trust)

    def finished(self, outcome: Outcome) -> None: ...

    def rejected(self, deployment: str, priority: str, reason: str) -> None: ...

    def fell_back(self, deployment: str, provider: str, reason: str) -> None: ...


async def test_a_dispatch_over_what_nodes_keep_and_what_a_revocation_from_the_store_ends(tmp_path: Path) -> None:
    world = PeerWorld(tmp_path)
    kits = {
        "w-a": world.kit("w-a", "worker", labels={"topology.kubernetes.io/region": "eu"}),
        "gw-a": world.kit("gw-a", "gateway"),
    }
    worker, gateway = Node(tmp_path, kits["w-a"]), Node(tmp_path, kits["gw-a"])
    engine = Engine()
    await engine.start()
    served = Served(3, engine.client)

    class Assigned:
        def serving(self, deployment: str, generation: int) -> Any:
            assert (deployment, generation) == ("q", 3)
            return served

    metrics = PeerMetrics(CollectorRegistry())
    app = PeerWorker(
        worker.identity,
        cast("Any", Assigned()),
        worker.fences,
        here=worker.here,
        clock=SYSTEM_CLOCK,
        drain=Drain(worker.paths),
        meter=worker,
        metrics=metrics,
    )
    listener = PeerListener(app, worker.identity, worker.fences.known)
    sock = bind_tcp("127.0.0.1", 0)
    await listener.listen(sock)

    known = KnownCluster("gw-a", {})
    rows = seen_by(gateway, worker, sock.getsockname()[1]).rows.values()
    nodes = [KnownNode(row.snapshot, row.peer) for row in rows if not row.exclusion]
    assert [each.snapshot.node.node_id for each in nodes] == ["w-a"]
    known.take(nodes, {"q": member(facts(), "/e")}, {}, policy_revision=1)
    client = PeerClient(gateway.identity, boot_epoch=5, clock=SYSTEM_CLOCK)
    dispatcher, asking = Dispatcher(known, client, metrics), GatewayNode(kits["gw-a"])

    async def ask() -> Caller:
        caller = Caller()
        async with asyncio.timeout(PATIENCE_S):
            await dispatcher.ask(asking.request(caller))
        return caller

    assert (await ask()).status == 200
    assert worker.fences.known()["gw-a"].identity.boot_epoch == 5
    assert ClusterFences(worker.paths.state / "cluster.db").known().keys() == {"gw-a"}, "kept before it was used"
    world.authority.revoke(kits["gw-a"])
    assert worker.trust.offer_revocations(world.authority.revocations_text, now=SYSTEM_CLOCK.now())
    with pytest.raises(SbctlError) as caught:
        await ask()
    assert caught.value.code == "peer_revoked"
    assert len(engine.bodies) == 1
    client.close()
    await listener.close()
    await engine.stop()


def seen_by(gateway: Node, worker: Node, port: int) -> Any:
    """A directory that holds one real snapshot of the worker."""
    now_ms = int(SYSTEM_CLOCK.now().timestamp() * 1000)
    told = node(
        "w-a", replica(), address=f"127.0.0.1:{port}", published_at_unix_ms=now_ms, expires_at_unix_ms=now_ms + 60_000
    )
    mark = BundleMark(revision=1, content_digest="c" * 64)
    snapshot = told.snapshot.model_copy(update={"active_bundle": mark})
    assert worker.trust.signer is not None
    directory = Directory(gateway.trust, gateway.fences, SYSTEM_CLOCK)
    directory.take({"w-a": worker.trust.signer.sign(SNAPSHOT, snapshot), "w-b": "nonsense"})
    return directory.view(mark)
