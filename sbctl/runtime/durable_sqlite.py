"""What the runtime must not forget, in SQLite: how such a database is opened, and how it is written, so that what returned is on disk."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from sbctl.base.errors import SbctlError

__all__ = ["opened", "transaction"]

_BUSY_S: Final = 5.0


def opened(database: Path) -> sqlite3.Connection:
    """For any thread, one at a time; statements begin no transaction of their own. A new one is its owner's alone, whatever the process masks.

    Raises sqlite3.DatabaseError, also for what is no database.
    """
    with contextlib.suppress(OSError):
        # Made here when it is missing, never opened when it is there: closing it again would drop the locks of other connections.
        os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(database, isolation_level=None, check_same_thread=False, timeout=_BUSY_S)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


@contextlib.contextmanager
def transaction(
    connection: sqlite3.Connection,
    lock: contextlib.AbstractContextManager[Any],
    refused: Callable[[sqlite3.Error], SbctlError],
) -> Iterator[sqlite3.Connection]:
    """All of the block or nothing of it. Raises what `refused` makes of a database that takes no write, and what the block raises."""
    with lock:
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        except BaseException as error:  # whatever ended the block, nothing of it stays
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise refused(error) from error
            raise
