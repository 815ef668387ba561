"""A request on its way without a task: admitted at once, asked over a kept connection, and ended by the engine's last byte.

Most requests go this way from beginning to end, in two calls: one of the caller's bytes, one of the engine's. What has to wait for something
(a place, a start, a connection) and what failed before its first byte goes on in a task, which begins with what was done here; the rules of
both are the same, and are the way's.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Protocol

from sbctl.runtime.gateway.asking import Attempt
from sbctl.runtime.gateway.relay import Relay
from sbctl.runtime.gateway.request import Request
from sbctl.runtime.generation import Lease

__all__ = ["Begun", "Flight", "Way"]


class Begun:
    """What a request got without waiting: a place at a replica, and the replica asked."""

    __slots__ = ("attempt", "lease")

    def __init__(self, lease: Lease, attempt: Attempt[Relay] | None) -> None:
        self.lease = lease
        self.attempt = attempt
        """None: a connection has to be opened first."""


class Way(Protocol):
    """The rules that a request goes by."""

    def begin(self, request: Request) -> Begun | None:
        """Take what is there for it, without asking yet. None where it has to wait, or is to be refused: `complete` says why."""
        ...

    def ask(self, request: Request, attempt: Attempt[Relay]) -> None:
        """Send the question of an attempt that was begun."""
        ...

    async def complete(self, request: Request, begun: Begun | None) -> None:
        """To its end, whatever that is: it is answered, refused and counted when this returns. Gives back what was begun."""
        ...

    def ended(self, request: Request, relay: Relay | None, status: int) -> None:
        """Settle and count a request that `complete` did not."""
        ...


class Flight:
    """One request from its arrival to its last byte. `cancel` it when its caller is gone."""

    __slots__ = ("_begun", "_counted", "_in_task", "_is_over", "_request", "_task", "_way")

    def __init__(self, way: Way, counted: AbstractContextManager[None], request: Request) -> None:
        """`counted`: entered for as long as it lasts."""
        self._way = way
        self._counted = counted
        self._request = request
        self._begun: Begun | None = None
        self._task: asyncio.Task[None] | None = None
        self._in_task = False
        self._is_over = False

    def start(self) -> None:
        """Raises only what is nobody's fault but ours."""
        self._counted.__enter__()
        try:
            begun = self._begun = self._way.begin(self._request)
            if begun is None or begun.attempt is None:
                self._go_on()
                return
            begun.attempt.sink.ending.listen(self._answered)
            self._way.ask(self._request, begun.attempt)
        except Exception:
            self._land(None, 500)
            raise

    def cancel(self) -> None:
        """Again, and after its end, is nothing. What was asked is taken back from the engine at once."""
        if self._task is not None:
            self._task.cancel()
        if not self._in_task:
            # A task that is cancelled before its first step gives nothing back.
            self._land(None, 499)

    def _answered(self) -> None:
        assert self._begun is not None
        assert self._begun.attempt is not None
        relay = self._begun.attempt.sink
        if relay.ending.error is None:
            self._land(relay, 200)
        else:
            self._go_on()

    def _land(self, relay: Relay | None, status: int) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._counted.__exit__(None, None, None)
        begun, self._begun = self._begun, None
        if begun is not None:
            if begun.attempt is not None:
                begun.attempt.end()
            begun.lease.release()
        self._way.ended(self._request, relay, status)

    def _go_on(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._complete())

    async def _complete(self) -> None:
        self._in_task = True
        try:
            await self._way.complete(self._request, self._begun)
        finally:
            self._counted.__exit__(None, None, None)
