"""Sealed rows: no row can vanish, come twice, move or change unseen, and a write costs the same in a large table."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbctl.base.errors import StateError
from sbctl.state.location import StatePaths
from sbctl.state.migrations import MIGRATIONS, migrate
from sbctl.state.rows import TABLES, Head, Rows, Seal, insert_head, read_head, read_verified

PATHS = StatePaths(Path("/nowhere/.sbctl"))
HEAD = Head("lineage", "fleet", b"k" * 32, serial=3, seals={})


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, MIGRATIONS)
    insert_head(connection, HEAD)
    yield connection
    connection.close()


def damaged(rows: Rows, table: str) -> bool:
    try:
        list(rows.scan(table))  # type: ignore[arg-type]
    except StateError as error:
        assert error.code == "state.corrupt"
        return True
    return False


@given(st.lists(st.binary(min_size=32, max_size=32)), st.randoms())
def test_a_seal_does_not_depend_on_order_and_undoes(digests: list[bytes], chance: object) -> None:
    seal = Seal()
    for digest in digests:
        seal = seal.plus(digest)
    shuffled = list(digests)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    other = Seal()
    for digest in shuffled:
        other = other.plus(digest)
    assert seal == other
    for digest in digests:
        other = other.minus(digest)
    assert other == Seal()


def test_a_head_is_read_as_it_was_written(connection: sqlite3.Connection) -> None:
    assert read_head(connection, PATHS) == HEAD
    head = replace(HEAD, seals={"runs": Seal(2, 77)}, open_serial=3, counts={"done": 1}, last_at="x", sequence=9)
    insert_head(connection, head)
    assert read_head(connection, PATHS) == head


@pytest.mark.parametrize("table", TABLES)
def test_rows_come_back_in_order_and_are_replaced_and_dropped(connection: sqlite3.Connection, table: str) -> None:
    rows = Rows(connection, PATHS)
    keys: list[int] | list[str] = [3, 1, 2] if table in ("journal", "runs", "desired", "snapshots") else ["c", "a", "b"]
    for key in keys:
        rows.put(table, key, f"body {key}".encode())  # type: ignore[arg-type]
    rows.put(table, keys[0], b"again")  # type: ignore[arg-type]
    assert [key for key, _ in rows.scan(table)] == sorted(keys)  # type: ignore[arg-type]
    assert rows.get(table, keys[0]) == b"again"  # type: ignore[arg-type]
    assert rows.drop(table, keys[0])  # type: ignore[arg-type]
    assert not rows.drop(table, keys[0])  # type: ignore[arg-type]
    rows.write_head()
    reread = Rows(connection, PATHS)
    assert reread.head.changes == HEAD.changes + 1
    assert len(list(reread.scan(table))) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM resources WHERE key = 'a'",
        "DELETE FROM resources",
        "INSERT INTO resources SELECT 'c', body, digest FROM resources WHERE key = 'a'",
        "UPDATE resources SET body = x'7b7d' WHERE key = 'a'",
        "UPDATE resources SET body = 'text' WHERE key = 'a'",
        "UPDATE resources SET digest = x'00' WHERE key = 'a'",
        "UPDATE resources SET key = 'z' WHERE key = 'a'",
        "UPDATE resources SET body = (SELECT body FROM resources WHERE key = 'b') WHERE key = 'a'",
    ],
)
def test_every_change_behind_our_back_is_seen(connection: sqlite3.Connection, damage: str) -> None:
    rows = Rows(connection, PATHS)
    rows.put("resources", "a", b'{"n":1}')
    rows.put("resources", "b", b'{"n":2}')
    assert not damaged(rows, "resources")
    connection.execute(damage)
    assert damaged(rows, "resources")


def test_a_row_that_another_names_must_be_there(connection: sqlite3.Connection) -> None:
    rows = Rows(connection, PATHS)
    with pytest.raises(StateError, match="runs row 7 is gone"):
        rows.require("runs", 7)


def test_serials_may_be_dropped_while_they_are_walked(connection: sqlite3.Connection) -> None:
    rows = Rows(connection, PATHS)
    for serial in range(1, 6):
        rows.put("snapshots", serial, b"x")
    for serial in rows.serials("snapshots"):
        if serial == 4:
            break
        rows.drop("snapshots", serial)
    assert [key for key, _ in rows.scan("snapshots")] == [4, 5]


def test_a_salvage_takes_what_is_proved_and_leaves_the_rest(connection: sqlite3.Connection) -> None:
    rows = Rows(connection, PATHS)
    for serial in (1, 2, 3):
        rows.put("runs", serial, str(serial).encode())
    connection.execute("UPDATE runs SET body = x'00' WHERE key = 2")
    assert [key for key, _ in read_verified(connection, "runs")] == [1, 3]
    connection.execute("DROP TABLE runs")
    assert list(read_verified(connection, "runs")) == []


def test_a_write_touches_as_many_rows_in_a_large_table_as_in_a_small_one(connection: sqlite3.Connection) -> None:
    rows = Rows(connection, PATHS)
    statements: list[str] = []
    connection.set_trace_callback(statements.append)

    def cost() -> int:
        statements.clear()
        rows.put("resources", f"key {len(statements)} {rows.head.seals.get('resources', Seal()).count}", b"{}")
        rows.write_head()
        return len(statements)

    costs = {cost() for _ in range(300)}
    assert costs == {3}
