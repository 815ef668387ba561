"""A connection to the store that is over is told as lost, whatever its client does about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nats.errors import ConnectionClosedError
from nats.errors import TimeoutError as NatsTimeoutError

from sbctl.base.errors import UnreachableError
from sbctl.runtime.cluster.nats_link import Link, StoreServer
from sbctl.runtime.cluster.store import Bucket, store_unreachable
from sbctl.runtime.cluster.watching import WatchBuffer


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
