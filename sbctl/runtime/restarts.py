"""When an engine that failed is started again.

After 1 s, doubled, at most 60 s, each shortened at random by up to half so that many do not start together; after 5 failures in a row not
until a reset, a load by an operator or a new bundle (`crash_loop`). A minute of being ready ends the row. A failure that no retry can cure is
not retried by itself; the next request or load tries again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sbctl.base.errors import SbctlError
from sbctl.base.limits import CRASH_LOOP_ATTEMPTS, RESTART_BACKOFF_CAP_S, RESTART_BACKOFF_FIRST_S

__all__ = ["Restarts", "backoff_s"]

_STABLE_AFTER_S: Final = 60.0


def backoff_s(failures: int, chance: float) -> float:
    """Seconds before the attempt after `failures` failures in a row; `chance` in 0..1 takes away up to half."""
    full = min(RESTART_BACKOFF_CAP_S, RESTART_BACKOFF_FIRST_S * 2.0 ** (failures - 1))
    return full * (1 - chance / 2)


class Restarts:
    """Of one replica. `count`: those that nobody asked for, since the last reset. `chance` gives 0..1."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self.count = 0
        self.is_crash_loop = False
        self._chance = chance
        self._in_a_row = 0
        self._ready_at_s = 0.0

    def forgive(self) -> None:
        """Somebody asks for a start all the same."""
        self.is_crash_loop, self._in_a_row = False, 0

    def reset(self) -> None:
        self.forgive()
        self.count = 0

    def note_ready(self, now_s: float) -> None:
        self._ready_at_s = now_s

    def after_failure(self, error: SbctlError, now_s: float, *, was_ready: bool) -> float | None:
        """Seconds until the next attempt; None: there is none by itself."""
        if was_ready and now_s - self._ready_at_s >= _STABLE_AFTER_S:
            self._in_a_row = 0
        self._in_a_row += 1
        if self._in_a_row >= CRASH_LOOP_ATTEMPTS:
            self.is_crash_loop = True
        elif error.retryable:
            self.count += 1
            return backoff_s(self._in_a_row, self._chance())
        return None

    def without_room_s(self) -> float:
        """Seconds until room may be there. Nothing failed."""
        return backoff_s(CRASH_LOOP_ATTEMPTS, self._chance())
