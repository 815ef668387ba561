"""A small database in two files of which either suffices, so that no damage of one stops the node or sets it back.

    written   a transaction is committed in both before it returns
    opened    a file that is damaged, missing or of another version is taken aside (`NAME.damaged`) and made anew from the other; of two
              sound ones that a crash left apart, the one that is ahead counts: what it has more was told to nobody
    read      where a file can be read and not written (a full disk, a read-only one) it is read from memory, and every write tries anew
    lost      both are damaged: what is remembered is empty, and nothing may be written; whoever needs a memory to believe must believe nobody

Every row ends in a seal over its other values, so a flipped bit is seen wherever it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from sbctl.base import fs
from sbctl.base.errors import SbctlError
from sbctl.runtime.durable_sqlite import opened
from sbctl.runtime.log import get_log

__all__ = ["Schema", "TwinFiles", "Writing"]

_PAGES: Final = 1000
_SIDE_FILES: Final = ("-wal", "-shm")
_SEQUENCE: Final = (
    "CREATE TABLE written (only INTEGER PRIMARY KEY CHECK (only = 1), sequence INTEGER NOT NULL, seal TEXT NOT NULL)"
)


@dataclass(frozen=True, slots=True)
class Schema:
    """`tables` by name: their columns without the seal, as SQL. `first` are the rows of a new database."""

    version: int
    tables: dict[str, str]
    first: tuple[tuple[str, tuple[object, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    """One file. `problem`: why it does not count. `sequence` is that of its last transaction."""

    path: Path
    connection: sqlite3.Connection | None = None
    sequence: int = 0
    is_writable: bool = True
    is_missing: bool = False
    is_too_new: bool = False
    problem: str = ""


class Writing:
    """The statements of one transaction, in both files."""

    def __init__(self, connections: Sequence[sqlite3.Connection]) -> None:
        self._connections = connections

    def put(self, table: str, rows: Iterable[Sequence[object]]) -> None:
        """Insert, or replace what has the same key. Values are all of the table's, without the seal."""
        sealed = [(*row, _seal(row)) for row in rows]
        if sealed:
            marks = ", ".join("?" * len(sealed[0]))
            for connection in self._connections:
                connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", sealed)  # noqa: S608 - names of our own

    def execute(self, sql: str, values: Sequence[object] = ()) -> None:
        for connection in self._connections:
            connection.execute(sql, values)

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._connections[0].execute(sql, values).fetchall()


class TwinFiles:
    """Its methods block for some milliseconds and may be called from any thread. `refused` makes the error of a write that was not taken."""

    def __init__(self, path: Path, copy: Path, schema: Schema, *, refused: Callable[[Exception], SbctlError]) -> None:
        self._paths = (path, copy)
        self._schema = schema
        self._refused = refused
        self._lock = threading.Lock()
        self._memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._open: list[sqlite3.Connection] = []
        self._sequence = 0
        self.lost = ""
        """Why nothing is remembered; empty: something is, or there was nothing yet."""
        self.is_too_new = False
        """Of what is lost: a newer runtime wrote it."""
        self.not_written = ""
        """Why nothing can be written now."""
        self._begin()

    # Opening

    def _begin(self) -> None:
        """At the start, and when a write failed; then what is in memory is not given up for less."""
        found = [_look(path, self._schema) for path in self._paths]
        unread = self._read_best(found)
        if unread is not None and self._sequence == 0:
            self._fill(None)
            if unread or not all(one.is_missing for one in found):
                self.is_too_new = any(one.is_too_new for one in found)
                told = [f"{one.path.name}: {one.problem}" for one in found if one.problem]
                self.lost = "; ".join([*told, *([unread] if unread else [])])
                for one in found:
                    if one.connection is not None:
                        one.connection.close()
                return
            self._sequence = 1
        self._take(found)
        self.not_written = "" if self._open else "neither of its files can be written"

    def _read_best(self, found: Sequence[_Found]) -> str | None:
        """Memory as the file that is ahead has it, or the next one where that cannot be read to its end. Why not, or empty, where none can: memory
        stays as it was then."""
        sound = [one for one in found if one.connection is not None and one.sequence >= self._sequence]
        problem = ""
        for one in sorted(sound, key=lambda one: one.sequence, reverse=True):
            assert one.connection is not None
            try:
                self._fill(one.connection)
            except (sqlite3.Error, OSError) as error:
                problem = f"{one.path.name}: {error}"
                continue
            self._sequence = one.sequence
            return None
        return problem

    def _take(self, found: Sequence[_Found]) -> None:
        """Every file as memory has it, as far as the disk allows."""
        for one in found:
            if one.connection is not None and one.sequence == self._sequence and one.is_writable:
                self._open.append(one.connection)
                continue
            if one.connection is not None:
                one.connection.close()
            elif not one.is_missing:
                get_log("cluster").error(
                    "a file of the cluster's memory is damaged; it is made anew from what is sound",
                    place=str(one.path), reason=one.problem, kept_as=f"{one.path.name}.damaged",
                )  # fmt: skip
            try:
                if one.connection is None and not one.is_missing:
                    _aside(one.path)
                self._open.append(_copied(self._memory, one.path))
            except (OSError, SbctlError, sqlite3.Error) as error:
                get_log("cluster").error(
                    "a file of the cluster's memory cannot be written", place=str(one.path), reason=str(error)
                )

    def _fill(self, source: sqlite3.Connection | None) -> None:
        """What reads see. It is small: some hundred bytes for each node. A file that cannot be read to its end leaves it as it was."""
        memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        try:
            if source is None:
                _make(memory, self._schema)
            else:
                source.backup(memory, pages=_PAGES)
        except BaseException:
            memory.close()
            raise
        self._memory.close()
        self._memory = memory

    def _end(self, why: str) -> None:
        for connection in self._open:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        self._open = []
        self.not_written = why

    # Use

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._memory.execute(sql, values).fetchall()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Writing]:
        """All of the block in both files, or nothing of it. Raises what `refused` makes of a disk, and what the block raises."""
        with self._lock:
            if self.lost:
                raise self._refused(OSError(self.lost))
            if not self._open:
                self._begin()
            if not self._open:
                raise self._refused(OSError(self.not_written))
            everywhere = [*self._open, self._memory]
            try:
                for connection in everywhere:
                    connection.execute("BEGIN IMMEDIATE")
                writing = Writing(everywhere)
                yield writing
                writing.put("written", [(1, self._sequence + 1)])
                for connection in everywhere:
                    connection.execute("COMMIT")
                self._sequence += 1
            except BaseException as error:  # whatever ended the block, nothing of it stays
                for connection in everywhere:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                if not isinstance(error, (sqlite3.Error, OSError)):
                    raise
                # One file may have it and the other not: they are compared when they are opened again, at the next write.
                self._end(str(error))
                raise self._refused(error) from error

    def close(self) -> None:
        with self._lock:
            self._end("it is closed")
            self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _seal(values: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(list(values)).encode()).hexdigest()[:24]


def _make(connection: sqlite3.Connection, schema: Schema) -> None:
    connection.execute(_SEQUENCE)
    for name, columns in schema.tables.items():
        connection.execute(f"CREATE TABLE {name} ({columns}, seal TEXT NOT NULL) STRICT")
    for name, values in (("written", (1, 1)), *schema.first):
        marks = ", ".join("?" * (len(values) + 1))
        connection.execute(f"INSERT INTO {name} VALUES ({marks})", (*values, _seal(values)))  # noqa: S608 - names of our own
    connection.execute(f"PRAGMA user_version={schema.version}")


def _look(path: Path, schema: Schema) -> _Found:
    if not path.exists():
        return _Found(path, is_missing=True)
    connection, is_writable = None, True
    try:
        if path.stat().st_size == 0:
            return _Found(path, problem="it is empty")
        try:
            connection = opened(path)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            connection, is_writable = _read_only(path), False
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version != schema.version:
            connection.close()
            problem = f"it has version {version}, this runtime knows {schema.version}"
            return _Found(path, is_too_new=version > schema.version, problem=problem)
        return _Found(path, connection, _checked(connection, schema), is_writable)
    except (OSError, ValueError, sqlite3.Error) as error:
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        return _Found(path, problem=str(error))


def _read_only(path: Path) -> sqlite3.Connection:
    """Raises sqlite3.Error where newer transactions lie beside it that cannot be read without a write."""
    wal = path.with_name(f"{path.name}-wal")
    options = "mode=ro" if wal.exists() and wal.stat().st_size else "mode=ro&immutable=1"
    return sqlite3.connect(f"{path.as_uri()}?{options}", uri=True, isolation_level=None, check_same_thread=False)


def _checked(connection: sqlite3.Connection, schema: Schema) -> int:
    """Its sequence. Raises ValueError for a row that is not as it was written, sqlite3.Error for pages that are none."""
    if connection.execute("PRAGMA quick_check").fetchone()[0] != "ok":
        raise ValueError("its integrity check fails")
    for table in ("written", *schema.tables):
        for *values, seal in connection.execute(f"SELECT * FROM {table}"):  # noqa: S608 - names of our own
            if _seal(values) != seal:
                raise ValueError(f"a row of {table} is not as it was written")
    row = connection.execute("SELECT sequence FROM written").fetchone()
    if row is None:
        raise ValueError("the number of its last transaction is missing")
    return int(row[0])


def _aside(path: Path) -> None:
    fs.OPS.rename(str(path), str(path.with_name(f"{path.name}.damaged")))


def _copied(source: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """A file that is there whole or not at all. Raises SbctlError of the disk, sqlite3.Error."""
    for suffix in _SIDE_FILES:
        fs.remove_file(path.with_name(f"{path.name}{suffix}"))
    fs.write_atomic(path, source.serialize())
    return opened(path)
