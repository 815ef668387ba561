"""Operations asked for through the admin API: answered at once with an id, found by it afterwards, also after a restart."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final

from sbctl.base.clock import Clock
from sbctl.base.errors import SbctlError
from sbctl.runtime.store import JobRow, RuntimeStore

__all__ = ["Job", "Jobs", "new_ulid"]

_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ERROR_MAX_CHARS: Final = 512


def new_ulid(unix_ms: int) -> str:
    """26 characters that sort by time: 48 bits of milliseconds, 80 random ones."""
    value = (unix_ms << 80) | secrets.randbits(80)
    return "".join(_CROCKFORD[(value >> shift) & 31] for shift in range(125, -1, -5))


@dataclass(frozen=True, slots=True)
class Job:
    """`done` ends when the operation did, well or not; it never raises."""

    id: str
    done: asyncio.Task[None]


class Jobs:
    """Runs operations beside their callers."""

    def __init__(self, store: RuntimeStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._running: set[asyncio.Task[None]] = set()

    def rows(self) -> tuple[JobRow, ...]:
        return self._store.jobs()

    def begin(self, kind: str, deployment: str, work: Coroutine[Any, Any, object]) -> Job:
        now_ms = self._now_ms()
        row = JobRow(new_ulid(now_ms), kind, f"deployment:{deployment}", "running", now_ms, now_ms)
        task = asyncio.create_task(self._run(row, work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return Job(row.id, task)

    async def _run(self, row: JobRow, work: Coroutine[Any, Any, object]) -> None:
        await asyncio.to_thread(self._store.put_job, row)
        try:
            await work
            ended = replace(row, state="succeeded", updated_at_ms=self._now_ms())
        except SbctlError as error:
            text = f"{error.code}: {error.message}"[:_ERROR_MAX_CHARS]
            ended = replace(row, state="failed", updated_at_ms=self._now_ms(), error=text)
        await asyncio.to_thread(self._store.put_job, ended)

    def _now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)
