"""One writer: transactions of the process that holds the lock, and the fence that follows each of them.

Threads take turns. A transaction is durable when its block ends without an error; the fence is written outside the turn, so that threads
that commit meanwhile share one write of it.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator

from sbctl.base.errors import DurabilityUnknownError
from sbctl.state.database import SQLITE_ERRORS, durability_unknown, open_writer, sqlite_error, translated
from sbctl.state.fence import Fence, check_fence, read_fence, write_fence
from sbctl.state.holding import clear_holder, write_holder
from sbctl.state.location import StatePaths
from sbctl.state.model import LockInfo
from sbctl.state.rows import Head, Rows, read_head

__all__ = ["Writer"]


class Writer:
    """Verified when made: identity, head and fence. Raises StateError by name, SbctlError."""

    def __init__(self, paths: StatePaths) -> None:
        self._paths = paths
        self._turn = threading.Lock()
        self._fence_turn = threading.Lock()
        self._broken: DurabilityUnknownError | None = None
        fence = read_fence(paths)
        self._connection = open_writer(paths)
        try:
            with translated(paths):
                head = read_head(self._connection, paths)
            check_fence(paths, fence, lineage=head.lineage, serial=head.serial, changes=head.changes)
        except BaseException:
            self._connection.close()
            raise
        self._written = fence
        self._latest = _fence_of(head)

    def say_who(self, info: LockInfo | None) -> None:
        """Show who holds the lock, or that nobody does any more. It decides nothing, so failing at it is no failure."""
        with self._turn, contextlib.suppress(sqlite3.Error):
            if info is None:
                clear_holder(self._connection)
            else:
                write_holder(self._connection, info)

    def close(self) -> None:
        with self._turn:
            self._connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Rows]:
        """Durable when the block ends; nothing of it is there when the block raises.

        Raises LockedError `state.busy`, SbctlError `disk.*`: nothing happened. DurabilityUnknownError: it may have; every later
        transaction of this writer is refused with the same error, since a failed fsync is never retried.
        """
        with self._turn:
            if self._broken is not None:
                raise self._broken
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                rows = Rows(self._connection, self._paths)
                yield rows
                head = rows.write_head()
            except BaseException as error:
                self._roll_back()
                if isinstance(error, SQLITE_ERRORS):
                    raise sqlite_error(error, self._paths) from error
                raise
            self._commit()
            mine = self._latest = _fence_of(head)
        self._remember(mine)

    def _roll_back(self) -> None:
        # A rollback that fails was already done by SQLite, or the connection is past saving: either way the log has no commit.
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            if (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF == sqlite3.SQLITE_IOERR:
                self._broken = durability_unknown(error, self._paths)
                raise self._broken from error
            raise sqlite_error(error, self._paths) from error

    def _remember(self, mine: Fence) -> None:
        """Write the fence unless another thread already wrote one that covers this change."""
        with self._fence_turn:
            written, latest = self._written, self._latest
            if written is not None and written.lineage == mine.lineage and written.changes >= mine.changes:
                return
            write_fence(self._paths, latest)
            self._written = latest

    def checkpoint(self) -> None:
        """Fold the log into the database, so that a copy of state.db alone is whole. Skipped while somebody reads."""
        with self._turn, contextlib.suppress(sqlite3.OperationalError):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _fence_of(head: Head) -> Fence:
    return Fence(head.lineage, head.serial, head.changes)
