"""What nodes of a cluster say to each other: snapshots, assignments, leases and dispatches; the whole plan is in `placement_document`. Payloads only.

Field names as in SBproxy's model directory, placement and model plane. Every document travels signed (`sbctl.trust`):
the DSSE payload type beside each model is part of what is signed, so a document of one kind never passes as one of another.

    kind         signed by                        ordered by                                       kept by a reader
    snapshot     the node it is about             identity epoch, boot epoch, counter              the highest of each node
    assignment   the lease-holder                 lease epoch, counter                             the highest for this node
    placement    the lease-holder                 lease epoch, counter                             the highest
    lease        its holder                       epoch, renewal                                   the highest epoch
    dispatch     the gateway that sends it        nonce, once, within its lifetime                 nonces until they expire

Times are milliseconds since 1970 by the signer's clock. No paths, no addresses of engines, no raw error texts. Texts are their signer's own words:
who shows one makes it safe first. The first entry of a list that is wrong ends its reading, so a wrong document costs no more than a right one.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from sbctl.artifacts.model import Digest
from sbctl.base.field_types import Id, LabelKey, LabelValue
from sbctl.base.limits import BUNDLE_DEPLOYMENTS_MAX, JSON_INT_MAX, KIB, MIB

__all__ = [
    "ASSIGNED_PARTS_MAX",
    "ASSIGNED_REPLICAS_MAX",
    "ASSIGNMENT_MAX_BYTES",
    "ASSIGNMENT_PAYLOAD_TYPE",
    "DISPATCH_MAX_BYTES",
    "DISPATCH_PAYLOAD_TYPE",
    "LEASE_MAX_BYTES",
    "LEASE_PAYLOAD_TYPE",
    "SNAPSHOT_MAX_BYTES",
    "SNAPSHOT_PAYLOAD_TYPE",
    "SNAPSHOT_REPLICAS_MAX",
    "AcceleratorName",
    "ArtifactReport",
    "AssignedDeployment",
    "AssignedReplica",
    "AssignmentDocument",
    "AssignmentMark",
    "BundleMark",
    "CapacityReport",
    "ClusterDocument",
    "ClusterNode",
    "ClusterRole",
    "Count",
    "DeviceReport",
    "DispatchEnvelope",
    "DocumentPart",
    "EngineName",
    "EngineReport",
    "HealthReport",
    "LeaseDocument",
    "LeaseHolderDocument",
    "Millis",
    "NodeSnapshotDocument",
    "Number",
    "ReasonCode",
    "ReplicaPhase",
    "ReplicaReport",
    "RolloutPhase",
    "ShortText",
    "Slot",
]

SNAPSHOT_PAYLOAD_TYPE: Final = "application/vnd.sbctl.node-snapshot.v1+json"
ASSIGNMENT_PAYLOAD_TYPE: Final = "application/vnd.sbctl.assignment.v1+json"
LEASE_PAYLOAD_TYPE: Final = "application/vnd.sbctl.lease.v1+json"
DISPATCH_PAYLOAD_TYPE: Final = "application/vnd.sbctl.dispatch.v1+json"

SNAPSHOT_MAX_BYTES: Final = 1 * MIB
ASSIGNMENT_MAX_BYTES: Final = 2 * MIB
LEASE_MAX_BYTES: Final = 4 * KIB
DISPATCH_MAX_BYTES: Final = 64 * KIB
SNAPSHOT_REPLICAS_MAX: Final = 1024
"""Engines of one node, whatever they are at: what a snapshot cannot tell is not placed."""
ASSIGNED_PARTS_MAX: Final = 16
"""Of one deployment on one node: its generation, and those that it takes the place of."""
ASSIGNED_REPLICAS_MAX: Final = 64
"""Of one generation on one node."""

ClusterRole = Literal["gateway", "worker", "authority"]
ReasonCode = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}\z")]
MetricName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,95}\z")]
ShortText = Annotated[str, StringConstraints(max_length=256)]
Count = Annotated[int, Field(ge=0, le=JSON_INT_MAX)]
Number = Annotated[int, Field(ge=1, le=JSON_INT_MAX)]
Millis = Annotated[int, Field(ge=0, le=JSON_INT_MAX)]
Permille = Annotated[int, Field(ge=0, le=1000)]
DeviceIndex = Annotated[int, Field(ge=0, le=4095)]
"""An accelerator's number on its node."""
Slot = Annotated[int, Field(ge=0, le=8191)]
"""Which of a deployment's replicas in the cluster: a number that no two of one generation have. Those above 4095 are engines that a node ran by
a bundle of its own."""
EngineName = Literal["llama_cpp", "vllm", "sglang", "mistralrs"]
AcceleratorName = Literal["cpu", "cuda", "vulkan", "metal", "rocm"]
RolloutPhase = Literal[
    "stable",
    "starting",
    "waiting_for_readiness",
    "making_room",
    "no_room",
    "draining_prior",
    "timed_out",
    "restoring",
    "restored",
]
"""Meanings: `sbctl.placement.rollout`."""
ReplicaPhase = Literal["configured", "assigned", "cached", "preparing", "ready", "draining", "stopped", "failed"]


class DocumentPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, defer_build=True)


class ClusterDocument(DocumentPart):
    """What all of them say about themselves: in which cluster, and at which identity and start of its process the signer stood.

    `boot_epoch` grows by one with every start of the signer's runtime.
    """

    schema_version: Literal[1] = 1
    cluster_id: Id
    identity_epoch: Number
    boot_epoch: Number

    @property
    def signer(self) -> str:
        """Node id of the only one that may sign it."""
        raise NotImplementedError


class BundleMark(DocumentPart):
    """Which bundle somebody stands at."""

    key_epoch: Count = 0
    revision: Number
    content_digest: Digest


# --- node snapshot


class ClusterNode(DocumentPart):
    """Who the node is: equal to the claims of its certificate. `peer_address`: `host:port` of its peer plane; None for who has none."""

    node_id: Id
    roles: tuple[ClusterRole, ...] = Field(min_length=1, max_length=3, fail_fast=True)
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=64)
    peer_address: Annotated[str, StringConstraints(min_length=3, max_length=262)] | None = None


class HealthReport(DocumentPart):
    """`draining`: taken out of service by an operator or an apply; it keeps what it has and gets nothing new."""

    state: Literal["ready", "degraded", "unhealthy"]
    reason_codes: tuple[ReasonCode, ...] = Field(default=(), max_length=16, fail_fast=True)
    peer_plane: Literal["ready", "degraded", "unavailable"]
    draining: bool = False


class EngineReport(DocumentPart):
    """One engine build that the node could run. `launch` and `version` as the bundle's engine policy names them. Without a version: one that is
    named by its path; `acquirable` without a `reason_code`: any version that a bundle may pin."""

    engine: EngineName
    launch: Annotated[str, StringConstraints(max_length=32)] = ""
    version: Annotated[str, StringConstraints(max_length=128)] | None = None
    availability: Literal["available", "acquirable", "incompatible", "blocked"]
    artifact_formats: tuple[Annotated[str, StringConstraints(max_length=32)], ...] = Field(
        default=(), max_length=8, fail_fast=True
    )
    accelerators: tuple[AcceleratorName, ...] = Field(default=(), max_length=8, fail_fast=True)
    reason_code: ReasonCode | None = None


class DeviceReport(DocumentPart):
    """One accelerator. `index`: its number on this node, which it keeps. `usable_memory_bytes`: what engines may take of it, which placement
    counts (0: all). These and the total are static facts; the rest is of the moment and never decides a placement. `withheld`: why engines
    get nothing of it."""

    index: DeviceIndex
    vendor: Annotated[str, StringConstraints(max_length=64)] = ""
    accelerator: AcceleratorName
    name: Annotated[str, StringConstraints(max_length=128)] = ""
    total_memory_bytes: Count
    usable_memory_bytes: Count = 0
    available_memory_bytes: Count
    compute_capability: Annotated[str, StringConstraints(max_length=16)] | None = None
    supports_fp8: bool = False
    compute_utilization_millis: Permille | None = None
    memory_occupancy_millis: Permille | None = None
    withheld: ReasonCode | None = None


class ArtifactReport(DocumentPart):
    artifact_digest: Digest
    model: ShortText
    variant: ShortText
    state: Literal["missing", "partial", "ready", "corrupt"]
    completed_bytes: Count = 0
    total_bytes: Count = 0
    last_accessed_unix_ms: Millis | None = None
    reason_code: ReasonCode | None = None


class ReplicaReport(DocumentPart):
    """One engine process, or the place where one should be. `slot`: which of the deployment's replicas in the cluster it is;
    None while the node runs it by a bundle of its own. `member_digest`: of the member that it was started from."""

    deployment: Id
    deployment_generation: Count
    slot: Slot | None = None
    model: ShortText
    variant: ShortText
    engine: EngineName
    state: ReplicaPhase
    artifact_digest: Digest
    member_digest: Digest | None = None
    selected_devices: tuple[DeviceIndex, ...] = Field(default=(), max_length=64, fail_fast=True)
    reserved_memory_bytes: Count = 0
    active_requests: Count = 0
    queue_depth: Count = 0
    adapters: tuple[ShortText, ...] = Field(default=(), max_length=64, fail_fast=True)
    reason_code: ReasonCode | None = None


class CapacityReport(DocumentPart):
    """What the node has, not what is free now: placement weighs by it, so that a rank never drifts with load.

    `memory_bytes`: main memory that engines may use; `device_memory_bytes`: of all accelerators together, as `devices` tell it of each.
    `max_engines`: engines that the node keeps loaded at a time (`max_resident_models`); None: no bound.
    """

    memory_bytes: Count
    device_memory_bytes: Count = 0
    cpu_count: Count = 0
    max_engines: Annotated[int, Field(ge=0, le=1024)] | None = None
    cache_bytes: Count = 0
    """Of the disk that holds the model cache."""


class AssignmentMark(DocumentPart):
    """The newest assignment that the node obeys, and how far it got with it: from `accepted` on, nothing that it does not name is started,
    and the snapshot's replicas show what is still there. `reason_code`: why it is `failed`."""

    lease_epoch: Number
    counter: Number
    state: Literal["accepted", "prepared", "ready", "failed"]
    reason_code: ReasonCode | None = None


class NodeSnapshotDocument(ClusterDocument):
    """What a node has and does, by its own word. It counts until `expires_at_unix_ms`."""

    node: ClusterNode
    counter: Number
    """Grows with every snapshot of one boot epoch."""
    published_at_unix_ms: Millis
    expires_at_unix_ms: Millis
    health: HealthReport
    capacity: CapacityReport
    engines: tuple[EngineReport, ...] = Field(default=(), max_length=16, fail_fast=True)
    devices: tuple[DeviceReport, ...] = Field(default=(), max_length=64, fail_fast=True)
    artifacts: tuple[ArtifactReport, ...] = Field(default=(), max_length=512, fail_fast=True)
    replicas: tuple[ReplicaReport, ...] = Field(default=(), max_length=SNAPSHOT_REPLICAS_MAX, fail_fast=True)
    runtime_version: Annotated[str, StringConstraints(max_length=64)] = ""
    active_bundle: BundleMark | None = None
    assignment: AssignmentMark | None = None
    authority_stale: bool = False
    """Nothing of an authority reached the node for so long that it takes no new placement."""
    revocations_revision: Count = 0
    """Of the revocation list that it applies."""
    figures: dict[MetricName, Count] = Field(default_factory=dict, max_length=32)
    """Counters since the start of its runtime, by the names of /metrics, for the sums of the whole cluster."""

    @property
    def signer(self) -> str:
        return self.node.node_id


# --- assignment


class AssignedReplica(DocumentPart):
    """One engine to run: which of the deployment's replicas, on which devices (indexes; none: main memory), with how much memory."""

    slot: Slot
    devices: tuple[DeviceIndex, ...] = Field(default=(), max_length=64, fail_fast=True)
    memory_bytes: Count = 0


class AssignedDeployment(DocumentPart):
    """What the node must do for one generation of a deployment.

    `start`   run these replicas of this generation (what serves already keeps serving)
    `retain`  keep serving what it serves of this generation, take nothing down, start nothing
    `drain`   finish what runs, by `handoff_deadline_unix_ms` at the latest, then stop

    `member_digest`: of one replica of the member that the bundle and this assignment project to; a node that computes another refuses.
    `tried_again`: the number of an operator's wish to try it again; when it grows, what failed is begun anew at once.
    """

    generation: Number
    phase: Literal["start", "retain", "drain"]
    variant: ShortText
    artifact_digest: Digest
    member_digest: Digest
    replicas: tuple[AssignedReplica, ...] = Field(default=(), max_length=ASSIGNED_REPLICAS_MAX, fail_fast=True)
    handoff_deadline_unix_ms: Millis | None = None
    tried_again: Count = 0


class LeaseHolderDocument(ClusterDocument):
    """Documents of the lease-holder: a higher lease epoch is newer, in one epoch a higher counter."""

    lease_epoch: Number
    lease_holder: Id
    counter: Number
    issued_at_unix_ms: Millis
    bundle: BundleMark
    """What was placed."""

    @property
    def signer(self) -> str:
        return self.lease_holder


class AssignmentDocument(LeaseHolderDocument):
    """All that one node must run. What is not in it is not this node's any more: it drains.

    While a deployment is handed over, a node may have several generations of it: one to start, others to retain or to drain.
    """

    node_id: Id
    deployments: dict[
        Id, Annotated[tuple[AssignedDeployment, ...], Field(min_length=1, max_length=ASSIGNED_PARTS_MAX)]
    ] = Field(max_length=BUNDLE_DEPLOYMENTS_MAX)

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        for name, parts in self.deployments.items():
            if len({part.generation for part in parts if part.phase == "start"}) > 1:
                raise ValueError(f"{name}: two generations to start on one node")
            slots = [(part.generation, replica.slot) for part in parts for replica in part.replicas]
            if len(slots) != len(set(slots)):
                raise ValueError(f"{name}: one replica stands twice in one generation")
        return self


# --- lease


class LeaseDocument(ClusterDocument):
    """Who computes placement. `epoch` grows with every taking, `renewal` while one holder keeps it."""

    holder: Id
    epoch: Number
    renewal: Count = 0
    acquired_at_unix_ms: Millis
    renewed_at_unix_ms: Millis
    ttl_secs: Annotated[int, Field(ge=1, le=3600)]

    @property
    def signer(self) -> str:
        return self.holder


# --- dispatch


_Ref = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class DispatchEnvelope(ClusterDocument):
    """One request that a gateway hands to one worker, over one hop, once.

    Bound to the worker's present process by `audience_boot_epoch`, so the fence against replays needs no disk; to the body by `body_sha256`;
    to the connection by `issuer_certificate_sha256`, the certificate that the gateway shows there. Only a `hop_count` of 1 is taken.
    """

    issuer_node_id: Id
    issuer_certificate_sha256: Digest
    audience_node_id: Id
    audience_boot_epoch: Number
    request_id: _Ref
    nonce: Annotated[str, StringConstraints(min_length=16, max_length=128, pattern=r"^[A-Za-z0-9_-]+\z")]
    issued_at_unix_ms: Millis
    expires_at_unix_ms: Millis
    hop_count: Annotated[int, Field(ge=0, le=255)] = 1
    tenant_id: _Ref | None = None
    governed_key_id: _Ref | None = None
    policy_revision: _Ref
    deployment: Id
    deployment_generation: Number
    logical_model: _Ref
    priority: Literal["interactive", "standard", "batch"]
    method: Literal["POST"] = "POST"
    path: _Ref
    content_type: _Ref | None = None
    body_sha256: Digest

    @property
    def signer(self) -> str:
        return self.issuer_node_id
