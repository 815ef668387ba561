"""Weights that are taken away under a running engine: set aside since they changed, or gone.

The engine goes on with what it loaded, so no request is lost at once, but what it answers with is not what was published. So it is said
(an event, a metric, the deployment's row), the weights are made ready again, and each replica that runs on the old ones is drained and started
on the good ones, one after another. Where that fails the engines run on and the row says what to do; it is tried again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from sbctl.artifacts.cache import ArtifactCache
from sbctl.base.errors import ArtifactError, SbctlError
from sbctl.node.records import EventKind
from sbctl.runtime.event_log import EventSink
from sbctl.runtime.generation import Generation
from sbctl.runtime.log import get_log
from sbctl.runtime.provision import Provisioner, quiet
from sbctl.runtime.replica import Replica
from sbctl.runtime.weight_metrics import WeightMetrics
from sbctl.trust.bundle import DeploymentMember

__all__ = ["WeightWatch", "weights_of"]

_LOOK_S: Final = 30.0
_AGAIN_S: Final = 300.0

Identity = frozenset[tuple[int, int]]
"""The files that an engine was given: device and inode of each."""


def weights_of(cache: ArtifactCache, artifacts: Iterable[str]) -> Identity | None:
    """None while one of them is not whole in its place. Reads names and seals, no weights."""
    found: set[tuple[int, int]] = set()
    for artifact in artifacts:
        entry = cache.entry(artifact)
        if entry is None or entry.state != "ready":
            return None
        try:
            found |= {_identity(cache.snapshot_path(artifact) / file.path) for file in cache.facts(artifact).files}
        except (OSError, ArtifactError):
            return None
    return frozenset(found)


def _identity(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


class WeightWatch:
    """Of one daemon. `weights` is `weights_of` over its cache."""

    def __init__(
        self,
        generations: Callable[[], Collection[Generation]],
        provisioner: Provisioner,
        weights: Callable[[DeploymentMember], Identity | None],
        events: EventSink,
        metrics: WeightMetrics,
        *,
        drain_s: float,
    ) -> None:
        self._generations = generations
        self._provisioner = provisioner
        self._weights = weights
        self._events = events
        self._metrics = metrics
        self._drain_s = drain_s
        self._given: dict[int, Identity] = {}
        """By the pid of an engine that runs."""
        self._told: dict[Generation, float] = {}
        """Since when they run on weights that are not there any more, and when it is tried again."""
        self._log = get_log("weights")

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Once; returns when what was found is mended, or cannot be now."""
        generations = tuple(self._generations())
        pids = {one.engine.pid for generation in generations for one in generation.replicas if one.engine is not None}
        self._given = {pid: given for pid, given in self._given.items() if pid in pids}
        for gone in self._told.keys() - set(generations):
            self._settled(gone)
        for generation in generations:
            now = await asyncio.to_thread(self._weights, generation.member)
            stale = self._stale(generation, now)
            if stale and asyncio.get_running_loop().time() >= self._told.get(generation, 0.0):
                await self._mend(generation, stale)
            elif not stale and generation in self._told:
                self._settled(generation)

    def _stale(self, generation: Generation, now: Identity | None) -> list[Replica]:
        """What is seen first of an engine is what it was given, if that is whole."""
        stale = []
        for replica in generation.replicas:
            if replica.launched is None:
                continue
            pid = replica.launched.engine.pid
            if now is not None:
                self._given.setdefault(pid, now)
            if now is None or self._given[pid] != now:
                stale.append(replica)
        return stale

    async def _mend(self, generation: Generation, stale: Sequence[Replica]) -> None:
        name = generation.deployment
        if generation not in self._told:
            said = "the weights that its engines run on changed or were set aside; they are checked, and fetched again where they have to be"
            self._events.tell(EventKind.WEIGHTS_QUARANTINED, said, deployment=name, generation=generation.number)
            self._log.error("weights were taken away under an engine", deployment=name)
        self._told[generation] = asyncio.get_running_loop().time() + _AGAIN_S
        self._metrics.stale(name, len(stale))
        generation.notice = "the weights that its engines run on changed or were set aside; good ones are being had"
        try:
            await self._provisioner.prepare(generation.member, quiet)
            good = await asyncio.to_thread(self._weights, generation.member)
            for replica in self._stale(generation, good):
                await replica.stop(None, drain_s=self._drain_s)
                await replica.load("reconcile")
        except SbctlError as error:
            generation.notice = (
                f"it serves from weights that changed and were set aside, and good ones cannot be had: {error.message}; "
                f"next: {error.next_step or f'sbctl models pull {generation.member.model}'}"
            )
            self._log.error("good weights cannot be had", deployment=name, code=error.code, error=error.message)
            return
        self._events.tell(EventKind.WEIGHTS_REPLACED, "its engines run on good weights again", deployment=name)
        self._settled(generation)

    def _settled(self, generation: Generation) -> None:
        self._told.pop(generation, None)
        generation.notice = None
        self._metrics.stale(generation.deployment, 0)
