"""What engines take of a host, and how much of it there is: bytes of its memory, bytes of its devices, and how many engines there may be.

The bytes of an engine are those of its plan (`engines.memory`), so a host admits what a plan said that fits.
"""

from __future__ import annotations

from dataclasses import dataclass

from sbctl.base.display import format_bytes, plural

__all__ = ["NOTHING", "Budget", "Room"]


@dataclass(frozen=True, slots=True)
class Room:
    """Of one engine, or a sum of several."""

    host_bytes: int = 0
    device_bytes: int = 0
    engines: int = 1

    def __add__(self, other: Room) -> Room:
        return Room(
            self.host_bytes + other.host_bytes, self.device_bytes + other.device_bytes, self.engines + other.engines
        )

    def __sub__(self, other: Room) -> Room:
        return Room(
            self.host_bytes - other.host_bytes, self.device_bytes - other.device_bytes, self.engines - other.engines
        )

    def times(self, count: int) -> Room:
        return Room(self.host_bytes * count, self.device_bytes * count, self.engines * count)


NOTHING = Room(engines=0)


@dataclass(frozen=True, slots=True)
class Budget:
    """What all engines together may take. None: no bound."""

    host_bytes: int | None = None
    device_bytes: int | None = None
    engines: int | None = None

    def short(self, room: Room) -> str:
        """What is lacking for so much, as part of a sentence; empty when it fits."""
        lacking = []
        for size, bound, of in (
            (room.host_bytes, self.host_bytes, "memory"),
            (room.device_bytes, self.device_bytes, "device memory"),
        ):
            if bound is not None and size > bound:
                lacking.append(
                    f"{format_bytes(size - bound)} of {of} too much for the {format_bytes(bound)} that models may take"
                )
        if self.engines is not None and room.engines > self.engines:
            lacking.append(f"{plural(room.engines, 'engine')} where max_resident_models allows {self.engines}")
        return " and ".join(lacking)

    def fits(self, room: Room) -> bool:
        return not self.short(room)
