"""What this node will never go behind, in one SQLite file: marks of its peers, fences of bundle and lease-holder, and what moved them.

What returned is on disk (WAL, synchronous=FULL), and a caller uses a document only after its mark or fence was kept. A fence and the document
that moved it are one transaction, so a restart without the store serves the bundle and obeys the assignment of before. Members that ran here
are kept too: a rollout that is taken back needs one that no bundle holds any more. Marks are also held in memory: reading them costs nothing,
and a collection of the whole directory is written at once.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from pydantic import ValidationError

from sbctl.base.clock import SYSTEM_CLOCK, Clock
from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import RefusedError, SbctlError, StateError
from sbctl.base.limits import BUNDLE_MAX_BYTES, ENROLLED_HOURS_MAX
from sbctl.runtime.durable_sqlite import opened, transaction
from sbctl.trust.bundle import DeploymentMember, TrustSet
from sbctl.trust.cluster_bundle import ClusterBundlePayload, VerifiedClusterBundle, replica_digest
from sbctl.trust.cluster_fences import LeaseFence
from sbctl.trust.envelope import unverified_payload
from sbctl.trust.identity import HighWater
from sbctl.trust.peer_documents import PeerMark
from sbctl.trust.verifier import Fence, parse_payload, parse_trust

__all__ = ["PEERS_MAX", "ClusterFences", "Fenced", "KeptBundle"]

PEERS_MAX: Final = 16_384
"""Nodes whose marks are kept, those that left the cluster too."""
_SCHEMA_VERSION: Final = 1
_CERTIFICATE_LIFE_MAX: Final = timedelta(hours=ENROLLED_HOURS_MAX)

Fenced = Literal["assignment", "placement", "lease"]

_SCHEMA: Final = (
    """CREATE TABLE peer (node_id TEXT PRIMARY KEY, identity_epoch INTEGER NOT NULL, certificate_sha256 TEXT NOT NULL,
                        boot_epoch INTEGER NOT NULL, counter INTEGER NOT NULL, digest TEXT NOT NULL, seen_at INTEGER NOT NULL) STRICT""",
    """CREATE TABLE fence (kind TEXT PRIMARY KEY, lease_epoch INTEGER NOT NULL, holder TEXT NOT NULL, counter INTEGER NOT NULL,
                         digest TEXT NOT NULL, document TEXT NOT NULL, document_sha256 TEXT NOT NULL) STRICT""",
    """CREATE TABLE heard (only INTEGER PRIMARY KEY CHECK (only = 1), lease_epoch INTEGER NOT NULL, authority_at REAL) STRICT""",
    "INSERT INTO heard VALUES (1, 0, NULL)",
    """CREATE TABLE bundle (only INTEGER PRIMARY KEY CHECK (only = 1), key_epoch INTEGER NOT NULL, revision INTEGER NOT NULL,
                          content_digest TEXT NOT NULL, signer TEXT NOT NULL, envelope TEXT NOT NULL, envelope_sha256 TEXT NOT NULL) STRICT""",
    """CREATE TABLE signers (only INTEGER PRIMARY KEY CHECK (only = 1), document TEXT NOT NULL, document_sha256 TEXT NOT NULL) STRICT""",
    "CREATE TABLE member (digest TEXT PRIMARY KEY, document TEXT NOT NULL, used INTEGER NOT NULL) STRICT",
)
_MEMBERS_KEPT: Final = 1024


@dataclass(frozen=True, slots=True)
class KeptBundle:
    """The bundle of the cluster whose content counts here, and the text that was signed."""

    payload: ClusterBundlePayload
    signer: str
    envelope: str


class ClusterFences:
    """One process opens it (the serve lock). Methods block for some milliseconds and may be called from any thread."""

    def __init__(self, database: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        """Raises StateError `cluster.state_damaged`, `cluster.state_too_new`."""
        self._path = database
        self._clock = clock
        self._lock = threading.Lock()
        try:
            self._connection = opened(database)
            self._prepare()
            self._marks = {
                str(row[0]): PeerMark(HighWater(row[1], row[2], row[3]), row[4], row[5])
                for row in self._connection.execute("SELECT * FROM peer")
            }
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from error

    def _prepare(self) -> None:
        run = self._connection.execute
        version = int(run("PRAGMA user_version").fetchone()[0])
        if version > _SCHEMA_VERSION:
            raise StateError(
                "cluster.state_too_new",
                f"what this node remembers of its cluster has version {version}, this runtime knows {_SCHEMA_VERSION}",
                place=str(self._path),
                next_step="run the newer runtime",
            )
        if run("PRAGMA quick_check").fetchone()[0] != "ok":
            raise self._damaged("its integrity check fails")
        if version == 0:
            with self._transaction() as db:
                for statement in _SCHEMA:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")

    def _transaction(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        return transaction(self._connection, self._lock, self._refused)

    def _refused(self, error: sqlite3.Error) -> SbctlError:
        return SbctlError(
            "cluster.state_not_written",
            f"what this node remembers of its cluster could not be written: {error}",
            place=str(self._path),
            next_step="see to the disk; until then the node keeps to what it obeyed before",
            retryable=True,
        )

    def known(self) -> Mapping[str, PeerMark]:
        """Marks by node id, as `PeerVerifier.open` takes them; what is returned changes with them."""
        return MappingProxyType(self._marks)

    def note(self, node_id: str, mark: PeerMark) -> None:
        """As `advance`, for one document."""
        self.advance({node_id: mark})

    def advance(self, marks: Mapping[str, PeerMark]) -> None:
        """Keep the marks of documents that were accepted, all in one transaction.

        Raises SbctlError `cluster.state_not_written`; RefusedError `cluster.too_many_peers`: nothing is kept, and none of them may be used.
        """
        changed = {name: mark for name, mark in marks.items() if self._marks.get(name) != mark}
        if not changed:
            return
        now = int(self._clock.now().timestamp())
        with self._transaction() as db:
            gone = self._make_room(db, len(set(changed) - set(self._marks)), now)
            db.executemany(
                "INSERT OR REPLACE INTO peer VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        name,
                        mark.identity.identity_epoch,
                        mark.identity.certificate_sha256,
                        mark.identity.boot_epoch,
                        mark.counter,
                        mark.digest,
                        now,
                    )
                    for name, mark in changed.items()
                ],
            )
        for name in gone:
            self._marks.pop(name, None)
        self._marks.update(changed)

    def _make_room(self, db: sqlite3.Connection, added: int, now: int) -> list[str]:
        """Forget peers whose last certificate ended whatever its life was: none of theirs can come back."""
        excess = len(self._marks) + added - PEERS_MAX
        if excess <= 0:
            return []
        ended = now - int(_CERTIFICATE_LIFE_MAX.total_seconds())
        rows = db.execute("SELECT node_id FROM peer WHERE seen_at < ? ORDER BY seen_at LIMIT ?", (ended, excess))
        gone = [str(row[0]) for row in rows]
        if len(gone) < excess:
            raise RefusedError(
                "cluster.too_many_peers",
                f"{PEERS_MAX} nodes have been seen in this cluster, and a new one cannot be told from an old one that was forgotten",
                place=str(self._path),
                next_step="let new hosts take the names of old ones",
            )
        db.executemany("DELETE FROM peer WHERE node_id = ?", [(name,) for name in gone])
        return gone

    def fence(self, kind: Fenced) -> LeaseFence | None:
        """The newest document of this kind that was accepted."""
        row = self._row("SELECT lease_epoch, holder, counter, digest FROM fence WHERE kind = ?", kind)
        return None if row is None else LeaseFence(int(row[0]), str(row[1]), int(row[2]), str(row[3]))

    def accept(self, kind: Fenced, fence: LeaseFence, document: str, *, issued_at: datetime) -> None:
        """Move the fence and keep the signed text that moved it, all or nothing. Raises SbctlError `cluster.state_not_written`."""
        with self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO fence VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    kind,
                    fence.lease_epoch,
                    fence.holder,
                    fence.counter,
                    fence.digest,
                    document,
                    sha256_bytes(document.encode()),
                ),
            )
            db.execute("UPDATE heard SET lease_epoch = max(lease_epoch, ?)", (fence.lease_epoch,))
            _hear(db, issued_at)

    def accepted(self, kind: Fenced) -> str | None:
        """The signed text as it was accepted: it was verified then and holds until a newer one is. Raises StateError `cluster.state_damaged`."""
        row = self._row("SELECT document, document_sha256 FROM fence WHERE kind = ?", kind)
        if row is None:
            return None
        if sha256_bytes(str(row[0]).encode()) != row[1]:
            raise self._damaged(f"the {kind} does not have its digest")
        return str(row[0])

    def bundle_fence(self) -> Fence | None:
        """The newest bundle of the cluster that was ever accepted here."""
        row = self._row("SELECT key_epoch, revision, content_digest FROM bundle")
        return None if row is None else Fence(int(row[0]), int(row[1]), str(row[2]))

    def accept_bundle(self, verified: VerifiedClusterBundle, envelope: str) -> None:
        """Move the fence and keep the bundle, all or nothing. Raises SbctlError `cluster.state_not_written`."""
        fence = verified.fence
        kept = (fence.key_epoch, fence.revision, fence.content_digest, verified.signer, envelope)
        with self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO bundle VALUES (1, ?, ?, ?, ?, ?, ?)", (*kept, sha256_bytes(envelope.encode()))
            )
            _hear(db, datetime.fromisoformat(verified.payload.issued_at))

    def bundle(self) -> KeptBundle | None:
        """As it was accepted, checked by its digest, not by signature or age. Raises StateError `cluster.state_damaged`."""
        row = self._row("SELECT signer, envelope, envelope_sha256 FROM bundle")
        if row is None:
            return None
        signer, envelope, digest = (str(value) for value in row)
        if sha256_bytes(envelope.encode()) != digest:
            raise self._damaged("the accepted bundle does not have its digest")
        _type, raw, _keyids = unverified_payload(envelope, max_bytes=BUNDLE_MAX_BYTES)
        return KeptBundle(parse_payload(raw, ClusterBundlePayload), signer, envelope)

    def keep_signers(self, trust: TrustSet) -> None:
        """A signer set that was verified. Raises SbctlError `cluster.state_not_written`."""
        document = trust.model_dump_json()
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO signers VALUES (1, ?, ?)", (document, sha256_bytes(document.encode())))

    def signers(self) -> TrustSet | None:
        """The set that was kept. Raises StateError `cluster.state_damaged`."""
        row = self._row("SELECT document, document_sha256 FROM signers")
        if row is None:
            return None
        if sha256_bytes(str(row[0]).encode()) != row[1]:
            raise self._damaged("the signer set does not have its digest")
        return parse_trust(str(row[0]).encode())

    def remember(self, members: Mapping[str, DeploymentMember]) -> None:
        """Members that begin to run here, by `replica_digest`. The newest 1,024 are kept. Raises SbctlError `cluster.state_not_written`."""
        with self._transaction() as db:
            newest = int(db.execute("SELECT coalesce(max(used), 0) FROM member").fetchone()[0]) + 1
            db.executemany(
                "INSERT OR REPLACE INTO member VALUES (?, ?, ?)",
                [(digest, member.model_dump_json(), newest) for digest, member in members.items()],
            )
            db.execute(
                "DELETE FROM member WHERE digest NOT IN (SELECT digest FROM member ORDER BY used DESC, digest LIMIT ?)",
                (_MEMBERS_KEPT,),
            )

    def remembered(self) -> Mapping[str, DeploymentMember]:
        """As `node_content` takes them. One that this version cannot read is left out: nothing can be started from it."""
        found: dict[str, DeploymentMember] = {}
        with self._lock:
            rows = self._connection.execute("SELECT digest, document FROM member").fetchall()
        for digest, document in rows:
            with contextlib.suppress(ValidationError):
                member = DeploymentMember.model_validate_json(document)
                if replica_digest(member) == digest:
                    found[str(digest)] = member
        return found

    @property
    def lease_epoch_seen(self) -> int:
        """The highest of any document that was accepted; who takes the lease takes a higher one."""
        row = self._row("SELECT lease_epoch FROM heard")
        return 0 if row is None else int(row[0])

    def take_lease_epoch(self, epoch: int) -> None:
        """Before this node takes the lease with it: whatever the store loses, the epoch is not taken twice. Raises as `accept`."""
        with self._transaction() as db:
            db.execute("UPDATE heard SET lease_epoch = max(lease_epoch, ?)", (epoch,))

    def authority_heard_at(self) -> datetime | None:
        """When the newest thing of an authority that was accepted here was signed, as `authority_stale` takes it."""
        row = self._row("SELECT authority_at FROM heard")
        return (
            None if row is None or row[0] is None else datetime.fromtimestamp(float(row[0]), self._clock.now().tzinfo)
        )

    def hear(self, issued_at: datetime) -> None:
        """A bundle of the cluster was accepted, or a lease seen renewed. Raises as `accept`."""
        with self._transaction() as db:
            _hear(db, issued_at)

    def _row(self, sql: str, *values: object) -> tuple[str | int | float, ...] | None:
        with self._lock:
            row: tuple[str | int | float, ...] | None = self._connection.execute(sql, values).fetchone()
            return row

    def _damaged(self, what: str) -> StateError:
        return StateError(
            "cluster.state_damaged",
            f"what this node remembers of its cluster cannot be trusted: {what}",
            place=str(self._path),
            next_step="give the node a new identity (sbctl cluster rotate NODE), move this file away, then sbctl apply",
        )

    def close(self) -> None:
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._connection.close()


def _hear(db: sqlite3.Connection, issued_at: datetime) -> None:
    db.execute("UPDATE heard SET authority_at = max(coalesce(authority_at, 0), ?)", (issued_at.timestamp(),))
