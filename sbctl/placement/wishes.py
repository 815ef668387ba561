"""What each deployment comes into a placement with, what it leaves with, and the order in which they come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sbctl.placement.model import DeploymentDemand, Held, Place

__all__ = ["FreeSlots", "Placed", "Wish", "free_slots", "order_of"]


@dataclass(frozen=True, slots=True)
class Wish:
    """What one deployment wants and where it is. `prior`: its places of the wanted generation, also such as do not hold any more; `running`:
    those of them where an engine lives.

    `held`: its places that are no target any more; `fallback`: what may have to be started again there. `weighed`: nodes that had their chance
    of it; None: the plan knows no place of it, so what runs of it is taken as it lies. `is_settled`: nothing of it is under way, so a replica may move.
    `takes_over`: `prior` are engines of nodes' own bundles, whose slots mean nothing yet. `keeps_only`: nothing new is started, since what runs
    is not what the bundle says.
    """

    demand: DeploymentDemand
    generation: int
    prior: tuple[Place, ...] = ()
    running: frozenset[Place] = frozenset()
    held: tuple[Held, ...] = ()
    fallback: tuple[Place, ...] = ()
    weighed: frozenset[str] | None = None
    is_settled: bool = False
    takes_over: bool = False
    keeps_only: bool = False

    @property
    def is_exclusive(self) -> bool:
        """Old and new never run at the same time, so they need room only once."""
        return self.demand.rollout == "recreate"


@dataclass(slots=True)
class Placed:
    """`displaced`: of `prior`, what is no target any more. `taken_back`: of `held`, what is one again. `makes_room`: of `held`, those whose end
    would give a replica its place. `waits_for_room`: one of them is draining already. `weighed`: nodes that had their chance now, as bits."""

    places: list[Place]
    displaced: list[Place]
    taken_back: tuple[Place, ...] = ()
    makes_room: tuple[Place, ...] = ()
    waits_for_room: bool = False
    weighed: int = 0


def order_of(wish: Wish) -> tuple[bool, int, int, str]:
    """Warm ones first, of them what needs most on one device, then what needs most main memory, then by id."""
    ways = wish.demand.ways
    largest = max((way.devices * way.device_bytes for way in ways), default=0)
    return not wish.demand.warm, -largest, -max((way.host_bytes for way in ways), default=0), wish.demand.deployment


class FreeSlots:
    """Numbers for replicas that are new, in order. `going`: nodes with the numbers of engines that a new one does not wait for."""

    def __init__(self, numbers: Iterable[int], going: Iterable[tuple[str, int]]) -> None:
        self._numbers = list(numbers)
        self._going = frozenset(going)

    def on(self, node_id: str) -> int:
        """The next one. On a node that still has one of the same generation, another: there it would be the same replica twice."""
        number = next(each for each in self._numbers if (node_id, each) not in self._going)
        self._numbers.remove(number)
        return number


def free_slots(wish: Wish, placed: Placed) -> FreeSlots:
    """First those of the places that they replace, unless an engine of that number and generation is still on its way out, and the new one
    does not wait for it."""
    count = wish.demand.replicas
    used = {place.slot for place in placed.places}
    left = () if wish.takes_over else placed.displaced
    going = {held.place.slot for held in wish.held if held.place.generation == wish.generation}
    taken = used if wish.is_exclusive else used | going
    free = [slot for slot in sorted({place.slot for place in left}) if slot not in taken]
    most = count + len(used) + len(going) + len(left)
    unused = [slot for slot in range(most) if slot not in used | going | set(free)]
    beside = () if wish.is_exclusive else ((place.node_id, place.slot) for place in left)
    return FreeSlots((*free, *unused), beside)
