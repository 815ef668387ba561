"""A bundle of a thousand deployments on its way: an authority keeps it, a real store carries it, a worker takes it up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.limits import MIB
from sbctl.runtime.cluster.desired import Desired
from sbctl.runtime.cluster.fences import ClusterFences
from sbctl.runtime.cluster.held_signers import HeldSigners
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.cluster.nats_store import NatsStore
from sbctl.runtime.identity_files import IdentityFiles
from tests.simulators.cluster_bundles import deployment
from tests.simulators.cluster_world import ClusterWorld
from tests.simulators.nats_cluster import NatsCluster
from tests.simulators.store_contract import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

COUNT = 1000


@contextlib.asynccontextmanager
async def following(world: ClusterWorld, servers: NatsCluster, name: str) -> AsyncIterator[Desired]:
    """What one node knows of the desired state, from the real store."""
    paths, is_authority = world.paths(name), name == "a"
    world.kits[name] = world.authority.node(name, "authority" if is_authority else "worker")
    world._write(name, world.kits[name])
    store = NatsStore(
        lambda: servers.servers, lambda: servers.identities.context(name), node_id=name, clock=SYSTEM_CLOCK
    )
    fences = ClusterFences(paths.state / "cluster.db", world.clock)
    trust = HeldTrust("prod", IdentityFiles(paths), paths.state, now=world.clock.now())
    desired = Desired(
        "prod", signers=HeldSigners(paths, fences), trust=trust, fences=fences, store=store, clock=world.clock,
        trust_file=paths.trust, is_authority=is_authority,
    )  # fmt: skip
    await store.start()
    if is_authority:
        await eventually(lambda: prepared(store))
    task = asyncio.create_task(desired.run())
    try:
        yield desired
    finally:
        task.cancel()
        await asyncio.wait([task])
        await store.close()
        fences.close()


async def prepared(store: NatsStore) -> bool:
    await store.prepare(replicas=1)
    return True


async def test_a_thousand_deployments_are_published_carried_and_taken_up(tmp_path: Path) -> None:
    usual = {"region": "europe-west-4", "accelerator": "nvidia-h200-141gb", "topology.kubernetes.io/zone": "zone-b"}
    one = deployment(required_labels=usual, spread_by=("rack", "topology.kubernetes.io/zone"))
    servers = NatsCluster(tmp_path / "store", ("a",), ("w1",))
    servers.start()
    try:
        servers.wait_ready()
        world = ClusterWorld(tmp_path)
        async with following(world, servers, "a") as authority, following(world, servers, "w1") as worker:
            text = world.bundle({f"a-deployment-of-a-usual-name-{number:04}": one for number in range(COUNT)}, 1)
            assert len(text) > MIB
            await authority.publish(text, expected_revision=None)

            async with asyncio.timeout(120):
                while not (authority.in_store and worker.held is not None):
                    await asyncio.sleep(0.1)
            assert worker.held is not None
            assert len(worker.held.payload.content.deployments) == COUNT
            assert worker.held.envelope == text
    finally:
        servers.stop()
