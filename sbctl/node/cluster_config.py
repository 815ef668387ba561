"""What a runtime is told of the cluster that it belongs to: one optional block of its configuration, written by an apply."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from sbctl.base.field_types import Id, LabelKey, LabelValue
from sbctl.node.params import Params

__all__ = ["ClusterConfig", "ClusterStoreServer", "PeerPort"]

_HOUR_MS: Final = 3_600_000
_Address = Annotated[str, StringConstraints(min_length=2, max_length=253)]


class ClusterStoreServer(Params):
    """One authority's server of the store: whose certificate it shows, and where it is."""

    node_id: Id
    address: _Address
    port: int = Field(ge=1, le=65535)


class PeerPort(Params):
    """Where the peer plane listens, and the address under which gateways reach it; its port is that of the listener."""

    bind: _Address = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    advertise: _Address = "127.0.0.1"


class ClusterConfig(Params):
    """`roles` and `labels` are those of the node's identity. `peer`, `programs`: of workers alone.

    `programs`: of the user's that the cluster's deployments name as their engine, by path; `llama-server` for the first of that name on the
    PATH of the service. Root lists them for the launcher when the runtime is activated, since the bundle comes to a worker without root.

    `expected_nodes`: who belongs to the cluster by sb.yml; a first plan waits for them a while, since they may run something already.
    `brake_percent`: so much of the workers may be silent before nobody is declared lost any more.
    """

    cluster_id: Id
    node_id: Id
    roles: tuple[Literal["gateway", "worker", "authority"], ...] = Field(min_length=1, max_length=3)
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=64)
    store: tuple[ClusterStoreServer, ...] = Field(min_length=1, max_length=3)
    peer: PeerPort | None = None
    programs: tuple[Annotated[str, StringConstraints(pattern="^(/.+|llama-server)$", max_length=4096)], ...] = Field(
        default=(), max_length=64
    )
    expected_nodes: tuple[Id, ...] = Field(default=(), max_length=10_000)
    publish_interval_ms: int = Field(default=5_000, ge=100, le=_HOUR_MS)
    snapshot_ttl_ms: int = Field(default=30_000, ge=1_000, le=24 * _HOUR_MS)
    lease_ttl_ms: int = Field(default=15_000, ge=2_000, le=_HOUR_MS)
    unreachable_after_ms: int = Field(default=30_000, ge=1_000, le=_HOUR_MS)
    lost_after_ms: int = Field(default=120_000, ge=1_000, le=24 * _HOUR_MS)
    brake_percent: int = Field(default=40, ge=1, le=100)
