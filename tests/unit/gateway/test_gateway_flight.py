"""A request without a task: it holds its place until its last byte, gives it back once, and goes on in a task where it has to wait."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any, cast

import pytest

from sbctl.base.errors import EngineError
from sbctl.node.paths import node_paths
from sbctl.runtime.drain import Drain
from sbctl.runtime.gateway.asking import Attempt, Ending
from sbctl.runtime.gateway.flight import Begun, Flight


class Connection:
    is_reused = True

    def __init__(self) -> None:
        self.let_go_satisfied: list[bool] = []

    def send(self, head: bytes, body: bytes, sink: Any) -> None: ...

    def let_go(self, sink: Any, *, is_satisfied: bool) -> None:
        self.let_go_satisfied.append(is_satisfied)


class Client:
    def feed_from(self, source: Any) -> None: ...


class Answer:
    """As a relay."""

    heard = False

    def __init__(self) -> None:
        self.ending = Ending()

    @property
    def is_satisfied(self) -> bool:
        return self.ending.is_over and self.ending.error is None


class Lease:
    released = 0

    def release(self) -> None:
        self.released += 1


class Way:
    """Hands out one place and one connection, or neither."""

    def __init__(self, *, waits: bool = False, fails_at_once: bool = False) -> None:
        self.answer, self.lease, self.connection = Answer(), Lease(), Connection()
        self.waits, self.fails_at_once = waits, fails_at_once
        self.completed: list[Any] = []
        self.statuses: list[int] = []
        self.may_complete = asyncio.Event()

    def begin(self, _request: Any) -> Begun | None:
        if self.waits:
            return None
        attempt: Any = Attempt(cast("Any", self.connection), cast("Any", Client()), cast("Any", self.answer))
        return Begun(cast("Any", self.lease), attempt)

    def ask(self, _request: Any, attempt: Attempt[Any]) -> None:
        attempt.send(b"", b"")
        if self.fails_at_once:
            self.answer.ending.end(EngineError("upstream_failed", "closed"))

    async def complete(self, _request: Any, begun: Begun | None) -> None:
        self.completed.append(begun)
        try:
            await self.may_complete.wait()
        finally:
            if begun is not None:
                begun.lease.release()
            self.ended(None, None, 0)

    def ended(self, _request: Any, _relay: Any, status: int) -> None:
        self.statuses.append(status)


@pytest.fixture
def drain(tmp_path: Path) -> Drain:
    return Drain(node_paths(0, {"SBCTL_NODE_PREFIX": str(tmp_path)}))


def _started(way: Way, drain: Drain) -> Flight:
    flight = Flight(cast("Any", way), drain.request(), cast("Any", None))
    flight.start()
    return flight


async def _settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_answer_ends_it_in_the_call_that_brought_the_last_byte(drain: Drain) -> None:
    way = Way()
    flight = _started(way, drain)
    assert (drain.active, way.lease.released) == (1, 0)
    way.answer.ending.end()
    assert (drain.active, way.lease.released, way.statuses) == (0, 1, [200])
    assert way.connection.let_go_satisfied == [True]
    flight.cancel()
    assert (way.lease.released, way.statuses, way.completed) == (1, [200], [])


async def test_a_caller_that_leaves_takes_its_question_back_at_once(drain: Drain) -> None:
    way = Way()
    flight = _started(way, drain)
    flight.cancel()
    flight.cancel()
    assert (drain.active, way.lease.released, way.statuses) == (0, 1, [499])
    assert way.connection.let_go_satisfied == [False]


@pytest.mark.parametrize("leaves", [False, True])
async def test_nothing_of_it_waits_for_the_collector_of_garbage(drain: Drain, leaves: bool) -> None:
    way = Way()
    seen = weakref.ref(way.answer)
    flight = _started(way, drain)
    gc.disable()
    try:
        flight.cancel() if leaves else way.answer.ending.end()
        way.answer = Answer()
        del flight
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("leaves", [False, True])
async def test_what_has_to_wait_waits_in_a_task(drain: Drain, leaves: bool) -> None:
    way = Way(waits=True)
    flight = _started(way, drain)
    await _settled()
    assert (drain.active, way.completed) == (1, [None])
    if leaves:
        flight.cancel()
    else:
        way.may_complete.set()
    await _settled()
    assert (drain.active, way.statuses) == (0, [0])


@pytest.mark.parametrize("at_once", [False, True])
async def test_what_failed_goes_on_with_what_it_holds(drain: Drain, at_once: bool) -> None:
    way = Way(fails_at_once=at_once)
    _started(way, drain)
    way.answer.ending.end(EngineError("upstream_failed", "closed"))
    await _settled()
    assert way.completed[0].lease is way.lease
    assert (drain.active, way.lease.released) == (1, 0)
    way.may_complete.set()
    await _settled()
    assert (drain.active, way.lease.released, way.statuses) == (0, 1, [0])


@pytest.mark.parametrize("waits", [False, True])
async def test_a_caller_that_leaves_before_the_task_s_first_step_leaves_nothing_behind(
    drain: Drain, waits: bool
) -> None:
    way = Way(waits=waits, fails_at_once=True)
    flight = _started(way, drain)
    flight.cancel()
    await _settled()
    assert (drain.active, way.completed, way.statuses) == (0, [], [499])
    assert way.lease.released == (0 if waits else 1)
