"""The room on nodes: what is taken of main memory, of each device and of the engines a node keeps, by everything that runs or is about to.

Static capacity less the places that were charged; what a node measures as free at a moment decides nothing here. What exists is charged
even where there is not enough (`force`), so a node that shrank is seen as overdrawn and gets nothing more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sbctl.placement.model import Device, Node, Place, Way

__all__ = ["Charge", "Room", "beyond", "device_groups", "fits_alone"]

_UNBOUNDED: Final = 1 << 30


def device_groups(node: Node, way: Way) -> list[list[Device]]:
    """Devices that could serve one replica of the way together: alike in name and size, enough of them, each large enough."""
    alike: dict[tuple[str, int], list[Device]] = {}
    for device in node.devices:
        if device.runs(way) and device.total_bytes >= way.device_bytes:
            alike.setdefault((device.name, device.total_bytes), []).append(device)
    return [group for group in alike.values() if len(group) >= way.devices]


def fits_alone(node: Node, way: Way) -> bool:
    """Whether an empty node could run one replica."""
    return node.memory_bytes >= way.host_bytes and (not way.devices or bool(device_groups(node, way)))


@dataclass(frozen=True, slots=True)
class Charge:
    """What is taken of one node: main memory, bytes of each of `devices`, and engines."""

    node_id: str
    host_bytes: int = 0
    devices: tuple[int, ...] = ()
    device_bytes: int = 0
    engines: int = 1


def _charge(place: Place | Charge) -> Charge:
    if isinstance(place, Charge):
        return place
    return Charge(place.node_id, place.host_bytes, place.devices, place.device_bytes)


class Room:
    """Free bytes of each node. Nodes that it was not given have none, and charging them does nothing."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._host = {name: node.memory_bytes for name, node in nodes.items()}
        self._engines = {
            name: _UNBOUNDED if node.max_engines is None else node.max_engines for name, node in nodes.items()
        }
        self._devices = {
            name: {device.index: device.total_bytes for device in node.devices} for name, node in nodes.items()
        }

    def free_host(self, node_id: str) -> int:
        return self._host.get(node_id, 0)

    def free_engines(self, node_id: str) -> int:
        return self._engines.get(node_id, 0)

    def free_device(self, node_id: str, index: int) -> int:
        return self._devices.get(node_id, {}).get(index, 0)

    def devices_for(self, node_id: str, way: Way) -> tuple[int, ...] | None:
        """The devices that one more replica would get: those of one group with the most room, the lower index first. None: no room."""
        if self._host.get(node_id, 0) < way.host_bytes or self._engines.get(node_id, 0) < 1:
            return None
        if not way.devices:
            return ()
        free = self._devices[node_id]
        best: tuple[int, tuple[int, ...]] | None = None
        for group in device_groups(self._nodes[node_id], way):
            ranked = sorted((-free[device.index], device.index) for device in group)[: way.devices]
            least = -ranked[-1][0]
            if least >= way.device_bytes and (best is None or least > best[0]):
                best = (least, tuple(sorted(index for _, index in ranked)))
        return None if best is None else best[1]

    def has(self, place: Place) -> bool:
        """Whether there is room for this very place, on its own devices."""
        free = self._devices.get(place.node_id)
        if free is None or self._host[place.node_id] < place.host_bytes or self._engines[place.node_id] < 1:
            return False
        return all(free.get(index, -1) >= place.device_bytes for index in place.devices)

    def charge(self, place: Place) -> bool:
        """Take the room of a place; False and nothing taken where there is not enough."""
        if not self.has(place):
            return False
        self.force((place,))
        return True

    def force(self, places: Iterable[Place | Charge]) -> None:
        for place in places:
            self._take(_charge(place), 1)

    def release(self, places: Iterable[Place | Charge]) -> None:
        for place in places:
            self._take(_charge(place), -1)

    def _take(self, charge: Charge, sign: int) -> None:
        if charge.node_id not in self._host:
            return
        self._host[charge.node_id] -= sign * charge.host_bytes
        self._engines[charge.node_id] -= sign * charge.engines
        free = self._devices[charge.node_id]
        for index in charge.devices:
            if index in free:
                free[index] -= sign * charge.device_bytes


def beyond(places: Iterable[Place | Charge], within: Iterable[Place]) -> list[Charge]:
    """What `places` take of each node and device beyond what `within` take there: room that only one of the two needs at a time."""
    taken: Counter[tuple[str, str | int]] = Counter()
    for sign, group in ((1, places), (-1, within)):
        for charge in map(_charge, group):
            taken[charge.node_id, "host"] += sign * charge.host_bytes
            taken[charge.node_id, "engines"] += sign * charge.engines
            for index in charge.devices:
                taken[charge.node_id, index] += sign * charge.device_bytes
    found = []
    for (node_id, what), size in taken.items():
        if size <= 0:
            continue
        if isinstance(what, int):
            found.append(Charge(node_id, devices=(what,), device_bytes=size, engines=0))
        else:
            host, engines = (size, 0) if what == "host" else (0, size)
            found.append(Charge(node_id, host, engines=engines))
    return found
