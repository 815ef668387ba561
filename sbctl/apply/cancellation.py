"""Being asked to stop.

    nobody asked ─first signal─► stopping: no new step starts, running steps finish
                 ─second signal─► hard: sessions are closed, intents stay open, the next apply reads the hosts first

The state only ever grows. `request` is called from a signal handler, so it takes no lock and only appends.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final

from sbctl.base.errors import ExitCode

__all__ = ["STOP_SIGNALS", "Cancellation", "SignalWatch"]

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Cancellation:
    """Whether and how hard a run was asked to stop. Listeners must be safe inside a signal handler (`SimpleQueue.put` is)."""

    def __init__(self) -> None:
        self._signals: list[signal.Signals] = []
        self._listeners: list[Callable[[], object]] = []

    def request(self, signum: int = signal.SIGINT) -> None:
        """Ask once more: the first call stops softly, the second hard, further ones change nothing."""
        self._signals.append(signal.Signals(signum))
        for listener in tuple(self._listeners):
            listener()

    def listen(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call `listener` at every request; returns how to stop listening."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    @property
    def requests(self) -> int:
        return len(self._signals)

    @property
    def stopping(self) -> bool:
        """No new step may start."""
        return bool(self._signals)

    @property
    def hard(self) -> bool:
        """Running steps are given up too."""
        return len(self._signals) > 1

    @property
    def signal_name(self) -> str | None:
        return self._signals[0].name if self._signals else None

    @property
    def exit_code(self) -> ExitCode:
        """What an interrupted run exits with; DONE while nobody asked."""
        if not self._signals:
            return ExitCode.DONE
        return ExitCode.INTERRUPTED if self._signals[0] == signal.SIGINT else ExitCode.TERMINATED


class SignalWatch:
    """Routes SIGINT, SIGTERM and SIGHUP to a Cancellation while the context is open; main thread only."""

    def __init__(self, cancellation: Cancellation) -> None:
        self._cancellation = cancellation
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Cancellation:
        for number in STOP_SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        return self._cancellation

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # None: installed by something that is not Python, so it cannot be put back by Python either
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        self._cancellation.request(number)
