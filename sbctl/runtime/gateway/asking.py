"""One question over a kept connection, and the answer on its way back.

A kept connection may have been closed under the question: that says nothing about who should answer, and is tried once more on a fresh one.
Leaving early closes the connection, which is how a question is taken back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from sbctl.base.errors import EngineError
from sbctl.runtime.gateway.ports import Client
from sbctl.runtime.gateway.upstream import ENGINE_ERRORS, AnswerSink, Pool

__all__ = ["Answering", "ask_over"]


class Answering(AnswerSink, Protocol):
    """Takes one answer. `done` ends when the caller has it, or why there is none is known."""

    done: asyncio.Future[None]

    @property
    def heard(self) -> bool:
        """Whether anything was answered."""
        ...

    @property
    def is_satisfied(self) -> bool:
        """Whether all that was asked was done: the connection may be kept."""
        ...


Sink = TypeVar("Sink", bound=Answering)


async def ask_over(
    pool: Pool, client: Client, write: Callable[[], tuple[bytes, bytes]], listen: Callable[[], Sink], *, unreached: str
) -> Sink:
    """`write` makes head and body, anew for each connection; `listen` what takes the answer; `unreached`: the code when nobody is there.

    Raises EngineError `unreached`, and whatever `done` of the sink raises: always before the first byte of an answer.
    """
    for fresh in (False, True):
        sink = listen()
        try:
            connection = await pool.connection(fresh=fresh)
        except ENGINE_ERRORS as error:
            why = f"nobody answered: {type(error).__name__}"
            raise EngineError(unreached, why, retryable=True) from error
        was_used = connection.is_reused
        client.feed_from(connection)
        try:
            connection.send(*write(), sink)
            await sink.done
            return sink
        except EngineError:
            if fresh or not was_used or sink.heard:
                raise
        finally:
            client.feed_from(None)
            connection.let_go(sink, is_satisfied=sink.is_satisfied)
    raise AssertionError("a fresh connection returns or raises")
