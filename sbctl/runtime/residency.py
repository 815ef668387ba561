"""Which engines share a host's memory, and who makes room for whom. A place is held from before an engine starts until its tree is gone and
its memory is back, so the budget holds at every moment.

Who comes without room waits in one line, first come first served. For the first of it, whatever was idle longest is unloaded; where none is
idle, one that runs longest gives way: it takes nothing new, finishes what it has, and goes to the end of the line. So two models that
share a place under load take turns, and no request of either is refused for it. A model stays at least as long as its start took, 2 s at
least and 10 s at most, so that turns are worth their starts.

Never unloaded: what is warm, what works, what has requests waiting at its gate, and what a rollout replaces. A change of the desired state
does not wait in the line: it has room at once, by unloading idle ones, or is refused before anything was drained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol

from sbctl.base.display import format_bytes
from sbctl.base.errors import EngineError, SbctlError
from sbctl.runtime.log import get_log
from sbctl.runtime.room import NOTHING, Budget, Room

__all__ = ["Residency", "Resident", "worth_a_start_s"]

_LOOK_S: Final = 0.1
_ASK_NEXT_S: Final = 2.0
_STAY_LEAST_S: Final = 2.0
_STAY_MOST_S: Final = 10.0


def worth_a_start_s(start_s: float) -> float:
    """How long an engine that took so long to start keeps its place."""
    return min(max(start_s, _STAY_LEAST_S), _STAY_MOST_S)


class Resident(Protocol):
    """A replica as far as places go. Times are of the loop."""

    @property
    def deployment(self) -> str: ...

    @property
    def is_pinned(self) -> bool:
        """It never makes room for others."""
        ...

    @property
    def is_leaving(self) -> bool:
        """Its engine ends, whatever others want."""
        ...

    @property
    def is_wanted(self) -> bool:
        """Somebody waits for its start."""
        ...

    @property
    def evictable_since_s(self) -> float | None:
        """Since when it could be unloaded; None while it may not be."""
        ...

    @property
    def stays_until_s(self) -> float | None:
        """Until when others leave it its place; None while it is not ready."""
        ...

    @property
    def can_give_way(self) -> bool:
        """It is ready, and its requests would wait for its next turn."""
        ...

    def give_way(self) -> None:
        """Take nothing new until `stay`."""
        ...

    def stay(self) -> None: ...

    async def unload(self, why: str) -> None:
        """Stop it if it is still idle."""
        ...


class Residency:
    """Places of one daemon."""

    def __init__(self, budget: Budget | None = None) -> None:
        self.budget = Budget() if budget is None else budget
        self._held: dict[Resident, Room] = {}
        self._pledged: set[Resident] = set()
        """Their places stay theirs without an engine, until a change of the desired state is through."""
        self._turn = asyncio.Lock()
        self._unloading: set[Resident] = set()
        """For the first in the line."""
        self._promised = NOTHING
        """What they gave back: the first in the line's, not of whoever comes along."""
        self._log = get_log("residency")

    @property
    def used(self) -> Room:
        return _sum(self._held.values())

    def holds(self, resident: Resident) -> bool:
        return resident in self._held

    async def take(self, resident: Resident, room: Room, *, waits: bool) -> None:
        """A place. `waits`: in the line, as long as somebody wants it; else at once, by unloading what is idle.

        Raises EngineError `insufficient_capacity`, at once where no waiting helps.
        """
        if resident in self._held:
            return
        self._refuse_hopeless(resident, room)
        if self.budget.fits(self.used + self._promised + room):
            self._held[resident] = room
        elif not waits:
            await self.reserve({resident: room})
        else:
            async with self._turn:
                await self._wait(resident, room)

    def give_back(self, resident: Resident) -> None:
        """Its engine is gone. Twice is the same as once."""
        if resident in self._pledged:
            return
        room = self._held.pop(resident, NOTHING)
        if resident in self._unloading:
            self._promised += room

    async def reserve(self, wanted: Mapping[Resident, Room], *, leaving: Collection[Resident] = ()) -> None:
        """Places for all of `wanted` or for none, before any of them starts. Those of `leaving` are counted as free and stay pledged to them.

        The caller starts nothing of `wanted` that needs the room of `leaving` before that is gone. Raises EngineError `insufficient_capacity`.
        """
        apart = {resident.deployment for resident in wanted}
        staying = {holder: room for holder, room in self._held.items() if holder not in leaving}
        needed = _sum((staying | dict(wanted)).values())
        idle = [holder for holder in self._idle(apart) if holder not in leaving]
        if short := self.budget.short(needed - _sum(self._held[holder] for holder in idle)):
            raise self._refused(apart, wanted, short, staying)
        self._held.update(wanted)
        self._pledged.update(leaving)
        try:
            while short := self.budget.short(self.used - _sum(self._held.get(holder, NOTHING) for holder in leaving)):
                victim = next((holder for holder in self._idle(apart) if holder not in leaving), None)
                if victim is None:
                    raise self._refused(apart, wanted, short, staying)
                await self._unload(victim, ", ".join(sorted(apart)))
        except BaseException:
            for resident in wanted:
                self._held.pop(resident, None)
            self._pledged.difference_update(leaving)
            raise

    def forgo(self, pledged: Iterable[Resident], *, engines_gone: bool) -> None:
        """End pledges: their change is committed (`engines_gone`: and so are their places), or they are about to start again."""
        for resident in pledged:
            self._pledged.discard(resident)
            if engines_gone:
                self.give_back(resident)

    # The first of the line

    async def _wait(self, resident: Resident, room: Room) -> None:
        loop = asyncio.get_running_loop()
        asked: list[Resident] = []
        ask_next_s = loop.time()
        try:
            while not self.budget.fits(self.used + room):
                self._refuse_hopeless(resident, room)
                if not resident.is_wanted:
                    raise EngineError("insufficient_capacity", "nobody waits for this model any more", retryable=True)
                idle = self._idle({resident.deployment})
                victim = next((one for one in idle if loop.time() >= (one.stays_until_s or 0.0)), None)
                if victim is not None:
                    self._unloading.add(victim)
                    await self._unload(victim, resident.deployment)
                    continue
                if not idle and loop.time() >= ask_next_s:
                    busy = self._next_to_give_way(resident, asked)
                    if busy is not None:
                        self._log.info("gives way", deployment=busy.deployment, to=resident.deployment)
                        busy.give_way()
                        asked.append(busy)
                        ask_next_s = loop.time() + _ASK_NEXT_S
                await asyncio.sleep(_LOOK_S)
            self._held[resident] = room
        finally:
            for one in asked:
                one.stay()
            self._unloading.clear()
            self._promised = NOTHING

    def _next_to_give_way(self, resident: Resident, asked: Collection[Resident]) -> Resident | None:
        """The one whose stay was over first."""
        now_s = asyncio.get_running_loop().time()
        over = [
            (until_s, one)
            for one in self._held
            if one.deployment != resident.deployment and one not in asked and one.can_give_way
            if (until_s := one.stays_until_s) is not None and now_s >= until_s
        ]
        return min(over, key=lambda pair: pair[0])[1] if over else None

    async def _unload(self, victim: Resident, whom: str) -> None:
        """It stays when a request came first, or when its engine does not end; then it is evictable no more."""
        try:
            await victim.unload(f"room for {whom}")
        except SbctlError as error:
            self._log.warning("not unloaded", deployment=victim.deployment, error=str(error))

    def _idle(self, apart: Collection[str]) -> list[Resident]:
        """Who may be unloaded, longest idle first; none of the deployments `apart`."""
        found = [
            (since_s, holder)
            for holder in self._held
            if holder.deployment not in apart
            if not holder.is_pinned and (since_s := holder.evictable_since_s) is not None
        ]
        return [holder for _since_s, holder in sorted(found, key=lambda pair: pair[0])]

    # Refusals

    def _refuse_hopeless(self, resident: Resident, room: Room) -> None:
        """What never makes room for it, and it: more than there is."""
        fixed = {
            holder: held
            for holder, held in self._held.items()
            if not holder.is_leaving and (holder.is_pinned or holder.deployment == resident.deployment)
        }
        if short := self.budget.short(_sum(fixed.values()) + room):
            raise self._refused({resident.deployment}, {resident: room}, short, fixed)

    def _refused(
        self, names: Collection[str], wanted: Mapping[Resident, Room], short: str, holders: Mapping[Resident, Room]
    ) -> EngineError:
        total = _sum(wanted.values())
        needs = format_bytes(total.host_bytes + total.device_bytes)
        held = sorted(
            f"{one.deployment} {format_bytes(room.host_bytes + room.device_bytes)}" for one, room in holders.items()
        )
        beside = f"; beside it: {', '.join(held)}" if held else ""
        is_update = any(one.deployment in names for one in holders)
        return EngineError(
            "insufficient_capacity",
            f"{', '.join(sorted(names))} needs {needs}, which is {short}{beside}",
            next_step="set rollout: recreate, since old and new do not fit together, or ask for less"
            if is_update
            else "stop a model, or unset its warm, or ask for less: fewer replicas, max_context, max_concurrency, kv_quant",
            retryable=True,
        )


def _sum(rooms: Iterable[Room]) -> Room:
    return sum(rooms, NOTHING)
