"""How the buckets are made on the server: values by key, the newest of each, on disk, told to listeners once they are written.

What a writer could do to others by a header is off: no roll-up of other keys, no deletion, no schedules, no counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sbctl.base.limits import GIB, KIB, MIB
from sbctl.runtime.cluster.store import VALUE_MAX_BYTES, Bucket
from sbctl.runtime.cluster.subjects import changed_subject, stream_name, write_subject

__all__ = ["BUCKET_MAX_BYTES", "STORE_MAX_BYTES", "bucket_config", "differs"]

BUCKET_MAX_BYTES: Final[Mapping[Bucket, int]] = {
    Bucket.NODES: 2 * GIB,
    Bucket.DESIRED: 64 * MIB,
    Bucket.ASSIGNMENTS: 1 * GIB,
    Bucket.LEASES: 4 * MIB,
}
STORE_MAX_BYTES: Final = sum(BUCKET_MAX_BYTES.values()) + 256 * MIB
"""Of all that the server may keep on disk."""
_HEADERS_MAX_BYTES: Final = 4 * KIB
_DUPLICATES_NS: Final = 100_000_000
"""The shortest that the server takes: so long it keeps each id by which a writer may mark its message, in memory, and none of ours does."""


def bucket_config(bucket: Bucket, *, replicas: int) -> dict[str, Any]:
    """As the server's interface takes it."""
    return {
        "name": stream_name(bucket),
        "subjects": [write_subject(bucket, ">")],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "num_replicas": replicas,
        "max_msgs_per_subject": 1,
        "max_msgs": -1,
        "max_bytes": BUCKET_MAX_BYTES[bucket],
        "max_age": 0,
        "max_msg_size": VALUE_MAX_BYTES[bucket] + _HEADERS_MAX_BYTES,
        "max_consumers": -1,
        "duplicate_window": _DUPLICATES_NS,
        "allow_direct": True,
        "allow_msg_ttl": True,
        "allow_rollup_hdrs": False,
        "deny_delete": True,
        "deny_purge": True,
        "republish": {"src": write_subject(bucket, ">"), "dest": changed_subject(bucket, "")},
    }


def differs(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether the server has another configuration than the wanted one; it fills in what was not said, and leaves out what is off."""
    unset = {"max_age": 0, "deny_delete": False, "deny_purge": False, "allow_rollup_hdrs": False}
    return any(found.get(name, unset.get(name)) != value for name, value in wanted.items())
