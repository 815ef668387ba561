"""Connections: pragmas in force, identity by name, SQLite's errors in our words."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sbctl.base.errors import DurabilityUnknownError, LockedError, SbctlError, StateError
from sbctl.state import database
from sbctl.state.database import open_reader, open_writer, sqlite_error, use_connection
from sbctl.state.location import StatePaths
from tests.simulators.state_world import StateWorld, recorded

EXPECTED = {
    "journal_mode": "wal",
    "synchronous": 2,
    "foreign_keys": 1,
    "busy_timeout": 5000,
    "trusted_schema": 0,
    "cell_size_check": 1,
}


def pragmas(connection: sqlite3.Connection) -> dict[str, object]:
    return {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in EXPECTED}


def test_the_pragmas_are_in_force_on_every_connection(world: StateWorld) -> None:
    world.applied(1)
    with open_reader(world.paths) as reader:
        assert pragmas(reader) == EXPECTED
    with contextlib.closing(open_writer(world.paths)) as writer:
        assert pragmas(writer) == EXPECTED


class Stubborn(sqlite3.Connection):
    """Says that it never fsyncs, whatever it is told."""

    def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        return super().execute("SELECT 0" if sql == "PRAGMA synchronous" else sql, *parameters)


def test_a_sqlite_that_ignores_a_pragma_is_refused(world: StateWorld) -> None:
    world.applied(1)
    with use_connection(Stubborn), pytest.raises(StateError, match="does not take synchronous") as caught:
        world.store().read()
    assert caught.value.code == "state.pragmas"


def execute(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def without_rows(paths: StatePaths) -> None:
    execute(paths.database, "DELETE FROM head")


def without_tables(paths: StatePaths) -> None:
    execute(paths.database, "DROP TABLE resources")


def another_program(paths: StatePaths) -> None:
    execute(paths.database, "PRAGMA application_id = 77")


def fresh_sqlite(paths: StatePaths) -> None:
    paths.database.unlink()
    execute(paths.database, "PRAGMA user_version = 1")


def newer(paths: StatePaths) -> None:
    execute(paths.database, "PRAGMA user_version = 99")


def version_lost(paths: StatePaths) -> None:
    execute(paths.database, "PRAGMA user_version = 0")


def rollback_journal(paths: StatePaths) -> None:
    execute(paths.database, "PRAGMA journal_mode = DELETE")


def text(paths: StatePaths) -> None:
    paths.database.write_text("version: 4\n" * 1000)


def directory(paths: StatePaths) -> None:
    paths.database.unlink()
    paths.database.mkdir()


def link(paths: StatePaths) -> None:
    moved = paths.directory / "elsewhere.db"
    paths.database.rename(moved)
    paths.database.symlink_to(moved)


def dangling(paths: StatePaths) -> None:
    paths.database.unlink()
    paths.database.symlink_to(paths.directory / "nowhere")


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (without_rows, "state.empty"),
        (without_tables, "state.corrupt"),
        (another_program, "state.foreign"),
        (fresh_sqlite, "state.empty"),
        (newer, "state.too_new"),
        (version_lost, "state.corrupt"),
        (rollback_journal, "state.corrupt"),
        (text, "state.corrupt"),
        (directory, "disk.not_a_file"),
        (link, "disk.not_a_file"),
        (dangling, "disk.not_a_file"),
    ],
)
def test_a_file_that_is_not_our_state_is_refused_by_name(
    world: StateWorld, damage: Callable[[StatePaths], None], code: str
) -> None:
    world.applied(1)
    damage(world.paths)
    assert world.store().exists()
    for use in (world.store().read, world.store().history, world.store().export):
        with pytest.raises(SbctlError) as caught:
            use()
        assert caught.value.code == code
        assert str(world.directory) in (caught.value.place or "")
    with pytest.raises(SbctlError) as caught, world.running():
        pass
    assert caught.value.code == code


def failure(name: str) -> sqlite3.Error:
    error = sqlite3.OperationalError("it failed")
    error.sqlite_errorcode = getattr(sqlite3, name)
    return error


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("SQLITE_FULL", "disk.full"),
        ("SQLITE_READONLY", "disk.read_only"),
        ("SQLITE_READONLY_DIRECTORY", "disk.read_only"),
        ("SQLITE_IOERR", "disk.io_error"),
        ("SQLITE_IOERR_FSYNC", "disk.io_error"),
        ("SQLITE_IOERR_SHORT_READ", "state.corrupt"),
        ("SQLITE_CANTOPEN", "disk.permission"),
        ("SQLITE_PERM", "disk.permission"),
        ("SQLITE_BUSY", "state.busy"),
        ("SQLITE_LOCKED", "state.busy"),
        ("SQLITE_CORRUPT", "state.corrupt"),
        ("SQLITE_NOTADB", "state.corrupt"),
        ("SQLITE_ERROR", "state.corrupt"),
    ],
)
def test_sqlite_errors_become_ours(tmp_path: Path, name: str, code: str) -> None:
    assert sqlite_error(failure(name), StatePaths(tmp_path)).code == code


@pytest.mark.parametrize(
    ("free_bytes", "name", "code"),
    [
        (0, "SQLITE_IOERR_SHMSIZE", "disk.full"),
        (31 * 1024, "SQLITE_IOERR_WRITE", "disk.full"),
        (32 * 1024, "SQLITE_IOERR_WRITE", "disk.io_error"),
        (0, "SQLITE_IOERR_SHORT_READ", "state.corrupt"),
    ],
)
def test_an_io_error_on_a_full_disk_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, name: str, code: str
) -> None:
    monkeypatch.setattr("os.statvfs", lambda _path: SimpleNamespace(f_bavail=free_bytes // 1024, f_frsize=1024))
    assert sqlite_error(failure(name), StatePaths(tmp_path)).code == code


def test_an_error_without_a_code_is_damage(tmp_path: Path) -> None:
    assert sqlite_error(sqlite3.DatabaseError("odd"), StatePaths(tmp_path)).code == "state.corrupt"


class FailingCommit(sqlite3.Connection):
    """Fails COMMIT as often as `error` says so."""

    error: sqlite3.Error | None = None

    def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        if sql == "COMMIT" and FailingCommit.error is not None:
            raise FailingCommit.error
        return super().execute(sql, *parameters)


def test_a_commit_that_failed_on_its_way_to_the_disk_ends_the_run(
    world: StateWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with use_connection(FailingCommit), world.running() as run:
        run.record(recorded(1))
        monkeypatch.setattr(FailingCommit, "error", failure("SQLITE_IOERR_FSYNC"))
        with pytest.raises(DurabilityUnknownError) as caught:
            run.record(recorded(2))
        assert caught.value.code == "state.durability_unknown"
        monkeypatch.setattr(FailingCommit, "error", None)
        with pytest.raises(DurabilityUnknownError):
            run.record(recorded(3))
    assert len(world.store().read().resources) == 1
    world.applied(4)
    assert len(world.store().read().resources) == 2


def test_a_commit_that_did_not_fit_changes_nothing_and_may_be_tried_again(
    world: StateWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with use_connection(FailingCommit), world.running() as run:
        monkeypatch.setattr(FailingCommit, "error", failure("SQLITE_FULL"))
        with pytest.raises(SbctlError) as caught:
            run.record(recorded(1))
        assert (caught.value.code, caught.value.retryable) == ("disk.full", True)
        monkeypatch.setattr(FailingCommit, "error", None)
        run.record(recorded(1))
        run.finish("applied")
    assert len(world.store().read().resources) == 1


def test_a_database_browser_in_the_way_is_named(world: StateWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.applied(1)
    monkeypatch.setattr(database, "BUSY_TIMEOUT_MS", 1)
    monkeypatch.setattr(database, "_PRAGMAS", (("busy_timeout", 1),))
    with world.locked() as store, contextlib.closing(sqlite3.connect(world.paths.database)) as browser:
        browser.execute("BEGIN IMMEDIATE")
        with pytest.raises(LockedError) as caught:
            store.remove(recorded(1).address)
        assert caught.value.code == "state.busy"
        browser.rollback()
        store.remove(recorded(1).address)


def test_a_state_on_a_read_only_place_is_read(world: StateWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.applied(1)
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    assert len(world.store().read().resources) == 1
    assert not world.paths.write_ahead_log.exists()


def test_an_interrupted_block_leaves_no_transaction(world: StateWorld) -> None:
    with world.locked() as store:
        store.create("fleet")
        writer = store._open_writer()

        def interrupted() -> None:
            with writer.transaction() as rows:
                rows.put("signers", "x", b'"y"')
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        with writer.transaction() as rows:
            assert list(rows.scan("signers")) == []
