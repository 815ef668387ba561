"""Silence in two stages, and the brake.

A node whose snapshots stop is *unreachable* first: it gets nothing new, and what it runs stays its own, since it goes on serving. When the
silence lasts it is *lost*, and its replicas are placed elsewhere. Silence of many at once is more likely ours than theirs (a cut link, a dead
store, a clock), and placing half a fleet on the other half would finish what the fault began. So when more than `brake_percent` of the workers are silent,
or were lost a short while ago, nobody else is declared lost until they are back or an operator confirms who is gone. One node may always be lost,
but nobody while the store itself is not heard.

A reader that just began to watch has heard nothing yet: silence counts from then. Who was lost before stays lost until it is heard.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sbctl.placement.model import Brake, ClusterView, Loss, PlacementPolicy

__all__ = ["Liveness", "judge", "silent_since"]


@dataclass(frozen=True, slots=True)
class Liveness:
    losses: Mapping[str, Loss]
    """Every known node that is not heard of."""
    brake: Brake | None


def judge(
    view: ClusterView,
    known_workers: Collection[str],
    prior: Mapping[str, Loss],
    *,
    policy: PlacementPolicy,
    confirmed: Collection[str],
    now_ms: int,
) -> Liveness:
    """`known_workers`: of this view and of the plan before it. `confirmed`: nodes that an operator says are gone."""
    workers = sorted(set(known_workers) - view.removed)
    since = {name: silent_since(view, name, now_ms, policy) for name in workers}
    silent = {name: began for name, began in since.items() if began is not None}
    lost = {name: prior[name] for name in silent if name in prior and prior[name].state == "lost"}
    for name in silent:
        if name in confirmed and name not in lost:
            lost[name] = Loss("lost", now_ms)
    counted = [name for name in silent if name not in confirmed]
    recent = [name for name in counted if name not in lost or now_ms - lost[name].since_ms <= policy.brake_window_ms]
    fleet = len(workers) - sum(name in lost and name not in recent for name in workers)
    limit = max(1, fleet * policy.brake_percent // 100)
    overdue = [name for name in counted if name not in lost and now_ms - silent[name] >= policy.lost_after_ms]
    brake = None
    if len(recent) > limit or view.stale_since_ms is not None:
        brake = Brake(len(recent), fleet, limit, tuple(overdue), view.stale_since_ms) if overdue else None
    else:
        lost |= {name: Loss("lost", now_ms) for name in overdue}
    unreachable = {name: Loss("unreachable", began) for name, began in silent.items() if name not in lost}
    return Liveness(unreachable | lost, brake)


def silent_since(view: ClusterView, name: str, now_ms: int, policy: PlacementPolicy) -> int | None:
    """When it was heard last, or when the watch began, if that is too long ago or was before the watch; None: it is heard of."""
    node = view.nodes.get(name)
    if node is not None and node.heard_at_ms >= view.watching_since_ms:
        return node.heard_at_ms if now_ms - node.heard_at_ms >= policy.unreachable_after_ms else None
    return view.watching_since_ms
