"""A new database under its name in one step: built aside, then renamed, so that nobody ever sees half of one."""

from __future__ import annotations

import contextlib
import secrets
import uuid
from collections.abc import Callable

from sbctl.base import fs
from sbctl.state.database import connect, temporary_database, translated
from sbctl.state.fence import Fence, write_fence
from sbctl.state.location import StatePaths
from sbctl.state.migrations import MIGRATIONS, migrate
from sbctl.state.rows import Head, Rows, insert_head

__all__ = ["create_state", "install_database", "new_fingerprint_key"]


def new_fingerprint_key() -> bytes:
    return secrets.token_bytes(32)


def install_database(paths: StatePaths, head: Head, fill: Callable[[Rows], None]) -> Head:
    """Build the database with `fill` and rename it to its name. Raises SbctlError; then the name is untouched."""
    path = temporary_database(paths)
    try:
        with translated(paths), contextlib.closing(connect(path, "mode=rw")) as connection:
            connection.execute("PRAGMA journal_mode = MEMORY")
            migrate(connection, MIGRATIONS)
            connection.execute("BEGIN IMMEDIATE")
            rows = Rows(connection, paths, head)
            fill(rows)
            insert_head(connection, rows.head)
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = WAL")
        fs.install_file(path, paths.database, mode=0o600)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return rows.head


def create_state(paths: StatePaths, fleet_name: str) -> Head:
    """A new lineage. The fence says first that creation began, then that it ended; in between nothing was acknowledged."""
    head = Head(str(uuid.uuid4()), fleet_name, new_fingerprint_key())
    write_fence(paths, Fence(head.lineage, 0, 0))
    head = install_database(paths, head, lambda _rows: None)
    write_fence(paths, Fence(head.lineage, head.serial, head.changes))
    return head
