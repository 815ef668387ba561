"""Named places where a test may kill this process: every boundary between two durable facts of an apply.

    before_intent intent after_intent ► act ► after_act ► read back ► after_read_back ► outcome ► after_outcome ► record ► after_record

`SBCTL_CRASH_AT=n` is honoured only beside `SBCTL_TESTING=1`: the n-th boundary, counted over all hosts from 1, is the last thing
the process reaches. A number beyond the last boundary kills nothing, so a loop over n ends by itself.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Literal, NoReturn

__all__ = ["Boundary", "CrashPoints"]

Boundary = Literal[
    "before_intent",
    "after_intent",
    "after_act",
    "after_read_back",
    "after_outcome",
    "after_record",
    "before_finish",
    "after_finish",
]


def _kill_self() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL returned")


class CrashPoints:
    """Counts boundaries and acts at one of them. `crash_at=None` costs one comparison a boundary."""

    def __init__(self, crash_at: int | None = None, *, crash: Callable[[], object] = _kill_self) -> None:
        self._crash_at = crash_at
        self._crash = crash
        self._lock = threading.Lock()
        self.reached_count = 0

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> CrashPoints:
        """Never by accident: without `SBCTL_TESTING=1`, or with anything but a positive number, nothing is killed."""
        text = environ.get("SBCTL_CRASH_AT", "") if environ.get("SBCTL_TESTING") == "1" else ""
        return cls(int(text) if text.isascii() and text.isdigit() and int(text) > 0 else None)

    def reached(self, boundary: Boundary) -> None:  # noqa: ARG002 - named at the call for the reader and for subclasses of tests
        if self._crash_at is None:
            return
        with self._lock:
            self.reached_count += 1
            if self.reached_count == self._crash_at:
                self._crash()
