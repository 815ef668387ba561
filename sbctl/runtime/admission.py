"""The gate in front of one replica: so many requests run, so many wait, the rest hear why not.

Classes are served in order interactive, standard, batch; inside a class first come, first served. So that nobody starves, a class that was
passed over eight times is served next: whoever is first of its class waits for nine others at most, however many of a higher class come.
A class comes from the caller's key, never from a header. A request passes directly only while nobody waits. A permit is held until the
answer's last byte is sent or the caller is gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Literal

from sbctl.base.errors import SbctlError

__all__ = ["AdmissionError", "Gate", "Permit", "Priority"]

Priority = Literal["interactive", "standard", "batch"]
_ORDER: Final[tuple[Priority, ...]] = ("interactive", "standard", "batch")
_PASSED_OVER_MAX: Final = 8


class AdmissionError(SbctlError):
    """Refused at the gate. `code` is the reason; `retry_after_s` when to come back."""

    def __init__(self, code: str, message: str, *, retry_after_s: float) -> None:
        super().__init__(code, message, retryable=True)
        self.retry_after_s = retry_after_s


class Permit:
    """The right to use the replica. Releasing twice is the same as once."""

    __slots__ = ("_gate",)

    def __init__(self, gate: Gate) -> None:
        self._gate: Gate | None = gate

    def release(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            gate._release()


class Gate:
    """Admission of one replica; one event loop uses it."""

    def __init__(self, *, max_active: int, max_queued: int, queue_timeout_ms: int) -> None:
        self._max_active = max_active
        self._max_queued = max_queued
        self._queue_timeout_s = queue_timeout_ms / 1000
        self._active = 0
        self._waiting: Mapping[Priority, deque[asyncio.Future[None]]] = {name: deque() for name in _ORDER}
        self._passed_over: dict[Priority, int] = dict.fromkeys(_ORDER, 0)
        """How often in a row a class that waits saw a permit go to another."""
        self._closed_because: str | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._idle_since_s: float | None = None

    @property
    def active(self) -> int:
        return self._active

    @property
    def queued(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def idle_since_s(self) -> float | None:
        """Loop time since when nothing runs and nothing waits; None while something does, or before `open`."""
        return self._idle_since_s if not self._active and not self.queued else None

    def adjust(self, *, max_queued: int, queue_timeout_ms: int) -> None:
        """New bounds for who comes next; who waits already keeps waiting."""
        self._max_queued = max_queued
        self._queue_timeout_s = queue_timeout_ms / 1000

    def open(self) -> None:
        """Admit from now on. Idle time starts."""
        self._closed_because = None
        self._idle_since_s = asyncio.get_running_loop().time()

    def close(self, reason: str) -> None:
        """Refuse who waits and who comes, with `reason`; what runs goes on."""
        self._closed_because = reason
        for queue in self._waiting.values():
            while queue:
                waiter = queue.popleft()
                if not waiter.done():
                    waiter.set_exception(self._refusal(reason))

    async def drain(self, deadline_s: float, *, reason: str = "draining") -> None:
        """Close, then wait until nothing runs, at most `deadline_s` seconds."""
        self.close(reason)
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._idle.wait()

    def acquire_now(self) -> Permit | None:
        """A permit where one is free and nobody waits for it."""
        if self._closed_because is not None or self._active >= self._max_active or any(self._waiting.values()):
            return None
        self._take()
        return Permit(self)

    async def acquire(self, priority: Priority, *, timeout_s: float | None = None) -> Permit:
        """A permit, at once or after waiting in line, at most `timeout_s` (default: the queue timeout).

        Raises AdmissionError `queue_full`, `queue_timeout`, or the reason it was closed with.
        """
        if self._closed_because is not None:
            raise self._refusal(self._closed_because)
        permit = self.acquire_now()
        if permit is not None:
            return permit
        if self.queued >= self._max_queued:
            raise AdmissionError(
                "queue_full", "too many requests wait for this model", retry_after_s=self._queue_timeout_s
            )
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[priority].append(waiter)
        try:
            async with asyncio.timeout(self._queue_timeout_s if timeout_s is None else timeout_s):
                await waiter
        except BaseException as error:
            self._abandon(priority, waiter)
            if isinstance(error, TimeoutError):
                raise AdmissionError(
                    "queue_timeout", "the request waited too long for this model", retry_after_s=1.0
                ) from None
            raise
        return Permit(self)

    def _abandon(self, priority: Priority, waiter: asyncio.Future[None]) -> None:
        """A waiter that gives up leaves the line, or hands on the permit it was just given."""
        if waiter in self._waiting[priority]:
            self._waiting[priority].remove(waiter)
        elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self._release()

    def _take(self) -> None:
        self._active += 1
        self._idle.clear()
        self._idle_since_s = None

    def _release(self) -> None:
        self._active -= 1
        while self._active < self._max_active and any(self._waiting.values()):
            waiter = self._next_waiter()
            if waiter is None:
                break
            self._take()
            waiter.set_result(None)
        if not self._active:
            self._idle.set()
            self._idle_since_s = asyncio.get_running_loop().time()

    def _next_waiter(self) -> asyncio.Future[None] | None:
        for name in sorted(_ORDER, key=self._is_next):
            queue = self._waiting[name]
            while queue:
                waiter = queue.popleft()
                if not waiter.done():
                    self._note_served(name)
                    return waiter
        return None

    def _is_next(self, name: Priority) -> int:
        """The smallest first: who is overdue, the longest before, else by class (`sorted` keeps that order)."""
        passed = self._passed_over[name]
        return -passed if passed >= _PASSED_OVER_MAX else 0

    def _note_served(self, served: Priority) -> None:
        for name, queue in self._waiting.items():
            self._passed_over[name] = self._passed_over[name] + 1 if queue and name != served else 0

    def _refusal(self, reason: str) -> AdmissionError:
        return AdmissionError(reason, f"the model is not available: {reason.replace('_', ' ')}", retry_after_s=1.0)
