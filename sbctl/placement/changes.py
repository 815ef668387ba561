"""What one plan does to another: every replica that comes, goes or changes its node or generation, and why. For plans before an apply and for events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sbctl.placement.model import ClusterView, DeploymentDemand, DeploymentPlacement, Place, PlacementPlan

__all__ = ["PlaceChange", "Why", "change_text", "changes"]

Why = Literal[
    "placed",
    "scaled_down",
    "withdrawn",
    "new_generation",
    "taken_back",
    "node_removed",
    "node_lost",
    "node_draining",
    "required_labels",
    "no_room",
    "newcomer",
]


@dataclass(frozen=True, slots=True)
class PlaceChange:
    """One replica. `before` or `after` None: it was or is nowhere. `has_weights`: the node it goes to need not fetch them."""

    deployment: str
    slot: int
    why: Why
    before: Place | None
    after: Place | None
    has_weights: bool = False


def changes(
    before: PlacementPlan, after: PlacementPlan, view: ClusterView, demands: Mapping[str, DeploymentDemand]
) -> tuple[PlaceChange, ...]:
    """By deployment and slot. `view` and `demands`: those that `after` was made from."""
    made = _Made(after, view, demands)
    names = sorted(before.deployments.keys() | after.deployments.keys())
    return tuple(change for name in names for change in made.changes(name, before.deployments.get(name, _NOTHING)))


_NOTHING: Final = DeploymentPlacement("", "", 0, 0)


@dataclass(frozen=True, slots=True)
class _Made:
    """A plan, and what it was made from."""

    plan: PlacementPlan
    view: ClusterView
    demands: Mapping[str, DeploymentDemand]

    def changes(self, name: str, old: DeploymentPlacement) -> Iterator[PlaceChange]:
        new = self.plan.deployments.get(name, _NOTHING)
        was, will = ({place.slot: place for place in one.target} for one in (old, new))
        for slot in sorted(was.keys() | will.keys()):
            left, gets = was.get(slot), will.get(slot)
            if left != gets:
                why: Why = "placed" if left is None else self._why(name, left, gets, old.weighed)
                yield PlaceChange(name, slot, why, left, gets, gets is not None and self._has_weights(gets))

    def _has_weights(self, place: Place) -> bool:
        node = self.view.nodes.get(place.node_id)
        return node is not None and place.artifact_digest in node.ready_artifacts

    def _why(self, name: str, left: Place, gets: Place | None, weighed: frozenset[str]) -> Why:
        """`weighed`: who had their chance of it before."""
        demand = self.demands.get(name)
        if demand is None:
            return "withdrawn"
        if gets is not None and gets.generation != left.generation:
            return "new_generation" if gets.generation > left.generation else "taken_back"
        if left.node_id in self.view.removed:
            return "node_removed"
        loss = self.plan.losses.get(left.node_id)
        if loss is not None and loss.state == "lost":
            return "node_lost"
        node = self.view.nodes.get(left.node_id)
        if node is not None and node.drain == "evacuate":
            return "node_draining"
        if node is not None and any(node.labels.get(label) != value for label, value in demand.required_labels.items()):
            return "required_labels"
        if gets is None:
            return "no_room" if self.plan.deployments[name].unplaced else "scaled_down"
        return "no_room" if gets.node_id in weighed else "newcomer"


def change_text(change: PlaceChange) -> str:
    """One line: which replica, from where to where, why."""
    left = change.before.node_id if change.before else "nowhere"
    gets = change.after.node_id if change.after else "nowhere"
    where = f"on {gets}" if change.before is None or left == gets else f"{left} → {gets}"
    fetched = "" if change.after is None or change.has_weights else ", weights to fetch"
    return f"{change.deployment} replica {change.slot}: {where} ({_WORDS[change.why]}{fetched})"


_WORDS: Final = {
    "placed": "new",
    "scaled_down": "fewer are wanted",
    "withdrawn": "the deployment is gone",
    "new_generation": "changed",
    "taken_back": "the new could not be brought up",
    "node_removed": "the node was removed",
    "node_lost": "the node is lost",
    "node_draining": "the node was taken out of service",
    "required_labels": "the node's labels do not match any more",
    "no_room": "the node has no room for it any more",
    "newcomer": "the node can take it now, and wins it",
}
