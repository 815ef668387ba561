"""What one node call may use, and how it is cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sbctl.base.clock import SYSTEM_CLOCK, Clock
from sbctl.base.errors import InterruptedBySignal
from sbctl.base.secret import Secret
from sbctl.node.paths import NodePaths

__all__ = ["Cancellation", "NodeContext", "Report", "cancelled_error", "run_cancellable"]

Report = Callable[[int, int | None, str], None]
"""done, total (None when unknown), a note."""

_Result = TypeVar("_Result")


def _silent(_done: int, _total: int | None, _note: str) -> None:
    return None


def cancelled_error() -> InterruptedBySignal:
    return InterruptedBySignal("node.cancelled", "the channel was closed while the call ran")


class Cancellation:
    """Set once, from the thread that saw the channel close."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._listeners: list[Callable[[], None]] = []

    def cancel(self) -> None:
        with self._lock:
            self._is_set = True
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` once when it is cancelled; at once when it is already."""
        with self._lock:
            if not self._is_set:
                self._listeners.append(listener)
                return
        listener()

    @property
    def is_set(self) -> bool:
        return self._is_set

    def check(self) -> None:
        """Between two pieces of work. Raises InterruptedBySignal."""
        if self._is_set:
            raise cancelled_error()


@dataclass(frozen=True, slots=True)
class NodeContext:
    """One call's surroundings. `secrets` came beside the parameters and are never logged."""

    paths: NodePaths
    environ: Mapping[str, str]
    uid: int
    report: Report = _silent
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    cancellation: Cancellation = field(default_factory=Cancellation)
    clock: Clock = SYSTEM_CLOCK
    kept: dict[str, object] = field(default_factory=dict)
    """What lives as long as the channel, by the name of who keeps it."""


def run_cancellable(context: NodeContext, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run async work of a call to its end, or until the channel closes. Raises InterruptedBySignal then."""
    import asyncio

    async def run() -> _Result:
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)

        def stop() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

        context.cancellation.subscribe(stop)
        return await task

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise cancelled_error() from None
