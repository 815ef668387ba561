"""One question over a kept connection, and the answer on its way back.

A kept connection may have been closed under the question: that says nothing about who should answer, and is tried once more on a fresh one.
Leaving early closes the connection, which is how a question is taken back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from sbctl.base.errors import EngineError, SbctlError
from sbctl.runtime.gateway.ports import Client
from sbctl.runtime.gateway.upstream import ENGINE_ERRORS, AnswerSink, EngineConnection, Pool

__all__ = ["Answering", "Attempt", "Ending", "ask_over"]


class Ending:
    """How an answer ended, which it does once. One listener is told at once, in the very call that brought the last byte; or one waits."""

    __slots__ = ("_listener", "error", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self.error: SbctlError | None = None
        """Why the caller has no answer."""
        self._listener: Callable[[], None] | None = None

    def end(self, error: SbctlError | None = None) -> None:
        """Again is nothing."""
        if self.is_over:
            return
        self.is_over, self.error = True, error
        # Who listens holds what is listened to: a circle, which would keep all of a request until the collector comes.
        listener, self._listener = self._listener, None
        if listener is not None:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Before the question is sent."""
        self._listener = listener

    async def wait(self) -> None:
        """Raises the error that it ended with."""
        if not self.is_over:
            over = asyncio.get_running_loop().create_future()
            self._listener = lambda: None if over.done() else over.set_result(None)
            await over
        if self.error is not None:
            raise self.error


class Answering(AnswerSink, Protocol):
    """Takes one answer. `ending` comes when the caller has it, or why there is none is known."""

    ending: Ending

    @property
    def heard(self) -> bool:
        """Whether anything was answered."""
        ...

    @property
    def is_satisfied(self) -> bool:
        """Whether all that was asked was done: the connection may be kept."""
        ...


Sink = TypeVar("Sink", bound=Answering)


class Attempt(Generic[Sink]):
    """A question over one connection; `end` it whatever came of it."""

    __slots__ = ("_client", "_connection", "_was_used", "sink")

    def __init__(self, connection: EngineConnection, client: Client, sink: Sink) -> None:
        self._connection = connection
        self._client = client
        self._was_used = connection.is_reused
        self.sink = sink

    def send(self, head: bytes, body: bytes) -> None:
        self._client.feed_from(self._connection)
        self._connection.send(head, body, self.sink)

    def end(self) -> None:
        self._client.feed_from(None)
        self._connection.let_go(self.sink, is_satisfied=self.sink.is_satisfied)

    @property
    def says_nothing(self) -> bool:
        """The connection was closed under the question."""
        return self._was_used and not self.sink.heard and not self._connection.is_open


async def ask_over(
    pool: Pool,
    client: Client,
    write: Callable[[], tuple[bytes, bytes]],
    listen: Callable[[], Sink],
    *,
    unreached: str,
    sent: Attempt[Sink] | None = None,
) -> Sink:
    """`write` makes head and body, anew for each connection; `listen` what takes the answer; `unreached`: the code when nobody is there; `sent`:
    the question was asked already, and this is how.

    Raises EngineError `unreached`, and whatever the sink's answer ended with: always before the first byte of an answer.
    """
    attempt = sent
    for fresh in (False, True):
        if attempt is None:
            sink = listen()
            try:
                connection = await pool.connection(fresh=fresh)
            except ENGINE_ERRORS as error:
                why = f"nobody answered: {type(error).__name__}"
                raise EngineError(unreached, why, retryable=True) from error
            attempt = Attempt(connection, client, sink)
        try:
            if attempt is not sent:
                attempt.send(*write())
            await attempt.sink.ending.wait()
            return attempt.sink
        except EngineError:
            if fresh or not attempt.says_nothing:
                raise
        finally:
            attempt.end()
        attempt = None
    raise AssertionError("a fresh connection returns or raises")
