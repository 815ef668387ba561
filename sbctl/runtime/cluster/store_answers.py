"""What the store's server answers when it cannot or will not, in our own errors; and whether a leader that answers still is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

from sbctl.base.errors import HostError, UnreachableError

__all__ = ["NO_MESSAGE", "WRONG_SEQUENCE", "check_quorum", "fail", "no_quorum"]

NO_MESSAGE: Final = 10037
WRONG_SEQUENCE: Final = frozenset({10071, 10164})
_NO_STREAM: Final = 10059
_FULL: Final = frozenset({10023, 10047, 10077})
_NO_LEADER: Final = frozenset({10008, 10009, 10005, 10074})
_SILENT_NS: Final = 5_000_000_000
"""Members hear of their leader every second."""


def check_quorum(group: Any) -> None:
    """A leader that lost the others goes on answering for half a minute; by when it last heard of them it is known before.

    Raises UnreachableError `store.no_quorum`, KeyError, TypeError.
    """
    if not isinstance(group, Mapping) or not group.get("replicas"):
        return
    if not group.get("leader"):
        raise no_quorum("nobody leads it")
    replicas = group["replicas"]
    heard = sum(int(one["active"]) < _SILENT_NS for one in replicas)
    if 2 * (heard + 1) <= len(replicas) + 1:
        raise no_quorum(f"its leader {str(group['leader'])[:64]} hears nothing of the others")


def no_quorum(why: str) -> UnreachableError:
    return UnreachableError(
        "store.no_quorum",
        f"the cluster's store takes no question: {why}; too few of its members run",
        next_step="what runs goes on; look at the authorities: sbctl status, systemctl status sbctl-store",
        retryable=True,
    )


def fail(failure: Mapping[str, Any], place: str) -> NoReturn:
    code, said = failure.get("err_code"), str(failure.get("description", ""))[:200]
    if code in _NO_LEADER:
        raise no_quorum(said)
    if code == _NO_STREAM:
        raise UnreachableError(
            "store.no_bucket",
            "the cluster's store is empty: no authority has made its buckets yet",
            place=place,
            next_step="what runs goes on; an authority's runtime makes them as soon as it reaches the store",
            retryable=True,
        )
    if code in _FULL:
        raise HostError(
            "store.full",
            f"the cluster's store has no room: {said}",
            place=place,
            next_step="look at the disks of the authorities (/var/lib/sbctl-store)",
            retryable=True,
        )
    raise UnreachableError("store.failed", f"the cluster's store failed: {said}", place=place, retryable=True)
