"""Which engines share a host's memory, and who makes room for whom. A place is held from before an engine starts until its tree is gone and
its memory is back, so the budget holds at every moment.

Who comes without room waits in one line, first come first served. For the first of it, whatever was idle longest is unloaded; where none is
idle, one that runs longest gives way: it takes nothing new, finishes what it has, and goes to the end of the line. So two models that
share a place under load take turns, and no request of either is refused for it. A model stays at least as long as its start took, 2 s at
least and 10 s at most, so that turns are worth their starts.

Never unloaded: what is warm, what works, what has requests waiting at its gate, and what a rollout replaces. A change of the desired state
does not wait in the line: it has room at once, by unloading idle ones, or is refused before anything was drained.

A place within the budget is not enough: right before a start the machine itself is asked (`free_memory`). What it lacks is waited for as
long as an engine of ours starts or ends, and made by unloading where that can make enough; else it is refused. A model that was refused so
starts only when more than its need is free, at several looks in a row, and what runs is never ended for it: nothing flaps with a neighbour.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sbctl.base.display import format_bytes
from sbctl.base.errors import EngineError, SbctlError
from sbctl.runtime.free_memory import AGAIN_BYTES, FreeMemory, Promised, lacking
from sbctl.runtime.log import get_log
from sbctl.runtime.resident import Resident
from sbctl.runtime.room import NOTHING, Budget, Room, total

__all__ = ["Residency"]

_LOOK_S: Final = 0.1
_ASK_NEXT_S: Final = 2.0
_MACHINE_LOOK_S: Final = 0.5
_MACHINE_WAIT_S: Final = 10.0
"""For memory that the kernel or a driver shows late, when no engine of ours starts or ends."""
_LOOKS_AGAIN: Final = 3
"""So often in a row a machine must have what it lacked before."""


class Residency:
    """Places of one daemon."""

    def __init__(self, budget: Budget | None = None, free: Callable[[], FreeMemory] | None = None) -> None:
        """`free` measures the machine, in a thread; None: only the budget counts."""
        self.budget = Budget() if budget is None else budget
        self._free = free
        self._was_short: set[str] = set()
        """Deployments that the machine had no memory for when they asked last."""
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
        return total(self._held.values())

    def holds(self, resident: Resident) -> bool:
        return resident in self._held

    def room_of(self, resident: Resident) -> Room | None:
        """What is set aside for it; None: nothing."""
        return self._held.get(resident)

    async def take(self, resident: Resident, room: Room, *, waits: bool) -> Room:
        """A place, with its devices. `waits`: in the line, as long as somebody wants it; else at once, by unloading what is idle.

        Raises EngineError `insufficient_capacity`, at once where no waiting helps.
        """
        if resident in self._held:
            return self._held[resident]
        self._refuse_hopeless(resident, room)
        adopted = resident.adopted_devices
        lies = room if room.devices or adopted is None else room.on(adopted)
        placed = self._fitting(lies, self.used + self._promised)
        at_once = placed is not None and (resident.deployment not in self._was_short or not waits)
        if placed is not None and (adopted is not None or (at_once and await self._machine_has(resident, placed))):
            self._held[resident] = placed
        elif not waits:
            await self.reserve({resident: room})
        else:
            async with self._turn:
                await self._wait(resident, room)
        return self._held[resident]

    def give_back(self, resident: Resident) -> None:
        """Its engine is gone. Twice is the same as once."""
        if resident in self._pledged:
            return
        room = self._held.pop(resident, NOTHING)
        if resident in self._unloading:
            self._promised += room

    async def reserve(self, wanted: Mapping[Resident, Room], *, leaving: Collection[Resident] = ()) -> None:
        """Places for all of `wanted` or for none, before any of them starts; on devices the largest lie first, as a plan counts them. Those of
        `leaving` are counted as free and stay pledged to them.

        The caller starts nothing of `wanted` that needs the room of `leaving` before that is gone. Raises EngineError `insufficient_capacity`.
        """
        apart = {resident.deployment for resident in wanted}
        staying = {holder: room for holder, room in self._held.items() if holder not in leaving}
        idle = [holder for holder in self._idle(apart) if holder not in leaving]
        fixed = total(room for holder, room in staying.items() if holder not in idle)
        placed: dict[Resident, Room] = {}
        for resident, room in sorted(wanted.items(), key=lambda one: -one[1].device_bytes):
            placed[resident] = self._best(room, fixed + total(placed.values()))
        if short := self.budget.short(fixed + total(placed.values())):
            raise self._refused(apart, wanted, short, staying)
        self._held.update(placed)
        self._pledged.update(leaving)
        try:
            await self._unload_for(apart, wanted, leaving, staying)
            await self._machine_must_have(wanted, leaving)
        except BaseException:
            for resident in wanted:
                self._held.pop(resident, None)
            self._pledged.difference_update(leaving)
            raise

    async def _unload_for(
        self,
        apart: Collection[str],
        wanted: Mapping[Resident, Room],
        leaving: Collection[Resident],
        staying: Mapping[Resident, Room],
    ) -> None:
        """Until the budget holds without `leaving`."""
        while short := self.budget.short(
            over := self.used - total(self._held.get(holder, NOTHING) for holder in leaving)
        ):
            idle = (holder for holder in self._idle(apart) if holder not in leaving)
            victim = next((holder for holder in idle if self._held[holder].helps(self.budget.lacking(over))), None)
            if victim is None:
                raise self._refused(apart, wanted, short, staying)
            await self._unload(victim, ", ".join(sorted(apart)))

    def forgo(self, pledged: Iterable[Resident], *, engines_gone: bool) -> None:
        """End pledges: their change is committed (`engines_gone`: and so are their places), or they are about to start again."""
        for resident in pledged:
            self._pledged.discard(resident)
            if engines_gone:
                self.give_back(resident)

    # Where it lies

    def _fitting(self, room: Room, used: Room) -> Room | None:
        """The best place that is free now."""
        return next((one for one in self.budget.places(room, used) if self.budget.fits(used + one)), None)

    def _best(self, room: Room, used: Room) -> Room:
        """The best place, be it free or the one that lacks least."""
        return min(
            self.budget.places(room, used),
            key=lambda one: (over := self.budget.lacking(used + one), over.host_bytes + over.device_bytes)[1],
        )

    # The machine itself

    async def _machine_has(self, resident: Resident, room: Room) -> bool:
        """Looked at while the place is held, so that two starts never count on the same bytes."""
        self._held[resident] = room
        try:
            has = not (await self._machine_lacks({resident}))[0]
        finally:
            self._held.pop(resident, None)
        return has

    async def _machine_lacks(
        self, starting: Collection[Resident], leaving: Collection[Resident] = ()
    ) -> tuple[int, str]:
        """For engines that have their places. Raises nothing: a machine that does not tell lacks nothing."""
        if self._free is None:
            return 0, ""
        staying = [one for one in self._held if one not in starting and one not in leaving and not one.is_leaving]
        wanted = total(self._held[one] for one in starting if one in self._held)
        # What engines have is looked at first: what they take meanwhile is then missed in what is free, never counted as free twice.
        others = [await self._promised_to(one) for one in staying]
        ends = [await self._promised_to(one) for one in leaving]
        return lacking(
            await asyncio.to_thread(self._free),
            wanted,
            others=others,
            leaving=ends,
            more_bytes=AGAIN_BYTES if any(one.deployment in self._was_short for one in starting) else 0,
            ours={one.engine.pid for one in self._held if one.engine is not None},
        )

    async def _promised_to(self, holder: Resident) -> Promised:
        room, engine = self._held.get(holder, NOTHING), holder.engine
        return Promised(room) if engine is None else Promised(room, engine.pid, await engine.memory())

    async def _machine_must_have(self, wanted: Mapping[Resident, Room], leaving: Collection[Resident]) -> None:
        """At once, by unloading what is idle where that can be enough. Raises EngineError `insufficient_capacity`."""
        apart = {resident.deployment for resident in wanted}
        while (short := await self._machine_lacks(wanted.keys(), leaving))[0]:
            idle = [holder for holder in self._idle(apart) if holder not in leaving]
            if not idle or short[0] > self._worth(idle):
                raise self._refused_by_machine(apart, total(self._held[one] for one in wanted), short[1])
            await self._unload(idle[0], ", ".join(sorted(apart)))
        self._was_short -= apart

    def _worth(self, holders: Iterable[Resident]) -> int:
        """What their ends give back, at most."""
        held = total(self._held[holder] for holder in holders)
        return held.host_bytes + held.device_bytes

    # The first of the line

    async def _wait(self, resident: Resident, room: Room) -> None:
        asked: list[Resident] = []
        turn = _Turn(asyncio.get_running_loop().time(), resident.deployment in self._was_short)
        try:
            while True:
                self._refuse_hopeless(resident, room)
                if not resident.is_wanted:
                    raise EngineError("insufficient_capacity", "nobody waits for this model any more", retryable=True)
                placed = self._fitting(room, self.used)
                if placed is None:
                    turn.machine_short_since_s = None
                    over = self.budget.lacking(self.used + self._best(room, self.used))
                    unloaded = await self._make_room(resident, over, turn, asked)
                elif await self._has_now(resident, placed, turn):
                    self._held[resident] = placed
                    return
                else:
                    unloaded = await self._make_machine_room(resident, placed, turn, asked)
                if not unloaded:
                    await asyncio.sleep(_LOOK_S if placed is None else _MACHINE_LOOK_S)
        finally:
            for one in asked:
                one.stay()
            self._unloading.clear()
            self._promised = NOTHING

    async def _has_now(self, resident: Resident, placed: Room, turn: _Turn) -> bool:
        """The machine, at as many looks in a row as it takes."""
        self._held[resident] = placed
        try:
            turn.lacks = await self._machine_lacks({resident})
        finally:
            self._held.pop(resident, None)
        if turn.lacks[0]:
            turn.looks, turn.was_short = 0, True
            turn.machine_short_since_s = turn.machine_short_since_s or asyncio.get_running_loop().time()
            return False
        turn.looks += 1
        if turn.looks < (_LOOKS_AGAIN if turn.was_short else 1):
            return False
        self._was_short.discard(resident.deployment)
        return True

    async def _make_machine_room(self, resident: Resident, placed: Room, turn: _Turn, asked: list[Resident]) -> bool:
        """Whether something was unloaded. Raises EngineError `insufficient_capacity` when nothing of ours can make it."""
        if not turn.lacks[0]:
            return False
        idle = self._idle({resident.deployment})
        ours = [*idle, *(one for one in self._held if one.can_give_way and one.deployment != resident.deployment)]
        if turn.lacks[0] <= self._worth(set(ours)):
            return await self._make_room(resident, placed, turn, asked)
        now_s = asyncio.get_running_loop().time()
        if any(one.engine is None or one.is_leaving or one.stays_until_s is None for one in self._held):
            turn.machine_short_since_s = now_s  # it starts or ends: what is free is about to change
        elif now_s - (turn.machine_short_since_s or now_s) >= _MACHINE_WAIT_S:
            raise self._refused_by_machine({resident.deployment}, placed, turn.lacks[1])
        return False

    async def _make_room(self, resident: Resident, over: Room, turn: _Turn, asked: list[Resident]) -> bool:
        """Whether an idle one was unloaded that has something of what is lacking; where none is idle, one is asked to give way."""
        now_s = asyncio.get_running_loop().time()
        idle = [one for one in self._idle({resident.deployment}) if self._held[one].helps(over)]
        victim = next((one for one in idle if now_s >= (one.stays_until_s or 0.0)), None)
        if victim is not None:
            self._unloading.add(victim)
            await self._unload(victim, resident.deployment)
            return True
        if not idle and now_s >= turn.ask_next_s:
            busy = self._next_to_give_way(resident, asked, over)
            if busy is not None:
                self._log.info("gives way", deployment=busy.deployment, to=resident.deployment)
                busy.give_way()
                asked.append(busy)
                turn.ask_next_s = now_s + _ASK_NEXT_S
        return False

    def _next_to_give_way(self, resident: Resident, asked: Collection[Resident], lacks: Room) -> Resident | None:
        """The one whose stay was over first."""
        now_s = asyncio.get_running_loop().time()
        over = [
            (until_s, one)
            for one, room in self._held.items()
            if one.deployment != resident.deployment and one not in asked and one.can_give_way and room.helps(lacks)
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
        if short := self.budget.short(total(fixed.values()) + self._best(room, total(fixed.values()))):
            raise self._refused({resident.deployment}, {resident: room}, short, fixed)

    def _refused(
        self, names: Collection[str], wanted: Mapping[Resident, Room], short: str, holders: Mapping[Resident, Room]
    ) -> EngineError:
        asked = total(wanted.values())
        needs = format_bytes(asked.host_bytes + asked.device_bytes)
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

    def _refused_by_machine(self, names: Collection[str], asked: Room, short: str) -> EngineError:
        self._was_short |= set(names)
        needs = format_bytes(asked.host_bytes + asked.device_bytes)
        self._log.warning("the machine has no memory for it", deployments=sorted(names), needs=needs, short=short)
        return EngineError(
            "insufficient_capacity",
            f"{', '.join(sorted(names))} needs {needs}, and {short}, though models may take as much: something else has it",
            next_step="end what else takes memory on this host (ps, nvidia-smi), stop a model, or ask for less: max_context, max_concurrency, kv_quant",
            retryable=True,
            detail={"lacking": "free_memory"},
        )


@dataclass(slots=True)
class _Turn:
    """How long the first of the line waits for what. Times are of the loop."""

    ask_next_s: float
    was_short: bool
    """The machine must show what it lacks several times in a row."""
    looks: int = 0
    lacks: tuple[int, str] = (0, "")
    machine_short_since_s: float | None = None
