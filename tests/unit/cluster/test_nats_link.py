"""A connection to the store that is over is told as lost, whatever its client does about it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nats.errors import ConnectionClosedError
from nats.errors import TimeoutError as NatsTimeoutError

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import HostError, SbctlError, UnreachableError
from sbctl.runtime.cluster.nats_link import Link, StoreServer
from sbctl.runtime.cluster.nats_store import NatsStore, StoreTiming
from sbctl.runtime.cluster.nats_wire import BoundedClient
from sbctl.runtime.cluster.store import Bucket, outcome_unknown, store_unreachable
from sbctl.runtime.cluster.store_answers import no_quorum
from sbctl.runtime.cluster.watching import WatchBuffer
from tests.simulators.fleet import ManualClock


class _Client:
    """Answers nothing, and calls nobody back."""

    def __init__(self, error: Exception, *, is_closed: bool) -> None:
        self._error = error
        self.is_closed = is_closed

    def new_inbox(self) -> str:
        return "inbox"

    async def request(self, *_: object, **__: object) -> None:
        raise self._error

    async def subscribe(self, *_: object, **__: object) -> None:
        raise self._error


QUESTIONS: dict[str, Callable[[Link], Awaitable[Any]]] = {
    "info": lambda link: link.info(Bucket.LEASES),
    "listing": lambda link: link.listing(Bucket.NODES, ""),
    "listen": lambda link: link.listen(Bucket.NODES, "", WatchBuffer(is_whole=True)),
}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize(("error", "closed"), [(ConnectionClosedError(), True), (NatsTimeoutError(), False)])
async def test_a_client_that_closed_without_a_word_is_lost_with_the_next_question(
    question: str, error: Exception, closed: bool
) -> None:
    link = Link(StoreServer("a", "127.0.0.1", 1))
    link._client = _Client(error, is_closed=closed)  # type: ignore[assignment]
    buffer = WatchBuffer(is_whole=True)
    buffer.resynced([], 0)
    link._listeners[1] = buffer
    with pytest.raises(UnreachableError):
        await QUESTIONS[question](link)
    assert (link.lost.is_set(), buffer.has_gap) == (closed, closed)


def test_a_store_that_is_away_is_told_of_once_however_often_it_is_passed_on() -> None:
    first = store_unreachable("a1 at 10.0.0.1:4222: refused")
    assert store_unreachable(first.message).message == first.message


class _OpenLink(Link):
    """A connection that was made, to a server that answers nothing."""

    async def close(self) -> None:
        self.lost.set()


@pytest.mark.parametrize("fault", ["a server", "the identity", "the list of servers"])
async def test_a_fault_that_nobody_thought_of_costs_one_try_and_not_the_store(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {fault}

    def fails_once(what: str) -> None:
        if what in faults:
            faults.remove(what)
            raise ValueError("nonsense")

    async def opened(server: StoreServer, *_: object, **__: object) -> Link:
        fails_once("a server")
        return _OpenLink(server)

    def servers() -> list[StoreServer]:
        fails_once("the list of servers")
        return [StoreServer("a", "127.0.0.1", 1)]

    def context() -> ssl.SSLContext:
        fails_once("the identity")
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    monkeypatch.setattr(Link, "open", opened)
    timing = StoreTiming(first_pause_s=0.01, longest_pause_s=0.01)
    store = NatsStore(servers, context, node_id="a", clock=SYSTEM_CLOCK, timing=timing)
    await store.start()
    try:
        async with asyncio.timeout(60):
            while store.status().state != "connected":
                await asyncio.sleep(0.01)
        assert faults == set()
    finally:
        await store.close()


class _Disk(_OpenLink):
    """To a server that answers questions, and writes as `fault` lets it."""

    fault: SbctlError | None = None
    question_fault: SbctlError | None = None

    async def write(self, *_: object, **__: object) -> int:
        if self.fault is not None:
            raise self.fault
        return 1

    async def read(self, *_: object, **__: object) -> None:
        if self.question_fault is not None:
            raise self.question_fault


async def test_a_store_that_answers_and_takes_no_write_is_told_until_it_takes_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = _Disk(StoreServer("a", "127.0.0.1", 1))

    async def opened(*_: object, **__: object) -> Link:
        return link

    monkeypatch.setattr(Link, "open", opened)
    clock = ManualClock()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    store = NatsStore(lambda: [link.server], lambda: context, node_id="a", clock=clock)

    async def told(*, writes: bool) -> tuple[str, float]:
        clock.advance(60)
        with contextlib.suppress(SbctlError):
            await (store.put(Bucket.NODES, "a.snapshot", b"x") if writes else store.get(Bucket.NODES, "a.snapshot"))
        status = store.status()
        return status.state, (clock.now() - status.since).total_seconds()

    await store.start()
    try:
        assert (await told(writes=True))[0] == "connected"
        for fault in (outcome_unknown(Bucket.NODES, "a.snapshot"), HostError("store.full", "no room")):
            link.fault = fault
            assert await told(writes=True) == ("no_writes", 0)
            assert await told(writes=False) == ("no_writes", 60)
            assert store.status().problem == fault.message
            link.fault = None
            assert await told(writes=True) == ("connected", 0)
        link.fault = outcome_unknown(Bucket.NODES, "a.snapshot")
        assert await told(writes=True) == ("no_writes", 0)
        link.question_fault = no_quorum("nobody leads it")
        assert await told(writes=False) == ("no_quorum", 60)
        assert await told(writes=True) == ("no_quorum", 120), "that is why"
        link.fault = link.question_fault = None
        assert await told(writes=True) == ("connected", 0)
    finally:
        await store.close()


async def test_a_try_that_is_given_up_leaves_no_client_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = asyncio.Event()

    async def connect(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    async def close(*_: object) -> None:
        closed.set()

    monkeypatch.setattr(BoundedClient, "connect", connect)
    monkeypatch.setattr(BoundedClient, "close", close)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trying = asyncio.create_task(Link.open(StoreServer("a", "127.0.0.1", 1), context, node_id="a"))
    await asyncio.sleep(0)
    trying.cancel()
    await asyncio.wait([trying])
    assert closed.is_set()
