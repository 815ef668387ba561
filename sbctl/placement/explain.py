"""Why replicas are where they are, as data; and the words for it, which the command line and the admin API share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from sbctl.base.limits import GIB, MIB
from sbctl.placement.fleet import Fleet
from sbctl.placement.model import Brake, ClusterView, DeploymentDemand, Fact, Place, PlacementPlan, Refusal, Rollout
from sbctl.placement.refusing import refusal_of
from sbctl.placement.rendezvous import Ranking

__all__ = ["Explanation", "NodeRow", "brake_text", "explain", "refusal_text", "rollout_text"]

Standing = Literal["placed", "held", "possible", "refused"]
_ORDER: Final[tuple[Standing, ...]] = ("placed", "held", "possible", "refused")


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node as a deployment sees it. `variant`: the way it would run one more replica, or runs the first one. `score` is comparable only
    within one deployment and one way; 0 for a node that is refused. `domains`: its values of `spread_by`."""

    node_id: str
    standing: Standing
    variant: str = ""
    score: float = 0.0
    has_weights: bool = False
    domains: tuple[str, ...] = ()
    slots: tuple[int, ...] = ()
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    deployment: str
    desired: int
    placed: int
    rows: tuple[NodeRow, ...]
    """Placed first, then what is held for a rollout, then who could take more, best first, then who could not, by reason."""


def explain(
    view: ClusterView, demands: Iterable[DeploymentDemand], plan: PlacementPlan, deployment: str
) -> Explanation | None:
    """How every node stands to one deployment in this plan; None: the bundle has no such deployment."""
    demand = next((one for one in demands if one.deployment == deployment), None)
    if demand is None:
        return None
    fleet = Fleet(view, plan.losses)
    for placed in plan.deployments.values():
        fleet.room.force(placed.target)
        fleet.room.force(held.place for held in placed.held)
    mine = plan.deployments.get(deployment)
    targets = mine.target if mine else ()
    helds = tuple(held.place for held in mine.held) if mine else ()
    rows = [_row(fleet, demand, index, targets, helds) for index in range(len(fleet.ids))]
    rows.sort(
        key=lambda row: (_ORDER.index(row.standing), row.refusal.reason if row.refusal else "", -row.score, row.node_id)
    )
    return Explanation(deployment, demand.replicas, len(targets), tuple(rows))


def _row(
    fleet: Fleet, demand: DeploymentDemand, index: int, targets: tuple[Place, ...], helds: tuple[Place, ...]
) -> NodeRow:
    node = fleet.nodes[index]
    mine = [place for place in targets if place.node_id == node.node_id]
    held = [place for place in helds if place.node_id == node.node_id]
    runs = mine[0].member_digest if mine else None
    refusal = refusal_of(fleet, node, demand, mine)
    here = (mine or held)[:1]
    possible = [
        way
        for way in demand.ways
        if runs in (None, way.member_digest)
        and index in fleet.candidates(demand, way)
        and fleet.room.devices_for(node.node_id, way, warm=demand.warm) is not None
    ]
    way = next(
        (way for way in demand.ways if here and way.variant == here[0].variant), possible[0] if possible else None
    )
    return NodeRow(
        node_id=node.node_id,
        standing="placed" if mine else "held" if held else "refused" if refusal else "possible",
        variant=way.variant if way else refusal.variant if refusal else "",
        score=Ranking(demand.deployment).score(node.node_id, fleet.weights(way)[index]) if way else 0.0,
        has_weights=way is not None and bool(fleet.holders(way) >> index & 1),
        domains=fleet.domains(demand.spread_by)[index],
        slots=tuple(place.slot for place in mine or held),
        refusal=None if mine or held else refusal,
    )


# --- words

_PLACES: Final = {"host": "main memory", "device": "a device"}


def refusal_text(refusal: Refusal) -> str:
    """One sentence without a full stop."""
    facts = dict(refusal.facts)
    variant = f"{refusal.variant}: " if refusal.variant else ""
    return (
        variant + _WORDS[refusal.reason].format(**_worded(facts))
        if refusal.reason in _WORDS and "all_devices" not in facts
        else variant + _by_facts(refusal, facts)
    )


_WORDS: Final = {
    "not_worker": "is no worker",
    "node_lost": "is lost: not heard of for too long",
    "node_unreachable": "is not heard of at the moment",
    "node_excluded": "is left out by the directory ({code})",
    "node_unhealthy": "says that it is unhealthy ({codes})",
    "required_labels": "has {label}={has}, and {label}={wanted} is required",
    "missing_endpoint": "has no address at which gateways reach it",
    "no_capacity": "tells of no memory and no device",
    "variant_incompatible": "its {engine} does not read {format}",
    "accelerator_incompatible": "has no {wanted} device",
    "engine_unavailable": "has {engine} {has}, and {wanted} is wanted",
    "artifact_not_ready": "{missing} of the weights are not there, and pull is manual (sbctl models pull)",
}


def _by_facts(refusal: Refusal, facts: dict[str, Fact]) -> str:
    if refusal.reason == "node_draining":
        return "is being evacuated" if facts.get("by") == "evacuate" else "is out of service for a change"
    if "all_devices" in facts:
        return f"takes all {facts['all_devices']} devices of the node, and lies on {facts['needed_devices']}"
    if "short_devices" in facts:
        return f"has {facts['has_devices']} devices that are alike and large enough, needs {facts['needed_devices']}"
    if "short_engines" in facts:
        return f"keeps {facts['max_engines']} models loaded at most (max_resident_models), and has them"
    if "max_replicas" in facts:
        return f"has {facts['max_replicas']} replicas, and can have no more of them"
    free = facts.get("free_bytes", facts.get("has_bytes", 0))
    words = _worded(facts)
    left = "free" if refusal.reason == "no_room" else "in all"
    return f"needs {words['needed_bytes']} of {_PLACES[str(facts['place'])]}, has {_size(free)} {left}: {words['short_bytes']} short"


def _worded(facts: dict[str, Fact]) -> dict[str, str]:
    return {name: _size(value) if name.endswith("_bytes") else str(value) or "none" for name, value in facts.items()}


def _size(value: Fact) -> str:
    number = int(value)
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{-(-number // MIB)} MiB"


def brake_text(brake: Brake) -> str:
    nodes = ", ".join(brake.nodes[:5]) + (f" and {len(brake.nodes) - 5} more" if len(brake.nodes) > 5 else "")
    if brake.stale_since_ms is not None:
        return f"the store is not heard: nothing is placed anew for {nodes}"
    return (
        f"{brake.silent} of {brake.workers} workers are silent or were lost a short while ago, and at most {brake.limit} may be: "
        f"nothing is placed anew for {nodes}"
    )


def rollout_text(rollout: Rollout) -> str:
    """What a deployment is at, for people."""
    return _PHASES[rollout.phase]


_PHASES: Final = {
    "stable": "runs as placed",
    "starting": "is being started",
    "waiting_for_readiness": "is being started; what it replaces serves until it is ready",
    "making_room": "does not fit beside what it replaces: one replica ends, then one of the new starts",
    "no_room": "does not fit beside what it replaces, which serves alone: free the room, or set rollout to recreate",
    "draining_prior": "what ran before ends first",
    "timed_out": "was not ready by the deadline: what serves goes on serving, the new goes on trying",
    "restoring": "could not be brought up: what ran before is started again",
    "restored": "could not be brought up: what ran before runs again until the deployment changes",
}
