"""One replica's place among the others of its host: what `residency.Residency` asks of it, and its turns."""

from __future__ import annotations

import asyncio
from typing import Protocol

from sbctl.runtime.admission import Gate
from sbctl.runtime.engine_host import RunningEngine
from sbctl.runtime.replica_messages import Evicted
from sbctl.runtime.replica_states import ReplicaPhase
from sbctl.runtime.residency import Residency
from sbctl.runtime.resident import worth_a_start_s
from sbctl.runtime.room import Room
from sbctl.trust.bundle import DeploymentMember

__all__ = ["Housed", "Place"]


class Housed(Protocol):
    """A replica as its place sees it."""

    gate: Gate
    member: DeploymentMember
    phase: ReplicaPhase

    @property
    def deployment(self) -> str: ...

    @property
    def is_ready(self) -> bool: ...

    @property
    def has_waiters(self) -> bool: ...

    @property
    def engine(self) -> RunningEngine | None: ...

    def adopted_devices(self) -> tuple[str, ...] | None: ...

    async def unload(self, why: str, reason: Evicted) -> None: ...


class Place:
    """As `resident.Resident`. The replica's owner takes and leaves it; others reserve it for a change of the desired state."""

    def __init__(self, replica: Housed, residency: Residency, given: tuple[str, ...] = ()) -> None:
        self.given = given
        """Devices that its engine is to lie on, by their ids; none: whichever are the freest when it starts."""
        self._replica = replica
        self._residency = residency
        self._start_began_s = 0.0
        self._stays_until_s = 0.0
        self._has_turn = asyncio.Event()
        self._has_turn.set()

    async def take(self, room: Room, *, waits: bool) -> Room:
        """With its devices. Raises EngineError `insufficient_capacity`."""
        taken = await self._residency.take(self, self.wanted(room), waits=waits)
        self._start_began_s = asyncio.get_running_loop().time()
        return taken

    @property
    def room(self) -> Room | None:
        """What is set aside for its engine; None while there is neither an engine nor a start."""
        return self._residency.room_of(self)

    def wanted(self, room: Room) -> Room:
        """Room for its engine, where it is to lie."""
        return room.on(self.given)

    @property
    def devices(self) -> tuple[str, ...]:
        """Where its engine lies, or is to lie."""
        room = self.room
        return self.given if room is None else room.device_ids or self.given

    @property
    def is_taken(self) -> bool:
        """Whether an engine runs there, or is on its way."""
        return self._residency.holds(self)

    def give_back(self) -> None:
        self._residency.give_back(self)

    def note_ready(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._stays_until_s = now_s + worth_a_start_s(now_s - self._start_began_s)
        self._has_turn.set()

    async def until_turn(self) -> None:
        """Returns when it does not give way any more: it stays, or it was stopped."""
        await self._has_turn.wait()

    @property
    def is_giving_way(self) -> bool:
        return self._replica.is_ready and not self._has_turn.is_set()

    # For the residency

    @property
    def deployment(self) -> str:
        return self._replica.deployment

    @property
    def engine(self) -> RunningEngine | None:
        return self._replica.engine

    @property
    def adopted_devices(self) -> tuple[str, ...] | None:
        return self._replica.adopted_devices()

    @property
    def is_pinned(self) -> bool:
        return self._replica.member.warm

    @property
    def is_leaving(self) -> bool:
        return self._replica.phase in (ReplicaPhase.DRAINING, ReplicaPhase.STOPPED, ReplicaPhase.FAILED)

    @property
    def is_wanted(self) -> bool:
        return self._replica.member.warm or self._replica.has_waiters

    @property
    def evictable_since_s(self) -> float | None:
        return self._replica.gate.idle_since_s if self._replica.is_ready and not self.is_pinned else None

    @property
    def stays_until_s(self) -> float | None:
        return self._stays_until_s if self._replica.is_ready else None

    @property
    def can_give_way(self) -> bool:
        """A model whose cold requests are refused would lose them: only `cold_start: wait` takes turns."""
        return self._replica.is_ready and not self.is_pinned and self._replica.member.cold_start == "wait"

    def give_way(self) -> None:
        self._has_turn.clear()

    def stay(self) -> None:
        self._has_turn.set()

    async def unload(self, why: str) -> None:
        await self._replica.unload(why, "lru")
