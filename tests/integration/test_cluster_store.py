"""The contract of the cluster's store against real servers, one and three, and what only real servers can show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import SbctlError, UnreachableError
from sbctl.node.store_messages import StoreNode
from sbctl.runtime.cluster.nats_store import NatsStore, StoreTiming
from sbctl.runtime.cluster.store import BUNDLE_KEY, Bucket, node_key
from tests.simulators.nats_cluster import NatsCluster
from tests.simulators.store_contract import CONTRACT, StoreWorld, eventually, watching

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

_TIMING = StoreTiming(first_pause_s=0.1, longest_pause_s=1.0, audit_s=1.0, probe_s=0.5, patience_s=3.0)
_SLOW_AND_THE_SAME = {"a_value_may_end_by_itself", "names_and_sizes_have_bounds"}
"""What one server shows as well as three."""


class NatsWorld:
    def __init__(self, cluster: NatsCluster) -> None:
        self.cluster = cluster
        self.a, self.b, self.w1 = self.client("a"), self.client("b"), self.client("w1")

    def client(self, node_id: str) -> NatsStore:
        cluster = self.cluster
        return NatsStore(
            lambda: cluster.servers,
            lambda: cluster.identities.context(node_id),
            node_id=node_id,
            clock=SYSTEM_CLOCK,
            timing=_TIMING,
        )

    async def prepare(self) -> None:
        async def ready() -> bool:
            await self.a.prepare(replicas=len(self.cluster.members))
            return True

        await eventually(ready)

    async def empty(self) -> None:
        await self.prepare()
        for store, bucket, keys in (
            (self.a, Bucket.DESIRED, ("bundle", "trust", "revocations", "counter")),
            (self.a, Bucket.ASSIGNMENTS, ("w1", "w2", "plan")),
            (self.a, Bucket.LEASES, ("controller",)),
            (self.a, Bucket.NODES, (node_key("a"),)),
            (self.w1, Bucket.NODES, (node_key("w1"),)),
        ):
            for key in keys:
                if await store.get(bucket, key) is not None:
                    await store.delete(bucket, key)

    async def interrupt(self, work: Callable[[], Awaitable[None]]) -> None:
        """Its connection is cut at the client's end; the next one is made at once."""
        link = self.w1._link
        assert link is not None
        await link._client.close()
        await work()

    async def lose_data(self) -> None:
        await asyncio.to_thread(self._lose_data)
        await self.prepare()

    def _lose_data(self) -> None:
        self.cluster.kill()
        self.cluster.wipe()
        self.cluster.start()
        self.cluster.wait_ready()


@asynccontextmanager
async def world_of(cluster: NatsCluster) -> AsyncIterator[NatsWorld]:
    world = NatsWorld(cluster)
    stores = (world.a, world.b, world.w1)
    try:
        for store in stores:
            await store.start()
        await world.empty()
        yield world
    finally:
        for store in stores:
            await store.close()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """`b` is an authority that runs no server."""
    yield from _running(
        NatsCluster(tmp_path_factory.mktemp("one"), ("a",), ("w1", "w2")), StoreNode(node_id="b", is_authority=True)
    )


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    yield from _running(NatsCluster(tmp_path_factory.mktemp("three"), ("a", "b", "c"), ("w1", "w2")))


def _running(cluster: NatsCluster, *more: StoreNode) -> Iterator[NatsCluster]:
    for node in more:
        cluster.nodes.append(node)
        cluster.identities.give(node.node_id, "authority")
    try:
        cluster.start()
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
async def test_one_server_keeps_the_contract(one: NatsCluster, check: Callable[[StoreWorld], Awaitable[None]]) -> None:
    async with world_of(one) as world:
        await check(world)


@pytest.mark.parametrize(
    "check",
    [check for check in CONTRACT if check.__name__ not in _SLOW_AND_THE_SAME],
    ids=lambda check: check.__name__,
)
async def test_three_servers_keep_the_contract(
    three: NatsCluster, check: Callable[[StoreWorld], Awaitable[None]]
) -> None:
    """A busy machine may make them vote in between, which a store tells; then it is asked again."""
    for attempt in range(1, 4):
        try:
            async with world_of(three) as world:
                await check(world)
            return
        except UnreachableError as error:
            if error.code != "store.no_quorum" or attempt == 3:
                raise
            await asyncio.to_thread(three.wait_ready)


async def test_another_leader_takes_over_and_a_watch_survives_it(three: NatsCluster) -> None:
    async with world_of(three) as world, watching(world.w1, Bucket.DESIRED) as seen:
        await eventually(lambda: world.a.put(Bucket.DESIRED, BUNDLE_KEY, b"before"))
        leader = await asyncio.to_thread(three.leader, Bucket.DESIRED)
        assert leader is not None
        three.kill(leader)
        await eventually(lambda: world.b.put(Bucket.DESIRED, BUNDLE_KEY, b"after"))
        await seen.has({BUNDLE_KEY: b"after"})
        three.start(leader)
        await asyncio.to_thread(three.wait_ready)

        async def connected() -> bool | None:
            return True if world.a.status().state == "connected" else None

        await eventually(connected)


async def test_acknowledged_writes_survive_kill_9_of_all_three(three: NatsCluster) -> None:
    async with world_of(three) as world:
        acknowledged: dict[str, int] = {}
        asked: dict[str, int] = {}
        killed = asyncio.Event()

        async def write() -> None:
            number = 0
            while not killed.is_set():
                number += 1
                key = ("trust", "revocations", "bundle")[number % 3]
                asked[key] = number
                with suppress(UnreachableError):
                    await world.a.put(Bucket.DESIRED, key, str(number).encode())
                    acknowledged[key] = number

        writing = asyncio.create_task(write())
        while len(acknowledged) < 3 or max(acknowledged.values()) < 60:
            await asyncio.sleep(0.01)
        three.kill()
        killed.set()
        await writing

        async def noticed() -> bool | None:
            return None if world.a.status().state == "connected" else True

        await eventually(noticed)
        three.start()
        await asyncio.to_thread(three.wait_ready)
        for key, value in acknowledged.items():
            entry = await eventually(lambda key=key: world.b.get(Bucket.DESIRED, key))
            # What was not acknowledged may have happened.
            assert value <= int(entry.value) <= asked[key], key


@pytest.mark.soak
async def test_a_store_without_quorum_says_so_and_comes_back(three: NatsCluster) -> None:
    async with world_of(three) as world:
        await world.a.put(Bucket.DESIRED, BUNDLE_KEY, b"kept")
        three.kill("b", "c")

        async def stuck() -> bool | None:
            return True if world.a.status().state == "no_quorum" else None

        await eventually(stuck)
        with pytest.raises(SbctlError) as refused:
            await world.a.put(Bucket.DESIRED, BUNDLE_KEY, b"perhaps")
        assert refused.value.retryable
        three.start("b", "c")
        await asyncio.to_thread(three.wait_ready)
        entry = await eventually(lambda: world.w1.get(Bucket.DESIRED, BUNDLE_KEY))
        assert entry.value in (b"kept", b"perhaps")


async def test_a_node_that_joins_is_let_in_by_a_reload_and_one_that_leaves_is_put_out(one: NatsCluster) -> None:
    import signal

    one.identities.give("w9")
    async with world_of(one) as world:
        late = world.client("w9")
        await late.start()
        try:
            with pytest.raises(SbctlError):
                await late.put(Bucket.NODES, node_key("w9"), b"too early")
            before = world.a._link
            assert before is not None
            one.nodes.append(StoreNode(node_id="w9"))
            one.write_config("a")
            one.signal(signal.SIGHUP)
            await eventually(lambda: late.put(Bucket.NODES, node_key("w9"), b"here"))
            assert world.a._link is before, "who is connected stays connected"
            assert not before.lost.is_set()
            one.nodes.pop()
            one.write_config("a")
            one.signal(signal.SIGHUP)

            async def out() -> bool | None:
                return True if late.status().state == "lost" else None

            await eventually(out)
        finally:
            await late.close()
