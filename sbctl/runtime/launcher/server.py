"""The launcher's socket: who may speak, one request after another, and what happens when nobody attends to the engines.

somebody attends          engines run
nobody does               for `away_s` seconds they run on, then they are stopped
no engine, no connection  after `idle_s` seconds the launcher ends; the next connection starts it again
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Collection
from typing import Any, Final

from sbctl.base.errors import HostError, InputError, RefusedError, SbctlError
from sbctl.runtime.launcher.engine_units import EngineUnits
from sbctl.runtime.launcher.protocol import LINE_MAX_BYTES, MAX_LINES, pack, unpack
from sbctl.runtime.launcher.site import AWAY_S, Site

__all__ = ["LauncherServer", "Say"]

Say = Callable[[str], None]
"""Where the launcher tells what it did, one line."""

_UCRED: Final = struct.Struct("3i")
_MAX_CONNECTIONS: Final = 128
_TICK_S: Final = 1.0
_IDLE_S: Final = 15.0
_GRACE_MAX_S: Final = 90.0
_LEFT_POLL_S: Final = 0.2


class LauncherServer:
    """Serves until idle or stopped. `allowed` gives the users that are heard, anew for each connection."""

    def __init__(
        self,
        engines: EngineUnits,
        site: Callable[[], Site],
        allowed: Callable[[], Collection[int]],
        say: Say,
        *,
        idle_s: float = _IDLE_S,
        tick_s: float = _TICK_S,
    ) -> None:
        self._engines = engines
        self._site = site
        self._allowed = allowed
        self._say = say
        self._idle_s = idle_s
        self._tick_s = tick_s
        self._connections: set[asyncio.Task[None]] = set()
        self._attending = 0
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End soon. Engines run on."""
        self._stopping.set()

    async def serve(self, listener: socket.socket) -> None:
        """Returns when idle or stopped; connections are closed then, engines are not touched."""
        server = await asyncio.start_unix_server(self._connected, sock=listener, limit=LINE_MAX_BYTES)
        watch = asyncio.create_task(self._watch(), name="watch")
        try:
            await self._stopping.wait()
        finally:
            server.close()
            watch.cancel()
            for task in list(self._connections):
                task.cancel()
            await asyncio.gather(watch, *self._connections, return_exceptions=True)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        away_since_s: float | None = None
        idle_since_s: float | None = None
        while True:
            if self._attending:
                away_since_s = idle_since_s = None
            elif await self._engines_exist():
                idle_since_s = None
                away_since_s = loop.time() if away_since_s is None else away_since_s
                if loop.time() - away_since_s >= self._away_s():
                    await self._stop_left_alone()
                    away_since_s = None
            elif self._connections:
                idle_since_s = None
            else:
                idle_since_s = loop.time() if idle_since_s is None else idle_since_s
                if loop.time() - idle_since_s >= self._idle_s:
                    self.stop()
            await asyncio.sleep(self._tick_s)

    async def _engines_exist(self) -> bool:
        """True when that cannot be told: nothing is given up for a systemd that is slow."""
        try:
            return await self._engines.exist()
        except SbctlError as error:
            self._say(f"the engines cannot be listed: {error}")
            return True

    def _away_s(self) -> float:
        try:
            return self._site().away_s
        except InputError:
            return AWAY_S

    async def _stop_left_alone(self) -> None:
        self._say("the runtime stays away; stopping its engines")
        try:
            done = await self._engines.stop_all()
            self._say(f"stopped {done['stopped']} engines")
        except SbctlError as error:
            self._say(f"engines could not be stopped: {error}")

    # Connections

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            refusal = self._refusal(writer)
            if refusal is not None:
                writer.write(pack({"error": refusal.to_wire()}))
                await writer.drain()
                return
            await self._converse(reader, writer)
        except ConnectionError:
            pass
        except asyncio.CancelledError:
            # The launcher ends. asyncio would report a connection that ends by its cancellation as an error.
            if not self._stopping.is_set():
                raise
        finally:
            self._connections.discard(task)
            writer.close()

    def _refusal(self, writer: asyncio.StreamWriter) -> SbctlError | None:
        peer = writer.get_extra_info("socket")
        _pid, uid, _gid = _UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        if uid not in self._allowed():
            self._say(f"refused a connection of user {uid}")
            return RefusedError(
                "launcher.not_allowed",
                f"user {uid} may not start engines",
                place="engine launcher",
                next_step="engines are started by the runtime's own account; sbctl apply sets it up",
            )
        if len(self._connections) > _MAX_CONNECTIONS:
            return HostError("launcher.busy", "too many connections to the engine launcher", retryable=True)
        return None

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await _line(reader):
            try:
                request = unpack(line)
                if request == {"op": "attend"}:
                    await self._attend(reader, writer)
                    return
                answer = await self._until_left(self._perform(request), reader)
            except SbctlError as error:
                self._say(f"refused or failed: {error}")
                writer.write(pack({"error": error.to_wire()}))
            except ConnectionError:
                raise
            except OSError as error:
                failure = HostError(
                    "launcher.failed", f"the system said: {error.strerror}", place=str(error.filename or "")
                )
                self._say(str(failure))
                writer.write(pack({"error": failure.to_wire()}))
            else:
                if answer is None:
                    return
                writer.write(pack({"ok": answer}))
            await writer.drain()

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._attending += 1
        try:
            writer.write(pack({"ok": {}}))
            await writer.drain()
            await reader.read(1)
        finally:
            self._attending -= 1

    async def _until_left(self, work: Any, reader: asyncio.StreamReader) -> dict[str, Any] | None:
        """The answer; None when the asker went away meanwhile. A start or stop under way is finished all the same."""
        task: asyncio.Task[dict[str, Any]] = asyncio.ensure_future(work)
        leaving = asyncio.create_task(_left(reader))
        try:
            await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return await task if task.done() else None
        finally:
            leaving.cancel()
            task.cancel()
            await asyncio.gather(leaving, task, return_exceptions=True)

    async def _perform(self, request: dict[str, Any]) -> dict[str, Any]:
        match request:
            case {"op": "start", "spec": spec, **rest} if not rest:
                started = await _finished(self._engines.start(spec))
                self._say(f"started {started['unit']}, pid {started['pid']}")
                return started
            case {"op": "stop", "unit": str(unit), "grace_s": int() | float() as grace_s, **rest} if not rest:
                stopped = await _finished(self._engines.stop(unit, min(max(float(grace_s), 0.0), _GRACE_MAX_S)))
                self._say(f"stopped {unit}")
                return stopped
            case {"op": "stop_all", **rest} if not rest:
                return await _finished(self._engines.stop_all())
            case {"op": "list", **rest} if not rest:
                return await self._engines.listed()
            case {"op": "prove", "unit": str(unit), "port": int() | None as port, **rest} if not rest:
                return await self._engines.prove(unit, port)
            case {"op": "memory", "unit": str(unit), **rest} if not rest:
                return await self._engines.memory(unit)
            case {"op": "lines", "invocation": str(invocation), "count": int(count), **rest} if not rest:
                return await self._engines.lines(_invocation(invocation), min(max(count, 1), MAX_LINES))
            case {"op": "wait", "unit": str(unit), "invocation": str(invocation), **rest} if not rest:
                return await self._engines.wait(unit, _invocation(invocation))
        raise InputError("launcher.invalid_request", "this is no request that the engine launcher knows")


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Empty at the end. Raises InputError for a line without end."""
    try:
        return await reader.readline()
    except ValueError as error:
        # readline says so when the limit is passed; what follows cannot be told apart from it any more.
        raise ConnectionError("a request is larger than is read") from error


async def _left(reader: asyncio.StreamReader) -> None:
    """Returns when the other side has closed. What it sent early is a request still to be read, and keeps this from being seen."""
    while not reader.at_eof():  # noqa: ASYNC110 - a stream tells nobody of its end but who reads from it
        await asyncio.sleep(_LEFT_POLL_S)


async def _finished(work: Any) -> dict[str, Any]:
    """Done to its end even when the asker leaves: a unit half started belongs to nobody."""
    task: asyncio.Task[dict[str, Any]] = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()
        raise


def _invocation(text: str) -> str:
    if len(text) != 32 or not all(char in "0123456789abcdef" for char in text):
        raise InputError("launcher.invalid_request", "an invocation is 32 hexadecimal characters")
    return text
