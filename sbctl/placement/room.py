"""The room on nodes: what is taken of main memory, of each device, of the engines a node keeps and of the replicas it can tell of, by everything
that runs or is about to.

Static capacity less the places that were charged; what a node measures as free at a moment decides nothing here. What exists is charged
even where there is not enough (`force`), so a node that shrank is seen as overdrawn and gets nothing more.

By the rule of the model host: what is warm stays loaded, so all of it must fit at once. What is loaded on demand takes turns, so each of those
must fit beside all that is warm, and nothing more.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sbctl.node.cluster_documents import SNAPSHOT_REPLICAS_MAX
from sbctl.placement.model import Device, Node, Place, Way

__all__ = ["Charge", "Exhausted", "Room", "beyond", "device_groups"]

_UNBOUNDED: Final = 1 << 30


def device_groups(node: Node, way: Way) -> list[list[Device]]:
    """Devices that could serve one replica of the way together: alike in name and size, enough of them, each large enough.

    A Vulkan build cannot be told which devices to take, so it takes all that its node has.
    """
    if way.accelerator == "vulkan":
        every = list(node.devices)
        fits = len(every) == way.devices and all(device.total_bytes >= way.device_bytes for device in every)
        return [every] if fits else []
    alike: dict[tuple[str, int], list[Device]] = {}
    for device in node.devices:
        if device.runs(way) and device.total_bytes >= way.device_bytes:
            alike.setdefault((device.name, device.total_bytes), []).append(device)
    return [group for group in alike.values() if len(group) >= way.devices]


@dataclass(frozen=True, slots=True)
class Charge:
    """What is taken of one node: main memory, bytes of each of `devices`, and engines."""

    node_id: str
    host_bytes: int = 0
    devices: tuple[int, ...] = ()
    device_bytes: int = 0
    engines: int = 1
    warm: bool = True

    def parts(self) -> Iterator[tuple[str | int, int]]:
        yield "host", self.host_bytes
        yield "engines", self.engines
        yield "replicas", self.engines
        for index in self.devices:
            yield index, self.device_bytes


def _charge(place: Place | Charge) -> Charge:
    if isinstance(place, Charge):
        return place
    return Charge(place.node_id, place.host_bytes, place.devices, place.device_bytes, warm=place.warm)


class _Shelf:
    """One thing that a node has so much of. `cold`: needs of those that take turns, ascending."""

    __slots__ = ("cold", "size", "warm")

    def __init__(self, size: int) -> None:
        self.size, self.warm = size, 0
        self.cold: list[int] = []

    def free(self, *, warm: bool) -> int:
        """For one more: beside all that stays loaded, and, if it stays itself, beside the largest of those that take turns."""
        return self.size - self.warm - (self.cold[-1] if warm and self.cold else 0)

    def put(self, size: int, *, warm: bool) -> None:
        if warm:
            self.warm += size
        else:
            insort(self.cold, size)

    def take(self, size: int, *, warm: bool) -> None:
        if warm:
            self.warm -= size
        else:
            self.cold.remove(size)

    @property
    def asked(self) -> int:
        """By all that may want it, at whatever time."""
        return self.warm + sum(self.cold)


class Room:
    """What is free on each node. Nodes that it was not given have nothing, and charging them does nothing."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._shelves: dict[str, dict[str | int, _Shelf]] = {}

    def free(self, node_id: str, what: str | int, *, warm: bool) -> int:
        """Bytes of `host` or of a device, by its index; or `engines`, or `replicas`."""
        shelf = self._of(node_id).get(what)
        return shelf.free(warm=warm or what == "replicas") if shelf is not None else 0

    def devices_for(self, node_id: str, way: Way, *, warm: bool) -> tuple[int, ...] | None:
        """The devices that one more replica would get: those of one group with the most room and the least asked of them, the lower index
        first. None: no room."""
        shelves = self._of(node_id)
        if not shelves or shelves["host"].free(warm=warm) < way.host_bytes or shelves["engines"].free(warm=warm) < 1:
            return None
        if shelves["replicas"].free(warm=True) < 1:
            return None
        if not way.devices:
            return ()
        best: tuple[tuple[int, int], tuple[int, ...]] | None = None
        for group in device_groups(self._nodes[node_id], way):
            ranked = sorted(
                (-shelves[device.index].free(warm=warm), shelves[device.index].asked, device.index) for device in group
            )[: way.devices]
            least, asked, _ = ranked[-1]
            if -least >= way.device_bytes and (best is None or (least, asked) < best[0]):
                best = (least, asked), tuple(sorted(index for _, _, index in ranked))
        return None if best is None else best[1]

    def has(self, place: Place) -> bool:
        """Whether there is room for this very place, on its own devices."""
        shelves = self._of(place.node_id)
        parts = _charge(place).parts()
        return bool(shelves) and all(
            what in shelves and shelves[what].free(warm=place.warm or what == "replicas") >= size
            for what, size in parts
        )

    def charge(self, place: Place) -> bool:
        """Take the room of a place; False and nothing taken where there is not enough."""
        if not self.has(place):
            return False
        self.force((place,))
        return True

    def force(self, places: Iterable[Place | Charge]) -> None:
        for charge in map(_charge, places):
            shelves = self._of(charge.node_id)
            for what, size in charge.parts():
                if what in shelves:
                    shelves[what].put(size, warm=charge.warm or what == "replicas")

    def release(self, places: Iterable[Place | Charge]) -> None:
        for charge in map(_charge, places):
            shelves = self._of(charge.node_id)
            for what, size in charge.parts():
                if what in shelves:
                    shelves[what].take(size, warm=charge.warm or what == "replicas")

    def _of(self, node_id: str) -> dict[str | int, _Shelf]:
        shelves = self._shelves.get(node_id)
        if shelves is None:
            node = self._nodes.get(node_id)
            shelves = self._shelves[node_id] = {} if node is None else _shelves_of(node)
        return shelves


def _shelves_of(node: Node) -> dict[str | int, _Shelf]:
    engines = _UNBOUNDED if node.max_engines is None else node.max_engines
    shelves: dict[str | int, _Shelf] = {"host": _Shelf(node.memory_bytes), "engines": _Shelf(engines)}
    shelves["replicas"] = _Shelf(SNAPSHOT_REPLICAS_MAX)
    shelves |= {device.index: _Shelf(device.total_bytes) for device in node.devices}
    return shelves


class Exhausted:
    """Needs that no node of a set had room for. Room only gets less while replicas are placed, so whoever needs as much need not be tried."""

    def __init__(self) -> None:
        self._needs: dict[tuple[object, ...], list[tuple[int, int]]] = {}

    def add(self, nodes: int, way: Way, *, warm: bool) -> None:
        self._needs.setdefault((nodes, way.accelerator, way.devices, warm), []).append(
            (way.host_bytes, way.device_bytes)
        )

    def covers(self, nodes: int, way: Way, *, warm: bool) -> bool:
        """`nodes`: the set, as bits."""
        known = self._needs.get((nodes, way.accelerator, way.devices, warm), ())
        return any(way.host_bytes >= host and way.device_bytes >= device for host, device in known)


def beyond(places: Iterable[Place | Charge], within: Iterable[Place]) -> list[Charge]:
    """What `places` take of each node and device beyond what `within` take there: room that only one of the two needs at a time. What takes
    turns anyway is not set off against anything."""
    charges = [_charge(place) for place in places]
    taken: Counter[tuple[str, str | int]] = Counter()
    for sign, group in ((1, charges), (-1, map(_charge, within))):
        for charge in group:
            for what, size in charge.parts() if charge.warm else ():
                if what == "replicas":
                    continue
                taken[charge.node_id, what] += sign * size
    found = [charge for charge in charges if not charge.warm]
    for (node_id, what), size in taken.items():
        if size <= 0:
            continue
        if isinstance(what, int):
            found.append(Charge(node_id, devices=(what,), device_bytes=size, engines=0))
        else:
            host, engines = (size, 0) if what == "host" else (0, size)
            found.append(Charge(node_id, host, engines=engines))
    return found
