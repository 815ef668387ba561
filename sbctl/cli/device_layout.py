"""On which devices of one host its deployments lie, and what each device must hold of them. Pure.

Counted by the room of placement (`placement.room`), in the order in which the host itself chooses: as many devices as `tensor_parallel` says, else the
fewest of one size that hold a replica, and last all of them. What is warm lies first, the largest before the others; each of those that are
loaded on demand is looked at beside what is warm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sbctl.base.display import format_bytes, plural
from sbctl.engines.memory import Figure, planned_shares, usable_device_bytes
from sbctl.placement.demands import DEGREES
from sbctl.placement.model import Device, Node, Way
from sbctl.placement.room import Charge, Room

__all__ = ["DeviceWish", "Layout", "devices_of", "lay_out"]

_HOST: Final = "host"


@dataclass(frozen=True, slots=True)
class DeviceWish:
    """What one deployment asks of devices. `shares`: what a replica takes of each when it lies on one, on two, and so on. `span`: on how many it must
    lie; `takes_all`: on every one, since its engine cannot be told which."""

    name: str
    shares: tuple[int, ...]
    replicas: int = 1
    is_warm: bool = False
    span: int | None = None
    takes_all: bool = False

    @classmethod
    def of(
        cls, name: str, figure: Figure, *, devices: int, adapter_bytes: int, safety_margin: float, **asked: Any
    ) -> DeviceWish:
        """Of a figure on a host with so many devices; `asked` are the other fields."""
        most = max(devices, asked.get("span") or 1)
        shares = planned_shares(figure, adapter_bytes=adapter_bytes, safety_margin=safety_margin, most=most)
        return cls(name, shares, **asked)

    def ways(self, devices: int) -> Iterator[Way]:
        """The best first."""
        counts = () if self.takes_all else DEGREES if self.span is None else (self.span,)
        for count in counts:
            if count <= len(self.shares):
                yield _way(count, self.shares[count - 1])
        if devices and (self.takes_all or self.span is None):
            yield _way(devices, self.shares[devices - 1], all_of_them=True)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the replicas of one deployment lie: the numbers of the devices of each, with `share_bytes` on every one of those.

    `unplaced` replicas find none: the nearest would be `span` devices with `share_bytes` on each; of so many of one size `free_bytes` are left on
    each, None where there are not so many. `short_bytes` is what is lacking then, in all.
    """

    replicas: tuple[tuple[int, ...], ...]
    share_bytes: int
    unplaced: int = 0
    span: int = 1
    free_bytes: int | None = None

    @property
    def total_bytes(self) -> int:
        """Of all replicas, also of those that find no place."""
        return self.share_bytes * (sum(map(len, self.replicas)) + self.unplaced * self.span)

    @property
    def short_bytes(self) -> int:
        return self.unplaced * self.span * max(0, self.share_bytes - (self.free_bytes or 0))

    @property
    def said(self) -> str:
        """Part of a sentence."""
        share = format_bytes(self.share_bytes)
        if not self.unplaced:
            return f"{share} on {', and on '.join(_named(numbers) for numbers in self.replicas)}"
        count = self.unplaced + len(self.replicas)
        who = f"no place for {self.unplaced} of {plural(count, 'replica')}: " if count > 1 else ""
        on = f"each of {self.span} devices of one size" if self.span > 1 else "one device"
        left = (
            f"where {format_bytes(self.free_bytes)} may be used"
            if self.free_bytes is not None
            else "and there are not so many"
        )
        return f"{who}{share} on {on}, {left}"


def _named(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"device {numbers[0]}"
    return f"each of devices {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def devices_of(gpus: Iterable[Mapping[str, Any]]) -> tuple[Device, ...]:
    """Those that engines get, with what models may take of each."""
    return tuple(
        Device(int(gpu.get("number", index)), "cuda", size)
        for index, gpu in enumerate(gpus)
        if (size := usable_device_bytes((gpu,)))
    )


def lay_out(devices: Sequence[Device], wishes: Iterable[DeviceWish]) -> Mapping[str, Layout]:
    """Of all deployments of one host, by name."""
    room = Room({_HOST: Node(_HOST, devices=tuple(devices))})
    listed = sorted(wishes, key=lambda wish: (not wish.is_warm, -wish.shares[0], wish.name))
    found = {}
    for wish in listed:
        charges, found[wish.name] = _lay(room, devices, wish)
        if not wish.is_warm:
            room.release(charges)
    return found


def _lay(room: Room, devices: Sequence[Device], wish: DeviceWish) -> tuple[list[Charge], Layout]:
    charges: list[Charge] = []
    ways = tuple(wish.ways(len(devices)))
    while len(charges) < wish.replicas:
        taken = next((one for one in (_take(room, way) for way in ways) if one is not None), None)
        if taken is None:
            break
        room.force((taken,))
        charges.append(taken)
    lying = tuple(charge.devices for charge in charges)
    if len(charges) == wish.replicas:
        return charges, Layout(lying, max(charge.device_bytes for charge in charges))
    way, free = _nearest(room, devices, ways) if ways else (_way(wish.span or 1, wish.shares[0]), None)
    return charges, Layout(lying, way.device_bytes, wish.replicas - len(charges), way.devices, free)


def _take(room: Room, way: Way) -> Charge | None:
    numbers = room.devices_for(_HOST, way, warm=True)
    return None if not numbers else Charge(_HOST, devices=numbers, device_bytes=way.device_bytes, engines=0)


def _nearest(room: Room, devices: Sequence[Device], ways: Sequence[Way]) -> tuple[Way, int | None]:
    """The way that lacks least, and what is left on each of its devices."""
    tried = [(way, _left(room, devices, way)) for way in ways]
    return min(tried, key=lambda one: (one[1] is None, one[0].devices * (one[0].device_bytes - (one[1] or 0))))


def _left(room: Room, devices: Sequence[Device], way: Way) -> int | None:
    """On the fullest of the devices that it would take; None where there are not so many of one size."""
    free = {device.index: max(0, room.free(_HOST, device.index, warm=True)) for device in devices}
    if way.accelerator == "vulkan":
        return min(free.values())
    sizes = {device.total_bytes for device in devices}
    groups = [sorted((free[one.index] for one in devices if one.total_bytes == size), reverse=True) for size in sizes]
    return max((group[way.devices - 1] for group in groups if len(group) >= way.devices), default=None)


def _way(count: int, share: int, *, all_of_them: bool = False) -> Way:
    """`vulkan` is what takes all devices of its node, whatever their sizes."""
    kind: Any = "vulkan" if all_of_them else "cuda"
    return Way("", "", "", "llama_cpp", 0, kind, count, share)
