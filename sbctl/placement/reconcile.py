"""One evaluation: a view, the bundle's demands and the plan before it become the next plan. The lease-holder repeats it; `sbctl plan` calls it once.

Nodes know what they run and plans may be lost, so what nodes show and no plan knows is taken in: as a target where it is what is asked for,
else as something that is held until the target is ready. A controller without any plan therefore moves nothing that already is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from sbctl.placement.believing import believed
from sbctl.placement.fleet import Fleet
from sbctl.placement.generations import forget_oldest, generation_for
from sbctl.placement.liveness import judge
from sbctl.placement.model import (
    FOREIGN_SLOTS,
    NO_DIGEST,
    ClusterView,
    DeploymentDemand,
    DeploymentPlacement,
    Held,
    Mark,
    Node,
    ObservedReplica,
    Place,
    PlacementPlan,
    PlacementPolicy,
    Rollout,
)
from sbctl.placement.placing import Placing
from sbctl.placement.refusing import refusals
from sbctl.placement.rollout import Moment, advance, drain_all
from sbctl.placement.sight import Sight, place_of
from sbctl.placement.wishes import Placed, Wish

__all__ = ["DEFAULT_POLICY", "EXPLAINED_MAX", "reconcile"]

EXPLAINED_MAX: Final = 64
"""Deployments without a place whose refusals stand in a plan; `placement.explain` tells them of any."""
_EXPLAINED_NODES: Final = 20_000
"""Refusals in one plan: of a large fleet, of fewer deployments."""
DEFAULT_POLICY: Final = PlacementPolicy()
_NOBODY: Final[Mapping[tuple[str, str], int]] = {}


@dataclass(frozen=True, slots=True)
class _Start:
    """What one deployment comes into an evaluation with. `own`: engines of nodes' own bundles that are taken over, by what they become."""

    wish: Wish
    prior: DeploymentPlacement | None
    fresh: bool
    own: Mapping[Place, Place]
    tried: int = 0


def reconcile(
    view: ClusterView,
    demands: Iterable[DeploymentDemand],
    prior: PlacementPlan,
    *,
    now_ms: int,
    mark: Mark,
    policy: PlacementPolicy = DEFAULT_POLICY,
    confirmed_losses: Collection[str] = (),
    tried_again: Mapping[str, int] = MappingProxyType({}),
) -> PlacementPlan:
    """The next plan. `mark` must grow from one evaluation to the next.

    `confirmed_losses`: nodes that an operator says are gone. `tried_again`: deployments whose rollout he wants begun once more, with a
    deadline of its own, though nothing in them changed, and the number of that wish, which is followed once.
    """
    view = replace(view, nodes={name: node for name, node in view.nodes.items() if name not in view.removed})
    if missing := _waits_for(view, prior, policy, now_ms):
        return replace(prior, waits_for=missing)
    view = believed(view, prior)
    wanted = {demand.deployment: demand for demand in sorted(demands, key=lambda demand: demand.deployment)}
    known = _known_workers(view, prior)
    liveness = judge(view, known, prior.losses, policy=policy, confirmed=confirmed_losses, now_ms=now_ms)
    moment = Moment(Sight(view, liveness.losses), now_ms, mark)
    waited_for = known - view.removed - {name for name, loss in liveness.losses.items() if loss.state == "lost"}
    fleet = Fleet(view, liveness.losses, waited_for)
    names = sorted({*wanted, *prior.deployments, *moment.sight.deployments()})
    starts = {name: _start(name, wanted.get(name), prior, moment.sight, tried_again.get(name, 0)) for name in names}
    placing = Placing(fleet, (start.wish for start in starts.values()), policy)
    placing.run(None if liveness.brake else policy.moves_max - _moving(prior))
    deployments: dict[str, DeploymentPlacement] = {}
    for name, start in starts.items():
        placed = placing.placed[name]
        after = _after(start, placed, moment, fleet.names_of(placed.weighed))
        if after is not None:
            deployments[name] = after
    high_waters, floor = _high_waters(prior, deployments)
    return PlacementPlan(
        deployments=_explained(fleet, wanted, deployments),
        losses=liveness.losses,
        brake=liveness.brake,
        known=frozenset(known - view.removed),
        high_waters=high_waters,
        generation_floor=floor,
        deferred_moves=placing.deferred,
    )


def _is_first(prior: PlacementPlan) -> bool:
    """Whether nothing was placed before: no plan, or one that knew no node."""
    return not prior.known and not any(one.target or one.held for one in prior.deployments.values())


def _waits_for(view: ClusterView, prior: PlacementPlan, policy: PlacementPolicy, now_ms: int) -> tuple[str, ...]:
    """Who a first plan waits for: nodes that are not heard, since what they run would be placed a second time; and workers that just begin."""
    if not _is_first(prior) or now_ms - view.watching_since_ms >= policy.unreachable_after_ms:
        return ()
    begin = {name for name in view.expected & view.nodes.keys() if _begins(view.nodes[name])}
    return tuple(sorted((view.expected - view.nodes.keys() | begin) - view.removed))


def _begins(node: Node) -> bool:
    """Whether a worker gets nothing now for a reason that passes when it has come up."""
    passes = bool(node.exclusion) or node.health == "unhealthy" or not node.has_endpoint
    return node.is_worker and not node.drain and passes


def _known_workers(view: ClusterView, prior: PlacementPlan) -> set[str]:
    known = {name for name, node in view.nodes.items() if node.is_worker} | set(prior.losses) | prior.known
    for placed in prior.deployments.values():
        known |= {place.node_id for place in (*placed.target, *(held.place for held in placed.held), *placed.fallback)}
    return known


# --- what each deployment starts from


def _start(name: str, demand: DeploymentDemand | None, plan: PlacementPlan, sight: Sight, wish_number: int) -> _Start:
    prior = plan.deployments.get(name)
    tried = 0 if prior is None else prior.tried
    again = wish_number > tried
    if demand is None:
        gone = DeploymentDemand(name, "", (), replicas=0)
        helds = [*prior.held, *(Held(place) for place in prior.target)] if prior else []
        helds += [Held(place) for place in _strangers(name, None, [held.place for held in helds], sight)]
        return _Start(Wish(gone, 0, held=_unended(name, helds, sight)), prior, fresh=False, own={})
    high_water = plan.high_waters.get(name, plan.generation_floor)
    generation = generation_for(demand, prior, high_water, sight.generations(name))
    same = prior is not None and prior.digest == demand.digest and prior.generation == generation
    restored = prior is not None and same and prior.rollout.phase in {"restoring", "restored"} and not again
    targets = [p for p in prior.target if p.generation == generation or restored] if prior and same else []
    helds = list(prior.held) if prior else []
    helds += [Held(place) for place in prior.target if place not in targets] if prior else []
    becoming = _becoming(name, targets, sight)
    known = [*targets, *(held.place for held in helds)]
    strangers = _strangers(name, demand, known, sight, Counter((p.node_id, p.member_digest) for p in becoming))
    own: dict[Place, Place] = {}
    as_it_lies = not targets and not helds
    if as_it_lies:
        ours = [place for place in strangers if _is_wanted(demand, place)]
        numbered = [place for place in ours if place.slot not in FOREIGN_SLOTS and place.generation == generation]
        foreign = [place for place in ours if place not in numbered and not numbered]
        own = {replace(place, generation=generation, slot=slot): place for slot, place in enumerate(foreign)}
        targets = [*numbered, *own]
        strangers = [place for place in strangers if place not in numbered and place not in foreign]
    helds += [Held(place) for place in strangers]
    rollout = prior.rollout if prior and same else None
    unended = _unended(name, helds, sight)
    wish = Wish(
        demand,
        generation,
        prior=tuple(targets),
        running=frozenset(p for p in targets if p in own or p in becoming or sight.is_live(name, p)),
        held=unended,
        fallback=prior.fallback if prior else (),
        weighed=None if as_it_lies or prior is None else prior.weighed,
        is_settled=rollout is not None and rollout.phase == "stable" and not unended,
        takes_over=bool(own),
        keeps_only=restored,
    )
    return _Start(wish, prior, fresh=not same or again, own=own, tried=max(tried, wish_number))


def _unended(name: str, helds: Iterable[Held], sight: Sight) -> tuple[Held, ...]:
    return tuple(held for held in helds if not sight.is_ended(name, held))


def _becoming(name: str, targets: Iterable[Place], sight: Sight) -> list[Place]:
    """Targets whose engine runs already, under a number that its node gave it before there was a cluster."""
    own = Counter((node_id, replica.member_digest) for node_id, replica in sight.replicas(name) if replica.slot is None)
    found = []
    for place in targets:
        if own[place.node_id, place.member_digest] and sight.shown(name, place) == "absent":
            own[place.node_id, place.member_digest] -= 1
            found.append(place)
    return found


def _strangers(
    name: str,
    demand: DeploymentDemand | None,
    known: Sequence[Place],
    sight: Sight,
    becoming: Mapping[tuple[str, str], int] = _NOBODY,
) -> list[Place]:
    """Engines that nodes show and the plan does not know. `becoming`: how many of a node's own it does know, by member."""
    expected = dict(becoming)
    exact = {(place.node_id, place.generation, place.slot) for place in known}
    foreign = {(place.node_id, place.generation) for place in known}
    found: list[Place] = []
    numbers: Counter[str] = Counter()
    for node_id, replica in sight.replicas(name):
        if replica.slot is None:
            if expected.get((node_id, replica.member_digest), 0):
                expected[node_id, replica.member_digest] -= 1
            elif (node_id, replica.generation) not in foreign:
                found.append(_counted(node_id, replica, demand, FOREIGN_SLOTS[numbers[node_id]]))
                numbers[node_id] += 1
        elif (node_id, replica.generation, replica.slot) not in exact:
            found.append(_counted(node_id, replica, demand, replica.slot))
    return found


def _counted(node_id: str, replica: ObservedReplica, demand: DeploymentDemand | None, slot: int) -> Place:
    place = place_of(node_id, replica, demand, slot)
    return replace(place, generation=max(1, place.generation))


def _is_wanted(demand: DeploymentDemand, place: Place) -> bool:
    return any(
        way.member_digest == place.member_digest and way.variant == place.variant and way.devices == len(place.devices)
        for way in demand.ways
    )


# --- what each deployment comes out with


def _after(start: _Start, placed: Placed, moment: Moment, weighed: frozenset[str]) -> DeploymentPlacement | None:
    """None: it left the bundle, and nothing of it is left on any node."""
    wish, prior, name = start.wish, start.prior, start.wish.demand.deployment
    displaced = [Held(start.own.get(place, place)) for place in placed.displaced]
    given_up = [held for held in wish.held if held.place not in placed.taken_back]
    helds = [*given_up, *_unended(name, displaced, moment.sight)]
    targets = tuple(sorted(placed.places, key=lambda place: place.slot))
    if not wish.generation:
        if not helds:
            return None
        rollout = Rollout("stable", since_ms=prior.rollout.since_ms if prior else moment.now_ms)
        ending = drain_all(helds, wish.demand, moment)
        return DeploymentPlacement(
            name,
            prior.digest if prior else NO_DIGEST,
            prior.generation if prior else helds[0].place.generation,
            0,
            model=prior.model if prior else "",
            held=ending,
            rollout=rollout,
        )
    current = DeploymentPlacement(
        deployment=name,
        digest=wish.demand.digest,
        generation=wish.generation,
        desired=wish.demand.replicas,
        model=wish.demand.model,
        target=targets,
        held=tuple(helds),
        fallback=wish.fallback,
        rollout=prior.rollout if prior and not start.fresh else Rollout(),
        weighed=weighed,
        tried=start.tried,
    )
    changed = start.fresh or (prior is not None and set(prior.target) != set(targets) and not wish.keeps_only)
    return advance(
        wish.demand,
        current,
        moment,
        changed=changed,
        makes_room=placed.makes_room,
        waits_for_room=placed.waits_for_room,
    )


def _explained(
    fleet: Fleet, wanted: Mapping[str, DeploymentDemand], deployments: Mapping[str, DeploymentPlacement]
) -> dict[str, DeploymentPlacement]:
    short = [name for name, one in deployments.items() if one.unplaced and name in wanted]
    short = short[: min(EXPLAINED_MAX, max(1, _EXPLAINED_NODES // max(1, len(fleet.ids))))]
    told = {
        name: replace(deployments[name], refusals=refusals(fleet, wanted[name], deployments[name].target))
        for name in short
    }
    return {**deployments, **told}


# --- moves and generations


def _moving(prior: PlacementPlan) -> int:
    """Replicas that are on their way from one node to another."""
    return sum(
        not held.draining and held.place.generation == placed.generation
        for placed in prior.deployments.values()
        for held in placed.held
    )


def _high_waters(prior: PlacementPlan, deployments: Mapping[str, DeploymentPlacement]) -> tuple[dict[str, int], int]:
    known = dict(prior.high_waters)
    for name, placed in deployments.items():
        known[name] = max(known.get(name, 0), placed.generation)
    return forget_oldest(known, deployments, prior.generation_floor)
