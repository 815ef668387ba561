"""What of a node's word about its engines counts. A node that lies, or lost its mind, harms what was given to it, and nothing else. Pure.

one of each     of engines with the same deployment, generation and slot, the one that is most alive
numbers         one that is far above all that were given out was given out by nobody. One that is above the plan's means that the plan is
                of yesterday, and that is believed where most of the nodes tell so that the plan has the deployment on and that are heard
strangers       engines that the plan does not know are taken in, so that they end; beyond `STRANGERS_MAX` on one node they are not
                counted, and end all the same: what no assignment names is not run
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sbctl.placement.model import FOREIGN_SLOTS, ClusterView, Node, ObservedReplica, PlacementPlan

__all__ = ["GENERATION_LEAP_MAX", "STRANGERS_MAX", "believed"]

GENERATION_LEAP_MAX: Final = 1 << 20
"""More than any plan that was lost gave out."""
STRANGERS_MAX: Final = 256
_LIVELY: Final = ("ready", "draining", "preparing")


@dataclass(frozen=True, slots=True)
class _Known:
    """What the plan before says. `places` by node; `extra`: how many places each node has that are no target."""

    plan: PlacementPlan
    places: frozenset[tuple[str, str, int, int]]
    extra: Mapping[str, int]

    def highest(self, deployment: str) -> int:
        placed = self.plan.deployments.get(deployment)
        water = self.plan.high_waters.get(deployment, self.plan.generation_floor)
        return water if placed is None else max(water, placed.generation)


def believed(view: ClusterView, prior: PlacementPlan) -> ClusterView:
    """The view with what counts of it."""
    known = _known(prior)
    nodes = {name: _cleared(node, known) for name, node in view.nodes.items()}
    doubted = _doubted(nodes, known)
    return replace(view, nodes={name: _counted(node, known, doubted) for name, node in nodes.items()})


def _known(plan: PlacementPlan) -> _Known:
    places: set[tuple[str, str, int, int]] = set()
    extra: Counter[str] = Counter()
    for name, placed in plan.deployments.items():
        helds = [held.place for held in placed.held]
        places.update((place.node_id, name, place.generation, place.slot) for place in (*placed.target, *helds))
        extra.update(place.node_id for place in helds)
    return _Known(plan, frozenset(places), extra)


def _cleared(node: Node, known: _Known) -> Node:
    """One of each, with numbers that somebody may have given out."""
    found: dict[tuple[str, int, int], int] = {}
    kept: list[ObservedReplica] = []
    for told in node.replicas:
        replica = told if told.generation > 0 else replace(told, generation=1)
        if replica.generation > known.highest(replica.deployment) + GENERATION_LEAP_MAX:
            continue
        if replica.slot is not None:
            key = (replica.deployment, replica.generation, replica.slot)
            if (twin := found.get(key)) is not None:
                kept[twin] = min(kept[twin], replica, key=_order)
                continue
            found[key] = len(kept)
        kept.append(replica)
    return node if len(kept) == len(node.replicas) and all(map(_is, kept, node.replicas)) else _with(node, kept)


def _is(one: object, other: object) -> bool:
    return one is other


def _order(replica: ObservedReplica) -> int:
    return _LIVELY.index(replica.state) if replica.state in _LIVELY else len(_LIVELY)


def _with(node: Node, replicas: Iterable[ObservedReplica]) -> Node:
    return replace(node, replicas=tuple(replicas))


def _is_numbered(replica: ObservedReplica) -> bool:
    """Whether the cluster gave it its number."""
    return replica.slot is not None and replica.slot not in FOREIGN_SLOTS


def _doubted(nodes: Mapping[str, Node], known: _Known) -> frozenset[str]:
    """Deployments of which only nodes tell a number above the plan's that the plan does not have them on, or the fewer of those."""
    ahead: dict[str, set[str]] = {}
    for name, node in nodes.items():
        for replica in node.replicas:
            if _is_numbered(replica) and replica.generation > known.highest(replica.deployment):
                ahead.setdefault(replica.deployment, set()).add(name)
    return frozenset(name for name, tellers in ahead.items() if _is_doubted(tellers, _heard(name, nodes, known)))


def _is_doubted(tellers: set[str], heard: set[str]) -> bool:
    return bool(heard) and 2 * len(heard & tellers) <= len(heard)


def _heard(deployment: str, nodes: Mapping[str, Node], known: _Known) -> set[str]:
    placed = known.plan.deployments.get(deployment)
    return set() if placed is None else {place.node_id for place in placed.target if place.node_id in nodes}


def _counted(node: Node, known: _Known, doubted: frozenset[str]) -> Node:
    kept = tuple(_taken(node, known, doubted))
    return node if len(kept) == len(node.replicas) else _with(node, kept)


def _taken(node: Node, known: _Known, doubted: frozenset[str]) -> Iterator[ObservedReplica]:
    left = STRANGERS_MAX - known.extra.get(node.node_id, 0)
    for replica in node.replicas:
        name, slot = replica.deployment, replica.slot
        if name in doubted and _is_numbered(replica) and replica.generation > known.highest(name):
            continue
        if slot is None or (node.node_id, name, replica.generation, slot) not in known.places:
            if left <= 0:
                continue
            left -= 1
        yield replica
