"""The store in memory keeps the contract that the real one keeps (tests/integration/test_cluster_store.py), also with its faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sbctl.base.errors import SbctlError
from sbctl.runtime.cluster.store import BUNDLE_KEY, Bucket
from tests.simulators.cluster_store import MemoryCluster
from tests.simulators.engine_world import in_virtual_time
from tests.simulators.store_contract import CONTRACT, StoreWorld, watching


class MemoryWorld:
    def __init__(self) -> None:
        self.cluster = MemoryCluster()
        self.a = self.cluster.client("a", is_authority=True)
        self.b = self.cluster.client("b", is_authority=True)
        self.w1 = self.cluster.client("w1")

    async def interrupt(self, work: Callable[[], Awaitable[None]]) -> None:
        self.cluster.cut("w1")
        await work()
        self.cluster.mend("w1")

    async def lose_data(self) -> None:
        self.cluster.lose_data()


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_the_contract_holds(check: Callable[[StoreWorld], Awaitable[None]]) -> None:
    async def run() -> None:
        await check(MemoryWorld())

    in_virtual_time(run)


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_it_holds_with_events_twice_and_slow_calls(check: Callable[[StoreWorld], Awaitable[None]]) -> None:
    async def run() -> None:
        world = MemoryWorld()
        world.cluster.double_events, world.cluster.delay_s = True, 0.1
        await check(world)

    in_virtual_time(run)


def test_who_is_cut_off_learns_since_when_and_nothing_else() -> None:
    async def run() -> None:
        world = MemoryWorld()
        since = world.w1.status().since
        assert world.w1.status().state == "connected"
        world.cluster.cut("w1")
        assert world.w1.status().state == "lost"
        assert world.w1.status().since >= since
        with pytest.raises(SbctlError) as lost:
            await world.w1.get(Bucket.DESIRED, BUNDLE_KEY)
        assert (lost.value.code, lost.value.retryable) == ("store.unreachable", True)
        world.cluster.mend("w1")
        world.cluster.quorum = False
        assert world.a.status().state == "no_quorum"
        with pytest.raises(SbctlError) as stuck:
            await world.a.put(Bucket.DESIRED, BUNDLE_KEY, b"x")
        assert stuck.value.code == "store.no_quorum"

    in_virtual_time(run)


def test_a_write_without_an_answer_says_that_it_may_have_happened() -> None:
    async def run() -> None:
        world = MemoryWorld()
        world.cluster.lose_answers = True
        with pytest.raises(SbctlError) as unknown:
            await world.a.put(Bucket.DESIRED, BUNDLE_KEY, b"x")
        assert unknown.value.code == "store.outcome_unknown"
        entry = await world.a.get(Bucket.DESIRED, BUNDLE_KEY)
        assert entry is not None

    in_virtual_time(run)


def test_an_event_that_was_lost_is_found_by_the_audit() -> None:
    async def run() -> None:
        world = MemoryWorld()
        async with watching(world.w1, Bucket.DESIRED) as seen:
            world.cluster.lose_events = True
            await world.a.put(Bucket.DESIRED, BUNDLE_KEY, b"x")
            await asyncio.sleep(0)
            assert seen.values == {}
            await seen.has({BUNDLE_KEY: b"x"})

    in_virtual_time(run)
