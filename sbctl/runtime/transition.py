"""From one set of generations to another, as one transaction: a candidate that fails anywhere before its commit changes nothing.

    prepare    weights verified or fetched, engine present, in parallel, for what is added or changed
    room       for all that will start, or for none: rolling beside the old, recreate in its place. Nothing was touched when it is refused
    start      rolling: the new beside the old; recreate: the old drained first. Warm ones, and successors of what runs
    commit     the caller's durable write
    swap       left to the caller: routes point to the new
    retire     the old drained and stopped, by the caller

When start fails the new ones are stopped and drained old ones, whose room nobody got meanwhile, are started again. A drain that outlasts its
time fails like a start: who is still being answered is not cut off for a change.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from sbctl.base.errors import SbctlError, error_from_wire
from sbctl.runtime.generation import Generation
from sbctl.runtime.log import get_log
from sbctl.runtime.place import Place
from sbctl.runtime.provision import Progress, Provisioner
from sbctl.runtime.replica_messages import ReplicaPorts
from sbctl.runtime.residency import Residency
from sbctl.runtime.resident import Resident
from sbctl.runtime.room import Room
from sbctl.runtime.staying import AssignedAs, launch_identity, staying
from sbctl.trust.bundle import DeploymentMember, member_digest

__all__ = ["Delta", "Transition", "nothing_durable", "placed", "staged_of"]

_log = get_log("transition")
_TOLD_MAX: Final = 8


def placed(error: SbctlError, deployment: str, scope: str, stage: str) -> SbctlError:
    """The same error, saying whose it is: the deployment's address and the stage."""
    wire = error.to_wire()
    detail = {**wire["detail"], "deployment": deployment, "stage": stage}
    return error_from_wire({**wire, "place": f"deployment.{scope}/{deployment}", "detail": detail})


async def nothing_durable() -> None:
    """The commit of a change that nobody has to remember."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What a candidate asks for, by deployment. `adjusted` keep their engines; only what the gate reads differs."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    adjusted: tuple[str, ...]
    removed: tuple[str, ...]
    preserved: tuple[str, ...]

    def told(self) -> dict[str, int | str]:
        """For a line of a log, however many there are: how many of each kind, and the first few of those that change."""
        said: dict[str, int | str] = {name: len(names) for name, names in asdict(self).items()}
        changing = (*self.added, *self.changed, *self.adjusted, *self.removed)
        if changing:
            more = ", …" if len(changing) > _TOLD_MAX else ""
            said["first"] = ", ".join(changing[:_TOLD_MAX]) + more
        return said

    @classmethod
    def of(
        cls,
        running: Mapping[str, Generation],
        wanted: Mapping[str, DeploymentMember],
        assigned: Mapping[str, AssignedAs] = {},
    ) -> Delta:
        """`assigned`: on which devices a cluster wants replicas; one that lies elsewhere is changed."""
        both = [name for name in sorted(wanted) if name in running]
        moved = {
            name for name in both if name in assigned and None in staying(running[name], wanted[name], assigned[name])
        }
        there = [name for name in both if name not in moved]
        same = [name for name in there if running[name].digest == member_digest(wanted[name])]
        near = [name for name in there if name not in same and running[name].identity == launch_identity(wanted[name])]
        return cls(
            added=tuple(sorted(set(wanted) - set(running))),
            changed=tuple(name for name in both if name not in same and name not in near),
            adjusted=tuple(near),
            removed=tuple(sorted(set(running) - set(wanted))),
            preserved=tuple(same),
        )


def staged_of(  # noqa: PLR0917 - what a generation is made of
    delta: Delta,
    running: Mapping[str, Generation],
    wanted: Mapping[str, DeploymentMember],
    assigned: Mapping[str, AssignedAs],
    numbers: Iterator[int],
    ports: ReplicaPorts,
) -> dict[str, Generation]:
    """The generations of what is added or changed, each with the replicas that it takes over."""
    return {
        name: Generation(
            name, next(numbers), wanted[name], ports, assigned=assigned.get(name), before=running.get(name)
        )
        for name in (*delta.added, *delta.changed)
    }


@dataclass(slots=True)
class Transition:
    """One attempt. `staged` are the generations of what is added or changed. Of one that takes over replicas only the others are started."""

    scope: str
    running: Mapping[str, Generation]
    wanted: Mapping[str, DeploymentMember]
    staged: dict[str, Generation]
    delta: Delta
    provisioner: Provisioner
    drain_s: float
    parallel: int
    progress: Progress
    residency: Residency
    _rooms: dict[str, Room] = field(default_factory=dict)
    _held: list[Generation] = field(default_factory=list)
    _drained: list[Generation] = field(default_factory=list)
    _woken: list[Generation] = field(default_factory=list)

    async def carry_out(self, commit: Callable[[], Awaitable[None]]) -> None:
        """Prepare, start, commit. Raises SbctlError of the first failure, everything as it was."""
        try:
            gate = asyncio.Semaphore(self.parallel)
            await self._each(self.staged, self._prepare, gate)
            await self._start(gate)
            await commit()
        except BaseException as error:
            failures = await self._undo()
            if failures and isinstance(error, SbctlError):
                wire = error.to_wire()
                raise error_from_wire({**wire, "detail": {**wire["detail"], "not_restored": failures}}) from error
            raise
        self.residency.forgo(_places(self._held), engines_gone=True)

    async def _each(
        self,
        names: Mapping[str, Generation],
        work: Callable[[str, Generation], Awaitable[None]],
        gate: asyncio.Semaphore,
    ) -> None:
        async def bounded(name: str, generation: Generation) -> None:
            async with gate:
                await work(name, generation)

        tasks = [asyncio.create_task(bounded(name, generation)) for name, generation in names.items()]
        try:
            for task in tasks:
                await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _prepare(self, name: str, generation: Generation) -> None:
        member = generation.member
        try:
            if member.warm or member.pull == "on_boot" or self._succeeds_running(name):
                await self._put_ready(name, generation)
            else:
                await self.provisioner.check_engine(member)
        except SbctlError as error:
            raise placed(error, name, self.scope, "prepare") from error

    async def _put_ready(self, name: str, generation: Generation) -> None:
        prepared = await self.provisioner.prepare(generation.member, self.progress)
        self._rooms[name] = await self.provisioner.room(generation.member, prepared)
        for replica in generation.fresh:
            replica.note_cached()

    def _succeeds_running(self, name: str) -> bool:
        """Whether a replica that ends with the change serves now."""
        if name not in self.running:
            return False
        staying = self.staged[name].replicas
        return any(replica.is_ready for replica in self.running[name].replicas if replica not in staying)

    async def _start(self, gate: asyncio.Semaphore) -> None:
        to_start = {
            name: generation
            for name, generation in self.staged.items()
            if generation.member.warm or self._succeeds_running(name)
        }
        recreated = [
            self.running[name]
            for name in self.delta.changed
            if self.wanted[name].rollout == "recreate" and name in to_start and self._has_place(self.running[name])
            if len(self.staged[name].fresh) == len(self.staged[name].replicas)
        ]
        await self._reserve(to_start, recreated)
        for old in recreated:
            self.progress(0, None, f"draining {old.deployment}")
            old.hold()
            self._drained.append(old)
            await self._drain(old)
        for name in self.delta.adjusted:
            current = self.running[name]
            if self.wanted[name].warm and not current.member.warm and not current.ready_replicas:
                to_start[name] = current
                self._woken.append(current)
        await self._each(to_start, self._load, gate)

    async def _reserve(self, to_start: Mapping[str, Generation], recreated: Sequence[Generation]) -> None:
        for name, generation in to_start.items():
            if name not in self._rooms:  # a request started what it succeeds only now
                await self._prepare(name, generation)
        wanted: dict[Resident, Room] = {
            replica.place: replica.place.wanted(self._rooms[name])
            for name, generation in to_start.items()
            for replica in generation.fresh
        }
        if wanted:
            try:
                await self.residency.reserve(wanted, leaving=_places(recreated))
            except SbctlError as error:
                raise placed(error, next(iter(to_start)), self.scope, "room") from error
            self._held = list(recreated)

    def _has_place(self, old: Generation) -> bool:
        """Whether an engine of it runs, or is on its way."""
        return any(self.residency.holds(place) for place in _places((old,)))

    async def _drain(self, old: Generation) -> None:
        try:
            await old.drain(self.drain_s)
        except SbctlError as error:
            raise placed(error, old.deployment, self.scope, "drain") from error
        await old.stop(None, drain_s=0)

    async def _load(self, name: str, generation: Generation) -> None:
        try:
            if name in self.staged:
                await generation.load_fresh(self.progress)
            else:
                await generation.load("reconcile", self.progress)
        except SbctlError as error:
            raise placed(error, name, self.scope, "start") from error

    async def _undo(self) -> dict[str, str]:
        """Stop what was started, start again what was drained. Returns what could not be, by deployment."""
        failures: dict[str, str] = {}
        for generation in self.staged.values():
            with contextlib.suppress(SbctlError):
                await generation.give_up()
        for generation in self._woken:
            with contextlib.suppress(SbctlError):
                await generation.stop(None, drain_s=0)
        self.residency.forgo(_places(self._held), engines_gone=False)
        for generation in reversed(self._drained):
            try:
                await generation.load("reconcile")
            except SbctlError as error:
                _log.error(
                    "the drained generation did not start again", deployment=generation.deployment, error=str(error)
                )
                failures[generation.deployment] = error.message
            generation.release_hold()
        return failures


def _places(generations: Iterable[Generation]) -> tuple[Place, ...]:
    return tuple(replica.place for generation in generations for replica in generation.replicas)
