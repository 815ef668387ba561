"""The runtime's side of the engine launcher: one connection a request, and one that is held open to be present.

A launcher that was restarted is asked again where asking twice is harmless; a start is never repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from sbctl.base.errors import EngineError, InputError, error_from_wire
from sbctl.runtime.launcher.protocol import LINE_MAX_BYTES, pack, unpack

__all__ = ["LauncherClient"]

_QUICK_S: Final = 60.0
_START_S: Final = 120.0
_AGAIN_S: Final = 0.5
_ATTEMPTS: Final = 4


class LauncherClient:
    """Asks the launcher behind one socket. Every call raises EngineError `launcher.unreachable` and what the launcher answers."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def start(self, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        """{"unit", "pid", "invocation"} of an engine whose program runs. Whether it was started is not known when no answer comes."""
        return await self._ask({"op": "start", "spec": dict(spec)}, _START_S)

    async def stop(self, unit: str, *, grace_s: float) -> None:
        """Returns when nothing of it is left; at once when nothing is there."""
        await self._ask_again({"op": "stop", "unit": unit, "grace_s": grace_s}, grace_s + _QUICK_S)

    async def listed(self) -> list[Mapping[str, Any]]:
        """Every engine unit: {"unit", "pid", "invocation", "running"}."""
        answer = await self._ask_again({"op": "list"}, _QUICK_S)
        return list(answer["engines"])

    async def prove(self, unit: str, port: int | None) -> None:
        """Raises EngineError `engine_not_ours`, `engine_exposed`, `engine_health_failed`."""
        await self._ask_again({"op": "prove", "unit": unit, "port": port}, _QUICK_S)

    async def memory(self, unit: str) -> tuple[int, int] | None:
        """What its processes hold, and the most that they had resident; None when there are none."""
        answer = await self._ask_again({"op": "memory", "unit": unit}, _QUICK_S)
        held, peak = answer.get("held_bytes"), answer.get("peak_bytes")
        return (held, peak) if isinstance(held, int) and isinstance(peak, int) else None

    async def lines(self, invocation: str, count: int) -> tuple[str, ...]:
        answer = await self._ask_again({"op": "lines", "invocation": invocation, "count": count}, _QUICK_S)
        return tuple(answer["lines"])

    async def wait(self, unit: str, invocation: str) -> Mapping[str, Any]:
        """{"returncode": number or None, "result"} once this run has ended, however long that takes and whatever becomes of the launcher."""
        while True:
            try:
                return await self._ask({"op": "wait", "unit": unit, "invocation": invocation}, None)
            except EngineError as error:
                if error.code != "launcher.unreachable":
                    raise
                await asyncio.sleep(_AGAIN_S)

    async def attend(self) -> None:
        """Be present until cancelled; a launcher that goes is called back."""
        while True:
            with contextlib.suppress(OSError, EngineError, InputError, asyncio.IncompleteReadError):
                async with self._connected() as (reader, writer):
                    writer.write(pack({"op": "attend"}))
                    await writer.drain()
                    await reader.read(LINE_MAX_BYTES)
                    # Its answer came; the next thing to come is the end.
                    await reader.read(1)
            await asyncio.sleep(_AGAIN_S)

    async def _ask_again(self, request: Mapping[str, Any], deadline_s: float) -> Mapping[str, Any]:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._ask(request, deadline_s)
            except EngineError as error:
                if error.code != "launcher.unreachable" or attempt == _ATTEMPTS:
                    raise
                await asyncio.sleep(_AGAIN_S)
        raise AssertionError("the last attempt returns or raises")

    async def _ask(self, request: Mapping[str, Any], deadline_s: float | None) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(deadline_s), self._connected() as (reader, writer):
                writer.write(pack(request))
                await writer.drain()
                line = await reader.readline()
                answer = unpack(line) if line.endswith(b"\n") else None
        except TimeoutError:
            raise self._unreachable("it gave no answer in time") from None
        except (OSError, ValueError) as error:
            raise self._unreachable(getattr(error, "strerror", None) or str(error)) from error
        if answer is None:
            raise self._unreachable("it closed the connection")
        if isinstance(answer.get("error"), dict):
            raise error_from_wire(answer["error"])
        result = answer.get("ok")
        return result if isinstance(result, dict) else {}

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_unix_connection(str(self._path), limit=LINE_MAX_BYTES)
        try:
            yield reader, writer
        finally:
            writer.close()

    def _unreachable(self, why: str) -> EngineError:
        return EngineError(
            "launcher.unreachable",
            f"the engine launcher cannot be asked: {why}",
            place=str(self._path),
            next_step="look at: systemctl status sbctl-launcher.socket sbctl-launcher.service",
            retryable=True,
        )
