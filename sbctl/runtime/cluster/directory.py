"""The directory: what each node of the cluster says of itself, as far as it is believed here, and why the others count for nothing.

A snapshot that is refused takes nothing away from an older one that was verified and has not expired: garbage, a replay, or a store that went
back in time make no node disappear. What shows that an identity is in two hands, or was taken away, counts at once. A node that drifts from
the bundle excludes itself and nobody else.

Age is counted by this node's own clock from when a snapshot arrived, so a clock that is a little off neither hides nor keeps a node; what was
in the store already when a reader starts counts at most a minute beyond its own end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal

from sbctl.base.clock import Clock
from sbctl.base.digests import fingerprint, sha256_bytes
from sbctl.base.errors import SbctlError
from sbctl.base.limits import CLOCK_SKEW_LEEWAY_S
from sbctl.node.cluster_documents import BundleMark, NodeSnapshotDocument
from sbctl.runtime.cluster.fences import ClusterFences
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.log import get_log
from sbctl.trust.peer_documents import Peer, PeerMark, VerifiedDocument
from sbctl.trust.peer_kinds import SNAPSHOT

__all__ = ["BEHIND_GRACE_S", "MEMBERS_MAX", "STALE_AFTER_S", "Directory", "DirectoryRow", "DirectoryView", "Exclusion"]

MEMBERS_MAX: Final = 1024
BEHIND_GRACE_S: Final = 30.0
"""So long a node may stand at an older bundle before it gets nothing new."""
STALE_AFTER_S: Final = 15.0
"""Without contact to the store for so long, the directory says that it is old; what it holds is used on."""

Exclusion = Literal[
    "",
    "snapshot_missing",
    "snapshot_expired",
    "snapshot_malformed",
    "schema_incompatible",
    "publisher_mismatch",
    "identity_mismatch",
    "identity_revoked",
    "clock_skew",
    "old_snapshot_generation",
    "snapshot_generation_conflict",
    "reported_unhealthy",
    "behind_active_generation",
    "deployment_digest_mismatch",
]
"""Why a node gets nothing new and no request; empty: it counts. Silence is judged by placement (`node_unreachable`, `node_lost`)."""

_REASONS: Final[Mapping[str, Exclusion]] = {
    "peer.too_new": "schema_incompatible",
    "peer.wrong_publisher": "publisher_mismatch",
    "peer.wrong_signer": "publisher_mismatch",
    "peer.old_counter": "old_snapshot_generation",
    "identity.boot_rollback": "old_snapshot_generation",
    "identity.epoch_rollback": "old_snapshot_generation",
    "peer.counter_conflict": "snapshot_generation_conflict",
    "identity.epoch_conflict": "snapshot_generation_conflict",
    "identity.revoked": "identity_revoked",
    "delegation.revoked": "identity_revoked",
    "peer.clock_skew": "clock_skew",
    "identity.clock_skew": "clock_skew",
    "peer.expired": "snapshot_expired",
    "peer.wrong_cluster": "identity_mismatch",
    "peer.identity_mismatch": "identity_mismatch",
    "envelope.bad_signature": "identity_mismatch",
}
_IDENTITY: Final = ("identity", "certificate", "delegation")
_AT_ONCE: Final = frozenset({"snapshot_generation_conflict", "identity_revoked"})


@dataclass(frozen=True, slots=True)
class DirectoryRow:
    """One node. `snapshot` is the newest that was verified; `exclusion` says whether it counts; `problem` why the last text did not, in a
    sentence, also where the node counts all the same."""

    node_id: str
    snapshot: NodeSnapshotDocument | None = None
    peer: Peer | None = None
    heard_at_ms: int = 0
    exclusion: Exclusion = "snapshot_missing"
    problem: str = ""
    removed: bool = False
    """It is gone from the store; the row stays to tell of it."""


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """The directory at one moment. `collected_at_ms` 0: nothing was ever collected. `stale_since_ms`: the store was last heard then, too long
    ago; None: it is fresh."""

    rows: Mapping[str, DirectoryRow]
    collected_at_ms: int
    digest: str
    stale_since_ms: int | None = None


@dataclass(slots=True)
class _Known:
    row: DirectoryRow
    text_sha256: str = ""
    ends_at_ms: int = 0
    refusal: Exclusion = ""
    behind_since_ms: int | None = None


@dataclass(slots=True)
class Directory:
    """Of one reader. `take` blocks for the disk; one thread at a time."""

    trust: HeldTrust
    fences: ClusterFences
    clock: Clock
    _known: dict[str, _Known] = field(default_factory=dict)
    _collected_at_ms: int = 0

    def take(self, texts: Mapping[str, str]) -> None:
        """What the store shows now, by the node in whose place it stands. Marks are on disk before anything of it is used.

        Raises SbctlError `cluster.state_not_written` and RefusedError `cluster.too_many_peers`: nothing of it is used.
        """
        now = self.clock.now()
        verified: dict[str, VerifiedDocument[NodeSnapshotDocument]] = {}
        refused: dict[str, SbctlError] = {}
        digests = {node_id: sha256_bytes(text.encode("utf-8", "surrogatepass")) for node_id, text in texts.items()}
        for node_id, text in texts.items():
            known = self._known.get(node_id)
            if known is not None and known.text_sha256 == digests[node_id] and not known.row.removed:
                continue
            try:
                verified[node_id] = self.trust.verifier.open(
                    text, SNAPSHOT, now=now, marks=self.fences.known(), publisher=node_id
                )
            except SbctlError as error:
                refused[node_id] = error
        self.fences.advance({node_id: one.mark for node_id, one in verified.items()})
        for node_id, one in verified.items():
            self._accept(node_id, one, digests[node_id])
        for node_id, why in refused.items():
            self._refuse(node_id, why, digests[node_id])
        self._collected_at_ms = self._now_ms()

    def recall(self, texts: Mapping[str, str], at: datetime) -> None:
        """Snapshots that were believed at `at`, before this process started: known, and expired. Those that are not good any more are left out."""
        for node_id, text in texts.items():
            try:
                # The mark may be of a later one that was not kept; what identity counts is looked at whenever it is used.
                one = self.trust.verifier.open(text, SNAPSHOT, now=at, marks={}, publisher=node_id)
            except SbctlError as error:
                get_log("cluster").info("a kept snapshot is not used", node=node_id, code=error.code)
                continue
            self._accept(node_id, one, "")
            if (known := self._known.get(node_id)) is not None:
                known.row, known.ends_at_ms = replace(known.row, heard_at_ms=0), 0

    def contact(self) -> None:
        """The store answered, and had nothing new."""
        self._collected_at_ms = self._now_ms()

    def remove(self, node_id: str) -> None:
        """Its place in the store is empty now."""
        known = self._known.get(node_id)
        if known is not None:
            known.row = replace(known.row, removed=True)

    def forget(self, node_id: str) -> None:
        """No row any more; its mark stays."""
        self._known.pop(node_id, None)

    def _now_ms(self) -> int:
        return int(self.clock.now().timestamp() * 1000)

    def _entry(self, node_id: str) -> _Known | None:
        known = self._known.get(node_id)
        if known is None:
            if len(self._known) >= MEMBERS_MAX:
                get_log("cluster").error("more nodes than a cluster may have", node=node_id, most=MEMBERS_MAX)
                return None
            known = self._known[node_id] = _Known(DirectoryRow(node_id))
        return known

    def _accept(self, node_id: str, verified: VerifiedDocument[NodeSnapshotDocument], digest: str) -> None:
        known = self._entry(node_id)
        if known is None:
            return
        now_ms, document = self._now_ms(), verified.document
        known.row = DirectoryRow(node_id, document, verified.peer, now_ms)
        known.text_sha256, known.refusal = digest, ""
        lifetime_ms = document.expires_at_unix_ms - document.published_at_unix_ms
        known.ends_at_ms = min(
            now_ms + lifetime_ms,
            document.expires_at_unix_ms + CLOCK_SKEW_LEEWAY_S * 1000,
            int(verified.peer.until.timestamp() * 1000),
        )

    def _refuse(self, node_id: str, error: SbctlError, digest: str) -> None:
        known = self._entry(node_id)
        if known is None:
            return
        if known.text_sha256 != digest or known.row.problem != error.message:
            get_log("cluster").warning("snapshot refused", node=node_id, code=error.code, reason=error.message)
        known.refusal = _reason(error)
        known.row = replace(known.row, problem=error.message, removed=False)
        # A refusal may pass by itself (a clock, a revocation list of tomorrow), so the same text is looked at again.
        known.text_sha256 = ""

    def view(self, active: BundleMark | None) -> DirectoryView:
        """All rows, judged now. `active`: the bundle that this node holds."""
        now_ms = self._now_ms()
        marks = self.fences.known()
        rows = {
            node_id: replace(known.row, exclusion=self._judged(known, active, now_ms, marks))
            for node_id, known in sorted(self._known.items())
        }
        stale = self._collected_at_ms if now_ms - self._collected_at_ms > STALE_AFTER_S * 1000 else None
        digest = fingerprint([[row.node_id, row.exclusion, _number(row)] for row in rows.values()])
        return DirectoryView(rows, self._collected_at_ms, digest, stale)

    def _judged(
        self, known: _Known, active: BundleMark | None, now_ms: int, marks: Mapping[str, PeerMark]
    ) -> Exclusion:
        row = known.row
        if row.snapshot is None or row.peer is None:
            return known.refusal or "snapshot_missing"
        if known.refusal in _AT_ONCE:
            return known.refusal
        try:
            self.trust.check(row.peer, marks)
        except SbctlError as error:
            return _reason(error)
        if row.removed:
            return "snapshot_missing"
        if now_ms > known.ends_at_ms:
            return known.refusal or "snapshot_expired"
        if row.snapshot.health.state == "unhealthy":
            return "reported_unhealthy"
        return self._drift(known, row.snapshot, active, now_ms)

    def _drift(
        self, known: _Known, snapshot: NodeSnapshotDocument, active: BundleMark | None, now_ms: int
    ) -> Exclusion:
        """Whether this one node runs by another bundle than everybody else. A moment after a publication all do."""
        shown = snapshot.active_bundle
        if active is None or (shown is not None and _order(shown) > _order(active)) or shown == active:
            known.behind_since_ms = None
            return ""
        if shown is not None and _order(shown) == _order(active):
            return "deployment_digest_mismatch"
        if known.behind_since_ms is None:
            known.behind_since_ms = now_ms
        return "behind_active_generation" if now_ms - known.behind_since_ms > BEHIND_GRACE_S * 1000 else ""


def _order(mark: BundleMark) -> tuple[int, int]:
    return mark.key_epoch, mark.revision


def _number(row: DirectoryRow) -> list[int]:
    snapshot = row.snapshot
    return [] if snapshot is None else [snapshot.identity_epoch, snapshot.boot_epoch, snapshot.counter]


def _reason(error: SbctlError) -> Exclusion:
    """The exclusion that a refusal stands for."""
    known = _REASONS.get(error.code)
    if known is not None:
        return known
    return "identity_mismatch" if error.code.partition(".")[0] in _IDENTITY else "snapshot_malformed"
