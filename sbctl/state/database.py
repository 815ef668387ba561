"""Connections to state.db. The pragmas that durability rests on are set and read back on every one; SQLite's errors become ours.

`CONNECTION` is the port to SQLite: fault tests replace the class and fail the n-th statement.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sbctl.base import fs
from sbctl.base.errors import DurabilityUnknownError, LockedError, SbctlError, StateError
from sbctl.state import refusals
from sbctl.state.location import StatePaths, regular_file_size
from sbctl.state.migrations import APPLICATION_ID, MIGRATIONS, migrate
from sbctl.state.rows import TABLES

__all__ = [
    "BUSY_TIMEOUT_MS",
    "SQLITE_ERRORS",
    "open_reader",
    "open_writer",
    "sqlite_error",
    "translated",
    "use_connection",
]

BUSY_TIMEOUT_MS: Final = 5000

_PRAGMAS: Final = (
    ("busy_timeout", BUSY_TIMEOUT_MS),
    ("synchronous", 2),  # FULL: every commit is fsynced
    ("foreign_keys", 1),
    ("trusted_schema", 0),
    ("cell_size_check", 1),
    ("mmap_size", 0),  # a file cut under a mapping would be a SIGBUS
)

_LOG_INDEX_BYTES: Final = 32 * 1024
"""What SQLite needs for the index of its log, before it can read or write anything."""

_IMMUTABLE: Final = "mode=ro&immutable=1"

CONNECTION: type[sqlite3.Connection] = sqlite3.Connection


@contextlib.contextmanager
def use_connection(connection_class: type[sqlite3.Connection]) -> Iterator[None]:
    """Replace the port to SQLite for the duration of a test."""
    global CONNECTION  # noqa: PLW0603 - the one switch for fault tests
    previous, CONNECTION = CONNECTION, connection_class
    try:
        yield
    finally:
        CONNECTION = previous


_ERRNO: Final = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
}


SQLITE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""What the library raises; the second one when a damaged schema gives its own message bytes that are no text."""


def sqlite_error(error: Exception, paths: StatePaths) -> SbctlError:
    """The error for the reader behind one of SQLite's."""
    extended = getattr(error, "sqlite_errorcode", None) or 0
    primary = extended & 0xFF
    if extended == sqlite3.SQLITE_IOERR_SHORT_READ:
        return refusals.corrupt(paths, "the file is shorter than it says")
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LockedError(
            "state.busy",
            "another program has the database of the state open for writing",
            place=str(paths.database),
            next_step="close it (a database browser, a backup program), then run the command again",
            retryable=True,
        )
    if primary == sqlite3.SQLITE_IOERR and _has_no_room(paths):
        primary = sqlite3.SQLITE_FULL
    if primary in _ERRNO:
        return fs.disk_error(OSError(_ERRNO[primary], str(error)), paths.database)
    return refusals.corrupt(paths, f"SQLite says: {error}")


def _has_no_room(paths: StatePaths) -> bool:
    """SQLite calls it an I/O error, not a full disk, when its index of the log cannot be made or grow."""
    try:
        disk = os.statvfs(paths.database.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _LOG_INDEX_BYTES


@contextlib.contextmanager
def translated(paths: StatePaths) -> Iterator[None]:
    """SQLite's errors leave the block as ours."""
    try:
        yield
    except SQLITE_ERRORS as error:
        raise sqlite_error(error, paths) from error


def durability_unknown(error: sqlite3.Error, paths: StatePaths) -> DurabilityUnknownError:
    """A commit that failed on its way to the disk: after a crash it may turn out to be there."""
    return DurabilityUnknownError(
        "state.durability_unknown",
        f"the last change may or may not have reached the disk: {error}",
        place=str(paths.database),
        next_step="check the disk, then run the command again: it reads before it acts",
    )


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """A connection that never creates a file. Raises sqlite3.Error."""
    return sqlite3.connect(
        f"file:{quote(os.fspath(path.absolute()))}?{mode}",
        uri=True,
        isolation_level=None,
        timeout=BUSY_TIMEOUT_MS / 1000,
        check_same_thread=False,
        factory=CONNECTION,
    )


def apply_pragmas(connection: sqlite3.Connection) -> None:
    """Set them and read them back. Raises StateError `state.pragmas`."""
    for name, value in _PRAGMAS:
        connection.execute(f"PRAGMA {name} = {value:d}")
        row = connection.execute(f"PRAGMA {name}").fetchone()
        if row is not None and row[0] != value:
            raise StateError(
                "state.pragmas",
                f"SQLite {sqlite3.sqlite_version} does not take {name} = {value} (it says {row[0]})",
                next_step="use a Python with an ordinary SQLite",
            )


def _check_identity(connection: sqlite3.Connection, paths: StatePaths) -> int:
    """The format number of a file that is ours. Raises StateError by name."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    tables = {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if application_id != APPLICATION_ID:
        if not tables:
            raise refusals.empty(paths)
        raise refusals.foreign(paths, "the file is another program's SQLite database")
    if version > len(MIGRATIONS):
        raise refusals.too_new(paths, version, len(MIGRATIONS))
    if version < 1 or (version == len(MIGRATIONS) and not tables >= {"head", *TABLES}):
        raise refusals.corrupt(paths, "a table is gone")
    _refuse_cut_page(connection, paths)
    return int(version)


def _refuse_cut_page(connection: sqlite3.Connection, paths: StatePaths) -> None:
    """SQLite reads what is missing of the last page as zeros; unless the log is about to write that page, the file was cut."""
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    if not regular_file_size(paths.write_ahead_log) and (regular_file_size(paths.database) or 0) % page_bytes:
        raise refusals.corrupt(paths, "the file ends in the middle of a page")


def _require_log(connection: sqlite3.Connection, paths: StatePaths) -> None:
    (journal_mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if journal_mode != "wal":
        raise refusals.corrupt(paths, f"the journal mode is {journal_mode}, not wal")


def _require_file(paths: StatePaths) -> None:
    size = regular_file_size(paths.database)
    if size is None:
        raise refusals.missing(paths)
    if size == 0:
        raise refusals.empty(paths)


def _reader_mode(paths: StatePaths) -> str:
    """On a read-only filesystem SQLite needs telling that nobody writes, unless a log is there to be read too."""
    if os.access(paths.directory, os.W_OK):
        return "mode=rw"
    return "mode=ro" if regular_file_size(paths.write_ahead_log) else _IMMUTABLE


def _in_memory_copy(connection: sqlite3.Connection) -> sqlite3.Connection:
    """An older format is read by migrating a copy: a plan writes nothing."""
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.backup(copy)
    migrate(copy, MIGRATIONS)
    return copy


@contextlib.contextmanager
def open_reader(paths: StatePaths) -> Iterator[sqlite3.Connection]:
    """A connection inside one read transaction, in today's format. Raises StateError by name, SbctlError."""
    _require_file(paths)
    with translated(paths):
        mode = _reader_mode(paths)
        connection = connect(paths.database, mode)
        try:
            apply_pragmas(connection)
            version = _check_identity(connection, paths)
            if mode != _IMMUTABLE:
                _require_log(connection, paths)
            if version < len(MIGRATIONS):
                previous, connection = connection, _in_memory_copy(connection)
                previous.close()
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")
        finally:
            connection.close()


def open_writer(paths: StatePaths) -> sqlite3.Connection:
    """A connection for the holder of the lock; an older format is migrated first and a copy of it kept. Raises StateError by name, SbctlError."""
    _require_file(paths)
    with translated(paths):
        connection = connect(paths.database, "mode=rw")
        try:
            apply_pragmas(connection)
            version = _check_identity(connection, paths)
            _require_log(connection, paths)
            if version < len(MIGRATIONS):
                keep_copy(connection, paths, paths.directory / f"state.db.v{version}")
                migrate(connection, MIGRATIONS)
        except BaseException:
            connection.close()
            raise
        return connection


def temporary_database(paths: StatePaths) -> Path:
    """A new empty file, 0600, under a name that a crash leaves to be swept. Raises SbctlError."""
    path = fs.temporary_path(paths.directory)
    try:
        os.close(fs.OPS.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise fs.disk_error(error, path) from error
    return path


def keep_copy(connection: sqlite3.Connection, paths: StatePaths, target: Path) -> None:
    """A whole copy of the database under its durable name. Raises SbctlError."""
    path = temporary_database(paths)
    try:
        with translated(paths), contextlib.closing(connect(path, "mode=rw")) as copy:
            connection.backup(copy)
        fs.install_file(path, target, mode=0o600)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
