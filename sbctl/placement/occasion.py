"""Whether there is anything to evaluate: all that a plan depends on beside the bundle and the operators' words, as one value to compare.

Time is part of it only where it passes a bound: of silence, of the brake's window, of a rollout's deadline. So as long as two occasions are equal, and the
evaluation at the first left the plan as it was, one at the second would leave it so too.
"""

from __future__ import annotations

from dataclasses import dataclass

from sbctl.placement.liveness import silent_since
from sbctl.placement.model import ClusterView, Node, PlacementPlan, PlacementPolicy

__all__ = ["Occasion", "occasion_of"]

_Silence = tuple[int, bool]
"""Since when a node is silent, and whether it would be lost for that."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """`nodes`: by what they say, without when they said it."""

    nodes: dict[str, Node]
    silent: dict[str, _Silence]
    brake_counts: frozenset[str]
    overdue: frozenset[str]
    waits: bool
    removed: frozenset[str]
    expected: frozenset[str]
    stale_since_ms: int | None


def occasion_of(
    view: ClusterView, said: dict[str, Node], plan: PlacementPlan, *, policy: PlacementPolicy, now_ms: int
) -> Occasion:
    """`said`: the nodes of the view as if each was heard at 0; `plan`: that the next evaluation begins with."""
    silent: dict[str, _Silence] = {}
    for name in {*view.nodes, *plan.known, *plan.losses}:
        since_ms = silent_since(view, name, now_ms, policy)
        if since_ms is not None:
            silent[name] = since_ms, now_ms - since_ms >= policy.lost_after_ms
    return Occasion(
        nodes=said,
        silent=silent,
        brake_counts=frozenset(
            name for name, loss in plan.losses.items() if now_ms - loss.since_ms <= policy.brake_window_ms
        ),
        overdue=frozenset(name for name, one in plan.deployments.items() if _is_due(one.rollout.deadline_ms, now_ms)),
        waits=now_ms - view.watching_since_ms < policy.unreachable_after_ms,
        removed=view.removed,
        expected=view.expected,
        stale_since_ms=view.stale_since_ms,
    )


def _is_due(deadline_ms: int | None, now_ms: int) -> bool:
    return deadline_ms is not None and now_ms >= deadline_ms
