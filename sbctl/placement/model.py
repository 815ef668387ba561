"""The nouns of placement: what the nodes have, what is asked for, and the plan that joins the two.

A *way* is one manner of running one replica: a variant on an accelerator, with the room that it takes. A *slot* is one of a deployment's
replicas, numbered over the whole cluster. A *place* is where the engine of one slot of one generation runs. Times are milliseconds since
1970; room is bytes. `mark` is (lease epoch, counter) of an evaluation: it numbers what the lease-holder said, in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from sbctl.node.cluster_documents import AcceleratorName, EngineName, ReplicaPhase, RolloutPhase

__all__ = [
    "FOREIGN_SLOTS",
    "NO_DIGEST",
    "NO_MARK",
    "Brake",
    "ClusterView",
    "DeploymentDemand",
    "DeploymentPlacement",
    "Device",
    "EngineOffer",
    "Fact",
    "Held",
    "Loss",
    "Mark",
    "Node",
    "ObservedReplica",
    "Place",
    "PlacementPlan",
    "PlacementPolicy",
    "Refusal",
    "RefusalReason",
    "Rollout",
    "Way",
]

Mark = tuple[int, int]
NO_MARK: Final[Mark] = (0, 0)
NO_DIGEST: Final = "0" * 64
"""Of a member that nobody named: documents always have one."""
FOREIGN_SLOTS: Final = range(4096, 8192)
"""Of engines that nodes run by bundles of their own; on each node from the first one on."""
Fact = str | int


# --- what the nodes have


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. Devices with the same name and size may serve one replica together."""

    index: int
    accelerator: AcceleratorName
    total_bytes: int
    name: str = ""

    def runs(self, way: Way) -> bool:
        """Whether an engine of that kind computes on it: a Vulkan build does on any."""
        return way.accelerator in (self.accelerator, "vulkan")


@dataclass(frozen=True, slots=True)
class EngineOffer:
    """An engine that a node has or can get. `version` None: one that is named by its path; `any_version`: it gets whichever is pinned.
    `formats` and `accelerators` empty: it did not tell, so nothing is refused for them."""

    engine: EngineName
    version: str | None = None
    any_version: bool = False
    launch: str = ""
    usable: bool = True
    accelerators: frozenset[AcceleratorName] = frozenset()
    formats: frozenset[str] = frozenset()
    reason_code: str = ""


@dataclass(frozen=True, slots=True)
class ObservedReplica:
    """What a node says of one engine. `slot` None: it runs by a bundle of the node's own. `member_digest` empty: not told."""

    deployment: str
    generation: int
    variant: str
    artifact_digest: str
    state: ReplicaPhase
    engine: EngineName = "llama_cpp"
    slot: int | None = None
    member_digest: str = ""
    devices: tuple[int, ...] = ()
    reserved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """A node by its last verified snapshot. `heard_at_ms`: when this reader received it, by the reader's clock.

    `exclusion`: why the directory offers it nothing new; empty when it may. `drain` `cordon`: it keeps what it has and gets nothing new;
    `evacuate`: what it has is placed elsewhere, and serves until then. `admits`: it takes requests. `acknowledged`: the newest assignment that
    it obeys, which its replicas already show.
    """

    node_id: str
    heard_at_ms: int = 0
    is_worker: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    has_endpoint: bool = True
    health: Literal["ready", "degraded", "unhealthy"] = "ready"
    health_reasons: tuple[str, ...] = ()
    exclusion: str = ""
    drain: Literal["", "cordon", "evacuate"] = ""
    admits: bool = True
    memory_bytes: int = 0
    max_engines: int | None = None
    devices: tuple[Device, ...] = ()
    engines: tuple[EngineOffer, ...] = ()
    ready_artifacts: frozenset[str] = frozenset()
    replicas: tuple[ObservedReplica, ...] = ()
    acknowledged: Mark = NO_MARK


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One directory at one moment. `watching_since_ms`: when its reader began; silence is not counted from before.

    `removed`: node ids that an operator took out of the cluster; nobody waits for them. `expected`: node ids that belong to the cluster by
    another source than their snapshots; a first plan waits for them a while, since they may run something already. `stale_since_ms`: the
    store was heard last then, too long ago; None: the view is fresh.
    """

    nodes: Mapping[str, Node]
    watching_since_ms: int = 0
    removed: frozenset[str] = frozenset()
    expected: frozenset[str] = frozenset()
    stale_since_ms: int | None = None


# --- what is asked for


@dataclass(frozen=True, slots=True)
class Way:
    """How one replica may run: `host_bytes` of main memory, and `device_bytes` on each of `devices` equal accelerators.

    `artifacts`: all weights it needs. `engine_version` None: any. `member_digest`: of the member that a worker makes of it.
    """

    variant: str
    artifact_digest: str
    member_digest: str
    engine: EngineName
    host_bytes: int
    accelerator: AcceleratorName = "cpu"
    devices: int = 0
    device_bytes: int = 0
    engine_version: str | None = None
    launch: str = ""
    artifact_format: str = ""
    artifacts: tuple[str, ...] = ()

    @property
    def wanted_artifacts(self) -> tuple[str, ...]:
        return self.artifacts or (self.artifact_digest,)


@dataclass(frozen=True, slots=True)
class DeploymentDemand:
    """One deployment of the bundle. `ways`: in order of preference. `digest`: of all that a generation depends on."""

    deployment: str
    digest: str
    ways: tuple[Way, ...]
    replicas: int = 1
    model: str = ""
    required_labels: Mapping[str, str] = field(default_factory=dict)
    spread_by: tuple[str, ...] = ()
    pull: Literal["on_boot", "on_demand", "manual"] = "on_demand"
    warm: bool = True
    rollout: Literal["rolling", "recreate"] = "rolling"
    handoff_timeout_ms: int = 900_000
    drain_timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """Bounds of the controller.

    `unreachable_after_ms`, `lost_after_ms`: of silence. `brake_percent`: so much of the workers may be silent, or lost within
    `brake_window_ms`, before nobody is declared lost any more; one always may. `weights_factor`: so many times its size counts a node that
    has the weights. `moves_max`: replicas that may be on their way to newcomers at a time, none of which had to move.
    """

    unreachable_after_ms: int = 30_000
    lost_after_ms: int = 120_000
    brake_percent: int = 40
    brake_window_ms: int = 600_000
    weights_factor: float = 2.0
    moves_max: int = 16


# --- refusals

RefusalReason = Literal[
    "not_worker",
    "node_lost",
    "node_unreachable",
    "node_excluded",
    "node_unhealthy",
    "node_draining",
    "required_labels",
    "missing_endpoint",
    "no_capacity",
    "variant_incompatible",
    "accelerator_incompatible",
    "insufficient_memory",
    "engine_unavailable",
    "artifact_not_ready",
    "no_room",
]
"""In the order of the filters: a node is refused for the last one that it reached with any of the ways."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node gets no replica. `facts` hold what was short by how much; `placement.explain` puts them into words."""

    reason: RefusalReason
    variant: str = ""
    facts: tuple[tuple[str, Fact], ...] = ()


# --- the plan


@dataclass(frozen=True, slots=True)
class Place:
    """Where the engine of one slot runs, or will. It holds `host_bytes` of main memory and `device_bytes` on each of `devices`; all the time
    when `warm`, else in turn with others that are not."""

    slot: int
    node_id: str
    generation: int
    variant: str
    artifact_digest: str
    member_digest: str
    engine: EngineName
    accelerator: AcceleratorName = "cpu"
    devices: tuple[int, ...] = ()
    host_bytes: int = 0
    device_bytes: int = 0
    warm: bool = True


@dataclass(frozen=True, slots=True)
class Held:
    """A place that is no target any more and still holds its room. `drained_at`: the evaluation that first said it shall drain."""

    place: Place
    draining: bool = False
    deadline_ms: int | None = None
    drained_at: Mark = NO_MARK


@dataclass(frozen=True, slots=True)
class Rollout:
    """How far a deployment's target is. `waiting_slots`: targets that may not start yet, since an engine they replace still lives."""

    phase: RolloutPhase = "starting"
    target_ready: bool = False
    timed_out: bool = False
    since_ms: int = 0
    deadline_ms: int | None = None
    waiting_slots: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class DeploymentPlacement:
    """`generation` is the one that is wanted; the places of `target` have it, except after a rollout that was taken back.

    `fallback`: places of the generation that was taken down for this one. `desired` 0: the deployment left the bundle and drains. `weighed`: the
    nodes that its target was chosen among: they could take a replica then, or were offered one since. `tried`: the number of the last wish of
    an operator to try its rollout again that was followed.
    """

    deployment: str
    digest: str
    generation: int
    desired: int
    model: str = ""
    target: tuple[Place, ...] = ()
    held: tuple[Held, ...] = ()
    fallback: tuple[Place, ...] = ()
    rollout: Rollout = Rollout()
    refusals: Mapping[str, Refusal] = field(default_factory=dict)
    """Of every node, where a replica has no place; empty otherwise."""
    weighed: frozenset[str] = frozenset()
    tried: int = 0

    @property
    def unplaced(self) -> int:
        return max(0, self.desired - len(self.target))


@dataclass(frozen=True, slots=True)
class Loss:
    """A node that is not heard of. `unreachable`: its replicas stay its own; `lost`: they are placed elsewhere."""

    state: Literal["unreachable", "lost"]
    since_ms: int


@dataclass(frozen=True, slots=True)
class Brake:
    """Nobody is declared lost: `silent` of `workers` are silent or were lost a short while ago, and `limit` may be; or the store itself is not
    heard since `stale_since_ms`. `nodes`: who would be lost."""

    silent: int
    workers: int
    limit: int
    nodes: tuple[str, ...]
    stale_since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """What one evaluation came to; the next one starts from it.

    `known`: workers that it was made with. `high_waters`: the highest generation of each deployment, kept when it is gone; none that is not
    in it ever had more than `generation_floor`. `deferred_moves`: to newcomers, left for later. `waits_for`: nodes that are to be heard
    before there is a first plan; until then nobody is told anything.
    """

    deployments: Mapping[str, DeploymentPlacement] = field(default_factory=dict)
    losses: Mapping[str, Loss] = field(default_factory=dict)
    brake: Brake | None = None
    known: frozenset[str] = frozenset()
    high_waters: Mapping[str, int] = field(default_factory=dict)
    generation_floor: int = 0
    deferred_moves: int = 0
    waits_for: tuple[str, ...] = ()
