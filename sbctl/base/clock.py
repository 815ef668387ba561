"""Time, injected. Wall time decides expiry only; every duration is monotonic. The one module that reads a clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["SYSTEM_CLOCK", "Clock", "SystemClock", "rfc3339", "thread_cpu_s"]


class Clock(Protocol):
    """What code may know about time. Tests pass their own."""

    def now(self) -> datetime:
        """Wall time, aware, UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def sleep_s(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep_s(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()


def thread_cpu_s() -> float:
    """Seconds of a processor that the calling thread has used: what work costs, however busy the machine is."""
    return time.thread_time()


def rfc3339(moment: datetime) -> str:
    """UTC with seconds and a `Z`, as every document of ours writes time."""
    return moment.astimezone(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")
