"""Numbered shapes: each applied once, all or none, a copy kept, and readers that change nothing."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from sbctl.base.errors import StateError
from sbctl.state import database
from sbctl.state.migrations import MIGRATIONS, Migration, migrate
from tests.simulators.state_world import StateWorld, address


def _0002_add_table(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE extra (id INTEGER PRIMARY KEY)")


def _0003_add_row(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO extra (id) VALUES (3)")


def _0003_fails(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO extra (id) VALUES (3)")
    raise sqlite3.OperationalError("power cut")


NEXT: tuple[Migration, ...] = (*MIGRATIONS, _0002_add_table, _0003_add_row)
BROKEN: tuple[Migration, ...] = (*MIGRATIONS, _0002_add_table, _0003_fails)


def version(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def extra_rows(path: Path) -> list[tuple[int]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT id FROM extra").fetchall()


def test_each_function_is_applied_once() -> None:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        assert migrate(connection, NEXT) == 3
        assert migrate(connection, NEXT) == 0
        assert connection.execute("SELECT id FROM extra").fetchall() == [(3,)]


def test_a_reader_of_an_older_format_migrates_a_copy_in_memory(
    world: StateWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.applied(1)
    before = world.paths.database.read_bytes()
    monkeypatch.setattr(database, "MIGRATIONS", NEXT)
    assert set(world.store().read().resources) == {address(1)}
    assert world.paths.database.read_bytes() == before
    assert version(world.paths.database) == 1


def test_the_holder_of_the_lock_migrates_the_file_and_keeps_a_copy(
    world: StateWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.applied(1)
    monkeypatch.setattr(database, "MIGRATIONS", NEXT)
    world.applied(2)
    assert set(world.store().read().resources) == {address(1), address(2)}
    assert (version(world.paths.database), extra_rows(world.paths.database)) == (3, [(3,)])
    kept = world.directory / "state.db.v1"
    assert version(kept) == 1
    assert kept.stat().st_mode & 0o777 == 0o600


def test_B22_a_migration_that_fails_leaves_the_old_format_and_its_copy(
    world: StateWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.applied(1)
    monkeypatch.setattr(database, "MIGRATIONS", BROKEN)
    with pytest.raises(StateError), world.running():
        pass
    monkeypatch.setattr(database, "MIGRATIONS", MIGRATIONS)
    assert version(world.paths.database) == 1
    assert set(world.store().read().resources) == {address(1)}
    assert version(world.directory / "state.db.v1") == 1
    world.applied(2)
    assert set(world.store().read().resources) == {address(1), address(2)}
