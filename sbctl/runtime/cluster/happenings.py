"""What an operator wants to know of one evaluation to the next: who fell silent, who is back, what moves and how rollouts go. Pure.

Told by the lease-holder alone, so each thing is told once in the cluster: its event log has them, whoever holds the lease then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from sbctl.base.display import plural
from sbctl.node.cluster_documents import RolloutPhase
from sbctl.node.records import EventKind
from sbctl.placement.explain import brake_text, rollout_text
from sbctl.placement.model import NO_DIGEST, DeploymentPlacement, Place, PlacementPlan
from sbctl.runtime.event_log import Told

__all__ = ["HAPPENINGS_MAX", "happened"]

HAPPENINGS_MAX: Final = 64
"""Of one evaluation. More are counted: a rack that falls silent does not push everything else out of the log."""
_MOVES_TOLD: Final = 4
_ENDED: Final[dict[RolloutPhase, EventKind]] = {
    "stable": EventKind.CLUSTER_ROLLOUT_DONE,
    "timed_out": EventKind.CLUSTER_ROLLOUT_TIMED_OUT,
    "no_room": EventKind.CLUSTER_ROLLOUT_TIMED_OUT,
    "restoring": EventKind.CLUSTER_ROLLOUT_TAKEN_BACK,
}


def happened(
    before: PlacementPlan, after: PlacementPlan, *, joined: Collection[str] = (), left: Collection[str] = ()
) -> tuple[Told, ...]:
    """At most HAPPENINGS_MAX, nodes first. `joined`: workers that were never heard before; `left`: that are out of the cluster now."""
    told = [*_of_nodes(before, after, joined, left), *_of_brake(before, after)]
    for name in sorted({*before.deployments, *after.deployments}):
        was, now = before.deployments.get(name), after.deployments.get(name)
        # What nodes run of deployments that no bundle had, under names that they made up, ends without a word.
        if any(one is not None and one.digest != NO_DIGEST for one in (was, now)):
            told += _of_deployment(was, now)
    if len(told) <= HAPPENINGS_MAX:
        return tuple(told)
    rest = len(told) - HAPPENINGS_MAX + 1
    more = Told(EventKind.CLUSTER_PLACEMENT_CHANGED, f"and {rest} more at once: sbctl cluster status shows what is now")
    return (*told[: HAPPENINGS_MAX - 1], more)


def _of_nodes(
    before: PlacementPlan, after: PlacementPlan, joined: Collection[str], left: Collection[str]
) -> Iterator[Told]:
    for name in sorted(joined):
        yield Told(EventKind.CLUSTER_NODE_JOINED, f"{name} is a worker of the cluster now")
    for name in sorted(left):
        yield Told(EventKind.CLUSTER_NODE_LEFT, f"{name} is no worker of the cluster any more")
    for name in sorted({*before.losses, *after.losses}):
        was, now = before.losses.get(name), after.losses.get(name)
        if now is None:
            if name not in left and was is not None:
                yield Told(EventKind.CLUSTER_NODE_BACK, f"{name} is heard again, it was {was.state}")
        elif was is None or was.state != now.state:
            if now.state == "lost":
                yield Told(EventKind.CLUSTER_NODE_LOST, f"{name} is lost: what it ran is placed elsewhere")
            else:
                yield Told(
                    EventKind.CLUSTER_NODE_UNREACHABLE, f"{name} is silent: it keeps what it runs, and gets nothing new"
                )


def _of_brake(before: PlacementPlan, after: PlacementPlan) -> Iterator[Told]:
    if after.brake is not None and before.brake is None:
        yield Told(EventKind.CLUSTER_BRAKE_ENGAGED, brake_text(after.brake))
    elif after.brake is None and before.brake is not None:
        yield Told(EventKind.CLUSTER_BRAKE_RELEASED, "lost nodes are replaced again")


def _of_deployment(before: DeploymentPlacement | None, after: DeploymentPlacement | None) -> Iterator[Told]:
    if after is None:
        assert before is not None, "it is in one of the two plans"
        yield _told(EventKind.CLUSTER_PLACEMENT_CHANGED, before, "it is gone, and nothing of it runs any more")
        return
    begun = before is None or before.generation != after.generation
    phase = after.rollout.phase
    if begun:
        where = ", ".join(sorted({place.node_id for place in after.target})) or "no node"
        yield _told(EventKind.CLUSTER_ROLLOUT_STARTED, after, f"generation {after.generation} on {where}")
    elif before is not None and (moves := _moves(before, after)):
        yield _told(EventKind.CLUSTER_PLACEMENT_CHANGED, after, moves)
    if before is not None and not begun and after.tried > before.tried:
        yield _told(EventKind.CLUSTER_ROLLOUT_STARTED, after, f"generation {after.generation} is tried again")
    if phase in _ENDED and (begun or before is None or before.rollout.phase != phase):
        kind = _ENDED[phase]
        yield _told(kind, after, f"generation {after.generation} {rollout_text(after.rollout)}")
    short = 0 if before is None else before.unplaced
    if after.unplaced > short:
        said = f"no place for {after.unplaced} of {plural(after.desired, 'replica')}: sbctl cluster status says why"
        yield _told(EventKind.CLUSTER_REPLICAS_UNPLACED, after, said)


def _told(kind: EventKind, placed: DeploymentPlacement, message: str) -> Told:
    return Told(kind, message, deployment=placed.deployment, generation=placed.generation)


def _moves(before: DeploymentPlacement, after: DeploymentPlacement) -> str:
    """Which replicas have another place; empty when none has."""
    was = {place.slot: place for place in before.target}
    now = {place.slot: place for place in after.target}
    moved = [
        f"replica {slot}: {_where(was.get(slot))} → {_where(now.get(slot))}"
        for slot in sorted({*was, *now})
        if _where(was.get(slot)) != _where(now.get(slot))
    ]
    more = f" and {len(moved) - _MOVES_TOLD} more" if len(moved) > _MOVES_TOLD else ""
    return ", ".join(moved[:_MOVES_TOLD]) + more


def _where(place: Place | None) -> str:
    return "nowhere" if place is None else place.node_id
