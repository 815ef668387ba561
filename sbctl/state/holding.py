"""The lock on a state. The kernel's `flock` decides and lets go when its holder dies; a row in the database says who, for people only."""

from __future__ import annotations

import sqlite3
from datetime import datetime
from typing import Any, Final

from sbctl.base.clock import Clock, rfc3339
from sbctl.base.display import display_safe
from sbctl.base.errors import LockedError, SbctlError
from sbctl.base.flock import FileLock
from sbctl.state.codec import decode, encode
from sbctl.state.database import open_reader
from sbctl.state.location import StatePaths
from sbctl.state.model import LockInfo

__all__ = ["acquire", "clear_holder", "read_holder", "write_holder"]

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0
_GRACE_S: Final = 0.3
"""Waited for even with no timeout: `StateStore.holder` takes the lock for an instant to see whether it is free."""


def acquire(paths: StatePaths, timeout_s: float, clock: Clock) -> FileLock:
    """The lock, waited for at most `timeout_s` seconds (never less than an instant). Raises LockedError `state.locked` naming the holder as far as known."""
    lock = FileLock(paths.lock)
    deadline_s = clock.monotonic_s() + max(timeout_s, _GRACE_S)
    pause_s = _FIRST_PAUSE_S
    while not lock.try_acquire():
        remaining_s = deadline_s - clock.monotonic_s()
        if remaining_s <= 0:
            raise _locked(paths)
        clock.sleep_s(min(pause_s, remaining_s))
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
    return lock


def _locked(paths: StatePaths) -> LockedError:
    holder = read_holder(paths)
    if holder is None:
        sentence, detail = "the state is locked by another sbctl", dict[str, object]()
    else:
        since = rfc3339(holder.since)
        sentence = f"the state is locked by {holder.who} (pid {holder.pid}, {holder.command}) since {since}"
        detail = {"who": holder.who, "pid": holder.pid, "command": holder.command, "since": since}
    return LockedError(
        "state.locked",
        sentence,
        place=str(paths.lock),
        next_step="wait until it ends, or let this command wait: --lock-timeout 600",
        retryable=True,
        detail=detail,
    )


def write_holder(connection: sqlite3.Connection, info: LockInfo) -> None:
    """Raises sqlite3.Error."""
    body = encode(
        {"who": info.who, "pid": info.pid, "command": info.command, "since": info.since.isoformat()}, what="holder"
    )
    connection.execute("INSERT OR REPLACE INTO holder (id, body) VALUES (1, ?)", (body,))


def clear_holder(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.Error."""
    connection.execute("DELETE FROM holder")


def read_holder(paths: StatePaths) -> LockInfo | None:
    """Who said last that it holds the lock; None when nobody did or it cannot be read."""
    try:
        with open_reader(paths) as connection:
            row = connection.execute("SELECT body FROM holder WHERE id = 1").fetchone()
        raw: dict[str, Any] = decode(row[0])
        return LockInfo(
            who=display_safe(str(raw["who"]), max_chars=200),
            pid=int(raw["pid"]),
            command=display_safe(str(raw["command"]), max_chars=200),
            since=datetime.fromisoformat(raw["since"]),
        )
    except (SbctlError, sqlite3.Error, ValueError, TypeError, KeyError):
        return None
