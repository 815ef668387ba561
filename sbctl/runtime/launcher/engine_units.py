"""What the launcher does with engines: start, stop until nothing is left, watch for the end. It keeps no list: systemd has it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sbctl.base.errors import EngineError, RefusedError
from sbctl.engines.model import EngineAddress
from sbctl.runtime.launcher.site import ENGINE_SOCKETS, Site, engine_socket
from sbctl.runtime.launcher.spec import EngineSpec, read_spec, token_of
from sbctl.runtime.launcher.units import UnitPort, UnitState
from sbctl.runtime.listener_proof import prove_listener
from sbctl.runtime.processes import memory_of

__all__ = ["EngineUnits", "Owners"]

_POLL_S: Final = 0.05
_SLOW_POLL_S: Final = 0.5
_KILL_WAIT_S: Final = 10.0
_MAX_ENGINES: Final = 256
_AWAY_GRACE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Owners:
    """Whose the socket directories are: made by the engine, entered by the runtime's group. `programs` may own programs beside root."""

    engine_uid: int
    runtime_gid: int
    programs: int = 0


class EngineUnits:
    """The operations of the protocol on engines."""

    def __init__(
        self, units: UnitPort, site: Callable[[], Site], owners: Callable[[], Owners], *, sockets: Path = ENGINE_SOCKETS
    ) -> None:
        self._units = units
        self._site = site
        self._owners = owners
        self._sockets = sockets
        self._starting = asyncio.Lock()

    async def start(self, document: object) -> dict[str, Any]:
        """Raises RefusedError `launcher.refused`, `launcher.too_many`; HostError `launcher.start_failed`; InputError of the site."""
        owners = self._owners()
        spec = read_spec(document, self._site(), sockets=self._sockets, owner=owners.programs)
        async with self._starting:
            known = await self._units.listed()
            if any(token_of(state.unit) == spec.token for state in known):
                raise RefusedError("launcher.refused", "this token has an engine already", place="token")
            if len(known) >= _MAX_ENGINES:
                raise RefusedError(
                    "launcher.too_many",
                    f"{len(known)} engines run on this host; that is the most there may be",
                    place=spec.unit,
                    next_step="give this host fewer deployments or replicas",
                )
            if spec.unix_path is not None:
                self._make_directory(spec, owners)
            try:
                await self._units.start(spec)
                state = await self._units.show(spec.unit)
            except BaseException:
                await asyncio.shield(self._discard(spec.unit))
                raise
        return {"unit": state.unit, "pid": state.pid or 0, "invocation": state.invocation}

    async def stop(self, unit: str, grace_s: float) -> dict[str, Any]:
        """Raises EngineError `engine_shutdown_failed` when a process outlives SIGKILL by 10 s, RefusedError `launcher.refused`."""
        token = token_of(unit)
        state = await self._units.show(unit)
        if not state.is_stopped or self._units.pids(state.cgroup):
            await self._units.stop(unit)
            if not await self._is_gone(state, grace_s):
                await self._units.kill(unit)
                if not await self._is_gone(state, _KILL_WAIT_S):
                    raise _outlives(state, self._units.pids(state.cgroup))
        elif state.is_loaded:
            # Ended by itself and kept by systemd so that it could be asked how.
            await self._units.stop(unit)
        await self._units.forget(unit)
        self._remove_directory(token)
        return {}

    async def stop_all(self, grace_s: float = _AWAY_GRACE_S) -> dict[str, Any]:
        """Every engine, at once. Raises the first error, after all were tried."""
        states = await self._units.listed()
        results = await asyncio.gather(*(self.stop(state.unit, grace_s) for state in states), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return {"stopped": len(states)}

    async def listed(self) -> dict[str, Any]:
        return {
            "engines": [
                {"unit": state.unit, "pid": state.pid or 0, "invocation": state.invocation, "running": state.is_running}
                for state in await self._units.listed()
            ]
        }

    async def exist(self) -> bool:
        return bool(await self._units.listed())

    async def prove(self, unit: str, port: int | None) -> dict[str, Any]:
        """Raises EngineError `engine_not_ours`, `engine_exposed`, `engine_health_failed`."""
        socket = engine_socket(token_of(unit), self._sockets)
        address = EngineAddress(unix_path=socket) if port is None else EngineAddress(port=port)
        state = await self._units.show(unit)
        await asyncio.to_thread(prove_listener, address, self._units.pids(state.cgroup))
        return {}

    async def memory(self, unit: str) -> dict[str, Any]:
        """{"held_bytes", "peak_bytes"} of its processes, as `processes.memory_of`; None for each when there are none."""
        token_of(unit)
        state = await self._units.show(unit)
        told = await asyncio.to_thread(memory_of, self._units.pids(state.cgroup))
        return {"held_bytes": None if told is None else told.held, "peak_bytes": None if told is None else told.peak}

    async def lines(self, invocation: str, count: int) -> dict[str, Any]:
        return {"lines": list(await self._units.lines(invocation, count))}

    async def wait(self, unit: str, invocation: str) -> dict[str, Any]:
        """Returns when this run of the unit has ended, or is no longer known."""
        token_of(unit)
        while True:
            state = await self._units.show(unit)
            if state.invocation != invocation or not state.is_loaded:
                return {"returncode": None, "result": "gone"}
            if not state.is_running and state.pid is None:
                return {"returncode": state.returncode, "result": state.result}
            await self._main_process_ends(state)

    async def _main_process_ends(self, state: UnitState) -> None:
        """Or some time passes: what matters is looked at again afterwards."""
        try:
            fd = os.pidfd_open(state.pid or 0)
        except OSError:
            await asyncio.sleep(_SLOW_POLL_S)
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(fd, ended.set)
        try:
            # A pid that was reused between the look and the open would be waited for in vain.
            again = await self._units.show(state.unit)
            if again.pid == state.pid:
                await ended.wait()
                await asyncio.sleep(_POLL_S)
        finally:
            loop.remove_reader(fd)
            os.close(fd)

    async def _is_gone(self, state: UnitState, within_s: float) -> bool:
        """Its control group is empty and systemd has finished with it."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + within_s
        while True:
            if not self._units.pids(state.cgroup) and (await self._units.show(state.unit)).is_stopped:
                return True
            if loop.time() >= deadline_s:
                return False
            await asyncio.sleep(_POLL_S)

    async def _discard(self, unit: str) -> None:
        with contextlib.suppress(Exception):
            await self.stop(unit, 0.0)

    def _make_directory(self, spec: EngineSpec, owners: Owners) -> None:
        """`<token>/`, where the engine makes its socket and the runtime finds it: 02750 engine:runtime."""
        directory = self._sockets / spec.token
        # Everybody may pass, nobody but root may look or write.
        self._sockets.mkdir(mode=0o711, exist_ok=True)
        self._sockets.chmod(0o711)
        directory.mkdir(mode=0o700)
        os.chown(directory, owners.engine_uid, owners.runtime_gid)
        # The set-group-id bit gives the socket the runtime's group. Set last: changing owners clears it.
        directory.chmod(0o2750)

    def _remove_directory(self, token: str) -> None:
        shutil.rmtree(self._sockets / token, ignore_errors=True)


def _outlives(state: UnitState, left: Sequence[int] | frozenset[int]) -> EngineError:
    return EngineError(
        "engine_shutdown_failed",
        f"{len(left)} processes of the engine outlive SIGKILL",
        place=state.unit,
        next_step="look at its state in /proc (a hanging disk or device driver); a reboot may be needed",
    )
