"""Wrong credentials in the audit, without letting whoever sends them fill the disk.

Ten are written at once at most, then one a minute; how many were not is in the next that is. The name that was tried is written where an
account has it: what else is typed into that field is now and then a password.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from sbctl.runtime.actor import ACTING, Actor
from sbctl.runtime.audit import Note

__all__ = ["FailedLogins"]

_AT_ONCE: Final = 10
_ONE_EACH_S: Final = 60.0


class FailedLogins:
    """Of one admin listener. `known` says whether an account has a name."""

    def __init__(self, note: Note, known: Callable[[str], bool]) -> None:
        self._note = note
        self._known = known
        self._left = float(_AT_ONCE)
        self._filled_at_s: float | None = None
        self._unwritten = 0
        self._writing: set[asyncio.Task[None]] = set()

    def tell(self, name: str, source: str) -> None:
        """Wrong credentials for `name` came from `source`. Returns at once."""
        now_s = asyncio.get_running_loop().time()
        since_s = 0.0 if self._filled_at_s is None else now_s - self._filled_at_s
        self._left, self._filled_at_s = min(_AT_ONCE, self._left + since_s / _ONE_EACH_S), now_s
        if self._left < 1:
            self._unwritten += 1
            return
        self._left -= 1
        unwritten, self._unwritten = self._unwritten, 0
        who = name if self._known(name) else "an unknown account"
        task = asyncio.create_task(self._write(who, source, unwritten))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, who: str, source: str, unwritten: int) -> None:
        ACTING.set(Actor("nobody", "none", f"admin {source}"))
        await asyncio.to_thread(self._note, "login_failed", who, {"unwritten_before": unwritten})
