"""Parameters of the node interface that concern the cluster's store."""

from __future__ import annotations

from pydantic import Field

from sbctl.artifacts.model import Delivery
from sbctl.node.params import DIGEST_PATTERN, Params

__all__ = ["StoreInstall", "StoreMember", "StoreNode", "StoreRemove", "StoreWheel"]

_NODE_ID = r"^[A-Za-z0-9._-]{1,64}$"


class StoreWheel(Params):
    """The wheel that holds the store's program: which release, which file of it, and which of its members."""

    project: str = Field(max_length=64)
    version: str = Field(max_length=64)
    filename: str = Field(pattern=r"^[A-Za-z0-9._+-]{1,200}\.whl$")
    sha256: str = Field(pattern=DIGEST_PATTERN)
    member: str = Field(max_length=256)
    member_sha256: str = Field(pattern=DIGEST_PATTERN)


class StoreMember(Params):
    """One authority that runs a store: an IP address, and the port where the others reach it."""

    node_id: str = Field(pattern=_NODE_ID)
    address: str = Field(min_length=2, max_length=64)
    port: int = Field(ge=1, le=65535)


class StoreNode(Params):
    """Somebody who may use the store."""

    node_id: str = Field(pattern=_NODE_ID)
    is_authority: bool = False


class StoreInstall(Params):
    """Have the store run with this: reloaded when only its users changed, restarted when something else did, and then only while the other
    members keep the quorum. → {"content_sha256", "unit_sha256", "version"}

    `members` are all members, this host among them. `expects_quorum`: enough of them run already, so that the store must be whole afterwards.
    """

    lineage: str
    cluster_id: str = Field(pattern=_NODE_ID)
    server_name: str = Field(max_length=253)
    node_id: str = Field(pattern=_NODE_ID)
    bind_address: str = Field(min_length=2, max_length=64)
    port: int = Field(ge=1, le=65535)
    monitor_port: int = Field(ge=1, le=65535)
    members: tuple[StoreMember, ...] = Field(min_length=1, max_length=3)
    nodes: tuple[StoreNode, ...] = Field(min_length=1, max_length=10_000)
    program: str = Field(default="", max_length=4096)
    """A program of the host: its path, or the name to look for on PATH; empty: that of `wheel`."""
    wheel: StoreWheel | None = None
    delivery: Delivery = "pull"
    expects_quorum: bool = False


class StoreRemove(Params):
    """Stop the store and remove its unit, program, configuration and data. → {"removed": bool}"""

    lineage: str
