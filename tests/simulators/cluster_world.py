"""Nodes of one cluster in one loop and in virtual time: real identities, documents and state on disk, a store in memory, scripted engines.

world = ClusterWorld(tmp_path)
a, w1 = await world.node("a", "authority"), await world.node("w1", "worker")
await world.publish(a, {"q": deployment()}, 1)
await w1.crash(); w1 = await world.again(w1)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sbctl.base.clock import rfc3339
from sbctl.base.digests import canonical_json
from sbctl.node.cluster_config import ClusterConfig, ClusterStoreServer
from sbctl.node.cluster_documents import ClusterRole
from sbctl.node.messages import RuntimeConfig
from sbctl.node.paths import NodePaths
from sbctl.runtime.cluster.host import Host
from sbctl.runtime.cluster.node import ClusterNode
from sbctl.runtime.drain import Drain
from sbctl.runtime.generation import Generation
from sbctl.runtime.host_devices import HostDevices
from sbctl.runtime.metrics import RuntimeMetrics
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.room import Budget
from sbctl.runtime.settings import Settings
from sbctl.runtime.store import RuntimeStore
from sbctl.trust.bundle import content_digest
from sbctl.trust.cluster_bundle import (
    CLUSTER_BUNDLE_PAYLOAD_TYPE,
    ClusterBundlePayload,
    ClusterContent,
    ClusterDeployment,
)
from sbctl.trust.envelope import sign_envelope
from tests.simulators.cluster_nodes import IDENTITY_NAMES
from tests.simulators.cluster_store import MemoryCluster, MemoryStore
from tests.simulators.cluster_trust import NOW, ClusterAuthority, NodeKit
from tests.simulators.engine_world import EngineWorld, in_virtual_time
from tests.simulators.runtime_world import LINEAGE, Operator

__all__ = ["ClusterWorld", "SimNode", "run_in_cluster"]

GIB = 1 << 30


class LoopClock:
    """Wall time that goes with the loop's own, for its threads too; `ahead_s` of everybody else's."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.ahead_s = 0.0

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self._loop.time() + self.ahead_s)

    def monotonic_s(self) -> float:
        return self._loop.time()

    def sleep_s(self, seconds: float) -> None:
        raise AssertionError("nobody blocks the loop")


class _Store(MemoryStore):
    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def prepare(self, *, replicas: int) -> None: ...


class _Node(ClusterNode):
    """Without a port: nobody dispatches here."""

    def plane_is_ready(self) -> bool:
        return True


class SimNode:
    """One process of one node."""

    def __init__(self, world: ClusterWorld, kit: NodeKit, engines: EngineWorld) -> None:
        self.name, self.kit, self.engines = kit.claims.node_id, kit, engines
        self.clock = LoopClock()
        paths = world.paths(self.name)
        roles = kit.claims.roles
        workers = tuple(name for name, other in world.kits.items() if "worker" in other.claims.roles)
        config = ClusterConfig(
            cluster_id=kit.claims.cluster_id,
            node_id=self.name,
            roles=roles,
            labels=dict(kit.claims.labels),
            store=(ClusterStoreServer(node_id="a", address="127.0.0.1", port=1),),
            expected_nodes=workers if "authority" in roles else (),
        )
        runtime = RuntimeConfig(lineage=LINEAGE, host=self.name, identity=True, cluster=config)
        self.runtime_store = RuntimeStore(paths.database, paths.bundle)
        self.reconciler = Reconciler(
            scope=self.name,
            trust=world.operator.trust,
            store=self.runtime_store,
            ports=engines.ports(),
            clock=self.clock,
            drain_s=5,
            parallel_prepares=2,
        )
        host = Host(
            Settings(paths, runtime, "", started_by_hand=False, content=None),
            self.reconciler,
            engines,  # type: ignore[arg-type]
            Drain(paths),
            RuntimeMetrics(),
            Budget(8 * GIB),
            world.devices.get(self.name, HostDevices({})),
            self.clock,  # type: ignore[arg-type]
        )
        self.node = _Node(host, config, connect=lambda _host, _config: world.connection(self.name, roles))
        self.node.peers.address = "127.0.0.1:1" if "worker" in roles else None

    async def start(self) -> None:
        await self.reconciler.restore((), self.node.restored())
        await self.node.start()

    async def crash(self) -> None:
        """As kill -9: nothing is told to anybody, and its engines are gone."""
        for task in self.node._tasks:
            task.cancel()
        await asyncio.gather(*self.node._tasks, return_exceptions=True)
        await self.reconciler.shutdown(drain_s=0)
        await self.node.close()
        self.runtime_store.close()

    # What is seen from outside

    def generation(self, deployment: str = "q") -> Generation | None:
        return self.reconciler.generations.get(deployment)

    def slots(self, deployment: str = "q") -> list[int]:
        """Of replicas that are ready."""
        found = self.generation(deployment)
        if found is None or found.assigned is None:
            return []
        return [slot for slot, replica in zip(found.assigned.slots, found.replicas, strict=False) if replica.is_ready]

    @property
    def starts(self) -> int:
        return len(self.engines.engines)


class ClusterWorld:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = LoopClock()
        self.operator = Operator(self.clock.now)
        self.authority = ClusterAuthority("prod")
        self.store = MemoryCluster(clock=self.clock)
        self.kits: dict[str, NodeKit] = {}
        self.nodes: dict[str, SimNode] = {}
        self.devices: dict[str, HostDevices] = {}
        """Of nodes that have some."""

    def paths(self, name: str) -> NodePaths:
        prefix = self.folder / name
        return NodePaths(prefix / "etc", prefix / "state", prefix / "cache", prefix / "opt")

    def connection(self, name: str, roles: tuple[ClusterRole, ...]) -> _Store:
        made = _Store(self.store, name, is_authority="authority" in roles)
        self.store.clients = [each for each in self.store.clients if each.node_id != name] + [made]
        return made

    async def build(self, **roles: tuple[ClusterRole, ...]) -> list[SimNode]:
        for name, each in roles.items():
            self.kits[name] = self.authority.node(name, *each, now=NOW - timedelta(hours=1))
            self._write(name, self.kits[name])
        return [await self.start(name) for name in roles]

    async def start(self, name: str, engines: EngineWorld | None = None) -> SimNode:
        made = self.make(name, engines)
        await made.start()
        return made

    def make(self, name: str, engines: EngineWorld | None = None) -> SimNode:
        """Not started yet."""
        usable = self.devices[name].usable if name in self.devices else ()
        sizes = {str(gpu["uuid"]): int(gpu["memory_total_bytes"]) for gpu in usable}
        made = self.nodes[name] = SimNode(self, self.kits[name], engines or EngineWorld(budget_devices=sizes))
        return made

    def _write(self, name: str, kit: NodeKit) -> None:
        paths = self.paths(name)
        held = paths.etc / "identity"
        for directory in (held, paths.state):
            directory.mkdir(parents=True, mode=0o700)
        for field, file in IDENTITY_NAMES.items():
            (held / file).write_text(getattr(kit.files, field), encoding="utf-8")
        (held / "node-key.pem").write_bytes(kit.key.reveal())
        (held / "node-key.pem").chmod(0o600)
        paths.trust.write_text(self.operator.trust_envelope(), encoding="utf-8")

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.crash()

    def bundle(self, deployments: Mapping[str, ClusterDeployment], revision: int) -> str:
        content = ClusterContent(deployments=dict(deployments), origins={}, api_keys={}, public=False)
        values: dict[str, Any] = {"lineage": LINEAGE, "scope": "prod", "cluster_id": "prod", "key_epoch": 0}
        payload = ClusterBundlePayload(
            **values,
            revision=revision,
            issued_at=rfc3339(self.clock.now()),
            catalog_digest="c" * 64,
            content=content,
            content_digest=content_digest(content),
        )
        document = canonical_json(payload.model_dump(mode="json"))
        return sign_envelope(CLUSTER_BUNDLE_PAYLOAD_TYPE, document, self.operator.key, "ops")

    async def publish(self, at: SimNode, deployments: Mapping[str, ClusterDeployment], revision: int) -> None:
        await at.node.desired.publish(self.bundle(deployments, revision), expected_revision=revision - 1 or None)

    def leader(self) -> SimNode | None:
        found = [node for node in self.nodes.values() if node.node.controller and node.node.controller.is_leading]
        return found[0] if len(found) == 1 else None


def run_in_cluster(folder: Path, scenario: Callable[[ClusterWorld], Awaitable[None]]) -> None:
    """In virtual time, in a world of its own below `folder`, which ends however the scenario does."""

    async def work() -> None:
        world = ClusterWorld(folder)
        try:
            await scenario(world)
        finally:
            await world.close()

    in_virtual_time(work)
