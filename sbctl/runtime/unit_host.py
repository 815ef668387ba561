"""Engines as systemd units that outlive this daemon: `EngineHost` by the launcher.

    start   adopted engine of this slot, started in the same way?  ► it, else: record durable ► launcher starts the unit
    adopt   record, live unit, same token ► waits for its start      no record, or no live unit ► stopped, record gone
    leave   the unit runs on; the next daemon adopts it, or the launcher stops it when none comes within a minute

While there are engines a connection to the launcher is held open: it says that somebody attends to them, and the kernel closes it whatever
ends this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sbctl.base.errors import EngineError, SbctlError
from sbctl.base.limits import ENGINE_STOP_GRACE_S
from sbctl.engines.model import EngineAddress, LaunchSpec
from sbctl.node.records import EventKind
from sbctl.runtime.engine_cgroup import effort_of_unit
from sbctl.runtime.engine_exit import EngineExit
from sbctl.runtime.engine_host import EngineLabel, RunningEngine, Slot
from sbctl.runtime.event_log import NO_EVENTS, EventSink
from sbctl.runtime.launcher.site import ENGINE_SOCKETS, engine_socket
from sbctl.runtime.launcher.spec import unit_of
from sbctl.runtime.launcher_client import LauncherClient
from sbctl.runtime.log import get_log
from sbctl.runtime.ownership import OwnershipRecords
from sbctl.runtime.processes import ProcessMemory
from sbctl.runtime.unit_records import UnitRecord, UnitRecords, start_fingerprint

__all__ = ["UnitEngineHost"]

_REAP_GRACE_S: Final = 2.0
_PASSED: Final = ("LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
"""Of an engine's environment; the launcher sets the rest itself."""


class _UnitEngine:
    def __init__(self, client: LauncherClient, record: UnitRecord, pid: int, invocation: str) -> None:
        self.record = record
        self._client = client
        self._pid = pid
        self._invocation = invocation
        self._ending: asyncio.Task[EngineExit] | None = None

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def address(self) -> EngineAddress:
        return self.record.address

    async def prove_listener(self) -> None:
        await self._client.prove(self.record.unit, self.record.port)

    async def last_lines(self, count: int) -> tuple[str, ...]:
        with contextlib.suppress(SbctlError):
            return await self._client.lines(self._invocation, count)
        return ()

    def effort(self) -> int | None:
        return effort_of_unit(self.record.unit)

    async def memory(self) -> ProcessMemory | None:
        with contextlib.suppress(SbctlError):
            told = await self._client.memory(self.record.unit)
            return None if told is None else ProcessMemory(*told)
        return None

    async def wait(self) -> EngineExit:
        if self._ending is None:
            self._ending = asyncio.create_task(self._wait(), name=f"engine-exit-{self._pid}")
        return await asyncio.shield(self._ending)

    async def close(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            await asyncio.wait({self._ending})

    async def _wait(self) -> EngineExit:
        ended = await self._client.wait(self.record.unit, self._invocation)
        returncode = ended.get("returncode")
        if ended.get("result") == "oom-kill":
            return EngineExit(-signal.SIGKILL, "oom", self.record.memory_max_bytes)
        return EngineExit.told(returncode if isinstance(returncode, int) else None)


class UnitEngineHost:
    """See the module. One a daemon, under its serve lock."""

    def __init__(
        self,
        client: LauncherClient,
        records: UnitRecords,
        child_records: OwnershipRecords,
        *,
        sockets: Path = ENGINE_SOCKETS,
        events: EventSink = NO_EVENTS,
    ) -> None:
        self._client = client
        self._records = records
        self._child_records = child_records
        self._sockets = sockets
        self._events = events
        self._live: dict[str, _UnitEngine] = {}
        """By token; what was started or adopted and is neither stopped nor left."""
        self._unclaimed: dict[str, _UnitEngine] = {}
        self._attending: asyncio.Task[None] | None = None
        self._log = get_log("engines")

    @property
    def outlives_daemon(self) -> bool:
        return True

    def new_socket(self) -> Path:
        return engine_socket(secrets.token_hex(8), self._sockets)

    async def start(self, spec: LaunchSpec, label: EngineLabel) -> RunningEngine:
        started_as = start_fingerprint(spec)
        adopted = self._claim(label, started_as)
        if adopted is not None:
            return adopted
        record = self._record(spec, label, started_as)
        self._records.write(record)
        self._attend()
        try:
            answer = await self._client.start(_wire(spec, label, record.token))
        except SbctlError as error:
            await self._abandon(record)
            raise _spawn_failed(error) from error
        except asyncio.CancelledError:
            await asyncio.shield(self._abandon(record))
            raise
        engine = _UnitEngine(self._client, record, int(answer["pid"]), str(answer["invocation"]))
        self._live[record.token] = engine
        self._events.tell(EventKind.ENGINE_STARTED, f"pid {engine.pid}, {record.unit}", **label.told())
        return engine

    async def adopt(self) -> frozenset[Slot]:
        await self._child_records.reap()
        units = {str(unit["unit"]): unit for unit in await self._client.listed()}
        for record in list(self._records.read()):
            unit = units.get(record.unit)
            if unit is not None and unit["running"]:
                del units[record.unit]
                engine = _UnitEngine(self._client, record, int(unit["pid"]), str(unit["invocation"]))
                self._live[record.token] = self._unclaimed[record.token] = engine
            elif unit is None:
                self._records.remove(record.token)
        if self._live:
            self._attend()
        for name, unit in units.items():
            self._log.warning("engine of nobody", unit=name, running=unit["running"])
            await self._client.stop(name, grace_s=_REAP_GRACE_S)
        for record in list(self._records.read()):
            if record.token not in self._live:
                self._records.remove(record.token)
        return frozenset((engine.record.deployment, engine.record.replica) for engine in self._unclaimed.values())

    def adopted_devices(self, slot: Slot) -> tuple[str, ...] | None:
        waiting = self._waiting_for(slot)
        return waiting[0].record.devices if waiting else None

    async def drop_unclaimed(self) -> None:
        for engine in list(self._unclaimed.values()):
            self._log.info("engine is not wanted any more", unit=engine.record.unit)
            with contextlib.suppress(EngineError):
                await self.stop(engine)

    async def stop(self, engine: RunningEngine, *, grace_s: float = ENGINE_STOP_GRACE_S) -> None:
        unit = _ours(engine)
        await self._client.stop(unit.record.unit, grace_s=grace_s)
        self._records.remove(unit.record.token)
        await self._let_go(unit)

    async def leave(self, engine: RunningEngine) -> None:
        # Its record stays and so does the connection that says we are here, to the very end of this process.
        unit = _ours(engine)
        await unit.close()

    async def close(self) -> None:
        for engine in list(self._live.values()):
            await engine.close()
        await self._stop_attending()

    def _waiting_for(self, slot: Slot) -> list[_UnitEngine]:
        """Adopted engines of its deployment, that of its own number first: replicas of one deployment are alike, and their numbers are not
        those of a former daemon where some came and went since."""
        deployment, number = slot
        found = [engine for engine in self._unclaimed.values() if engine.record.deployment == deployment]
        return sorted(found, key=lambda engine: engine.record.replica != number)

    def _claim(self, label: EngineLabel, started_as: str) -> _UnitEngine | None:
        for engine in self._waiting_for(label.slot):
            record = engine.record
            if record.started_as == started_as:
                del self._unclaimed[record.token]
                self._log.info("engine adopted", unit=record.unit, pid=engine.pid)
                self._events.tell(EventKind.ENGINE_ADOPTED, f"pid {engine.pid}, {record.unit}", **label.told())
                return engine
        return None

    def _record(self, spec: LaunchSpec, label: EngineLabel, started_as: str) -> UnitRecord:
        path = spec.address.unix_path
        token = path.parent.name if path is not None else secrets.token_hex(8)
        return UnitRecord(
            token=token,
            unit=unit_of(label.deployment, label.generation, label.replica, token),
            deployment=label.deployment,
            replica=label.replica,
            generation=label.generation,
            started_as=started_as,
            unix_path=None if path is None else str(path),
            port=spec.address.port,
            memory_max_bytes=spec.memory_max_bytes,
            devices=spec.devices,
        )

    async def _abandon(self, record: UnitRecord) -> None:
        """After a start that failed or that nobody waits for any more. What cannot be stopped keeps its record, for the next daemon."""
        with contextlib.suppress(SbctlError):
            await self._client.stop(record.unit, grace_s=0.0)
            self._records.remove(record.token)
        await self._attend_while_needed()

    async def _let_go(self, engine: _UnitEngine) -> None:
        await engine.close()
        self._live.pop(engine.record.token, None)
        self._unclaimed.pop(engine.record.token, None)
        await self._attend_while_needed()

    def _attend(self) -> None:
        if self._attending is None:
            self._attending = asyncio.create_task(self._client.attend(), name="attending to engines")

    async def _attend_while_needed(self) -> None:
        if not self._live:
            await self._stop_attending()

    async def _stop_attending(self) -> None:
        attending, self._attending = self._attending, None
        if attending is not None:
            attending.cancel()
            await asyncio.wait({attending})


def _ours(engine: RunningEngine) -> _UnitEngine:
    if not isinstance(engine, _UnitEngine):
        raise TypeError("an engine is stopped by the host that started it")
    return engine


def _wire(spec: LaunchSpec, label: EngineLabel, token: str) -> Mapping[str, Any]:
    path = spec.address.unix_path
    return {
        "deployment": label.deployment,
        "generation": label.generation,
        "replica": label.replica,
        "token": token,
        "argv": list(spec.argv),
        "env": {name: value for name, value in spec.env.items() if name in _PASSED},
        "unix_path": None if path is None else str(path),
        "port": spec.address.port,
        "memory_bytes": spec.memory_max_bytes,
    }


def _spawn_failed(error: SbctlError) -> EngineError:
    return EngineError(
        "engine_spawn_failed",
        error.message,
        place=error.place,
        next_step=error.next_step,
        retryable=error.retryable,
        detail={"code": error.code},
    )
