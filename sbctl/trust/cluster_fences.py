"""What a reader remembers of the lease-holder's documents, so that an old or a second one is never obeyed. Pure.

A higher lease epoch is newer, whoever holds it; within one epoch there is one holder, and a higher counter is newer. The same epoch, holder
and counter with other bytes is a conflict. Fences are durable before the document is used and survive everything but the node itself.

An epoch grows by one with each taking. One that is far above all that was seen is of an authority that is out of hand: obeyed, it would be the last
of all (fast-forward, TUF 1.5.2), so nobody obeys it, and once that authority is revoked the others go on.

An authority that nothing is heard of for AUTHORITY_SILENCE_MAX is stale: what runs goes on, and nothing new is placed by what it left behind
(indefinite freeze, TUF 1.5.2). Expiry of a bundle limits its first acceptance only.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sbctl.base.clock import rfc3339
from sbctl.base.errors import RefusedError
from sbctl.base.limits import CLOCK_SKEW_LEEWAY_S
from sbctl.node.cluster_documents import AssignmentDocument, BundleMark
from sbctl.node.placement_document import PlacementDocument
from sbctl.trust.peer_documents import VerifiedDocument
from sbctl.trust.peer_kinds import moment_of

__all__ = [
    "AUTHORITY_SILENCE_MAX",
    "LEASE_LEAP_MAX",
    "LeaseFence",
    "Obeyed",
    "admit_assignment",
    "admit_placement",
    "authority_stale",
    "check_epoch",
]

AUTHORITY_SILENCE_MAX: Final = timedelta(days=7)
LEASE_LEAP_MAX: Final = 1 << 20
"""So many takings between two things that a reader hears: half a year of one every quarter of a minute."""
LEASE_EPOCH_MAX: Final = 1 << 52
"""For who has seen none yet: there are as many above it."""
_LEEWAY: Final = timedelta(seconds=CLOCK_SKEW_LEEWAY_S)


@dataclass(frozen=True, slots=True)
class LeaseFence:
    """The newest document of one kind that was accepted. For a lease `counter` is its renewal."""

    lease_epoch: int
    holder: str
    counter: int
    digest: str


@dataclass(frozen=True, slots=True)
class Obeyed:
    """The fence after a document. `repeat`: it is the one that the fence stood at."""

    fence: LeaseFence
    repeat: bool


def authority_stale(heard_at: datetime | None, now: datetime) -> bool:
    """Whether the newest thing that an authority signed and that was accepted here is too old. Nothing was ever heard: not stale, but new."""
    return heard_at is not None and now > heard_at + AUTHORITY_SILENCE_MAX + _LEEWAY


def check_epoch(epoch: int, holder: str, *, seen: int) -> None:
    """Whether takings of the lease may have led to this epoch; `seen`: the highest before, 0: none. Raises RefusedError `lease.leap`."""
    if epoch > (seen + LEASE_LEAP_MAX if seen else LEASE_EPOCH_MAX):
        raise RefusedError(
            "lease.leap",
            f"{holder} speaks with lease epoch {epoch}, far above {seen}, the highest that was seen",
            next_step=f"that authority may be taken over: sbctl cluster revoke {holder}",
            detail={"alarm": True},
        )


def admit_assignment(
    verified: VerifiedDocument[AssignmentDocument],
    *,
    node_id: str,
    held: BundleMark | None,
    fence: LeaseFence | None,
    lease_epoch_seen: int,
    now: datetime,
) -> Obeyed:
    """Whether this node obeys an assignment. `held` is the bundle whose content it has; `lease_epoch_seen` the highest lease epoch of any
    document that it accepted.

    In this order: node, fence, bundle, age. Raises RefusedError `assignment.wrong_node`, `lease.leap`, `lease.stale`, `lease.two_holders`,
    `lease.conflict`, `assignment.bundle_missing` (fetch it, then again), `assignment.bundle_old`, `assignment.bundle_conflict`,
    `assignment.authority_stale`.
    """
    document = verified.document
    if document.node_id != node_id:
        raise RefusedError("assignment.wrong_node", f"the assignment is for {document.node_id}, and this is {node_id}")
    shown = LeaseFence(document.lease_epoch, document.lease_holder, document.counter, verified.digest)
    obeyed = _admitted(shown, fence, lease_epoch_seen)
    if not obeyed.repeat:
        _check_bundle(document.bundle, held)
        _check_age(moment_of(document.issued_at_unix_ms), now)
    return obeyed


def admit_placement(
    verified: VerifiedDocument[PlacementDocument], *, fence: LeaseFence | None, lease_epoch_seen: int
) -> Obeyed:
    """Raises RefusedError `lease.leap`, `lease.stale`, `lease.two_holders`, `lease.conflict`."""
    document = verified.document
    shown = LeaseFence(document.lease_epoch, document.lease_holder, document.counter, verified.digest)
    return _admitted(shown, fence, lease_epoch_seen)


def _admitted(shown: LeaseFence, fence: LeaseFence | None, lease_epoch_seen: int) -> Obeyed:
    newest = max(lease_epoch_seen, 0 if fence is None else fence.lease_epoch)
    check_epoch(shown.lease_epoch, shown.holder, seen=newest)
    if shown.lease_epoch < newest:
        raise RefusedError(
            "lease.stale",
            f"{shown.holder} speaks with lease epoch {shown.lease_epoch}, and {newest} was seen",
            next_step="it lost the lease; the holder of today publishes anew by itself",
        )
    if fence is None or shown.lease_epoch > fence.lease_epoch:
        return Obeyed(shown, repeat=False)
    if shown.holder != fence.holder:
        raise RefusedError(
            "lease.two_holders",
            f"{shown.holder} and {fence.holder} both speak with lease epoch {shown.lease_epoch}",
            next_step="the store lost a lease: restart the runtime of one of the two authorities, which takes a new epoch",
            detail={"alarm": True},
        )
    if shown.counter < fence.counter:
        raise RefusedError(
            "lease.stale",
            f"number {shown.counter} of lease epoch {shown.lease_epoch} comes after {fence.counter} was accepted",
            next_step="it is a replay, or the store went back in time; the lease-holder publishes anew by itself",
        )
    if shown.counter == fence.counter and shown.digest != fence.digest:
        raise RefusedError(
            "lease.conflict",
            f"{shown.holder} signed two documents with number {shown.counter} of lease epoch {shown.lease_epoch}",
            next_step="a copy of that authority is running: stop one of the two",
            detail={"alarm": True},
        )
    return Obeyed(shown, repeat=shown.counter == fence.counter)


def _check_bundle(named: BundleMark, held: BundleMark | None) -> None:
    ahead = held is None or (named.key_epoch, named.revision) > (held.key_epoch, held.revision)
    if ahead or held is None:
        raise RefusedError(
            "assignment.bundle_missing",
            f"the assignment is of bundle revision {named.revision}, and this node holds "
            f"{'none' if held is None else held.revision}",
            next_step="the node takes the bundle from the store first, by itself",
        )
    if (named.key_epoch, named.revision) < (held.key_epoch, held.revision):
        raise RefusedError(
            "assignment.bundle_old",
            f"the assignment is of bundle revision {named.revision}, and this node holds {held.revision}",
            next_step="the lease-holder places the newer revision by itself",
        )
    if named.content_digest != held.content_digest:
        raise RefusedError(
            "assignment.bundle_conflict",
            f"bundle revision {named.revision} has other content at the authority than here",
            next_step="two operators published one revision from different states: apply again from the newest state",
            detail={"alarm": True},
        )


def _check_age(issued: datetime, now: datetime) -> None:
    if authority_stale(issued, now):
        raise RefusedError(
            "assignment.authority_stale",
            f"the assignment is of {rfc3339(issued)}, more than {AUTHORITY_SILENCE_MAX.days} days ago",
            next_step="no authority was heard since: bring one back (sbctl cluster status); what runs goes on",
        )
