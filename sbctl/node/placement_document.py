"""The whole placement plan, signed: as the next lease-holder takes it over, and as status shows it. See `cluster_documents`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from sbctl.artifacts.model import Digest
from sbctl.base.field_types import Id, LabelKey, LabelValue
from sbctl.base.limits import MIB
from sbctl.node.cluster_documents import (
    AcceleratorName,
    Count,
    DocumentPart,
    EngineName,
    LeaseHolderDocument,
    Millis,
    Number,
    ReasonCode,
    RolloutPhase,
    ShortText,
    Slot,
)

__all__ = [
    "PLACEMENT_MAX_BYTES",
    "PLACEMENT_PAYLOAD_TYPE",
    "LostNode",
    "PlacedDeployment",
    "PlacedReplica",
    "PlacementDocument",
    "Rejection",
    "RolloutState",
]

PLACEMENT_PAYLOAD_TYPE: Final = "application/vnd.sbctl.placement.v1+json"
PLACEMENT_MAX_BYTES: Final = 4 * MIB


class PlacedReplica(DocumentPart):
    """`host_memory_bytes` and `device_memory_bytes` (on each of `devices`) are the room that it holds. `deadline_unix_ms`: of what is
    retained or draining."""

    slot: Slot
    node_id: Id
    generation: Number
    variant: ShortText
    artifact_digest: Digest
    member_digest: Digest
    engine: EngineName
    accelerator: AcceleratorName
    devices: tuple[int, ...] = Field(default=(), max_length=64)
    host_memory_bytes: Count = 0
    device_memory_bytes: Count = 0
    warm: bool = True
    """It holds the room all the time; else in turn with others that are loaded on demand."""
    deadline_unix_ms: Millis | None = None
    drained_at: tuple[Count, Count] | None = None
    """Of what is draining: lease epoch and counter of the first assignment that said so."""
    artifact_cached: bool = False
    failure_domains: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=8)


class Rejection(DocumentPart):
    """Why a node did not get a replica: a stable reason, for which variant, and its facts: what was short by how much."""

    reason: ReasonCode
    variant: ShortText = ""
    facts: dict[ReasonCode, Count | ShortText] = Field(default_factory=dict, max_length=8)


class RolloutState(DocumentPart):
    """How far a generation is. `since_unix_ms`: when it began."""

    phase: RolloutPhase
    target_ready: bool
    timed_out: bool = False
    since_unix_ms: Millis = 0
    handoff_deadline_unix_ms: Millis | None = None
    waiting_slots: tuple[Slot, ...] = Field(default=(), max_length=1024)
    """Replicas that are assigned to nobody yet, since an engine that they replace may be alive."""


class PlacedDeployment(DocumentPart):
    """One deployment in the plan. `member_digest` is of the whole cluster's member, the only thing a generation depends on."""

    model: ShortText
    member_digest: Digest
    generation: Number
    desired_replicas: Annotated[int, Field(ge=0, le=1024)]
    assignments: tuple[PlacedReplica, ...] = Field(default=(), max_length=1024)
    retained: tuple[PlacedReplica, ...] = Field(default=(), max_length=4096)
    draining: tuple[PlacedReplica, ...] = Field(default=(), max_length=4096)
    fallback: tuple[PlacedReplica, ...] = Field(default=(), max_length=1024)
    """Of a generation that was taken down for this one: started again when this one cannot be brought up."""
    unplaced_replicas: Annotated[int, Field(ge=0, le=1024)] = 0
    rejections: dict[Id, Rejection] = Field(default_factory=dict, max_length=1024)
    rejections_left_out: Count = 0
    """Nodes whose refusal was left out to keep the document small."""
    weighed: Annotated[str, Field(pattern="^[0-9a-f]*$", max_length=1024)] = ""
    """The nodes that its places were chosen among, as a number in base 16: bit n is the n-th of the plan's `known_nodes`. Whoever can take a replica
    now and is not among them is offered one."""
    tried_again: Count = 0
    """The number of the last wish of an operator to try its rollout again that was followed."""
    rollout: RolloutState


class LostNode(DocumentPart):
    """A node that is not heard of. `lost`: its replicas are placed elsewhere; `unreachable`: not yet."""

    state: Literal["unreachable", "lost"]
    since_unix_ms: Millis


class PlacementDocument(LeaseHolderDocument):
    """The whole plan, as the next lease-holder takes it over and as status shows it."""

    directory_digest: Digest
    deployments: dict[Id, PlacedDeployment] = Field(max_length=4096)
    """Of the bundle, and those that left it and still drain."""
    lost_nodes: dict[Id, LostNode] = Field(default_factory=dict, max_length=4096)
    brake: ShortText = ""
    """Why nothing is moved although nodes are lost; empty: it is not on."""
    known_nodes: tuple[Id, ...] = Field(default=(), max_length=4096)
    """Workers that the plan was made with, in order."""
    high_waters: dict[Id, Number] = Field(default_factory=dict, max_length=4096)
    """The highest generation of each deployment that was ever given out, also of those that are gone."""
    generation_floor: Count = 0
    """No deployment that is not in `high_waters` had a higher generation."""
