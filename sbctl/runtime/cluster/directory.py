"""The directory: what each node of the cluster says of itself, as far as it is believed here, and why the others count for nothing.

A snapshot that is refused takes nothing away from an older one that was verified and has not expired: garbage, a replay, or a store that went
back in time make no node disappear. What shows that an identity is in two hands counts at once, and so does it when
the identity that is believed was taken away; whoever holds one of before, and writes in the place of its node, harms nobody. A node that drifts from
the bundle excludes itself and nobody else.

Age is counted by this node's own monotonic clock from when a snapshot arrived, so a clock that is a little off neither hides nor keeps a node,
and one that is set makes nobody old; what was in the store already when a reader starts counts at most a minute beyond its own end. A clock
that is further off excludes its node: `clock_skew`, with the seconds. Where this node's own clock is the one that differs, the view says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal

from sbctl.base.clock import Clock, thread_cpu_s
from sbctl.base.digests import fingerprint, sha256_bytes
from sbctl.base.errors import SbctlError
from sbctl.base.limits import CLOCK_SKEW_LEEWAY_S
from sbctl.node.cluster_documents import BundleMark, NodeSnapshotDocument
from sbctl.placement.documents import LEAVES
from sbctl.runtime.cluster.clocks import Clocks
from sbctl.runtime.cluster.fences import ClusterFences
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.log import get_log
from sbctl.trust.peer_documents import Peer, PeerMark, VerifiedDocument
from sbctl.trust.peer_kinds import SNAPSHOT

__all__ = [
    "BEHIND_GRACE_S",
    "MEMBERS_MAX",
    "STALE_AFTER_S",
    "Directory",
    "DirectoryRow",
    "DirectoryView",
    "Exclusion",
    "clock_words",
    "has_left",
    "origin_of",
]

MEMBERS_MAX: Final = 1024
_LEFT_MAX: Final = 4096
"""Rows of nodes that are out of the cluster; the oldest go first."""
BEHIND_GRACE_S: Final = 30.0
"""So long a node may stand at an older bundle before it gets nothing new."""
_TOLD_EVERY_S: Final = 10.0
"""Of one node: what it writes fills no log."""
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
_MOMENTS: Final = frozenset({"peer.clock_skew", "peer.expired"})
_AT_ONCE: Final = frozenset({"snapshot_generation_conflict"})


@dataclass(frozen=True, slots=True)
class DirectoryRow:
    """One node. `snapshot` is the newest that was verified; `exclusion` says whether it counts; `problem` why the last text did not, in a
    sentence, also where the node counts all the same. `heard_at_ms`: by the clock as it is now; 0: never since the start."""

    node_id: str
    snapshot: NodeSnapshotDocument | None = None
    peer: Peer | None = None
    heard_at_ms: int = 0
    exclusion: Exclusion = "snapshot_missing"
    problem: str = ""
    removed: bool = False
    """It is gone from the store; the row stays to tell of it, as long as this process."""


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """The directory at one moment. `collected_at_ms` 0: nothing was ever collected. `stale_since_ms`: the store was last heard then, too long
    ago; None: it is fresh. `origin_ms`: what the wall clock said at the monotonic clock's zero, as the two were then. `own_ahead_s`: by so
    much this node's clock is ahead of most others; None: it is as theirs."""

    rows: Mapping[str, DirectoryRow]
    collected_at_ms: int
    digest: str
    stale_since_ms: int | None = None
    origin_ms: float = 0.0
    own_ahead_s: float | None = None

    def redated(self, origin_ms: float) -> DirectoryView:
        """The same after the wall clock was set: as old as before."""
        moved_ms = round(origin_ms - self.origin_ms)
        rows = {
            name: replace(row, heard_at_ms=row.heard_at_ms + moved_ms) if row.heard_at_ms else row
            for name, row in self.rows.items()
        }
        return replace(
            self,
            rows=rows,
            collected_at_ms=self.collected_at_ms + moved_ms if self.collected_at_ms else 0,
            stale_since_ms=None if self.stale_since_ms is None else self.stale_since_ms + moved_ms,
            origin_ms=origin_ms,
        )


@dataclass(slots=True)
class _Known:
    row: DirectoryRow
    text_sha256: str = ""
    heard_s: float | None = None
    ends_s: float = 0.0
    refusal: Exclusion = ""
    told_s: float | None = None
    """When the log was told of a refusal last."""
    behind_since_s: float | None = None


@dataclass(slots=True)
class Directory:
    """Of one reader. `take` blocks for the disk; one thread at a time."""

    trust: HeldTrust
    fences: ClusterFences
    clock: Clock
    node_id: str = ""
    _known: dict[str, _Known] = field(default_factory=dict)
    _collected_s: float | None = None
    _clocks: Clocks = field(init=False)

    def __post_init__(self) -> None:
        self._clocks = Clocks(self.node_id)

    def take(self, texts: Mapping[str, str], *, fresh: Collection[str] = ()) -> Mapping[str, float]:
        """What the store shows now, by the node in whose place it stands. Marks are on disk before anything of it is used. `fresh`: of nodes
        that wrote it just now. → how many seconds of a processor reading each node's words took.

        Raises SbctlError `cluster.state_not_written` and RefusedError `cluster.too_many_peers`: nothing of it is used.
        """
        now = self.clock.now()
        verified: dict[str, VerifiedDocument[NodeSnapshotDocument]] = {}
        refused: dict[str, SbctlError] = {}
        digests = {node_id: sha256_bytes(text.encode("utf-8", "surrogatepass")) for node_id, text in texts.items()}
        took_s: dict[str, float] = {}
        for node_id, text in texts.items():
            known = self._known.get(node_id)
            if known is not None and known.text_sha256 == digests[node_id] and not known.row.removed:
                continue
            began_s = thread_cpu_s()
            try:
                verified[node_id] = self.trust.verifier.open(
                    text, SNAPSHOT, now=now, marks=self.fences.known(), publisher=node_id
                )
            except SbctlError as error:
                refused[node_id] = error
            took_s[node_id] = thread_cpu_s() - began_s
        self.fences.advance({node_id: one.mark for node_id, one in verified.items()})
        for node_id, one in verified.items():
            if node_id in fresh:
                self._compare(node_id, one.document.published_at_unix_ms)
            self._accept(node_id, one, digests[node_id])
        for node_id, why in refused.items():
            if node_id in fresh and isinstance(made_ms := why.detail.get("made_unix_ms"), int):
                self._compare(node_id, made_ms)
            self._refuse(node_id, why)
        self._collected_s = self.clock.monotonic_s()
        return took_s

    def _compare(self, node_id: str, made_ms: int) -> None:
        self._clocks.heard(
            node_id, made_s=made_ms / 1000, now_s=self.clock.now().timestamp(), at_s=self.clock.monotonic_s()
        )

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
                known.heard_s, known.ends_s = None, 0.0

    def contact(self) -> None:
        """The store answered, and had nothing new."""
        self._collected_s = self.clock.monotonic_s()

    def remove(self, node_id: str) -> None:
        """Its place in the store is empty now. Its row stays, and takes no place of a member. Nobody signs a deletion: a node that did not say
        that it leaves ends by its own time, as where the store lost it."""
        known = self._known.get(node_id)
        if known is None or (known.row.snapshot is not None and not _leaves(known.row.snapshot)):
            return
        del self._known[node_id]
        known.row = replace(known.row, removed=True)
        self._known[node_id] = known
        self._clocks.forget(node_id)
        left = [name for name, one in self._known.items() if one.row.removed]
        for oldest in left[: max(0, len(left) - _LEFT_MAX)]:
            del self._known[oldest]

    def _entry(self, node_id: str) -> _Known | None:
        known = self._known.get(node_id)
        if known is None:
            if sum(not one.row.removed for one in self._known.values()) >= MEMBERS_MAX:
                get_log("cluster").error("more nodes than a cluster may have", node=node_id, most=MEMBERS_MAX)
                return None
            known = self._known[node_id] = _Known(DirectoryRow(node_id))
        return known

    def _accept(self, node_id: str, verified: VerifiedDocument[NodeSnapshotDocument], digest: str) -> None:
        known = self._entry(node_id)
        if known is None:
            return
        now_s, document = self.clock.now().timestamp(), verified.document
        known.row = DirectoryRow(node_id, document, verified.peer)
        known.text_sha256, known.refusal = digest, ""
        known.heard_s = self.clock.monotonic_s()
        known.ends_s = known.heard_s + min(
            (document.expires_at_unix_ms - document.published_at_unix_ms) / 1000,
            document.expires_at_unix_ms / 1000 + CLOCK_SKEW_LEEWAY_S - now_s,
        )

    def _refuse(self, node_id: str, error: SbctlError) -> None:
        known = self._entry(node_id)
        if known is None:
            return
        reason, problem = _reason(error), error.message
        ahead_s = self._clocks.ahead_s(node_id, self.clock.monotonic_s())
        if error.code in _MOMENTS and ahead_s is not None:
            reason, problem = "clock_skew", clock_words(node_id, ahead_s)
        at_s = self.clock.monotonic_s()
        if known.refusal != reason and (known.told_s is None or at_s - known.told_s >= _TOLD_EVERY_S):
            known.told_s = at_s
            get_log("cluster").warning("snapshot refused", node=node_id, code=error.code, reason=problem)
        known.refusal = reason
        known.row = replace(known.row, problem=problem, removed=False)
        # A refusal may pass by itself (a clock, a revocation list of tomorrow), so the same text is looked at again.
        known.text_sha256 = ""

    def view(self, active: BundleMark | None) -> DirectoryView:
        """All rows, judged now. `active`: the bundle that this node holds."""
        at_s = self.clock.monotonic_s()
        origin_ms = origin_of(self.clock)
        marks = self.fences.known()
        rows = {
            node_id: replace(
                known.row,
                heard_at_ms=0 if known.heard_s is None else int(origin_ms + known.heard_s * 1000),
                exclusion=self._judged(known, active, at_s, marks),
            )
            for node_id, known in sorted(self._known.items())
        }
        collected_ms = 0 if self._collected_s is None else int(origin_ms + self._collected_s * 1000)
        is_stale = self._collected_s is None or at_s - self._collected_s > STALE_AFTER_S
        digest = fingerprint([[row.node_id, row.exclusion, _number(row)] for row in rows.values()])
        return DirectoryView(
            rows, collected_ms, digest, collected_ms if is_stale else None, origin_ms, self._clocks.own_ahead_s(at_s)
        )

    def _judged(
        self, known: _Known, active: BundleMark | None, at_s: float, marks: Mapping[str, PeerMark]
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
        if at_s > known.ends_s or self.clock.now() > row.peer.until:
            # That another identity of its name was taken away says nothing of the one that is believed.
            return "snapshot_expired" if known.refusal in ("", "identity_revoked") else known.refusal
        if row.snapshot.health.state == "unhealthy":
            return "reported_unhealthy"
        return self._drift(known, row.snapshot, active, at_s)

    def _drift(
        self, known: _Known, snapshot: NodeSnapshotDocument, active: BundleMark | None, at_s: float
    ) -> Exclusion:
        """Whether this one node runs by another bundle than everybody else. A moment after a publication all do."""
        shown = snapshot.active_bundle
        if active is None or (shown is not None and _order(shown) > _order(active)) or shown == active:
            known.behind_since_s = None
            return ""
        if shown is not None and _order(shown) == _order(active):
            return "deployment_digest_mismatch"
        if known.behind_since_s is None:
            known.behind_since_s = at_s
        return "behind_active_generation" if at_s - known.behind_since_s > BEHIND_GRACE_S else ""


def has_left(row: DirectoryRow) -> bool:
    """Whether the node itself said that it leaves the cluster, ran nothing any more, and has not been heard since."""
    snapshot = row.snapshot
    return (
        snapshot is not None
        and _leaves(snapshot)
        and not snapshot.replicas
        and (row.removed or row.exclusion == "snapshot_expired")
    )


def _leaves(snapshot: NodeSnapshotDocument) -> bool:
    return LEAVES in snapshot.health.reason_codes


def origin_of(clock: Clock) -> float:
    """What the wall clock says at the monotonic clock's zero, in milliseconds: another number after the clock was set."""
    return (clock.now().timestamp() - clock.monotonic_s()) * 1000


def clock_words(node_id: str, ahead_s: float) -> str:
    """For who has to set it."""
    side = "ahead of" if ahead_s > 0 else "behind"
    return f"the clock of {node_id} is {abs(ahead_s):.0f} s {side} this node's: set it (timedatectl set-ntp true)"


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
