"""The port to what a cluster shares: small signed documents under names, in a store that nobody trusts.

    bucket             key                                   written by
    sbctl_nodes        <token>.snapshot                      the node, nobody else
    sbctl_desired      bundle, trust, revocations, actions   authorities
    sbctl_assignments  <token>, plan                         the lease-holder among them
    sbctl_leases       controller                            the lease-holder

Rules for whoever uses it:

- Nothing that is read is believed without its signature and its fence: another value, an older one and none at all are all possible.
- A revision orders the values of one key while the store keeps its data; a store that lost them begins anew, lower.
- A write that did not answer may have happened (`store.outcome_unknown`); one that was acknowledged is on the disks of most members.
- Whoever cannot reach the store goes on with what it has; `status` says since when.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal, Protocol

from sbctl.base.errors import InputError, RefusedError, UnreachableError
from sbctl.base.limits import BUNDLE_ENVELOPE_MAX_BYTES, KIB, MIB
from sbctl.node.cluster_documents import ASSIGNMENT_MAX_BYTES, LEASE_MAX_BYTES, SNAPSHOT_MAX_BYTES
from sbctl.node.placement_document import PLACEMENT_MAX_BYTES

__all__ = [
    "ACTIONS_KEY",
    "BUNDLE_KEY",
    "CONTROLLER_KEY",
    "PLAN_KEY",
    "REVOCATIONS_KEY",
    "TRUST_KEY",
    "VALUE_MAX_BYTES",
    "Bucket",
    "Changed",
    "ClusterStore",
    "Entry",
    "Gone",
    "Resync",
    "StoreConflictError",
    "StoreState",
    "StoreStatus",
    "Watched",
    "check_key",
    "check_prefix",
    "check_value",
    "key_matches",
    "node_key",
    "node_token",
    "outcome_unknown",
    "store_unreachable",
]

_ENVELOPE_FACTOR: Final = 2
"""A signed document with its certificates takes less than this times the document."""

_SILENT: Final = "the cluster's store does not answer"
_KEY: Final = re.compile(r"[A-Za-z0-9_=-]{1,400}(?:\.[A-Za-z0-9_=-]{1,64})?")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]")


class Bucket(StrEnum):
    """What documents of one kind are kept in."""

    NODES = "sbctl_nodes"
    DESIRED = "sbctl_desired"
    ASSIGNMENTS = "sbctl_assignments"
    LEASES = "sbctl_leases"


BUNDLE_KEY: Final = "bundle"
TRUST_KEY: Final = "trust"
REVOCATIONS_KEY: Final = "revocations"
ACTIONS_KEY: Final = "actions"
PLAN_KEY: Final = "plan"
CONTROLLER_KEY: Final = "controller"

VALUE_MAX_BYTES: Final[dict[Bucket, int]] = {
    Bucket.NODES: _ENVELOPE_FACTOR * SNAPSHOT_MAX_BYTES,
    Bucket.DESIRED: BUNDLE_ENVELOPE_MAX_BYTES + 64 * KIB,
    Bucket.ASSIGNMENTS: _ENVELOPE_FACTOR * max(ASSIGNMENT_MAX_BYTES, PLACEMENT_MAX_BYTES) - MIB,
    Bucket.LEASES: 16 * LEASE_MAX_BYTES,
}
"""Of one value; the largest stays below what one message of the store may have (8 MiB)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One value as the store has it now."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Resync:
    """All that is there; what is not among it is gone. Comes first, and again whenever changes may have been missed."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """A key has a new value; values in between are left out."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Gone:
    """A key has no value any more."""

    key: str


Watched = Resync | Changed | Gone

StoreState = Literal["connected", "no_quorum", "no_writes", "lost"]


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """`since`: from when on it is so. `server`: the authority that answers. `problem`: why it cannot be used, in one sentence.

    `no_quorum`: a server answers, and the members that it needs for any change do not. `no_writes`: questions are answered and no write of this
    node is, as on a full disk.
    """

    state: StoreState
    since: datetime
    server: str | None = None
    problem: str | None = None


class StoreConflictError(RefusedError):
    """Somebody else wrote first: `store.conflict`. Read again, then decide again."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        super().__init__(
            "store.conflict", "another value was written meanwhile", place=f"{bucket}/{key}", retryable=True
        )


class ClusterStore(Protocol):
    """What every part of the cluster uses of the store. One event loop; calls may run at the same time.

    Every call raises UnreachableError (`store.unreachable`, `store.no_quorum`, retryable) when nobody answers in time; writes raise
    `store.outcome_unknown` when nobody knows whether they happened, RefusedError `store.denied` for a name of somebody else, InputError
    `store.bad_key`, `store.value_too_large`.
    """

    async def get(self, bucket: Bucket, key: str) -> Entry | None:
        """The value as the leader has it; None when there is none. A leader that lost the others moments ago still answers, so a reading alone
        decides nothing: a compare-and-set does, and a fence."""
        ...

    async def put(self, bucket: Bucket, key: str, value: bytes, *, ttl_s: int | None = None) -> int:
        """Write whatever is there; → its revision. With `ttl_s` it goes away by itself unless it is written again."""
        ...

    async def compare_and_set(self, bucket: Bucket, key: str, value: bytes, *, expected: int) -> int:
        """Write only over this revision, 0 where there must be no value; → the new one. Raises StoreConflictError."""
        ...

    async def delete(self, bucket: Bucket, key: str) -> None:
        """Take the value away. Done again it changes nothing."""
        ...

    def watch(self, bucket: Bucket, prefix: str = "") -> AsyncIterator[Watched]:
        """What is there, then what changes, for as long as the caller iterates; what one key has is never told older than before between
        two resyncs. Memory is bounded by what the keys hold: a slow reader gets the newest value of each.

        `prefix` is empty, a key, or `<token>.`. Without a connection nothing comes; with the next one, a Resync.
        """
        ...

    def status(self) -> StoreStatus: ...


def node_token(node_id: str) -> str:
    """A node's name as a part of a key: what a subject cannot hold, and a dot would split, as `=XX`."""
    return "".join(
        char if _PLAIN.fullmatch(char) else "".join(f"={byte:02X}" for byte in char.encode()) for char in node_id
    )


def node_key(node_id: str) -> str:
    """Where a node's snapshot is."""
    return f"{node_token(node_id)}.snapshot"


def check_key(bucket: Bucket, key: str) -> None:
    """Raises InputError `store.bad_key`."""
    if _KEY.fullmatch(key) is None:
        raise InputError("store.bad_key", f"{key[:100]!r} is not a key of the cluster's store", place=bucket)


def check_prefix(bucket: Bucket, prefix: str) -> None:
    """Raises InputError `store.bad_key`."""
    if prefix:
        check_key(bucket, prefix.removesuffix("."))


def check_value(bucket: Bucket, key: str, value: bytes) -> None:
    """Raises InputError `store.value_too_large`."""
    if len(value) > VALUE_MAX_BYTES[bucket]:
        raise InputError(
            "store.value_too_large",
            f"{len(value)} bytes are more than a value may have here ({VALUE_MAX_BYTES[bucket]})",
            place=f"{bucket}/{key}",
        )


def key_matches(prefix: str, key: str) -> bool:
    """Whether a watch of `prefix` tells of `key`."""
    return not prefix or key == prefix or (prefix.endswith(".") and key.startswith(prefix))


def store_unreachable(why: str) -> UnreachableError:
    """`why` may be the message of another one."""
    return UnreachableError(
        "store.unreachable",
        f"{_SILENT}: {why.removeprefix(f'{_SILENT}: ')}",
        next_step="what runs goes on; look at the authorities: sbctl status, systemctl status sbctl-store",
        retryable=True,
    )


def outcome_unknown(bucket: Bucket, key: str) -> UnreachableError:
    return UnreachableError(
        "store.outcome_unknown",
        "the cluster's store did not acknowledge a write, which may have happened",
        place=f"{bucket}/{key}",
        next_step="read it, then decide again",
        retryable=True,
    )
