"""What engines really took, remembered: the most that a process of one kind had resident, by `engines.memory.memory_key`.

Only processes that are ready are looked at, and only what those that compute on the processor took is remembered: what lies on a device is
not in their resident memory. The file outlives the daemon and every deployment; a node tells of it with each snapshot, and plans believe it before any estimate.
Writing it is worth no failure: a full disk costs the memory of a figure, never a model.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from sbctl.base import fs, strict_json
from sbctl.base.digests import canonical_json
from sbctl.base.errors import InputError, SbctlError
from sbctl.base.ids import is_digest
from sbctl.base.limits import MIB
from sbctl.runtime.engine_host import RunningEngine
from sbctl.runtime.generation import Generation
from sbctl.runtime.log import get_log
from sbctl.runtime.processes import ProcessMemory
from sbctl.runtime.provision import Provisioner
from sbctl.runtime.replica_room import kind_of_process
from sbctl.trust.bundle import DeploymentMember

__all__ = ["FILE_NAME", "ObservedMemory", "Running", "observed_memory", "running_engines"]

FILE_NAME: Final = "observed_memory.json"
_FILE_MAX_BYTES: Final = MIB
_KEPT: Final = 256
"""Kinds of process; the one that was seen longest ago goes first."""
_WORTH_WRITING_BYTES: Final = 4 * MIB
_INTERVAL_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Running:
    """One ready engine: what it was started as, and the version of its build where that is known and the processor computes: only then is the
    most that it took worth remembering."""

    member: DeploymentMember
    version: str | None
    engine: RunningEngine

    @property
    def key(self) -> str | None:
        return None if self.version is None else kind_of_process(self.member, self.version)


def observed_memory(state: Path) -> Mapping[str, int]:
    """Key → bytes, longest ago first; nothing when there is no file, or it is damaged."""
    try:
        data = fs.read_bounded(state / FILE_NAME, max_bytes=_FILE_MAX_BYTES)
        document: Any = strict_json.loads(data, max_bytes=_FILE_MAX_BYTES)
    except InputError:
        return {}
    listed = document.get("observed") if isinstance(document, dict) else None
    return {
        entry[0]: entry[1]
        for entry in (listed if isinstance(listed, list) else [])[-_KEPT:]
        if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and is_digest(entry[0])
        if type(entry[1]) is int and entry[1] > 0
    }


class ObservedMemory:
    """Of one daemon. `running` lists the engines that are ready now."""

    def __init__(self, state: Path, running: Callable[[], Awaitable[Iterable[Running]]]) -> None:
        self._state = state
        self._running = running
        self._known = dict(observed_memory(state))
        self._seen: WeakKeyDictionary[RunningEngine, ProcessMemory] = WeakKeyDictionary()
        self._log = get_log("memory")

    def seen(self, engine: RunningEngine) -> ProcessMemory | None:
        """As it was at the last look, a quarter of a minute ago at most; None: not looked at yet, or it could not be seen."""
        return self._seen.get(engine)

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            await self.look(await self._running())

    async def look(self, running: Iterable[Running]) -> None:
        """Once. A figure only grows; one of another context, type or build is another figure."""
        changed = False
        for one in running:
            memory = await one.engine.memory()
            if memory is None:
                continue
            self._seen[one.engine] = memory
            key = one.key
            if key is not None and memory.peak >= self._known.get(key, 0) + _WORTH_WRITING_BYTES:
                self._known.pop(key, None)
                self._known[key] = memory.peak
                changed = True
        if changed:
            await asyncio.to_thread(self._keep)

    def _keep(self) -> None:
        for key in list(self._known)[:-_KEPT]:
            del self._known[key]
        with contextlib.suppress(SbctlError):
            fs.write_atomic(
                self._state / FILE_NAME, canonical_json({"observed": [list(one) for one in self._known.items()]})
            )
            self._log.info("memory of engines", observed=json.dumps(list(self._known.values())[-8:]))


async def running_engines(generations: Mapping[str, Generation], provisioner: Provisioner) -> list[Running]:
    """Those that are ready; of what is computed on a device, or by a program whose version cannot be told, without one."""
    found = []
    for generation in tuple(generations.values()):
        member = generation.member
        ready = [replica.launched.engine for replica in generation.replicas if replica.launched is not None]
        version = None
        if ready and member.engine.acceleration == "cpu":
            with contextlib.suppress(SbctlError):
                version = member.engine.version or (await provisioner.check_engine(member)).version
        found += [Running(member, version, engine) for engine in ready]
    return found
