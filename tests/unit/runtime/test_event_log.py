"""What happened is remembered: in its order, bounded, from a cursor on, and never in anybody's way."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sbctl.node.records import EventKind
from sbctl.runtime import event_log
from sbctl.runtime.event_log import EventLog, read_events, record_event
from sbctl.runtime.store import RuntimeStore


class Clock:
    def __init__(self) -> None:
        self.moment = datetime(2026, 11, 29, 12, tzinfo=UTC)

    def now(self) -> datetime:
        return self.moment

    def monotonic_s(self) -> float:
        return 0.0

    def sleep_s(self, seconds: float) -> None: ...


@pytest.fixture
def database(tmp_path: Path) -> Path:
    RuntimeStore(tmp_path / "runtime.db", tmp_path / "bundle.json").close()
    return tmp_path / "runtime.db"


def told(database: Path, *messages: str, deployment: str | None = None) -> None:
    log = EventLog(database, Clock())
    for message in messages:
        log.tell(EventKind.REPLICA_CHANGED, message, deployment=deployment, replica=0)
    log.close()


def test_events_come_back_in_their_order_and_from_a_cursor_on(database: Path) -> None:
    told(database, "a", "b", "c")
    first = read_events(database, after=None, limit=2)
    assert [event.message for event in first.events] == ["b", "c"]
    assert read_events(database, after=first.cursor, limit=10).events == ()
    told(database, "d", "e", "f", deployment="chat")
    part = read_events(database, after=first.cursor, limit=2)
    assert ([event.message for event in part.events], part.more) == (["d", "e"], True)
    rest = read_events(database, after=part.cursor, limit=2)
    assert ([event.message for event in rest.events], rest.more) == (["f"], False)
    assert len(read_events(database, after=None, limit=9, deployment="chat").events) == 3
    assert read_events(database, after=None, limit=9, since="2026-11-29T12:00:01Z").events == ()


def test_an_event_that_comes_while_others_are_read_is_told_once(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(database, "a")
    connect = sqlite3.connect

    class Busy(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            answer = super().execute(sql, *values)
            if sql.startswith("SELECT coalesce(max(seq)"):
                with monkeypatch.context() as patched:
                    patched.setattr(sqlite3, "connect", connect)
                    record_event(database, Clock(), EventKind.REPLICA_CHANGED, "meanwhile")
            return answer

    monkeypatch.setattr(sqlite3, "connect", partial(connect, factory=Busy))
    first = read_events(database, after=0, limit=9)
    monkeypatch.setattr(sqlite3, "connect", connect)
    then = read_events(database, after=first.cursor, limit=9)
    assert [event.message for event in (*first.events, *then.events)] == ["a", "meanwhile"]


def test_a_filter_moves_the_cursor_past_what_it_leaves_out(database: Path) -> None:
    told(database, "other", "other")
    answer = read_events(database, after=0, limit=5, deployment="chat")
    assert (answer.events, answer.cursor) == ((), 2)


def test_a_database_that_was_made_anew_begins_again(database: Path) -> None:
    told(database, "new")
    assert [event.message for event in read_events(database, after=99, limit=5).events] == ["new"]


def test_only_the_newest_are_kept(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "EVENTS_KEPT", 3)
    told(database, *"abcdef")
    assert [event.message for event in read_events(database, after=0, limit=9).events] == ["d", "e", "f"]


def test_secrets_and_control_characters_are_not_remembered(database: Path) -> None:
    told(database, "Authorization: Bearer sk-abcdefghijklmnopqrstuvwxyz012345 \x1b[31m" + "x" * 5000)
    (event,) = read_events(database, after=0, limit=1).events
    assert "sk-abcdef" not in event.message
    assert "\x1b" not in event.message
    assert len(event.message) <= 1000


def test_beside_the_runtime_an_event_is_remembered_too_and_an_older_runtime_reads_on(database: Path) -> None:
    record_event(database, Clock(), EventKind.RUNTIME_ROLLED_BACK, "to 0.1.0")
    assert [event.kind for event in read_events(database, after=0, limit=9).events] == ["runtime.rolled_back"]
    with sqlite3.connect(database) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    RuntimeStore(database, database.with_name("bundle.json")).close()


def test_what_is_not_there_is_no_error(tmp_path: Path, database: Path) -> None:
    record_event(tmp_path / "none.db", Clock(), EventKind.RUNTIME_STARTED, "x")
    assert not (tmp_path / "none.db").exists()
    assert read_events(tmp_path / "none.db", after=None, limit=9).events == ()
    assert read_events(database, after=None, limit=9).events == ()


def test_a_database_that_cannot_be_written_loses_events_and_nothing_else(tmp_path: Path) -> None:
    database = tmp_path / "runtime.db"
    database.write_bytes(b"no database" * 100)
    told(database, "lost")
    record_event(database, Clock(), EventKind.RUNTIME_STARTED, "lost")
    assert database.read_bytes() == b"no database" * 100
