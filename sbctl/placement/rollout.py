"""How a deployment gets from what runs to its target, one evaluation at a time.

    stable                  the target is what runs
    starting                it is being started, and nothing stands beside it
    waiting_for_readiness   it is being started beside what it replaces, which serves until then
    making_room             it does not fit beside what it replaces: one old replica ends, so that a new one can start
    no_room                 the same with nothing to spare: the old one goes on serving alone
    draining_prior          (recreate) what ran ends before the target may start
    timed_out               the target was not ready by the deadline: what serves goes on serving, the target goes on trying
    restoring, restored     (recreate) the target could not be brought up: the generation before it is started again, and runs

Rolling: an old replica drains when enough others serve without it: as many as are wanted, or, where there is no room for both, all but one of
them and never none. Nothing is drained because time is up. Once the whole target is ready, what is left of the old drains.
Recreate: a slot starts when no engine that it replaces can be alive, and a node that nobody hears may have one.

A node is told to drain with an evaluation's mark; what was there counts as ended when the node obeys that evaluation or a later one and shows
no engine. So an engine that an older assignment is about to start is never taken for one that has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sbctl.node.cluster_documents import RolloutPhase
from sbctl.placement.model import DeploymentDemand, DeploymentPlacement, Held, Mark, Place, Rollout
from sbctl.placement.sight import Sight

__all__ = ["Moment", "advance", "drain_all", "waiting"]


@dataclass(frozen=True, slots=True)
class Moment:
    """What one evaluation knows: the nodes' word, the time, its mark."""

    sight: Sight
    now_ms: int
    mark: Mark


@dataclass(frozen=True, slots=True)
class _Count:
    """Replicas of a deployment: targets that are ready, those of them that gateways ask, and held ones that gateways ask."""

    ready: tuple[Place, ...]
    answering: tuple[Place, ...]
    serving: tuple[Held, ...]

    @property
    def total(self) -> int:
        return len(self.answering) + len(self.serving)


def drain_all(helds: Iterable[Held], demand: DeploymentDemand, moment: Moment) -> tuple[Held, ...]:
    return tuple(held if held.draining else _drained(held, demand, moment) for held in helds)


def advance(
    demand: DeploymentDemand,
    current: DeploymentPlacement,
    moment: Moment,
    *,
    changed: bool,
    makes_room: Sequence[Place] = (),
    waits_for_room: bool = False,
) -> DeploymentPlacement:
    """The next step. `current` has the target and what is held after placing; `changed`: the target is another than before.

    `makes_room`: held places without which a replica that has none would get one; `waits_for_room`: such a one is draining already.
    """
    if changed:
        patience = demand.handoff_timeout_ms
        patience += demand.drain_timeout_ms if demand.rollout == "recreate" and current.held else 0
        began = Rollout("starting", since_ms=moment.now_ms, deadline_ms=moment.now_ms + patience)
        current = replace(current, rollout=began)
    late = current.rollout.deadline_ms is not None and moment.now_ms >= current.rollout.deadline_ms
    if demand.rollout == "recreate":
        return _recreate(demand, current, moment, late=late)
    return _rolling(demand, current, moment, late=late, makes_room=makes_room, waits_for_room=waits_for_room)


def waiting(demand: DeploymentDemand, targets: Iterable[Place], helds: Iterable[Held], sight: Sight) -> frozenset[int]:
    """Slots that may not start: recreate, and an engine that they replace may be alive."""
    if demand.rollout != "recreate":
        return frozenset()
    live = [held.place for held in helds if not sight.is_ended(demand.deployment, held)]
    return frozenset(
        place.slot for place in targets if any(p.generation != place.generation or p.slot == place.slot for p in live)
    )


def _rolling(
    demand: DeploymentDemand,
    current: DeploymentPlacement,
    moment: Moment,
    *,
    late: bool,
    makes_room: Sequence[Place],
    waits_for_room: bool,
) -> DeploymentPlacement:
    count = _count(demand, current, moment.sight)
    complete = not current.unplaced and len(count.ready) == len(current.target)
    if complete and (len(count.answering) == len(current.target) or all(held.draining for held in current.held)):
        helds = drain_all(current.held, demand, moment)
        return replace(current, held=helds, rollout=_settled(current.rollout), fallback=())
    if current.rollout.phase == "stable":
        return replace(current, rollout=replace(current.rollout, target_ready=False))
    surplus = max(0, count.total - demand.replicas)
    ending = {held.place for held in _dispensable(count, current.target)[:surplus]}
    phase: RolloutPhase = "waiting_for_readiness" if current.held else "starting"
    if makes_room and not late and not ending and not waits_for_room and len(count.ready) == len(current.target):
        phase = "no_room"
        if (spare := _spare(makes_room, count)) is not None:
            phase, ending = "making_room", {spare}
    elif waits_for_room:
        phase = "making_room"
    helds = tuple(
        _drained(held, demand, moment) if held.place in ending and not held.draining else held for held in current.held
    )
    if late:
        phase = "timed_out"
    helds = tuple(held if held.draining else replace(held, deadline_ms=current.rollout.deadline_ms) for held in helds)
    return replace(
        current, held=helds, rollout=replace(current.rollout, phase=phase, target_ready=False, timed_out=late)
    )


def _count(demand: DeploymentDemand, current: DeploymentPlacement, sight: Sight) -> _Count:
    name = current.deployment
    ready = tuple(place for place in current.target if sight.is_ready(name, place, warm=demand.warm))
    retained = (held for held in current.held if not held.draining and sight.is_in_service(held.place))
    return _Count(
        ready=ready,
        answering=tuple(place for place in ready if sight.is_in_service(place)),
        serving=tuple(held for held in retained if sight.shown(name, held.place) == "ready"),
    )


def _dispensable(count: _Count, target: Sequence[Place]) -> list[Held]:
    """What serves and is no target, the first to go first: the oldest, then those whose slot is ready elsewhere."""
    ready = {place.slot for place in count.ready}
    wanted = {place.slot for place in target}
    return sorted(
        count.serving,
        key=lambda held: (
            held.place.generation,
            held.place.slot in wanted - ready,
            held.place.slot,
            held.place.node_id,
        ),
    )


def _spare(makes_room: Sequence[Place], count: _Count) -> Place | None:
    """Whose end gives a new replica its place: one that does not serve, else one of several that do."""
    serving = {held.place for held in count.serving}
    idle = [place for place in makes_room if place not in serving]
    if idle:
        return idle[0]
    return makes_room[0] if count.total > 1 else None


def _recreate(
    demand: DeploymentDemand, current: DeploymentPlacement, moment: Moment, *, late: bool
) -> DeploymentPlacement:
    current = _with_fallback(current, moment.sight)
    ready = [place for place in current.target if moment.sight.is_ready(current.deployment, place, warm=demand.warm)]
    helds = drain_all(current.held, demand, moment)
    slots = waiting(demand, current.target, helds, moment.sight)
    rollout = replace(current.rollout, waiting_slots=slots)
    if not current.unplaced and len(ready) == len(current.target):
        if rollout.phase in {"restoring", "restored"}:
            return replace(current, held=helds, rollout=replace(rollout, phase="restored", target_ready=False))
        return replace(current, held=helds, fallback=(), rollout=_settled(rollout))
    if rollout.phase in {"restoring", "restored"}:
        return replace(current, held=helds, rollout=rollout)
    if rollout.phase == "stable":
        return replace(current, held=helds, rollout=replace(rollout, target_ready=False))
    if late and not ready and current.fallback:
        return _restoring(demand, replace(current, held=helds), moment)
    phase: RolloutPhase = "timed_out" if late else "draining_prior" if slots else "starting"
    return replace(current, held=helds, rollout=replace(rollout, phase=phase, target_ready=False, timed_out=late))


def _with_fallback(current: DeploymentPlacement, sight: Sight) -> DeploymentPlacement:
    """Remember what serves of an older generation, before it is told to end."""
    serving = tuple(
        held.place
        for held in current.held
        if held.place.generation != current.generation and not held.draining
        if sight.shown(current.deployment, held.place) == "ready"
    )
    return (
        replace(current, fallback=serving)
        if serving and current.rollout.phase not in {"restoring", "restored"}
        else current
    )


def _restoring(demand: DeploymentDemand, current: DeploymentPlacement, moment: Moment) -> DeploymentPlacement:
    """The target ends, and what it replaced is the target."""
    failed = drain_all((Held(place) for place in current.target), demand, moment)
    helds = (*(held for held in current.held if held.place not in current.fallback), *failed)
    slots = waiting(demand, current.fallback, helds, moment.sight)
    rollout = replace(current.rollout, phase="restoring", target_ready=False, timed_out=True, waiting_slots=slots)
    return replace(current, target=current.fallback, fallback=(), held=helds, rollout=rollout)


def _drained(held: Held, demand: DeploymentDemand, moment: Moment) -> Held:
    return Held(held.place, draining=True, deadline_ms=moment.now_ms + demand.drain_timeout_ms, drained_at=moment.mark)


def _settled(rollout: Rollout) -> Rollout:
    return Rollout("stable", target_ready=True, since_ms=rollout.since_ms, waiting_slots=rollout.waiting_slots)
