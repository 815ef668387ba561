"""What engines take of a host, and how much of it there is: bytes of its memory, bytes of each device, and how many engines there may be.

The bytes of an engine are those of its plan (`engines.memory`), so a host admits what a plan said that fits. An engine lies on as many devices
as its deployment says, else on one; where none is large enough, on the fewest of equal size that are, and last on all. Of several it takes
the freest. Where a cluster says which devices, it lies on those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from sbctl.artifacts.formats.shape import Certainty
from sbctl.base.display import format_bytes, plural
from sbctl.engines.memory import Source

__all__ = ["NOTHING", "Basis", "Budget", "Room", "total"]


@dataclass(frozen=True, slots=True)
class Basis:
    """How the bytes of one engine are known: `engines.memory.Figure`'s source and certainty, its parts where it was computed, and the margin."""

    source: Source
    certainty: Certainty
    weight_bytes: int | None
    context_bytes: int | None
    other_bytes: int | None
    margin_bytes: int


@dataclass(frozen=True, slots=True)
class Room:
    """Of one engine, or a sum of several. `devices` says where `device_bytes` lie, by the device's id; nothing before that is chosen.

    Of one engine alone: `ceiling_bytes` of the host's memory, beyond which the kernel ends it; `shares`, what it takes of each device when it
    lies on one, two and so on; `span`, the number of devices that it must lie on; `basis`, how its bytes are known.
    """

    host_bytes: int = 0
    device_bytes: int = 0
    engines: int = 1
    devices: tuple[tuple[str, int], ...] = ()
    ceiling_bytes: int | None = field(default=None, compare=False)
    basis: Basis | None = field(default=None, compare=False)
    shares: tuple[int, ...] = field(default=(), compare=False, repr=False)
    span: int | None = field(default=None, compare=False)

    def __add__(self, other: Room) -> Room:
        return self._with(other, 1)

    def __sub__(self, other: Room) -> Room:
        return self._with(other, -1)

    def _with(self, other: Room, sign: int) -> Room:
        on = Counter(dict(self.devices))
        for device, size in other.devices:
            on[device] += sign * size
        return Room(
            self.host_bytes + sign * other.host_bytes,
            self.device_bytes + sign * other.device_bytes,
            self.engines + sign * other.engines,
            tuple(sorted((device, size) for device, size in on.items() if size)),
        )

    def on(self, devices: Collection[str]) -> Room:
        """The same, lying on these: as much on each."""
        if not self.device_bytes or not devices:
            return self
        part = self.share(len(devices))
        placed = tuple((device, part) for device in sorted(devices))
        return replace(self, devices=placed, device_bytes=part * len(placed))

    def share(self, count: int) -> int:
        """On each of so many devices."""
        return self.shares[count - 1] if count <= len(self.shares) else -(-self.device_bytes // count)

    def helps(self, lacking: Room) -> bool:
        """Whether the end of who has this gives back something of what is lacking."""
        if (lacking.host_bytes and self.host_bytes) or lacking.engines:
            return True
        anywhere = bool(lacking.device_bytes) and not lacking.devices
        return bool(self.device_bytes) and (anywhere or not set(self.device_ids).isdisjoint(lacking.device_ids))

    @property
    def device_ids(self) -> tuple[str, ...]:
        return tuple(device for device, _size in self.devices)


NOTHING = Room(engines=0)
_SPANS: Final = (1, 2, 4, 8)
"""Devices that an engine may lie on where nobody said: as `placement.demands` offers."""


def total(rooms: Iterable[Room]) -> Room:
    return sum(rooms, NOTHING)


@dataclass(frozen=True, slots=True)
class Budget:
    """What all engines together may take, of each device by its id. None: no bound; a device that is not named has none either."""

    host_bytes: int | None = None
    devices: Mapping[str, int] = field(default_factory=dict)
    engines: int | None = None

    @property
    def most_bytes(self) -> int | None:
        """The largest that one model may be, on the host or over all devices; None: no bound."""
        return None if self.host_bytes is None else max(self.host_bytes, sum(self.devices.values()))

    def lacking(self, room: Room) -> Room:
        """How much too much it is, nothing where it fits."""
        on = {device: size - self.devices.get(device, size) for device, size in room.devices}
        over = tuple(sorted((device, size) for device, size in on.items() if size > 0))
        unplaced = sum(self.devices.values()) if self.devices and not room.devices else room.device_bytes
        return Room(
            0 if self.host_bytes is None else max(0, room.host_bytes - self.host_bytes),
            sum(size for _device, size in over) + max(0, room.device_bytes - unplaced),
            0 if self.engines is None else max(0, room.engines - self.engines),
            over,
        )

    def short(self, room: Room) -> str:
        """What is lacking for so much, as part of a sentence; empty when it fits."""
        over, said = self.lacking(room), []
        if over.host_bytes:
            said.append(_too_much(over.host_bytes, "memory", self.host_bytes or 0))
        if over.device_bytes:
            bounds = [self.devices[device] for device in over.device_ids] or self.devices.values()
            said.append(_too_much(over.device_bytes, "device memory", sum(bounds)))
        if over.engines:
            said.append(f"{plural(room.engines, 'engine')} where max_resident_models allows {self.engines}")
        return " and ".join(said)

    def fits(self, room: Room) -> bool:
        return self.lacking(room) == NOTHING

    def places(self, room: Room, used: Room) -> tuple[Room, ...]:
        """Where it could lie, the best first. One way for an engine that takes no device, or whose place is given."""
        if not room.device_bytes or room.devices or not self.devices:
            return (room,)
        free = Counter(dict(self.devices))
        free.subtract(dict(used.devices))
        counts = (room.span,) if room.span is not None else _SPANS
        found = [place for count in counts for place in self._groups(room, count, free)]
        if room.span is None:
            found += [] if found and len(self.devices) == 1 else [room.on(self.devices)]
        return tuple(found) or (room.on(sorted(self.devices, key=lambda device: (-free[device], device))[: room.span]),)

    def _groups(self, room: Room, count: int, free: Mapping[str, int]) -> list[Room]:
        """On so many devices of one size, each large enough: one device after the other, or, of several, the freest of each size."""
        alike: dict[int, list[str]] = {}
        for device, bound in sorted(self.devices.items(), key=lambda one: (-free[one[0]], one[0])):
            if bound >= room.share(count):
                alike.setdefault(bound, []).append(device)
        if count == 1:
            every = [device for group in alike.values() for device in group]
            return [room.on((device,)) for device in sorted(every, key=lambda device: (-free[device], device))]
        groups = [group[:count] for group in alike.values() if len(group) >= count]
        return [room.on(group) for group in sorted(groups, key=lambda group: -min(free[device] for device in group))]

    def alike(self, count: int) -> bool:
        """Whether so many devices are of one size."""
        return max(Counter(self.devices.values()).values(), default=0) >= count


def _too_much(size: int, of: str, bound: int) -> str:
    return f"{format_bytes(size)} of {of} too much for the {format_bytes(bound)} that models may take"
