"""What this node will never go behind: marks of its peers, fences of bundle and lease-holder, and what moved them.

What returned is on disk, in two files of which either suffices (`TwinFiles`), and a caller uses a document only after its mark or fence was
kept. A fence and the document that moved it are one transaction, so a restart without the store serves the bundle and obeys the assignment of
before. Members that ran here are kept too: a rollout that is taken back needs one that no bundle holds any more. All of it is also held in
memory: reading costs nothing, and a collection of the whole directory is written at once.

Where both files are damaged nothing is remembered, and nothing new is believed: an old document could not be told from a new one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from pydantic import ValidationError

from sbctl.base.clock import SYSTEM_CLOCK, Clock
from sbctl.base.errors import RefusedError, SbctlError, StateError
from sbctl.base.limits import BUNDLE_MAX_BYTES, ENROLLED_HOURS_MAX
from sbctl.runtime.cluster.twin_files import Schema, TwinFiles, Writing
from sbctl.trust.bundle import DeploymentMember, TrustSet
from sbctl.trust.cluster_bundle import ClusterBundlePayload, VerifiedClusterBundle, replica_digest
from sbctl.trust.cluster_fences import LeaseFence
from sbctl.trust.envelope import unverified_payload
from sbctl.trust.identity import HighWater
from sbctl.trust.peer_documents import PeerMark
from sbctl.trust.verifier import Fence, parse_payload, parse_trust

__all__ = ["COPY_NAME", "PEERS_MAX", "ClusterFences", "Fenced", "KeptBundle"]

PEERS_MAX: Final = 16_384
"""Nodes whose marks are kept, those that left the cluster too."""
COPY_NAME: Final = "cluster-copy.db"
"""Beside the database, whatever that is called."""
_CERTIFICATE_LIFE_MAX: Final = timedelta(hours=ENROLLED_HOURS_MAX)

Fenced = Literal["assignment", "placement", "lease"]

_ONLY: Final = "only INTEGER PRIMARY KEY CHECK (only = 1)"
_SCHEMA: Final = Schema(
    2,
    {
        "peer": "node_id TEXT PRIMARY KEY, identity_epoch INTEGER NOT NULL, certificate_sha256 TEXT NOT NULL, "
        "boot_epoch INTEGER NOT NULL, counter INTEGER NOT NULL, digest TEXT NOT NULL, seen_at INTEGER NOT NULL",
        "fence": "kind TEXT PRIMARY KEY, lease_epoch INTEGER NOT NULL, holder TEXT NOT NULL, counter INTEGER NOT NULL, "
        "digest TEXT NOT NULL, document TEXT NOT NULL",
        "heard": f"{_ONLY}, lease_epoch INTEGER NOT NULL, authority_at REAL",
        "bundle": f"{_ONLY}, key_epoch INTEGER NOT NULL, revision INTEGER NOT NULL, content_digest TEXT NOT NULL, "
        "signer TEXT NOT NULL, envelope TEXT NOT NULL",
        "signers": f"{_ONLY}, document TEXT NOT NULL",
        "member": "digest TEXT PRIMARY KEY, document TEXT NOT NULL, used INTEGER NOT NULL",
    },
    first=(("heard", (1, 0, None)),),
)
_MEMBERS_KEPT: Final = 1024


@dataclass(frozen=True, slots=True)
class KeptBundle:
    """The bundle of the cluster whose content counts here, and the text that was signed."""

    payload: ClusterBundlePayload
    signer: str
    envelope: str


@dataclass(frozen=True, slots=True)
class _Remembered:
    """`text`: the member as it is kept."""

    member: DeploymentMember
    text: str


class ClusterFences:
    """One process opens it (the serve lock). Methods block for some milliseconds and may be called from any thread."""

    def __init__(self, database: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        """Raises StateError `cluster.state_too_new`. What is damaged stops nobody: `problem` tells of it."""
        self._path = database
        self._clock = clock
        self._files = TwinFiles(database, database.with_name(COPY_NAME), _SCHEMA, refused=self._refused)
        if self._files.lost and self._files.is_too_new:
            why = self._files.lost
            self._files.close()
            raise StateError(
                "cluster.state_too_new",
                f"what this node remembers of its cluster is of a newer runtime: {why}",
                place=str(database),
                next_step="run the newer runtime",
            )
        self._marks = {
            str(row[0]): PeerMark(HighWater(row[1], row[2], row[3]), row[4], row[5])
            for row in self._files.rows("SELECT * FROM peer")
        }
        self._members: dict[str, _Remembered] | None = None
        """None: not read yet."""
        self._newest: frozenset[str] | None = None
        """Those that were remembered last, by this process."""

    @property
    def problem(self) -> SbctlError | None:
        """Why nothing new can be believed here now; None: it can."""
        if self._files.lost:
            return self._damaged()
        return self._refused(OSError(self._files.not_written)) if self._files.not_written else None

    def _transaction(self) -> contextlib.AbstractContextManager[Writing]:
        return self._files.transaction()

    def _refused(self, error: Exception) -> SbctlError:
        if self._files.lost:
            return self._damaged()
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
            db.put(
                "peer",
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

    def _make_room(self, db: Writing, added: int, now: int) -> list[str]:
        """Forget peers whose last certificate ended whatever its life was: none of theirs can come back."""
        excess = len(self._marks) + added - PEERS_MAX
        if excess <= 0:
            return []
        ended = now - int(_CERTIFICATE_LIFE_MAX.total_seconds())
        rows = db.rows("SELECT node_id FROM peer WHERE seen_at < ? ORDER BY seen_at LIMIT ?", (ended, excess))
        gone = [str(row[0]) for row in rows]
        if len(gone) < excess:
            raise RefusedError(
                "cluster.too_many_peers",
                f"{PEERS_MAX} nodes have been seen in this cluster, and a new one cannot be told from an old one that was forgotten",
                place=str(self._path),
                next_step="let new hosts take the names of old ones",
            )
        for name in gone:
            db.execute("DELETE FROM peer WHERE node_id = ?", (name,))
        return gone

    def fence(self, kind: Fenced) -> LeaseFence | None:
        """The newest document of this kind that was accepted."""
        row = self._row("SELECT lease_epoch, holder, counter, digest FROM fence WHERE kind = ?", kind)
        return None if row is None else LeaseFence(int(row[0]), str(row[1]), int(row[2]), str(row[3]))

    def accept(self, kind: Fenced, fence: LeaseFence, document: str, *, issued_at: datetime) -> None:
        """Move the fence and keep the signed text that moved it, all or nothing. Raises SbctlError `cluster.state_not_written`."""
        row = (kind, fence.lease_epoch, fence.holder, fence.counter, fence.digest, document)
        with self._transaction() as db:
            db.put("fence", [row])
            _hear(db, lease_epoch=fence.lease_epoch, issued_at=issued_at)

    def accepted(self, kind: Fenced) -> str | None:
        """The signed text as it was accepted: it was verified then and holds until a newer one is."""
        row = self._row("SELECT document FROM fence WHERE kind = ?", kind)
        return None if row is None else str(row[0])

    def bundle_fence(self) -> Fence | None:
        """The newest bundle of the cluster that was ever accepted here."""
        row = self._row("SELECT key_epoch, revision, content_digest FROM bundle")
        return None if row is None else Fence(int(row[0]), int(row[1]), str(row[2]))

    def accept_bundle(self, verified: VerifiedClusterBundle, envelope: str) -> None:
        """Move the fence and keep the bundle, all or nothing. Raises SbctlError `cluster.state_not_written`."""
        fence = verified.fence
        row = (1, fence.key_epoch, fence.revision, fence.content_digest, verified.signer, envelope)
        with self._transaction() as db:
            db.put("bundle", [row])
            _hear(db, issued_at=datetime.fromisoformat(verified.payload.issued_at))

    def bundle(self) -> KeptBundle | None:
        """As it was accepted, whatever its age is by now."""
        row = self._row("SELECT signer, envelope FROM bundle")
        if row is None:
            return None
        signer, envelope = (str(value) for value in row)
        _type, raw, _keyids = unverified_payload(envelope, max_bytes=BUNDLE_MAX_BYTES)
        return KeptBundle(parse_payload(raw, ClusterBundlePayload), signer, envelope)

    def keep_signers(self, trust: TrustSet) -> None:
        """A signer set that was verified. Raises SbctlError `cluster.state_not_written`."""
        with self._transaction() as db:
            db.put("signers", [(1, trust.model_dump_json())])

    def signers(self) -> TrustSet | None:
        """The set that was kept."""
        row = self._row("SELECT document FROM signers")
        return None if row is None else parse_trust(str(row[0]).encode())

    def remember(self, members: Mapping[str, DeploymentMember]) -> None:
        """Members that run here from now on, by `replica_digest`. 1,024 are kept: those that were here last. Raises SbctlError
        `cluster.state_not_written`."""
        known = self._known_members()
        if frozenset(members) == self._newest:
            return
        texts = {
            digest: known[digest].text if digest in known else member.model_dump_json()
            for digest, member in members.items()
        }
        with self._transaction() as db:
            newest = int(db.rows("SELECT coalesce(max(used), 0) FROM member")[0][0]) + 1
            db.put("member", [(digest, text, newest) for digest, text in texts.items()])
            db.execute(
                "DELETE FROM member WHERE digest NOT IN (SELECT digest FROM member ORDER BY used DESC, digest LIMIT ?)",
                (_MEMBERS_KEPT,),
            )
            kept = {str(row[0]) for row in db.rows("SELECT digest FROM member")}
        fresh = {
            digest: _Remembered(member, texts[digest]) for digest, member in members.items() if digest not in known
        }
        self._members = {digest: one for digest, one in {**known, **fresh}.items() if digest in kept}
        self._newest = frozenset(members)

    def remembered(self) -> Mapping[str, DeploymentMember]:
        """As `node_content` takes them, the same objects every time. One that this version cannot read is left out: nothing can be started
        from it."""
        return {digest: one.member for digest, one in self._known_members().items()}

    def _known_members(self) -> dict[str, _Remembered]:
        if self._members is None:
            self._members = {}
            for digest, document in self._files.rows("SELECT digest, document FROM member"):
                with contextlib.suppress(ValidationError):
                    member = DeploymentMember.model_validate_json(document)
                    if replica_digest(member) == digest:
                        self._members[str(digest)] = _Remembered(member, str(document))
        return self._members

    @property
    def lease_epoch_seen(self) -> int:
        """The highest of any document that was accepted; who takes the lease takes a higher one."""
        row = self._row("SELECT lease_epoch FROM heard")
        return 0 if row is None else int(row[0])

    def take_lease_epoch(self, epoch: int) -> None:
        """Before this node takes the lease with it: whatever the store loses, the epoch is not taken twice. Raises as `accept`."""
        with self._transaction() as db:
            _hear(db, lease_epoch=epoch)

    def authority_heard_at(self) -> datetime | None:
        """When the newest thing of an authority that was accepted here was signed, as `authority_stale` takes it."""
        row = self._row("SELECT authority_at FROM heard")
        return (
            None if row is None or row[0] is None else datetime.fromtimestamp(float(row[0]), self._clock.now().tzinfo)
        )

    def hear(self, issued_at: datetime) -> None:
        """A bundle of the cluster was accepted, or a lease seen renewed. Raises as `accept`."""
        with self._transaction() as db:
            _hear(db, issued_at=issued_at)

    def _row(self, sql: str, *values: object) -> tuple[Any, ...] | None:
        return next(iter(self._files.rows(sql, values)), None)

    def _damaged(self) -> StateError:
        return StateError(
            "cluster.state_damaged",
            f"what this node remembers of its cluster is lost, and it believes nobody: {self._files.lost}",
            place=str(self._path),
            next_step=f"sbctl cluster rotate NODE; on the node move {self._path.name} and {COPY_NAME} away and restart its runtime; "
            "then sbctl apply: it learns all anew, as a new node does",
        )

    def close(self) -> None:
        self._files.close()


def _hear(db: Writing, *, lease_epoch: int = 0, issued_at: datetime | None = None) -> None:
    _, epoch, heard, *_ = db.rows("SELECT * FROM heard")[0]
    times = [] if issued_at is None else [issued_at.timestamp()]
    db.put("heard", [(1, max(epoch, lease_epoch), max([*([] if heard is None else [heard]), *times], default=None))])
