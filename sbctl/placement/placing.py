"""Placing every deployment of a bundle on the nodes of one view. What has a place that still holds keeps it.

Four passes, each over the deployments in one order of their own (warm ones first, of them what needs most on one device, then by id):

1. *Hold.* Whatever still runs and is no target any more is charged to its node.
2. *Keep.* Every replica of the same generation whose place is still valid stays where it is; one that was given up and still runs is taken
   back where its slot has no place now.
3. *Fill.* Replicas without a place get one: filters, then spread, then rendezvous (`spread`, `rendezvous`). Of a new generation, nodes that
   run the old one come before others that are as good in spread and way.
4. *Newcomers.* Whoever can take a replica of a deployment and could not when its places were chosen (it joined since, was silent or unwell, had
   no engine, no weights, no label for it) takes over what it now wins, from the replicas as they lie; never more than one of a deployment and
   `moves_max` in all at a time, never what is not stable, never to the harm of spread. Then it has had its chance: it is newcomer to that
   deployment no more, whatever becomes of its health, until another replica is placed while it cannot take it.

So who moves when the fleet changes? When a node leaves, its own replicas, since pass 2 does not look at capacity that is free elsewhere, and
pass 3 only fills what is free. When one joins, replicas that go to it, since pass 4 offers nobody else's room; what they leave is given
only to replicas that had no place. There is no third case: room that becomes free otherwise makes nobody move. Plain rendezvous under limits of
capacity cannot promise that: whoever is displaced displaces others. The price is that a placement depends on the one before it, and that a
large deployment may find no room though moving small ones would make some: it is told so, with the bytes that are missing.

A node that has the weights counts `weights_factor` times its size in pass 3 and 4. That is a property of node and deployment like the size
itself, so nothing above changes; the preference is bounded by that factor, and never overrules spread, a filter, or the room there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sbctl.node.cluster_documents import ASSIGNED_REPLICAS_MAX
from sbctl.placement.fleet import Fleet
from sbctl.placement.model import DeploymentDemand, Place, PlacementPolicy, Way
from sbctl.placement.rendezvous import Ranking
from sbctl.placement.room import Charge, Exhausted, beyond
from sbctl.placement.spread import Candidate, Spread, evenness
from sbctl.placement.wishes import Placed, Wish, free_slots, order_of

__all__ = ["Placing"]


class Placing:
    """One run of the passes. `deferred`: moves to newcomers that are left for later."""

    def __init__(self, fleet: Fleet, wishes: Iterable[Wish], policy: PlacementPolicy) -> None:
        self._fleet, self._room, self._policy = fleet, fleet.room, policy
        self._index = {name: index for index, name in enumerate(fleet.ids)}
        self._wishes = sorted(wishes, key=order_of)
        self._exhausted = Exhausted()
        self._extra: dict[str, list[Place | Charge]] = {}
        self.placed: dict[str, Placed] = {}
        self.deferred = 0

    def run(self, moves_left: int | None) -> None:
        """`moves_left`: to newcomers; None: nobody moves for them now, and they are owed it."""
        for wish in self._wishes:
            self._reserve(wish, ())
        for wish in self._wishes:
            self._keep(wish)
        for wish in self._wishes:
            self._fill(wish)
        if moves_left is not None:
            for wish in self._wishes:
                moves_left -= self._move_to_newcomers(wish, moves_left)

    # --- room of what is going

    def _reserve(self, wish: Wish, targets: Iterable[Place]) -> None:
        """Charge what stands behind the targets of a deployment: all of it, or, where old and new take turns, what it needs beyond them."""
        known = self.placed.get(wish.demand.deployment, Placed([], []))
        places = [held.place for held in wish.held if held.place not in known.taken_back]
        going: list[Place | Charge] = [*places]
        if wish.is_exclusive:
            places += known.displaced
            going = [*beyond([*places, *beyond(wish.fallback, places)], targets)]
        self._room.force(going)
        self._extra[wish.demand.deployment] = going

    def _unreserve(self, wish: Wish) -> None:
        self._room.release(self._extra.pop(wish.demand.deployment))

    # --- keep

    def _keep(self, wish: Wish) -> None:
        if wish.is_exclusive:
            self._unreserve(wish)
        chosen = self._first(wish, [place for place in wish.prior if self._holds(wish.demand, place)])
        # What runs is kept even on an overdrawn node: hosts let in by what they saw, which may be less than the estimate.
        running = [place for place in chosen if place in wish.running]
        self._room.force(running)
        kept = running + [
            place
            for place in chosen
            if place not in wish.running and (place.node_id in self._fleet.absent or self._room.charge(place))
        ]
        displaced = [place for place in wish.prior if place not in kept]
        if wish.takes_over:
            kept = [replace(place, slot=slot) for slot, place in enumerate(kept)]
        placed = self.placed[wish.demand.deployment] = Placed(kept, displaced, weighed=self._weighed(wish))
        placed.taken_back = tuple(self._take_back(wish, kept))
        kept += placed.taken_back
        if wish.is_exclusive:
            self._reserve(wish, kept)
        else:
            self._room.force(displaced)

    def _weighed(self, wish: Wish) -> int:
        """Who had their chance before. What is taken as it lies, lies among all who could have it."""
        if wish.weighed is None:
            return self._fleet.able_any(wish.demand)
        return self._fleet.mask(wish.weighed) & ~self._fleet.away

    def _take_back(self, wish: Wish, kept: Sequence[Place]) -> Iterator[Place]:
        """What serves on as one of the wanted generation and is needed again; its room is charged already, unless old and new take turns."""
        missing = 0 if wish.keeps_only else wish.demand.replicas - len(kept)
        slots = {place.slot for place in kept}
        for place in (held.place for held in wish.held if not held.draining):
            if missing <= 0:
                return
            if place.generation != wish.generation or place.slot in slots or not self._holds(wish.demand, place):
                continue
            if self._way(wish.demand, place) == len(wish.demand.ways) or (
                wish.is_exclusive and not self._room.charge(place)
            ):
                continue
            missing -= 1
            slots.add(place.slot)
            yield place

    def _holds(self, demand: DeploymentDemand, place: Place) -> bool:
        node = self._fleet.by_id.get(place.node_id)
        loss = self._fleet.losses.get(place.node_id)
        if node is None or (loss is not None and loss.state == "lost"):
            return False
        return place.node_id in self._fleet.absent or (
            node.is_worker
            and node.drain != "evacuate"
            and all(node.labels.get(label) == value for label, value in demand.required_labels.items())
            and (not place.devices or {device.index for device in node.devices}.issuperset(place.devices))
        )

    def _first(self, wish: Wish, places: list[Place]) -> list[Place]:
        """As many as are wanted, one of each slot: those that would be taken first."""
        count = wish.demand.replicas
        slots = Counter(place.slot for place in places)
        if len(places) <= count and len(slots) == len(places):
            return places
        left: dict[int, list[Place]] = {}
        for place in sorted(places, key=lambda place: place.slot):
            left.setdefault(self._index[place.node_id], []).append(place)
        candidates = self._scored(wish, self._by_way(wish.demand, left))
        chosen: list[Place] = []
        used: set[int] = set()
        spread = Spread(self._fleet.domains(wish.demand.spread_by))
        for _, _, index in spread.choose(candidates, lambda one: any(p.slot not in used for p in left[one[2]])):
            place = next(place for place in left[index] if place.slot not in used)
            left[index].remove(place)
            used.add(place.slot)
            chosen.append(place)
            if len(chosen) == count:
                break
        return chosen

    # --- fill

    def _fill(self, wish: Wish) -> None:
        placed, demand = self.placed[wish.demand.deployment], wish.demand
        missing = demand.replicas - len(placed.places)
        if missing <= 0 or wish.keeps_only:
            return
        if wish.is_exclusive:
            self._unreserve(wish)
        spread = Spread(self._fleet.domains(demand.spread_by))
        for place in placed.places:
            spread.add(self._index[place.node_id])
        slots = free_slots(wish, placed)
        kept = len(placed.places)
        ables = self._ables(wish)
        runs, counts = self._runs(placed.places), Counter(self._index[place.node_id] for place in placed.places)

        def fits(one: Candidate) -> bool:
            return counts[one[2]] < ASSIGNED_REPLICAS_MAX and self._fits(wish, one, runs)

        for way_number, _, index in spread.choose(self._offers(wish, ables), fits):
            way = demand.ways[way_number]
            slot = slots.on(self._fleet.ids[index])
            placed.places.append(self._take(wish, way, index, slot))
            runs[index] = way.member_digest
            counts[index] += 1
            missing -= 1
            if not missing:
                break
        if len(placed.places) > kept:
            able = self._fleet.able_any(demand)
            placed.weighed = placed.weighed & able if kept else able
        if wish.is_exclusive:
            self._reserve(wish, placed.places)
        elif missing:
            for number, able in ables.items():
                way = demand.ways[number]
                # What refuses this deployment alone says nothing of the room there is.
                own = sum(1 << index for index, member in runs.items() if member != way.member_digest)
                own |= sum(1 << index for index, count in counts.items() if count >= ASSIGNED_REPLICAS_MAX)
                self._exhausted.add(able & ~own, way, warm=demand.warm)
            self._look_for_room(wish, placed)

    def _ables(self, wish: Wish) -> dict[int, int]:
        """By number of the way, the nodes that could run it, as bits; without ways that are known to fit nowhere."""
        ables = {number: self._fleet.able(wish.demand, way) for number, way in enumerate(wish.demand.ways)}
        if wish.is_exclusive:
            return ables
        warm, ways = wish.demand.warm, wish.demand.ways
        return {
            number: able for number, able in ables.items() if not self._exhausted.covers(able, ways[number], warm=warm)
        }

    def _offers(self, wish: Wish, ables: Mapping[int, int]) -> list[Candidate]:
        offers = [(number, self._fleet.indexes(able)) for number, able in ables.items()]
        return self._scored(wish, offers, first=self._incumbents(wish))

    def _incumbents(self, wish: Wish) -> set[int]:
        """Nodes that run the generation before: they come first among equals."""
        places = [held.place for held in wish.held if not held.draining or wish.is_exclusive]
        return {self._index[p.node_id] for p in places if p.generation != wish.generation and p.node_id in self._index}

    def _scored(
        self, wish: Wish, offers: Iterable[tuple[int, Sequence[int]]], first: set[int] | None = None
    ) -> list[Candidate]:
        """Nodes' indexes under the number of a way, with the score of each node for that way."""
        fleet, ranking, factor = self._fleet, Ranking(wish.demand.deployment), self._policy.weights_factor
        found: list[Candidate] = []
        for number, indexes in offers:
            way = wish.demand.ways[min(number, len(wish.demand.ways) - 1)]
            weights, holders, names = fleet.weights(way), fleet.holders(way), fleet.names
            scores = ranking.scores([(names[index], weights[index]) for index in indexes])
            if holders:
                scores = [
                    score * factor if holders >> index & 1 else score
                    for score, index in zip(scores, indexes, strict=True)
                ]
            if first:
                scores = [
                    score * _INCUMBENT if index in first else score
                    for score, index in zip(scores, indexes, strict=True)
                ]
            found += [(number, -score, index) for score, index in zip(scores, indexes, strict=True)]
        return found

    def _by_way(self, demand: DeploymentDemand, here: Mapping[int, Sequence[Place]]) -> list[tuple[int, list[int]]]:
        """Nodes that have places, under the number of the way that they run."""
        found: dict[int, list[int]] = {}
        for index, group in here.items():
            found.setdefault(self._way(demand, group[0]), []).append(index)
        return sorted(found.items())

    def _runs(self, places: Iterable[Place]) -> dict[int, str]:
        """Which member of a deployment each node runs, by the node's index."""
        return {self._index[place.node_id]: place.member_digest for place in places}

    def _fits(self, wish: Wish, one: Candidate, runs: Mapping[int, str]) -> bool:
        """Whether there is room. A node runs one variant of a deployment: its gate has one context and one queue."""
        number, _, index = one
        way = wish.demand.ways[number]
        if runs.get(index, way.member_digest) != way.member_digest:
            return False
        return self._room.devices_for(self._fleet.ids[index], way, warm=wish.demand.warm) is not None

    def _take(self, wish: Wish, way: Way, index: int, slot: int) -> Place:
        node_id = self._fleet.ids[index]
        devices = self._room.devices_for(node_id, way, warm=wish.demand.warm)
        assert devices is not None
        place = Place(
            slot,
            node_id,
            wish.generation,
            way.variant,
            way.artifact_digest,
            way.member_digest,
            way.engine,
            way.accelerator,
            devices,
            way.host_bytes,
            way.device_bytes if devices else 0,
            wish.demand.warm,
        )
        self._room.force((place,))
        return place

    def _look_for_room(self, wish: Wish, placed: Placed) -> None:
        makers: list[Place] = []
        for held in wish.held:
            if held.place in placed.taken_back:
                continue
            index = self._index.get(held.place.node_id)
            ways = [
                way
                for way in wish.demand.ways
                if index is not None and index in self._fleet.candidates(wish.demand, way)
            ]
            self._room.release((held.place,))
            if any(self._room.devices_for(held.place.node_id, way, warm=wish.demand.warm) is not None for way in ways):
                placed.waits_for_room |= held.draining
                makers += [] if held.draining else [held.place]
            self._room.force((held.place,))
        placed.makes_room = tuple(makers)

    # --- newcomers

    def _move_to_newcomers(self, wish: Wish, moves_left: int) -> int:
        """Give one replica to a newcomer that wins it; the number of moves made."""
        placed, demand = self.placed[wish.demand.deployment], wish.demand
        if not placed.places or not wish.is_settled or wish.is_exclusive or wish.keeps_only:
            return 0
        if len(placed.places) < demand.replicas or placed.displaced:
            return 0
        newcomers = self._fleet.able_any(demand) & ~placed.weighed
        if not newcomers:
            return 0
        change = self._better(newcomers, wish, placed.places)
        if change is None:
            placed.weighed |= newcomers
            return 0
        if moves_left <= 0:
            self.deferred += 1
            return 0
        loser, (number, _, index) = change
        placed.places.remove(loser)
        placed.displaced.append(loser)
        placed.places.append(self._take(wish, demand.ways[number], index, loser.slot))
        return 1

    def _better(self, newcomers: int, wish: Wish, places: list[Place]) -> tuple[Place, Candidate] | None:
        """Choose again among the places there are and the newcomers (bits); what would change first, unless spread would be the worse for it."""
        here: dict[int, list[Place]] = {}
        for place in sorted(places, key=lambda place: place.slot):
            here.setdefault(self._index[place.node_id], []).append(place)
        present = self._by_way(wish.demand, here)
        joined = [
            (number, self._fleet.indexes(self._fleet.able(wish.demand, way) & newcomers))
            for number, way in enumerate(wish.demand.ways)
        ]
        taken: Counter[int] = Counter()
        runs = self._runs(places)
        domains = self._fleet.domains(wish.demand.spread_by)
        order: list[Candidate] = []

        def fits(one: Candidate) -> bool:
            _, _, index = one
            if taken[index] < len(here.get(index, ())):
                return True
            more = newcomers >> index & 1 and taken[index] == len(here.get(index, ())) < ASSIGNED_REPLICAS_MAX
            return bool(more) and self._fits(wish, one, runs)

        for one in Spread(domains).choose(self._scored(wish, [*present, *joined]), fits):
            taken[one[2]] += 1
            order.append(one)
            if len(order) == len(places):
                break
        gained = next((one for one in order if taken[one[2]] > len(here.get(one[2], ()))), None)
        lost = [index for index, group in here.items() if taken[index] < len(group)]
        if gained is None or not lost:
            return None
        before = [index for index, group in here.items() for _ in group]
        rank = {one[2]: one for one in self._scored(wish, present)}
        loser = max(lost, key=lambda index: (len(here[index]), rank[index]))
        after = [*before, gained[2]]
        after.remove(loser)
        if evenness(domains, after) > evenness(domains, before):
            return None
        return here[loser][-1], gained

    def _way(self, demand: DeploymentDemand, place: Place) -> int:
        """The number of the way that a place runs; behind all where it is none of them any more."""
        for number, way in enumerate(demand.ways):
            if (way.variant, way.accelerator, way.devices) == (place.variant, place.accelerator, len(place.devices)):
                return number
        return len(demand.ways)


_INCUMBENT = 2.0**64
"""Times this, a score comes before all others and keeps its order among its like."""
