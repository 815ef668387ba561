"""`proxy.cluster` as sb.yml writes it (SBproxy, cluster configuration). What hosts with it are together: `cluster_shape`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr

from sbctl.base.field_types import (
    Block,
    FilePath,
    Id,
    IpAddress,
    Items,
    LabelKey,
    LabelValue,
    PlainText,
    Port,
    Version,
)

__all__ = [
    "ClusterModel",
    "ClusterReplicationModel",
    "ClusterSecurityModel",
    "ClusterStoreModel",
    "DeploymentAuthorityModel",
    "EnrollmentModel",
]

_HOST_PORT = Annotated[str, Field(min_length=3, max_length=262)]
_Consistency = Literal["one", "quorum", "all"]


class ClusterSecurityModel(Block):
    """How SBproxy's nodes prove themselves to each other; here fleet.identity does that."""

    noun: ClassVar[str] = "cluster security"

    mode: Literal["mtls", "shared_key"] = Field(description="mtls for production, shared_key for local fixtures.")
    development: bool = Field(default=False, description="Must be true for shared_key.")
    shared_key: SecretStr | None = Field(default=None, description="The gossip key: env:, file: or inline.")
    cert_file: FilePath | None = Field(default=None, description="The node's certificate.")
    key_file: FilePath | None = Field(default=None, description="The node's private key.")
    ca_file: FilePath | None = Field(default=None, description="The cluster's certificate authority.")
    server_name: PlainText = Field(default="sbproxy-mesh", description="Name that peers' certificates carry.")
    key_derivation: Literal["sha256", "hkdf"] = Field(
        default="sha256", description="How keys derive from the shared key."
    )


class EnrollmentModel(Block):
    """Enrollment as SBproxy has it; here fleet.identity.enroll."""

    noun: ClassVar[str] = "enrollment"

    authority_dir: FilePath | None = Field(
        default=None, description="Where the enrolling authority keeps its identity."
    )


class DeploymentAuthorityModel(Block):
    """Keys of SBproxy's deployment bundles; here fleet.trust."""

    noun: ClassVar[str] = "the deployment authority"

    verifying_key_file: FilePath | None = Field(default=None, description="Public key that bundles verify under.")
    signing_key_file: FilePath | None = Field(default=None, description="Private key, on the authority only.")


class ClusterReplicationModel(Block):
    """Replication of SBproxy's own state; here the store's."""

    noun: ClassVar[str] = "cluster replication"

    factor: int = Field(default=2, ge=1, le=8, description="Copies of each entry.")
    write_consistency: _Consistency = Field(default="quorum", description="Copies a write waits for.")
    read_consistency: _Consistency = Field(default="quorum", description="Copies a read asks.")
    anti_entropy_interval_secs: int = Field(default=30, ge=5, le=3600, description="Seconds between comparisons.")
    tombstone_gc_grace_secs: int = Field(default=86_400, gt=0, description="Seconds a deletion is remembered.")
    max_entries: int = Field(default=65_536, gt=0, le=1_048_576, description="Entries that the store may hold.")
    max_value_bytes: int = Field(default=1_048_576, gt=0, le=4_194_304, description="Bytes of one value.")


class ClusterStoreModel(Block):
    """The store that nodes of the cluster share: NATS on the authority hosts."""

    noun: ClassVar[str] = "the cluster's store"

    port: Port = Field(default=4222, description="TCP port where nodes reach the store.")
    cluster_port: Port = Field(default=6222, description="TCP port where the members of the store reach each other.")
    monitor_port: Port = Field(default=8222, description="TCP port on loopback where the host itself looks after it.")
    bind_address: IpAddress = Field(
        default="0.0.0.0",  # noqa: S104 - nobody without a certificate of the cluster gets further than the handshake
        description="Where it listens; every connection needs a certificate.",
    )
    version: Version | None = Field(default=None, description="nats-server to install. Unset: the pinned one.")
    path: PlainText | None = Field(
        default=None, description="A nats-server of the host instead: its path, or nats-server for the one on PATH."
    )


class ClusterModel(Block):
    """What makes the hosts one cluster."""

    noun: ClassVar[str] = "the cluster"

    cluster_id: Id = Field(description="Name of the cluster, the same on every node.")
    node_id: Id | None = Field(default=None, description="Name of this node. Derived from the host.")
    roles: Items[Literal["gateway", "worker", "authority"]] = Field(
        default=(), max_length=3, description="What this node does. Derived from the host."
    )
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=64, description="Labels for placement.")
    seeds: Items[_HOST_PORT] = Field(default=(), max_length=128, description="Nodes to join through, host:port.")
    gossip_port: Port = Field(default=7946, description="UDP port of membership.")
    transport_port: Port = Field(default=8946, description="TCP port of cluster state.")
    advertise_addr: _HOST_PORT | None = Field(default=None, description="Membership address that peers use.")
    transport_advertise_addr: _HOST_PORT | None = Field(default=None, description="State address that peers use.")
    model_bind: _HOST_PORT | None = Field(default=None, description="Where a worker listens for peers.")
    model_endpoint: PlainText | None = Field(default=None, description="Origin that gateways reach a worker at.")
    state_dir: FilePath | None = Field(default=None, description="Where the node keeps cluster state.")
    snapshot_ttl_secs: int = Field(default=30, gt=0, description="Seconds a node's snapshot counts.")
    publish_interval_secs: int = Field(default=5, gt=0, description="Seconds between snapshots.")
    dead_peer_gc_secs: int = Field(default=300, ge=1, le=86_400, description="Seconds until a dead peer is forgotten.")
    security: ClusterSecurityModel | None = Field(default=None, description="How nodes prove who they are.")
    enrollment: EnrollmentModel | None = Field(default=None, description="Joining new nodes.")
    deployment_authority: DeploymentAuthorityModel | None = Field(
        default=None, description="Keys of signed desired state."
    )
    replication: ClusterReplicationModel | None = Field(default=None, description="Copies of cluster state.")
    store: ClusterStoreModel = Field(
        default=ClusterStoreModel(), description="What nodes share, on the hosts with the role authority."
    )
