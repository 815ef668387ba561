"""The runtime's durable memory, in one SQLite file: the fence, the accepted bundle, the admin API's deployments, explicit stops, jobs.

The fence and the bundle it admits are one transaction, so no crash leaves a fence without its desired state or the reverse. The file
`<state>/bundle.json` is a copy of the accepted envelope for everybody else; it is written after the commit and repaired at start.
WAL with synchronous=FULL: what returned is on disk.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbctl.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import InputError, SbctlError, StateError
from sbctl.base.fs import read_bounded, remove_file, write_atomic
from sbctl.base.limits import BUNDLE_MAX_BYTES
from sbctl.runtime.actor import ACTING, RUNTIME, Actor
from sbctl.runtime.audit import AUDIT_TABLES, AuditEntry, Detail, append_audit
from sbctl.runtime.deployments_revision import DEPLOYMENTS_COPY, DeploymentsRevision, check_expected, revision_from
from sbctl.runtime.durable_sqlite import opened, transaction
from sbctl.runtime.job_rows import JOB_PROGRESS, JOBS_SCHEMA, JobRow, insert_job, read_job, read_jobs
from sbctl.runtime.log import get_log
from sbctl.runtime.owed_writes import OwedWrites, write_stop
from sbctl.trust.bundle import BundlePayload, DeploymentMember, content_digest
from sbctl.trust.envelope import unverified_payload
from sbctl.trust.verifier import Fence, VerifiedBundle, parse_bundle

__all__ = ["AcceptedBundle", "RuntimeStore"]

_SCHEMA_VERSION: Final = 1

_SCHEMA: Final = """
CREATE TABLE fence (only INTEGER PRIMARY KEY CHECK (only = 1), key_epoch INTEGER NOT NULL, revision INTEGER NOT NULL,
                    content_digest TEXT NOT NULL) STRICT;
CREATE TABLE accepted (only INTEGER PRIMARY KEY CHECK (only = 1), signer TEXT NOT NULL, envelope TEXT NOT NULL,
                       envelope_sha256 TEXT NOT NULL) STRICT;
CREATE TABLE stopped (deployment TEXT PRIMARY KEY) STRICT;
"""

_ADDED: Final = """
CREATE TABLE IF NOT EXISTS admin_deployments (only INTEGER PRIMARY KEY CHECK (only = 1), revision INTEGER NOT NULL,
                                              content_digest TEXT NOT NULL, document TEXT NOT NULL) STRICT
"""
"""Made beside the schema: a runtime that is rolled back to does not know it, and need not."""


@dataclass(frozen=True, slots=True)
class AcceptedBundle:
    """The bundle whose content runs."""

    payload: BundlePayload
    signer: str


class RuntimeStore:
    """One process opens it (the serve lock). Methods block for a few milliseconds and may be called from any thread."""

    def __init__(self, database: Path, bundle_copy: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = database
        self._clock = clock
        self._copy = bundle_copy
        self._lock = threading.Lock()
        self._owed = OwedWrites()
        try:
            self._connection = opened(database)
            self._prepare()
        except sqlite3.DatabaseError as error:
            raise _damaged(database, str(error)) from error

    def _prepare(self) -> None:
        run = self._connection.execute
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
                for statement in (_SCHEMA + JOBS_SCHEMA).split(";"):
                    run(statement)
                run(f"PRAGMA user_version={_SCHEMA_VERSION}")
        with self._transaction():
            run(_ADDED)
            for statement in (*AUDIT_TABLES, JOB_PROGRESS):
                run(statement)
            run("UPDATE job SET state='ready' WHERE state='succeeded'")
            run(
                "UPDATE job SET state='failed', error='the runtime was restarted' "
                "WHERE state NOT IN ('ready', 'failed', 'deleted')"
            )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """What is owed goes along. Raises SbctlError `store_failed`: nothing changed, and what is owed still is."""
        with self._lock:
            with transaction(self._connection, contextlib.nullcontext(), self._refused) as db:
                if self._owed:
                    self._owed.write(db, self._of_the_runtime)
                yield db
            if self._owed:
                self._owed.clear()
                get_log("store").info("what was owed is written")

    def _refused(self, error: sqlite3.Error) -> SbctlError:
        return SbctlError(
            "store_failed",
            f"the runtime's database refused a write: {error}",
            place=str(self._path),
            next_step="see to the disk (df), then ask again; what serves goes on",
        )

    def _row(self, sql: str, *values: object) -> tuple[object, ...] | None:
        with self._lock:
            row: tuple[object, ...] | None = self._connection.execute(sql, values).fetchone()
            return row

    def fence(self) -> Fence | None:
        """The newest bundle ever accepted here."""
        row = self._row("SELECT key_epoch, revision, content_digest FROM fence")
        return None if row is None else Fence(int(str(row[0])), int(str(row[1])), str(row[2]))

    def accept(self, verified: VerifiedBundle, envelope: str, *, admin_managed: bool = False) -> None:
        """Advance the fence, make the bundle the desired state and forget explicit stops, all or nothing; then renew the copy.

        Where the admin API owns the deployments, those of the bundle seed an empty store and explicit stops stay; elsewhere what the store
        held is forgotten, since the bundle owns them now. Raises SbctlError `store_failed`: nothing changed.
        """
        fence = verified.fence
        with self._transaction() as db:
            told: dict[str, str | int | None] = {"revision": fence.revision, "content_digest": fence.content_digest}
            self._audit(db, "bundle.accept", "bundle", told, Actor(verified.signer, "signer", "bundle"))
            db.execute(
                "INSERT OR REPLACE INTO fence VALUES (1, ?, ?, ?)",
                (fence.key_epoch, fence.revision, fence.content_digest),
            )
            db.execute(
                "INSERT OR REPLACE INTO accepted VALUES (1, ?, ?, ?)",
                (verified.signer, envelope, sha256_bytes(envelope.encode())),
            )
            if not admin_managed:
                db.execute("DELETE FROM stopped")
                db.execute("DELETE FROM admin_deployments")
            else:
                _seed(db, verified.payload.content.deployments)
        self._renew_copy(envelope.encode())
        self._renew_deployments_copy()

    def admin_deployments(self) -> DeploymentsRevision | None:
        """What the admin API's store holds; None before the first write. Raises StateError `runtime.state_damaged`."""
        row = self._row("SELECT revision, content_digest, document FROM admin_deployments")
        if row is None:
            return None
        found = revision_from(row)
        if found is None:
            raise _damaged(self._path, "the deployments of the admin API do not have their digest")
        return found

    def seed_admin_deployments(self, seeds: Mapping[str, DeploymentMember]) -> None:
        """Into an empty store only. Raises SbctlError `store_failed`."""
        with self._transaction() as db:
            _seed(db, seeds)
        self._renew_deployments_copy()

    def replace_admin_deployments(
        self,
        expected_revision: int | None,
        deployments: Mapping[str, DeploymentMember],
        keep_stopped: Collection[str],
    ) -> DeploymentsRevision:
        """Compare and set, in one transaction; explicit stops of all but `keep_stopped` end with it.

        Raises RefusedError `revision_conflict`, SbctlError `store_failed`: nothing changed.
        """
        with self._transaction() as db:
            row = db.execute("SELECT revision FROM admin_deployments").fetchone()
            actual = None if row is None else int(row[0])
            check_expected(expected_revision, actual)
            new = DeploymentsRevision.of((actual or 0) + 1, deployments)
            told = {"prior_revision": actual, "next_revision": new.revision, "content_digest": new.content_digest}
            self._audit(db, "deployments.replace", "deployments", {**told, "deployment_count": len(deployments)})
            db.execute("INSERT OR REPLACE INTO admin_deployments VALUES (1, ?, ?, ?)", new.row)
            stopped = [str(found[0]) for found in db.execute("SELECT deployment FROM stopped")]
            db.executemany("DELETE FROM stopped WHERE deployment=?", [(n,) for n in stopped if n not in keep_stopped])
        self._renew_deployments_copy()
        return new

    def forget_bundle(self) -> None:
        """Nothing is desired any more; the fence stays, so an older bundle cannot come back."""
        with self._transaction() as db:
            self._audit(db, "bundle.clear", "bundle")
            db.execute("DELETE FROM accepted")
            db.execute("DELETE FROM stopped")
        self._renew_copy(None)

    def accepted(self) -> AcceptedBundle | None:
        """The accepted bundle, checked by digest, not by signature or age: it was accepted once and holds until another one is.

        Raises StateError `runtime.state_damaged` when its bytes changed since. Repairs the copies, whatever a crash left of them.
        """
        self._renew_deployments_copy()
        row = self._row("SELECT signer, envelope, envelope_sha256 FROM accepted")
        if row is None:
            self._renew_copy(None)
            return None
        signer, envelope, digest = (str(value) for value in row)
        if sha256_bytes(envelope.encode()) != digest:
            raise _damaged(self._path, "the accepted bundle does not have its digest")
        _type, raw, _keyids = unverified_payload(envelope, max_bytes=BUNDLE_MAX_BYTES)
        payload = parse_bundle(raw)
        if content_digest(payload.content) != payload.content_digest:
            raise _damaged(self._path, "the accepted content does not have its digest")
        self._renew_copy(envelope.encode())
        return AcceptedBundle(payload, signer)

    def _renew_copy(self, envelope: bytes | None) -> None:
        _renew(self._copy, envelope)

    def _renew_deployments_copy(self) -> None:
        row = self._row("SELECT document FROM admin_deployments")
        _renew(self._copy.with_name(DEPLOYMENTS_COPY), None if row is None else str(row[0]).encode())

    def stopped(self) -> frozenset[str]:
        """Deployments that an operator stopped and nobody started again."""
        with self._lock:
            return frozenset(str(row[0]) for row in self._connection.execute("SELECT deployment FROM stopped"))

    def set_stopped(self, deployment: str, stopped: bool, *, may_owe: bool = False) -> bool:
        """Whether it is durable. With `may_owe` a disk that takes no write does not stop it: it is written as soon as one does.

        Raises SbctlError `store_failed` without `may_owe`: nothing changed.
        """
        action = "deployment.stopped" if stopped else "deployment.released"
        try:
            with self._transaction() as db:
                if write_stop(db, deployment, stopped=stopped):
                    self._audit(db, action, deployment)
        except SbctlError as error:
            if not may_owe:
                raise
            entry = self._entry(action, deployment)
            with self._owing(action, deployment, error) as owed:
                if owed.stops.get(deployment) is not stopped:
                    owed.owe_entry(entry)
                owed.stops[deployment] = stopped
            return False
        return True

    def owes_stop(self, deployment: str) -> bool:
        """Whether an explicit stop of it would not outlive this process."""
        return self._owed.stops.get(deployment, False)

    def put_job(self, job: JobRow, *, may_owe: bool = False) -> bool:
        """Insert, with an entry of the audit that says who asked, or update. True: it is durable; `may_owe` as for a stop.

        Raises SbctlError `store_failed` without `may_owe`: nothing changed.
        """
        action, told = f"job.{job.kind}", {"job": job.id}
        try:
            with self._transaction() as db:
                if read_job(db, job.id) is None:
                    self._audit(db, action, job.subject, told)
                insert_job(db, job)
        except SbctlError as error:
            if not may_owe:
                raise
            entry = self._entry(action, job.subject, told)
            with self._owing(action, job.subject, error) as owed:
                if job.id not in owed.jobs and not self._knows_job(job.id):
                    owed.owe_entry(entry)
                owed.owe_job(job)
            return False
        return True

    def _knows_job(self, asked: str) -> bool:
        with contextlib.suppress(sqlite3.Error):
            return read_job(self._connection, asked) is not None
        return False

    def jobs(self) -> tuple[JobRow, ...]:
        """Newest first."""
        with self._lock:
            rows = {row.id: row for row in read_jobs(self._connection)} | self._owed.jobs
        return tuple(rows[name] for name in sorted(rows, reverse=True))

    def job(self, asked: str) -> JobRow | None:
        """One of them."""
        with self._lock:
            return self._owed.jobs.get(asked) or read_job(self._connection, asked)

    def audit(
        self,
        action: str,
        subject: str,
        detail: Detail | None = None,
        *,
        may_owe: bool = False,
    ) -> None:
        """An entry of the audit alone, by who acts: what changed is not kept here. `may_owe` as for a stop.

        Raises SbctlError `store_failed` without `may_owe`.
        """
        try:
            with self._transaction() as db:
                self._audit(db, action, subject, detail)
        except SbctlError as error:
            if not may_owe:
                raise
            entry = self._entry(action, subject, detail)
            with self._owing(action, subject, error) as owed:
                owed.owe_entry(entry)

    def note(self, action: str, subject: str, detail: Detail) -> None:
        """`audit` of what has to happen whatever the disk says: it never raises."""
        self.audit(action, subject, detail, may_owe=True)

    def settle(self) -> bool:
        """Write what is owed, if the disk takes it by now; whether nothing is owed any more."""
        if self._owed:
            with contextlib.suppress(SbctlError), self._transaction():
                pass
        return not self._owed

    @contextlib.contextmanager
    def _owing(self, action: str, subject: str, error: SbctlError) -> Iterator[OwedWrites]:
        log = get_log("store")
        log.error(
            "done, and not on the disk: it is written once the disk takes it",
            action=action,
            subject=subject,
            error=str(error),
        )
        with self._lock:
            yield self._owed

    def _audit(
        self,
        db: sqlite3.Connection,
        action: str,
        subject: str,
        detail: Detail | None = None,
        actor: Actor | None = None,
    ) -> None:
        append_audit(db, self._entry(action, subject, detail, actor))

    def _entry(self, action: str, subject: str, detail: Detail | None = None, actor: Actor | None = None) -> AuditEntry:
        who = actor or ACTING.get()
        return AuditEntry(rfc3339(self._clock.now()), who.name, who.role, action, subject, who.source, detail or {})

    def _of_the_runtime(self, action: str, subject: str, detail: Detail) -> AuditEntry:
        return self._entry(action, subject, detail, RUNTIME)

    def close(self) -> None:
        self.settle()
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._connection.close()


def _renew(copy: Path, data: bytes | None) -> None:
    """None: no file. What is accepted is durable without its copy, so a disk that has no room for it does not undo the commit."""
    try:
        if data is None:
            remove_file(copy)
            return
        with contextlib.suppress(InputError):
            if read_bounded(copy, max_bytes=4 * BUNDLE_MAX_BYTES) == data:
                return
        write_atomic(copy, data)
    except SbctlError as error:
        get_log("store").warning("a copy was not written", copy=copy.name, error=str(error))


def _seed(db: sqlite3.Connection, seeds: Mapping[str, DeploymentMember]) -> None:
    if seeds:
        row = DeploymentsRevision.of(1, seeds).row
        db.execute("INSERT OR IGNORE INTO admin_deployments VALUES (1, ?, ?, ?)", row)


def _damaged(path: Path, what: str) -> StateError:
    return StateError(
        "runtime.state_damaged",
        f"the runtime's database cannot be trusted: {what}",
        place=str(path),
        next_step="restore it from a backup; without it, remove the runtime and apply again",
    )
