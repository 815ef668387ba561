"""Every bundle of the cluster that an authority accepted, in SQLite: the store may lose what it has, and gets it back from here."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sbctl.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import SbctlError, StateError
from sbctl.runtime.durable_sqlite import opened
from sbctl.runtime.log import get_log
from sbctl.trust.cluster_bundle import VerifiedClusterBundle

__all__ = ["ArchivedBundle", "BundleArchive"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS bundle (key_epoch INTEGER NOT NULL, revision INTEGER NOT NULL, content_digest TEXT NOT NULL, signer TEXT NOT NULL,
                                   accepted_at TEXT NOT NULL, envelope TEXT NOT NULL, envelope_sha256 TEXT NOT NULL,
                                   PRIMARY KEY (key_epoch, revision)) STRICT
"""


@dataclass(frozen=True, slots=True)
class ArchivedBundle:
    key_epoch: int
    revision: int
    content_digest: str
    signer: str
    accepted_at: str


class BundleArchive:
    """Methods block for some milliseconds and may be called from any thread. What returned is on disk."""

    def __init__(self, database: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        """What is damaged is taken aside (`NAME.damaged`): the bundle that counts is kept elsewhere too, and comes back in here."""
        self._path = database
        self._clock = clock
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        """None: the disk takes no write now; each bundle to keep tries anew."""
        try:
            self._connection = self._opened()
        except sqlite3.OperationalError as error:
            get_log("cluster").error("bundles cannot be kept", place=str(database), reason=str(error))
        except sqlite3.DatabaseError as error:
            get_log("cluster").error("the bundles of before are damaged", place=str(database), reason=str(error))
            os.replace(database, database.with_name(f"{database.name}.damaged"))
            for suffix in ("-wal", "-shm"):
                database.with_name(f"{database.name}{suffix}").unlink(missing_ok=True)
            self._connection = self._opened()

    def _opened(self) -> sqlite3.Connection:
        connection = opened(self._path)
        try:
            connection.execute(_SCHEMA)
            if connection.execute("PRAGMA quick_check").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("its integrity check fails")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def keep(self, verified: VerifiedClusterBundle, envelope: str) -> None:
        """Kept again it stays as it was. Raises SbctlError `cluster.state_not_written`."""
        fence = verified.fence
        digest = sha256_bytes(envelope.encode())
        row = (fence.key_epoch, fence.revision, fence.content_digest, verified.signer, rfc3339(self._clock.now()))
        try:
            with self._lock:
                self._connection = self._connection or self._opened()
                self._connection.execute(
                    "INSERT OR IGNORE INTO bundle VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, envelope, digest)
                )
        except sqlite3.Error as error:
            raise SbctlError(
                "cluster.state_not_written",
                f"the bundle could not be kept: {error}",
                place=str(self._path),
                next_step="see to the disk, then publish again",
                retryable=True,
            ) from error

    def listing(self) -> tuple[ArchivedBundle, ...]:
        """The newest first."""
        rows = self._rows(
            "SELECT key_epoch, revision, content_digest, signer, accepted_at FROM bundle ORDER BY key_epoch DESC, revision DESC"
        )
        return tuple(ArchivedBundle(*row) for row in rows)

    def envelope(self, key_epoch: int, revision: int) -> str | None:
        """Raises StateError `cluster.archive_damaged`."""
        rows = self._rows(
            "SELECT envelope, envelope_sha256 FROM bundle WHERE key_epoch = ? AND revision = ?", key_epoch, revision
        )
        if not rows:
            return None
        (row,) = rows
        if sha256_bytes(str(row[0]).encode()) != row[1]:
            raise self._damaged(f"revision {revision} does not have its digest")
        return str(row[0])

    def _rows(self, sql: str, *values: int) -> list[tuple[Any, ...]]:
        with self._lock:
            return [] if self._connection is None else self._connection.execute(sql, values).fetchall()

    def close(self) -> None:
        with self._lock, contextlib.suppress(sqlite3.Error):
            if self._connection is not None:
                self._connection.close()

    def _damaged(self, what: str) -> StateError:
        return StateError(
            "cluster.archive_damaged",
            f"the bundles that this authority keeps cannot be trusted: {what}",
            place=str(self._path),
            next_step="move this file away, restart the runtime, then sbctl apply",
        )
