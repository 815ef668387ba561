"""Names on the wire between nodes and the store's server, which its configuration and its client must agree on.

    $KV.<bucket>.<key>             a write, acknowledged once most members have it on disk
    sbctl.changed.<bucket>.<key>   what was written, told to whoever listens
    sbctl.api.<what>.<bucket>      questions about a bucket, of the server's own interface (`API`)
    _INBOX_<token>.<random>        answers to one node

The store has an account of its own on the server, nodes are users of two others, and only these names lead from there into the store. That is
what keeps a node to its own name. Permissions alone do not: the server sends acknowledgements and answers to whatever subject the asker names,
so inside one account they can be sent to somebody else's key; from one account into another they are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sbctl.runtime.cluster.store import Bucket, node_key, node_token

__all__ = [
    "API",
    "CHANGED",
    "READ_API",
    "api_subject",
    "changed_subject",
    "inbox_prefix",
    "server_subject",
    "stream_name",
    "writable_subjects",
    "write_subject",
]

CHANGED: Final = "sbctl.changed"
API: Final[Mapping[str, str]] = {
    "info": "STREAM.INFO",
    "read": "STREAM.MSG.GET",
    "list": "DIRECT.GET",
    "create": "STREAM.CREATE",
    "update": "STREAM.UPDATE",
}
"""Our word for a question → the server's."""
READ_API: Final = ("info", "read", "list")
"""What every node may ask; the others make buckets."""


def inbox_prefix(node_id: str) -> str:
    """Where the server's answers to a node go."""
    return f"_INBOX_{node_token(node_id)}"


def stream_name(bucket: Bucket) -> str:
    return f"KV_{bucket}"


def write_subject(bucket: Bucket, key: str) -> str:
    return f"$KV.{bucket}.{key}"


def changed_subject(bucket: Bucket, prefix: str) -> str:
    """All keys below a prefix, as `store.key_matches` says it."""
    below = prefix if prefix and not prefix.endswith(".") else f"{prefix}>"
    return f"{CHANGED}.{bucket}.{below}"


def api_subject(what: str, bucket: Bucket) -> str:
    """As a node asks it."""
    return f"sbctl.api.{what}.{bucket}"


def server_subject(what: str, bucket: Bucket) -> str:
    """As the server knows it."""
    return f"$JS.API.{API[what]}.{stream_name(bucket)}"


def writable_subjects(node_id: str, *, is_authority: bool) -> tuple[str, ...]:
    """What a node may write: its snapshot; an authority also what is the cluster's."""
    own = write_subject(Bucket.NODES, node_key(node_id))
    if not is_authority:
        return (own,)
    return (own, *(write_subject(bucket, ">") for bucket in (Bucket.DESIRED, Bucket.ASSIGNMENTS, Bucket.LEASES)))
