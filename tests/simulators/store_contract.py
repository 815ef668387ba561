"""What every implementation of `ClusterStore` promises, as checks over a world that can be interrupted and can lose its data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pytest

from sbctl.base.errors import SbctlError
from sbctl.runtime.cluster.store import (
    BUNDLE_KEY,
    CONTROLLER_KEY,
    PLAN_KEY,
    VALUE_MAX_BYTES,
    Bucket,
    Changed,
    ClusterStore,
    Gone,
    Resync,
    StoreConflictError,
    Watched,
    node_key,
)

__all__ = ["CONTRACT", "StoreWorld", "Watcher", "eventually", "watching"]

_PATIENCE_S: Final = 60.0


class StoreWorld(Protocol):
    """`a` and `b` are authorities, `w1` and `w2` workers."""

    a: ClusterStore
    b: ClusterStore
    w1: ClusterStore

    async def interrupt(self, work: Callable[[], Awaitable[None]]) -> None:
        """Break w1's connection, do `work` meanwhile where that is possible, and let it come back."""
        ...

    async def lose_data(self) -> None:
        """Everything is gone; the store works again, empty."""
        ...


async def eventually(ask: Callable[[], Awaitable[Any]]) -> Any:
    """The first answer that is no error of ours, and not None."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            try:
                answer = await ask()
                if answer is not None:
                    return answer
            except SbctlError:
                pass
            await asyncio.sleep(0.05)


@dataclass(slots=True)
class Watcher:
    """What a watch told so far: `values` is what its reader believes there is."""

    values: dict[str, bytes]
    told: list[Watched]

    def take(self, watched: Watched) -> None:
        self.told.append(watched)
        match watched:
            case Resync(entries):
                self.values = {entry.key: entry.value for entry in entries}
            case Changed(entry):
                self.values[entry.key] = entry.value
            case Gone(key):
                self.values.pop(key, None)

    async def has(self, values: Mapping[str, bytes]) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while self.values != values:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def watching(store: ClusterStore, bucket: Bucket, prefix: str = "") -> AsyncIterator[Watcher]:
    watcher = Watcher({}, [])

    async def follow() -> None:
        async with aclosing(store.watch(bucket, prefix)) as told:  # type: ignore[type-var]
            async for watched in told:
                watcher.take(watched)

    task = asyncio.create_task(follow())
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while not watcher.told:
                assert not task.done(), task.exception()
                await asyncio.sleep(0.01)
        yield watcher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def a_value_is_read_by_everybody(world: StoreWorld) -> None:
    assert await world.w1.get(Bucket.DESIRED, BUNDLE_KEY) is None
    first = await world.a.put(Bucket.DESIRED, BUNDLE_KEY, b"one")
    second = await world.b.put(Bucket.DESIRED, BUNDLE_KEY, b"two")
    assert second > first
    entry = await world.w1.get(Bucket.DESIRED, BUNDLE_KEY)
    assert entry is not None
    assert (entry.key, entry.value, entry.revision) == (BUNDLE_KEY, b"two", second)


async def only_one_of_two_writers_wins(world: StoreWorld) -> None:
    first = await world.a.compare_and_set(Bucket.LEASES, CONTROLLER_KEY, b"a", expected=0)
    with pytest.raises(StoreConflictError):
        await world.b.compare_and_set(Bucket.LEASES, CONTROLLER_KEY, b"b", expected=0)
    await world.b.compare_and_set(Bucket.LEASES, CONTROLLER_KEY, b"b", expected=first)
    with pytest.raises(StoreConflictError):
        await world.a.compare_and_set(Bucket.LEASES, CONTROLLER_KEY, b"a", expected=first)


async def no_step_of_a_counter_is_lost(world: StoreWorld) -> None:
    async def count(store: ClusterStore) -> None:
        for _ in range(10):
            while True:
                entry = await store.get(Bucket.DESIRED, "counter")
                number, revision = (0, 0) if entry is None else (int(entry.value), entry.revision)
                try:
                    await store.compare_and_set(Bucket.DESIRED, "counter", str(number + 1).encode(), expected=revision)
                    break
                except StoreConflictError:
                    continue

    await asyncio.gather(count(world.a), count(world.b), count(world.a))
    entry = await world.w1.get(Bucket.DESIRED, "counter")
    assert entry is not None
    assert entry.value == b"30"


async def what_was_deleted_may_be_made_again(world: StoreWorld) -> None:
    await world.a.put(Bucket.DESIRED, BUNDLE_KEY, b"one")
    await world.a.delete(Bucket.DESIRED, BUNDLE_KEY)
    await world.a.delete(Bucket.DESIRED, BUNDLE_KEY)
    assert await world.a.get(Bucket.DESIRED, BUNDLE_KEY) is None
    await world.b.compare_and_set(Bucket.DESIRED, BUNDLE_KEY, b"two", expected=0)
    with pytest.raises(StoreConflictError):
        await world.a.compare_and_set(Bucket.DESIRED, BUNDLE_KEY, b"three", expected=0)


async def a_node_writes_under_its_own_name_only(world: StoreWorld) -> None:
    await world.w1.put(Bucket.NODES, node_key("w1"), b"mine")
    elsewhere = (
        (Bucket.NODES, node_key("w2")),
        (Bucket.NODES, node_key("a")),
        (Bucket.NODES, "w1.more"),
        (Bucket.NODES, "w1"),
        (Bucket.DESIRED, BUNDLE_KEY),
        (Bucket.ASSIGNMENTS, "w1"),
        (Bucket.ASSIGNMENTS, PLAN_KEY),
        (Bucket.LEASES, CONTROLLER_KEY),
    )
    for bucket, key in elsewhere:
        with pytest.raises(SbctlError) as refused:
            await world.w1.put(bucket, key, b"not mine")
        assert refused.value.code == "store.denied", (bucket, key)
        assert await world.a.get(bucket, key) is None
    with pytest.raises(SbctlError) as refused:
        await world.a.put(Bucket.NODES, node_key("w1"), b"an authority's, too")
    assert refused.value.code == "store.denied"


async def names_and_sizes_have_bounds(world: StoreWorld) -> None:
    for key in ("", "a b", "a.b.c", "*", ">", "a.*", "x" * 500, "ä", "a\nb"):
        with pytest.raises(SbctlError) as refused:
            await world.a.put(Bucket.DESIRED, key, b"x")
        assert refused.value.code == "store.bad_key", key
    with pytest.raises(SbctlError) as refused:
        await world.a.put(Bucket.LEASES, CONTROLLER_KEY, b"x" * (VALUE_MAX_BYTES[Bucket.LEASES] + 1))
    assert refused.value.code == "store.value_too_large"
    large = b"x" * VALUE_MAX_BYTES[Bucket.ASSIGNMENTS]
    await world.a.put(Bucket.ASSIGNMENTS, PLAN_KEY, large)
    entry = await world.w1.get(Bucket.ASSIGNMENTS, PLAN_KEY)
    assert entry is not None
    assert entry.value == large
    async with watching(world.w1, Bucket.ASSIGNMENTS) as seen:
        assert seen.values == {PLAN_KEY: large}


async def a_watch_tells_what_is_there_and_what_changes(world: StoreWorld) -> None:
    await world.a.put(Bucket.ASSIGNMENTS, "w1", b"one")
    async with watching(world.w1, Bucket.ASSIGNMENTS) as seen:
        assert isinstance(seen.told[0], Resync)
        assert seen.values == {"w1": b"one"}
        await world.b.put(Bucket.ASSIGNMENTS, "w2", b"two")
        await world.a.put(Bucket.ASSIGNMENTS, "w1", b"three")
        await seen.has({"w1": b"three", "w2": b"two"})
        await world.a.delete(Bucket.ASSIGNMENTS, "w1")
        await seen.has({"w2": b"two"})


async def a_watch_of_one_name_tells_of_no_other(world: StoreWorld) -> None:
    async with (
        watching(world.w1, Bucket.NODES, "w1.") as below,
        watching(world.w1, Bucket.NODES, node_key("w1")) as one,
    ):
        await world.a.put(Bucket.NODES, node_key("a"), b"not this")
        await world.w1.put(Bucket.NODES, node_key("w1"), b"this")
        for seen in (below, one):
            await seen.has({node_key("w1"): b"this"})


async def a_slow_reader_gets_the_newest(world: StoreWorld) -> None:
    told = world.w1.watch(Bucket.DESIRED)
    assert await anext(told) == Resync(())
    last = 0
    for number in range(50):
        last = await world.a.put(Bucket.DESIRED, BUNDLE_KEY, str(number).encode())
    revisions = []
    async with asyncio.timeout(_PATIENCE_S):
        while not revisions or revisions[-1] < last:
            watched = await anext(told)
            assert isinstance(watched, Changed)
            revisions.append(watched.entry.revision)
    assert revisions == sorted(set(revisions))
    await told.aclose()  # type: ignore[attr-defined]


async def a_watch_catches_up_after_an_interruption(world: StoreWorld) -> None:
    await world.a.put(Bucket.DESIRED, "trust", b"kept")
    await world.a.put(Bucket.DESIRED, BUNDLE_KEY, b"before")
    async with watching(world.w1, Bucket.DESIRED) as seen:
        assert len(seen.values) == 2

        async def meanwhile() -> None:
            await world.a.put(Bucket.DESIRED, BUNDLE_KEY, b"after")
            await world.a.delete(Bucket.DESIRED, "trust")

        await world.interrupt(meanwhile)
        await seen.has({BUNDLE_KEY: b"after"})


async def lost_data_is_told_and_begins_anew(world: StoreWorld) -> None:
    for number in range(5):
        await world.a.put(Bucket.DESIRED, BUNDLE_KEY, str(number).encode())
    async with watching(world.w1, Bucket.DESIRED) as seen:
        await world.lose_data()
        await seen.has({})
        await eventually(lambda: world.a.put(Bucket.DESIRED, BUNDLE_KEY, b"again"))
        await seen.has({BUNDLE_KEY: b"again"})


async def a_value_may_end_by_itself(world: StoreWorld) -> None:
    async with watching(world.w1, Bucket.NODES) as seen:
        await world.w1.put(Bucket.NODES, node_key("w1"), b"short", ttl_s=1)
        await seen.has({node_key("w1"): b"short"})
        await seen.has({})
    assert await world.a.get(Bucket.NODES, node_key("w1")) is None


CONTRACT: Final = (
    a_value_is_read_by_everybody,
    only_one_of_two_writers_wins,
    no_step_of_a_counter_is_lost,
    what_was_deleted_may_be_made_again,
    a_node_writes_under_its_own_name_only,
    names_and_sizes_have_bounds,
    a_watch_tells_what_is_there_and_what_changes,
    a_watch_of_one_name_tells_of_no_other,
    a_slow_reader_gets_the_newest,
    a_watch_catches_up_after_an_interruption,
    lost_data_is_told_and_begins_anew,
    a_value_may_end_by_itself,
)
