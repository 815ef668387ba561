"""What happened on this node, in the runtime's database: the newest 10,000 events, for `sbctl events`.

Telling never waits and never fails: a thread writes, and what cannot be written is lost with one line in the log. The table is an addition
that older runtimes do not look at, so an upgrade that is taken back finds its database as it was. A killed process may lose its last
moment, never more.
"""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbctl.base.clock import Clock, rfc3339
from sbctl.base.display import display_safe
from sbctl.base.errors import HostError
from sbctl.base.secret import redact
from sbctl.node.records import EventKind, EventsAnswer, NodeEvent
from sbctl.runtime.log import get_log

__all__ = ["EVENTS_KEPT", "NO_EVENTS", "EventLog", "EventSink", "Told", "read_events", "record_event"]

EVENTS_KEPT: Final = 10_000
_MESSAGE_MAX_CHARS: Final = 500
_WAITING_MAX: Final = 4096
_CLOSE_S: Final = 5.0
_BUSY_S: Final = 5.0

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS event (seq INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, kind TEXT NOT NULL, message TEXT NOT NULL,
                                  deployment TEXT, replica INTEGER, generation INTEGER) STRICT
"""
_INSERT: Final = "INSERT INTO event (at, kind, message, deployment, replica, generation) VALUES (?, ?, ?, ?, ?, ?)"
_SELECT: Final = """
SELECT seq, at, kind, message, deployment, replica, generation FROM event WHERE seq > ? AND at >= ? AND (? IS NULL OR deployment = ?)
"""
_BEHIND: Final = f"{_SELECT} ORDER BY seq LIMIT ?"
_NEWEST: Final = f"{_SELECT} ORDER BY seq DESC LIMIT ?"


_Row = tuple[str, str, str, str | None, int | None, int | None]
"""A row of the table without its number."""


@dataclass(frozen=True, slots=True)
class Told:
    """One event, before it has a time and a place in the log."""

    kind: EventKind
    message: str
    deployment: str | None = None
    replica: int | None = None
    generation: int | None = None


class EventSink:
    """Whoever wants to know what happens; this one forgets it. Others say in `take` what they do with it, which never waits and never raises."""

    def tell(
        self,
        kind: EventKind,
        message: str,
        *,
        deployment: str | None = None,
        replica: int | None = None,
        generation: int | None = None,
    ) -> None:
        """Never waits, never raises."""
        self.take(Told(kind, message, deployment, replica, generation))

    def take(self, told: Told) -> None:
        """For `tell`."""


NO_EVENTS: Final = EventSink()


class EventLog(EventSink):
    """Remembers in `database`, which the runtime's store made. `close` writes what still waits."""

    def __init__(self, database: Path, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._waiting: queue.Queue[_Row | None] = queue.Queue(maxsize=_WAITING_MAX)
        self._log = get_log("events")
        self._failed = False
        self._thread = threading.Thread(target=self._write, name="events", daemon=True)
        self._thread.start()

    def take(self, told: Told) -> None:
        """As `EventSink` promises."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(_row(told, self._clock))

    def close(self) -> None:
        """Write what waits, for at most some seconds."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=_CLOSE_S)
        self._thread.join(_CLOSE_S)

    def _write(self) -> None:
        ended = False
        while not ended:
            rows = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while len(rows) < _WAITING_MAX:
                    rows.append(self._waiting.get_nowait())
            ended = None in rows
            told = [row for row in rows if row is not None]
            if told:
                self._store(told)

    def _store(self, rows: list[_Row]) -> None:
        try:
            _insert(self._database, rows)
            self._failed = False
        except sqlite3.Error as error:
            if not self._failed:
                self._log.warning("events are not remembered", error=str(error))
            self._failed = True


def record_event(database: Path, clock: Clock, kind: EventKind, message: str, *, deployment: str | None = None) -> None:
    """Remember one event from beside the runtime, which may be down; nothing where there never was one. Never raises."""
    if database.is_file():
        with contextlib.suppress(sqlite3.Error):
            _insert(database, [_row(Told(kind, message, deployment), clock)])


def read_events(
    database: Path, *, after: int | None, limit: int, deployment: str | None = None, since: str = ""
) -> EventsAnswer:
    """Events behind `after`, oldest first; without it the newest `limit`, from `since` (RFC 3339) on.

    A database that was made anew since `after` begins again at its first. Raises HostError `events.unreadable`.
    """
    if not database.is_file():
        return EventsAnswer(events=(), cursor=0)
    try:
        return _read(database, after, limit, deployment, since)
    except sqlite3.Error as error:
        raise HostError(
            "events.unreadable",
            f"the events cannot be read: {error}",
            place=str(database),
            retryable=True,
            next_step="run the command again; if it stays so, look at the disk of the host",
        ) from error


def _read(database: Path, after: int | None, limit: int, deployment: str | None, since: str) -> EventsAnswer:
    uri = f"{database.as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)) as connection:
        # All of one moment: an event that came between two questions would be told with this cursor and again behind it.
        connection.execute("BEGIN")
        if connection.execute("SELECT 1 FROM sqlite_master WHERE type='table' AND name='event'").fetchone() is None:
            return EventsAnswer(events=(), cursor=0)
        newest = int(connection.execute("SELECT coalesce(max(seq), 0) FROM event").fetchone()[0])
        behind = after if after is not None and after <= newest else 0
        rows = connection.execute(
            _NEWEST if after is None else _BEHIND, (behind, since, deployment, deployment, limit + 1)
        ).fetchall()
    more = after is not None and len(rows) > limit
    rows = rows[:limit]
    if after is None:
        rows.reverse()
    events = tuple(
        NodeEvent(
            seq=row[0], at=row[1], kind=row[2], message=row[3], deployment=row[4], replica=row[5], generation=row[6]
        )
        for row in rows
    )
    return EventsAnswer(events=events, cursor=events[-1].seq if more else newest, more=more)


def _insert(database: Path, rows: Sequence[_Row]) -> None:
    """A connection of its own, for a moment: the store's is the fence's, and waits for the disk at every commit."""
    uri = f"{database.as_uri()}?mode=rw"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_TABLE)
        connection.executemany(_INSERT, rows)
        connection.execute("DELETE FROM event WHERE seq <= (SELECT max(seq) FROM event) - ?", (EVENTS_KEPT,))
        connection.execute("COMMIT")


def _row(told: Told, clock: Clock) -> _Row:
    shown = display_safe(redact(told.message), max_chars=_MESSAGE_MAX_CHARS)[: 2 * _MESSAGE_MAX_CHARS]
    return rfc3339(clock.now()), told.kind.value, shown, told.deployment, told.replica, told.generation
