"""The runtime's durable memory, in one SQLite file: the fence, the accepted bundle, explicit stops, jobs.

The fence and the bundle it admits are one transaction, so no crash leaves a fence without its desired state or the reverse. The file
`<state>/bundle.json` is a copy of the accepted envelope for everybody else; it is written after the commit and repaired at start.
WAL with synchronous=FULL: what returned is on disk.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import InputError, SbctlError, StateError
from sbctl.base.fs import read_bounded, remove_file, write_atomic
from sbctl.base.limits import BUNDLE_MAX_BYTES
from sbctl.runtime.log import get_log
from sbctl.trust.bundle import BundlePayload, content_digest
from sbctl.trust.envelope import unverified_payload
from sbctl.trust.verifier import Fence, VerifiedBundle, parse_bundle

__all__ = ["AcceptedBundle", "JobRow", "RuntimeStore"]

_SCHEMA_VERSION: Final = 1
_JOBS_KEPT: Final = 512

_SCHEMA: Final = """
CREATE TABLE fence (only INTEGER PRIMARY KEY CHECK (only = 1), key_epoch INTEGER NOT NULL, revision INTEGER NOT NULL,
                    content_digest TEXT NOT NULL) STRICT;
CREATE TABLE accepted (only INTEGER PRIMARY KEY CHECK (only = 1), signer TEXT NOT NULL, envelope TEXT NOT NULL,
                       envelope_sha256 TEXT NOT NULL) STRICT;
CREATE TABLE stopped (deployment TEXT PRIMARY KEY) STRICT;
CREATE TABLE job (id TEXT PRIMARY KEY, kind TEXT NOT NULL, subject TEXT NOT NULL, state TEXT NOT NULL, created_at_ms INTEGER NOT NULL,
                  updated_at_ms INTEGER NOT NULL, error TEXT) STRICT;
"""


@dataclass(frozen=True, slots=True)
class AcceptedBundle:
    """The bundle whose content runs."""

    payload: BundlePayload
    signer: str


@dataclass(frozen=True, slots=True)
class JobRow:
    """One operation asked for through the admin API. `state`: running, succeeded, failed; `error` is one sentence."""

    id: str
    kind: str
    subject: str
    state: str
    created_at_ms: int
    updated_at_ms: int
    error: str | None = None


class RuntimeStore:
    """One process opens it (the serve lock). Methods block for a few milliseconds and may be called from any thread."""

    def __init__(self, database: Path, bundle_copy: Path) -> None:
        self._path = database
        self._copy = bundle_copy
        self._lock = threading.Lock()
        try:
            self._connection = sqlite3.connect(database, isolation_level=None, check_same_thread=False, timeout=5.0)
            self._prepare()
        except sqlite3.DatabaseError as error:
            raise _damaged(database, str(error)) from error

    def _prepare(self) -> None:
        run = self._connection.execute
        run("PRAGMA journal_mode=WAL")
        run("PRAGMA synchronous=FULL")
        version = int(run("PRAGMA user_version").fetchone()[0])
        if version > _SCHEMA_VERSION:
            raise StateError(
                "runtime.state_too_new",
                f"the runtime's database has version {version}, this runtime knows {_SCHEMA_VERSION}",
                place=str(self._path),
                next_step="run the newer runtime",
            )
        if run("PRAGMA quick_check").fetchone()[0] != "ok":
            raise _damaged(self._path, "its integrity check fails")
        if version == 0:
            with self._transaction():
                for statement in _SCHEMA.split(";"):
                    run(statement)
                run(f"PRAGMA user_version={_SCHEMA_VERSION}")
        with self._transaction():
            run("UPDATE job SET state='failed', error='the runtime was restarted' WHERE state='running'")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException as error:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise SbctlError(
                        "store_failed", f"the runtime's database refused a write: {error}", place=str(self._path)
                    ) from error
                raise

    def _row(self, sql: str, *values: object) -> tuple[object, ...] | None:
        with self._lock:
            row: tuple[object, ...] | None = self._connection.execute(sql, values).fetchone()
            return row

    def fence(self) -> Fence | None:
        """The newest bundle ever accepted here."""
        row = self._row("SELECT key_epoch, revision, content_digest FROM fence")
        return None if row is None else Fence(int(str(row[0])), int(str(row[1])), str(row[2]))

    def accept(self, verified: VerifiedBundle, envelope: str) -> None:
        """Advance the fence, make the bundle the desired state and forget explicit stops, all or nothing; then renew the copy.

        Raises SbctlError `store_failed`: nothing changed.
        """
        fence = verified.fence
        with self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO fence VALUES (1, ?, ?, ?)",
                (fence.key_epoch, fence.revision, fence.content_digest),
            )
            db.execute(
                "INSERT OR REPLACE INTO accepted VALUES (1, ?, ?, ?)",
                (verified.signer, envelope, sha256_bytes(envelope.encode())),
            )
            db.execute("DELETE FROM stopped")
        self._renew_copy(envelope.encode())

    def forget_bundle(self) -> None:
        """Nothing is desired any more; the fence stays, so an older bundle cannot come back."""
        with self._transaction() as db:
            db.execute("DELETE FROM accepted")
            db.execute("DELETE FROM stopped")
        with contextlib.suppress(SbctlError):
            remove_file(self._copy)

    def accepted(self) -> AcceptedBundle | None:
        """The accepted bundle, checked by digest, not by signature or age: it was accepted once and holds until another one is.

        Raises StateError `runtime.state_damaged` when its bytes changed since. Repairs the copy.
        """
        row = self._row("SELECT signer, envelope, envelope_sha256 FROM accepted")
        if row is None:
            return None
        signer, envelope, digest = (str(value) for value in row)
        if sha256_bytes(envelope.encode()) != digest:
            raise _damaged(self._path, "the accepted bundle does not have its digest")
        _type, raw, _keyids = unverified_payload(envelope, max_bytes=BUNDLE_MAX_BYTES)
        payload = parse_bundle(raw)
        if content_digest(payload.content) != payload.content_digest:
            raise _damaged(self._path, "the accepted content does not have its digest")
        with contextlib.suppress(InputError):
            if read_bounded(self._copy, max_bytes=4 * BUNDLE_MAX_BYTES) == envelope.encode():
                return AcceptedBundle(payload, signer)
        self._renew_copy(envelope.encode())
        return AcceptedBundle(payload, signer)

    def _renew_copy(self, envelope: bytes) -> None:
        """What is accepted is durable without it, so a disk that has no room for it does not undo the commit."""
        try:
            write_atomic(self._copy, envelope)
        except SbctlError as error:
            get_log("store").warning("the bundle's copy was not written", error=str(error))

    def stopped(self) -> frozenset[str]:
        """Deployments that an operator stopped and nobody started again."""
        with self._lock:
            return frozenset(str(row[0]) for row in self._connection.execute("SELECT deployment FROM stopped"))

    def set_stopped(self, deployment: str, stopped: bool) -> None:
        with self._transaction() as db:
            if stopped:
                db.execute("INSERT OR IGNORE INTO stopped VALUES (?)", (deployment,))
            else:
                db.execute("DELETE FROM stopped WHERE deployment=?", (deployment,))

    def put_job(self, job: JobRow) -> None:
        """Insert or update; the newest 512 are kept."""
        with self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO job VALUES (?, ?, ?, ?, ?, ?, ?)",
                (job.id, job.kind, job.subject, job.state, job.created_at_ms, job.updated_at_ms, job.error),
            )
            db.execute("DELETE FROM job WHERE id NOT IN (SELECT id FROM job ORDER BY id DESC LIMIT ?)", (_JOBS_KEPT,))

    def jobs(self) -> tuple[JobRow, ...]:
        """Newest first."""
        with self._lock:
            return tuple(JobRow(*row) for row in self._connection.execute("SELECT * FROM job ORDER BY id DESC"))

    def close(self) -> None:
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._connection.close()


def _damaged(path: Path, what: str) -> StateError:
    return StateError(
        "runtime.state_damaged",
        f"the runtime's database cannot be trusted: {what}",
        place=str(path),
        next_step="restore it from a backup; without it, remove the runtime and apply again",
    )
