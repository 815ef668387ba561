"""What engines take of a host, and how much of it there is: bytes of its memory, bytes of each device, and how many engines there may be.

The bytes of an engine are those of its plan (`engines.memory`), so a host admits what a plan said that fits. An engine lies on one device, the
freest that is large enough; where none has room for it alone, on all of them in equal parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

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
    """Of one engine, or a sum of several. `devices` says where `device_bytes` lie, by the device's id; nothing before that is chosen."""

    host_bytes: int = 0
    device_bytes: int = 0
    engines: int = 1
    devices: tuple[tuple[str, int], ...] = ()
    ceiling_bytes: int | None = field(default=None, compare=False)
    """Of the host's memory: what the one engine may have before the kernel ends it. No sum has one."""
    basis: Basis | None = field(default=None, compare=False)
    """No sum has one."""

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
        """The same, lying on these in equal parts."""
        if not self.device_bytes or not devices:
            return self
        part = -(-self.device_bytes // len(devices))
        return replace(self, devices=tuple((device, part) for device in sorted(devices)))

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
        large = [device for device, bound in self.devices.items() if bound >= room.device_bytes]
        alone = [room.on((device,)) for device in sorted(large, key=lambda device: (-free[device], device))]
        return (*alone, room.on(self.devices)) if len(self.devices) > 1 or not alone else tuple(alone)


def _too_much(size: int, of: str, bound: int) -> str:
    return f"{format_bytes(size)} of {of} too much for the {format_bytes(bound)} that models may take"
