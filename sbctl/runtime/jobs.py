"""Operations that somebody asked for: durable before they begin, found by their id afterwards, also after a restart, and followed as they go.
Those that free memory or disk begin also where the disk takes no write; they are written as soon as it does.

States (SBproxy, "Jobs"): queued ► downloading ► verifying ► ready, a removal queued ► deleting ► deleted; or failed from each of them.
Progress only grows, and a total stays.
What is told while a job runs is kept in memory, 64 steps a job, so that a reader that lost its connection goes on where it was.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from sbctl.base.clock import Clock
from sbctl.base.display import display_safe
from sbctl.base.errors import SbctlError
from sbctl.base.secret import redact
from sbctl.runtime.job_rows import ENDED, JobRow
from sbctl.runtime.log import get_log
from sbctl.runtime.provision import Progress
from sbctl.runtime.store import RuntimeStore

__all__ = ["Job", "Jobs", "Step", "job_document", "new_ulid"]

_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ERROR_MAX_CHARS: Final = 512
_NOTE_MAX_CHARS: Final = 256
_STEPS_KEPT: Final = 64
_FOLLOWED_MAX: Final = 512
_ORDER: Final = {"queued": 0, "downloading": 1, "verifying": 2, "deleting": 3}
_REMOVAL: Final = "delete"
_SETTLE_S: Final = 10.0
_FREEING: Final = frozenset({"stop", "drain", "evict", _REMOVAL})
"""What gives memory or disk back is not held up by a disk without room: such a job begins without being durable."""


def new_ulid(unix_ms: int) -> str:
    """26 characters that sort by time: 48 bits of milliseconds, 80 random ones."""
    value = (unix_ms << 80) | secrets.randbits(80)
    return "".join(_CROCKFORD[(value >> shift) & 31] for shift in range(125, -1, -5))


@dataclass(frozen=True, slots=True)
class Job:
    """`done` ends when the operation did, with what it gave; it raises what the operation raised. `is_durable`: a restart does not forget it."""

    id: str
    done: asyncio.Task[Any]
    is_durable: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One moment of a job, numbered from 1."""

    number: int
    row: JobRow


class _Live:
    """A job of this process."""

    def __init__(self, row: JobRow) -> None:
        self.row = row
        self.steps: deque[Step] = deque(maxlen=_STEPS_KEPT)
        self._number = 0
        self._changed = asyncio.Event()
        self.tell(row)

    def tell(self, row: JobRow) -> None:
        self.row = row
        self._number += 1
        self.steps.append(Step(self._number, row))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def behind(self, number: int) -> list[Step]:
        """Steps after `number`, as soon as there is one."""
        while self._number <= number:
            await self._changed.wait()
        return [step for step in self.steps if step.number > number]


class Jobs:
    """One a daemon. Runs operations beside their callers."""

    def __init__(self, store: RuntimeStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._running: set[asyncio.Task[Any]] = set()
        self._live: OrderedDict[str, _Live] = OrderedDict()
        self._newest: dict[str, str] = {}
        self._log = get_log("jobs")

    async def rows(self) -> list[JobRow]:
        """Newest first."""
        stored = await asyncio.to_thread(self._store.jobs)
        return [self._live[row.id].row if row.id in self._live else row for row in stored]

    async def row(self, asked: str) -> JobRow | None:
        live = self._live.get(asked)
        return live.row if live is not None else await asyncio.to_thread(self._store.job, asked)

    def newest(self, deployment: str) -> str | None:
        """The id of the last job of this process for a deployment."""
        return self._newest.get(deployment)

    async def begin(
        self,
        kind: str,
        deployment: str | None,
        work: Callable[[Progress], Awaitable[Any]],
        *,
        subject: str | None = None,
    ) -> Job:
        """Durable, with its audit entry, when this returns. `subject` stands for the deployment where the work is about something else.

        Raises SbctlError `store_failed`: nothing began. What frees memory or disk begins all the same, and is not durable then.
        """
        beginning = asyncio.create_task(self._begin(kind, deployment, work, subject or deployment or ""))
        self._running.add(beginning)
        beginning.add_done_callback(self._running.discard)
        # Whoever asked may leave while the row is written: what is written begins.
        return await asyncio.shield(beginning)

    async def _begin(
        self, kind: str, deployment: str | None, work: Callable[[Progress], Awaitable[Any]], subject: str
    ) -> Job:
        now_ms = self._now_ms()
        row = JobRow(new_ulid(now_ms), kind, subject, "queued", now_ms, now_ms)
        is_durable = await asyncio.to_thread(self._store.put_job, row, may_owe=kind in _FREEING)
        live = self._live[row.id] = _Live(row)
        if deployment is not None:
            self._newest[deployment] = row.id
        self._forget_old()
        task = asyncio.create_task(self._run(live, work))
        self._running.add(task)
        task.add_done_callback(self._ended)
        return Job(row.id, task, is_durable)

    async def follow(self, asked: str, *, after: int = 0) -> AsyncIterator[Step]:
        """Steps behind `after` as they come, to the last one. A job that is not followed any more has one: its end."""
        live = self._live.get(asked)
        if live is None:
            row = await asyncio.to_thread(self._store.job, asked)
            if row is not None:
                yield Step(after + 1, row)
            return
        while True:
            for step in await live.behind(after):
                after = step.number
                yield step
                if step.row.state in ENDED:
                    return

    async def settle(self) -> None:
        """Write what is owed as soon as the disk takes it. Runs until cancelled."""
        while True:
            await asyncio.sleep(_SETTLE_S)
            await asyncio.to_thread(self._store.settle)

    async def _run(self, live: _Live, work: Callable[[Progress], Awaitable[Any]]) -> Any:
        removes = live.row.kind == _REMOVAL
        if removes:
            live.tell(replace(live.row, state="deleting", updated_at_ms=self._now_ms()))
        try:
            result = await work(lambda done, total, note: self._progress(live, done, total, note))
        except BaseException as error:
            text = _sentence(error) if isinstance(error, SbctlError) else "the runtime is stopping"
            if not isinstance(error, (SbctlError, asyncio.CancelledError)):
                text = f"the runtime failed unexpectedly: {type(error).__name__}"
            await self._end(live, "failed", display_safe(redact(text), max_chars=_ERROR_MAX_CHARS))
            raise
        await self._end(live, "deleted" if removes else "ready", None)
        return result

    def _progress(self, live: _Live, done: int, total: int | None, note: str) -> None:
        before = live.row
        if before.state in ENDED:
            return
        stage = "verifying" if note.startswith("verif") else "downloading" if total else before.state
        state = max(before.state, stage, key=_ORDER.__getitem__)
        fixed = before.total_bytes if before.total_bytes is not None else total
        row = replace(
            before,
            state=state,
            completed_bytes=max(before.completed_bytes, min(done, fixed) if fixed is not None else done),
            total_bytes=fixed,
            current_file=display_safe(note, max_chars=_NOTE_MAX_CHARS) if note else before.current_file,
        )
        if row != before:
            live.tell(replace(row, updated_at_ms=self._now_ms()))

    async def _end(self, live: _Live, state: str, error: str | None) -> None:
        row = replace(live.row, state=state, error=error, updated_at_ms=self._now_ms())
        try:
            await asyncio.to_thread(self._store.put_job, row, may_owe=True)
        finally:
            live.tell(row)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.warning("a job failed", error=str(task.exception()))

    def _forget_old(self) -> None:
        for name in list(self._live):
            if len(self._live) <= _FOLLOWED_MAX:
                return
            if self._live[name].row.state in ENDED:
                del self._live[name]

    def _now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)


def _sentence(error: SbctlError) -> str:
    """What went wrong, and what helps."""
    return f"{error.code}: {error.message}" + (f"; {error.next_step}" if error.next_step else "")


def job_document(row: JobRow) -> dict[str, Any]:
    """As the API shows it (SBproxy, "Wire shapes")."""
    return {
        "id": row.id,
        "kind": row.kind,
        "subject": row.subject,
        "state": row.state,
        "progress": {
            "completed_bytes": row.completed_bytes,
            "total_bytes": row.total_bytes,
            "current_file": row.current_file,
        },
        "created_at_ms": row.created_at_ms,
        "updated_at_ms": row.updated_at_ms,
        "terminal_at_ms": row.updated_at_ms if row.state in ENDED else None,
        "error": row.error,
    }
