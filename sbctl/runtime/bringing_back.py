"""What is desired and does not run. After a start engines that a former daemon left running are taken over and the others come up in the
background; a bundle that comes again starts what was stopped or failed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from sbctl.base.errors import SbctlError
from sbctl.runtime.engine_host import Slot
from sbctl.runtime.generation import Generation
from sbctl.runtime.log import get_log
from sbctl.runtime.provision import Progress, Provisioner, quiet
from sbctl.runtime.replica import Replica

__all__ = ["bring_back", "keep", "take_over", "wake"]

_TAKE_OVER_S: Final = 30.0


async def take_over(generations: Mapping[str, Generation], adopted: Collection[Slot]) -> set[asyncio.Task[None]]:
    """Engines of `adopted` are ready when this returns; those that take more than half a minute are returned, still on their way."""
    loading = [
        asyncio.create_task(_load_adopted(replica))
        for name, numbers in _by_deployment(adopted).items()
        if name in generations
        for replica in _takers(generations[name], numbers)
        if replica.stopped_by is None
    ]
    if not loading:
        return set()
    _done, late = await asyncio.wait(loading, timeout=_TAKE_OVER_S)
    return late


def _by_deployment(adopted: Collection[Slot]) -> Mapping[str, set[int]]:
    found: dict[str, set[int]] = {}
    for deployment, number in adopted:
        found.setdefault(deployment, set()).add(number)
    return found


def _takers(generation: Generation, numbers: Collection[int]) -> list[Replica]:
    """As many replicas as there are engines, those of the same numbers first."""
    return sorted(generation.replicas, key=lambda replica: replica.label.replica not in numbers)[: len(numbers)]


async def _load_adopted(replica: Replica) -> None:
    try:
        await replica.load("reconcile")
    except SbctlError as error:
        get_log("reconcile").warning("an engine was not taken over", deployment=replica.deployment, error=str(error))


async def bring_back(generation: Generation, gate: asyncio.Semaphore, provisioner: Provisioner) -> None:
    """Warm ones ready, others with their weights in place; what goes wrong is told by the replicas."""
    try:
        async with gate:
            if generation.member.warm:
                await generation.load("reconcile")
                return
            await provisioner.prepare(generation.member, quiet)
        for replica in generation.replicas:
            replica.note_cached()
    except SbctlError as error:
        get_log("reconcile").warning("not brought back", deployment=generation.deployment, error=str(error))


async def wake(generations: Mapping[str, Generation], progress: Progress, *, keep_stopped: bool) -> dict[str, str]:
    """Start what should run but was stopped or failed. Returns what did not start; its desired state is committed all the same.

    `keep_stopped`: except what an operator stopped.
    """
    degraded = {}
    for name, generation in generations.items():
        is_stopped = any(replica.stopped_by == "operator" for replica in generation.replicas)
        if is_stopped and keep_stopped:
            continue
        if is_stopped or any(replica.error is not None for replica in generation.replicas):
            await generation.reset()
        if generation.member.warm and generation.ready_replicas < len(generation.replicas):
            try:
                await generation.load("reconcile", progress)
            except SbctlError as error:
                degraded[name] = error.message
    return degraded


def keep(background: set[asyncio.Task[None]], tasks: Iterable[asyncio.Task[None]]) -> None:
    """Until they are done. What they did not expect themselves is logged: nobody else waits for them."""

    def ended(task: asyncio.Task[None]) -> None:
        background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            get_log("reconcile").error("work in the background failed", what=task.get_name(), error=repr(error))

    for task in tasks:
        background.add(task)
        task.add_done_callback(ended)
