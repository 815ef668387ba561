"""The kinds of documents that nodes sign: payload type, size, whose role they need, and between which moments they count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar

from sbctl.base.clock import rfc3339
from sbctl.base.errors import RefusedError
from sbctl.base.limits import CLOCK_SKEW_LEEWAY_S
from sbctl.node.actions_document import ACTIONS_MAX_BYTES, ACTIONS_PAYLOAD_TYPE, ActionsDocument
from sbctl.node.cluster_documents import (
    ASSIGNMENT_MAX_BYTES,
    ASSIGNMENT_PAYLOAD_TYPE,
    DISPATCH_MAX_BYTES,
    DISPATCH_PAYLOAD_TYPE,
    LEASE_MAX_BYTES,
    LEASE_PAYLOAD_TYPE,
    SNAPSHOT_MAX_BYTES,
    SNAPSHOT_PAYLOAD_TYPE,
    AssignmentDocument,
    ClusterDocument,
    ClusterRole,
    DispatchEnvelope,
    LeaseDocument,
    NodeSnapshotDocument,
)
from sbctl.node.placement_document import PLACEMENT_MAX_BYTES, PLACEMENT_PAYLOAD_TYPE, PlacementDocument

__all__ = [
    "ACTIONS",
    "ASSIGNMENT",
    "DISPATCH",
    "LEASE",
    "PLACEMENT",
    "SNAPSHOT",
    "DocumentKind",
    "check_moments",
    "moment_of",
]

SNAPSHOT_LIFETIME_MAX: Final = timedelta(days=7)
_LEEWAY: Final = timedelta(seconds=CLOCK_SKEW_LEEWAY_S)
_LAST_MILLIS: Final = 253_402_300_799_000
"""31 December 9999: no calendar of ours goes further."""

Document = TypeVar("Document", bound=ClusterDocument)


@dataclass(frozen=True, slots=True)
class DocumentKind(Generic[Document]):
    """`role`: what its signer must be; None: any node. `moments`: when it was made and until when it counts, in milliseconds; None for a
    kind whose taker judges its times by rules of its own. `is_sparse`: what is as it is by default is left out, since it grows with the cluster."""

    payload_type: str
    model: type[Document]
    noun: str
    max_bytes: int
    role: ClusterRole | None
    moments: Callable[[Document], tuple[int, int | None]] | None
    is_sparse: bool = False


SNAPSHOT: Final = DocumentKind(
    SNAPSHOT_PAYLOAD_TYPE,
    NodeSnapshotDocument,
    "node snapshot",
    SNAPSHOT_MAX_BYTES,
    None,
    lambda one: (one.published_at_unix_ms, one.expires_at_unix_ms),
)
ASSIGNMENT: Final = DocumentKind(
    ASSIGNMENT_PAYLOAD_TYPE,
    AssignmentDocument,
    "assignment",
    ASSIGNMENT_MAX_BYTES,
    "authority",
    lambda one: (one.issued_at_unix_ms, None),
)
PLACEMENT: Final = DocumentKind(
    PLACEMENT_PAYLOAD_TYPE,
    PlacementDocument,
    "placement plan",
    PLACEMENT_MAX_BYTES,
    "authority",
    lambda one: (one.issued_at_unix_ms, None),
    is_sparse=True,
)
LEASE: Final = DocumentKind(LEASE_PAYLOAD_TYPE, LeaseDocument, "lease", LEASE_MAX_BYTES, "authority", None)
"""Its epoch counts whatever its date says: a reader whose clock is off would else take an epoch that another holds."""
ACTIONS: Final = DocumentKind(
    ACTIONS_PAYLOAD_TYPE,
    ActionsDocument,
    "list of operators' actions",
    ACTIONS_MAX_BYTES,
    "authority",
    None,
)
DISPATCH: Final = DocumentKind(DISPATCH_PAYLOAD_TYPE, DispatchEnvelope, "dispatch", DISPATCH_MAX_BYTES, "gateway", None)


def moment_of(unix_ms: int) -> datetime:
    """Any number of milliseconds is a moment; what no calendar holds is the last that one does."""
    return datetime.fromtimestamp(min(unix_ms, _LAST_MILLIS) / 1000, UTC)


def check_moments(kind: DocumentKind[Document], document: Document, now: datetime) -> None:
    """Raises RefusedError `peer.clock_skew`, `peer.lifetime`, `peer.expired`."""
    if kind.moments is None:
        return
    made_ms, expires_ms = kind.moments(document)
    made = moment_of(made_ms)
    if made > now + _LEEWAY:
        raise RefusedError(
            "peer.clock_skew",
            f"the {kind.noun} of {document.signer} is dated {rfc3339(made)}, and this clock says {rfc3339(now)}: "
            f"more than {CLOCK_SKEW_LEEWAY_S} s ahead",
            next_step="set the clocks of both machines (timedatectl set-ntp true)",
            detail={"made_unix_ms": made_ms},
        )
    if expires_ms is None:
        return
    expires = moment_of(expires_ms)
    if not timedelta(0) <= expires - made <= SNAPSHOT_LIFETIME_MAX:
        raise RefusedError(
            "peer.lifetime",
            f"the {kind.noun} of {document.signer} would count from {rfc3339(made)} to {rfc3339(expires)}; "
            f"at most {SNAPSHOT_LIFETIME_MAX.days} days are accepted",
        )
    if expires + _LEEWAY < now:
        raise RefusedError(
            "peer.expired",
            f"the {kind.noun} of {document.signer} counted until {rfc3339(expires)}, and this clock says {rfc3339(now)}",
            next_step="the node has not reported since, or its clock is behind: look at it, then timedatectl set-ntp true",
            detail={"made_unix_ms": made_ms},
        )
