"""What each node is told: its part of the plan. One that is unreachable is told too, and reads it when it is back.

A node that the plan has nothing for is told so only while it is heard: nobody is told to end what nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from sbctl.placement.model import ClusterView, DeploymentPlacement, Place, PlacementPlan

__all__ = ["Assignment", "Phase", "assignments"]

Phase = Literal["start", "retain", "drain"]


@dataclass(frozen=True, slots=True)
class Assignment:
    """One generation of one deployment on one node, of one variant. `deadline_ms`: until when it is retained or has to have drained."""

    deployment: str
    generation: int
    phase: Phase
    variant: str
    artifact_digest: str
    member_digest: str
    places: tuple[Place, ...]
    deadline_ms: int | None = None
    tried: int = 0
    """The number of the wish to try it again that is followed."""


def assignments(plan: PlacementPlan, view: ClusterView) -> dict[str, tuple[Assignment, ...]]:
    """By node, ordered by deployment and generation. `view`: the one that the plan was made from.

    A target that waits for an engine to end is in nobody's assignment. Nobody is told anything before there is a first plan.
    """
    if plan.waits_for:
        return {}
    parts: dict[str, dict[Assignment, list[Place]]] = {
        name: {} for name, node in view.nodes.items() if node.is_worker and name not in plan.losses
    }
    for name, placed in sorted(plan.deployments.items()):
        for phase, deadline, place in _told(placed):
            digests = place.variant, place.artifact_digest, place.member_digest
            tried = placed.tried if phase == "start" else 0
            head = Assignment(name, place.generation, phase, *digests, places=(), deadline_ms=deadline, tried=tried)
            parts.setdefault(place.node_id, {}).setdefault(head, []).append(place)
    return {node_id: tuple(_joined(found)) for node_id, found in sorted(parts.items())}


def _told(placed: DeploymentPlacement) -> Iterable[tuple[Phase, int | None, Place]]:
    for place in placed.target:
        if place.slot not in placed.rollout.waiting_slots:
            yield "start", None, place
    for held in placed.held:
        yield "drain" if held.draining else "retain", held.deadline_ms, held.place


def _joined(found: Mapping[Assignment, list[Place]]) -> Iterable[Assignment]:
    for head in sorted(found, key=lambda head: (head.deployment, head.generation, head.phase, head.variant)):
        yield replace(head, places=tuple(sorted(found[head], key=lambda place: place.slot)))
