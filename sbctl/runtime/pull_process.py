"""Weights fetched by a process beside the daemon (`pull_program`), so that no download delays an answer."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from sbctl.artifacts.egress import Egress
from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.errors import HostError, error_from_wire
from sbctl.base.limits import MIB
from sbctl.runtime.pull_program import PullOrder

__all__ = ["Fetched", "PullProcess", "Puller"]

_LINE_MAX_BYTES: Final = 8 * MIB
_END_S: Final = 10.0
"""For its journal, once it was asked to end."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came over the network, and damaged blobs that were replaced."""

    downloaded_bytes: int = 0
    quarantined: tuple[Path, ...] = ()


class Puller(Protocol):
    """Brings an artifact into the cache. `progress` and `note` as `artifacts.pull.pull` has them; raises what that raises."""

    async def __call__(
        self, facts: ArtifactFacts, *, progress: Callable[[int, int | None], None], note: Callable[[str], None]
    ) -> Fetched: ...


class PullProcess:
    """One process a pull. `egress` is read anew for each."""

    def __init__(
        self, cache: Path, egress: Callable[[], Egress], secrets: Path, environ: Mapping[str, str], *, offline: bool
    ) -> None:
        self._cache = cache
        self._egress = egress
        self._secrets = secrets
        self._environ = environ
        self._offline = offline

    async def __call__(
        self, facts: ArtifactFacts, *, progress: Callable[[int, int | None], None], note: Callable[[str], None]
    ) -> Fetched:
        order = PullOrder(
            facts=facts,
            cache=str(self._cache),
            egress=self._egress(),
            secrets=str(self._secrets),
            offline=self._offline,
        )
        process = await self._begin()
        told = False
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(order.model_dump_json().encode())
            process.stdin.close()
            async for line in process.stdout:
                said: dict[str, Any] = json.loads(line)
                match said:
                    case {"progress": {"done": int(done), "total": total}}:
                        progress(done, total)
                    case {"note": str(sentence)}:
                        note(sentence)
                    case {"error": dict(wire)}:
                        told = True
                        raise error_from_wire(wire)
                    case {"result": dict(result)}:
                        told = True
                        return Fetched(result["downloaded_bytes"], tuple(map(Path, result["quarantined"])))
            status = await process.wait()
            raise HostError(
                "runtime.pull_failed",
                f"the process that fetches weights ended without a word (status {status})",
                place=facts.artifact,
                next_step="try again: what was fetched is kept; the runtime's log has what it printed",
                retryable=True,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise HostError(
                "runtime.pull_failed",
                f"the process that fetches weights said what makes no sense: {type(error).__name__}",
                place=facts.artifact,
                next_step="try again: what was fetched is kept; the runtime's log has what it printed",
                retryable=True,
            ) from error
        finally:
            await _end(process, told=told)

    async def _begin(self) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-m",
                "sbctl.runtime.pull_program",
                str(os.getpid()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=dict(self._environ),
                limit=_LINE_MAX_BYTES,
            )
        except OSError as error:
            raise HostError(
                "runtime.pull_failed",
                f"the process that fetches weights cannot be started: {error.strerror}",
                place=sys.executable,
                retryable=True,
                next_step="look at memory and processes of the host; the fetch is tried again by itself",
            ) from error


async def _end(process: asyncio.subprocess.Process, *, told: bool) -> None:
    """By itself once it told its end; else, as when the pull was cancelled, it is asked to, and then made to."""
    if process.returncode is None and not told:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _END_S)
    except TimeoutError:
        process.kill()
        await process.wait()
