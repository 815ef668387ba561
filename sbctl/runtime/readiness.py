"""When an engine counts as ready, and when it no longer does.

Ready: its health route answers 200, the listener is the engine's own process, it made of its flags what they say (slots, context, model),
and (for the first start of a generation) it answered one small request. A health route alone is not trusted: engines answer it while they
hang. A start is given up when the engine stops computing and reading, not when it is slow.

Alive afterwards is progress: while requests run, the engine's token counters must move; while none does, its health route must answer, no
slot may go on working for nobody, and a small request must be answered now and then. What an engine prints when it is lost for good ends it
at once. A busy engine that is slow to answer a probe is not restarted for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from sbctl.base.errors import EngineError
from sbctl.base.limits import ENGINE_PROBE_INTERVAL_S
from sbctl.engines.driver import EngineDriver
from sbctl.engines.model import LaunchSpec, ProbePlan
from sbctl.runtime.engine_client import EngineClient
from sbctl.runtime.engine_exit import EngineExit
from sbctl.runtime.engine_host import RunningEngine

__all__ = ["ProgressWatch", "WatchTimes", "await_ready", "exit_error"]

_TAIL_LINES: Final = 15
_EFFORT_EVERY_S: Final = 5.0
_LONGEST_START_S: Final = 3600.0
_CANARY_TIMEOUT_S: Final = 60.0
_END_SHOWS_S: Final = 0.5
_LOOK: Final = "sbctl logs has what it printed"
_DID_NOT_LOAD: Final = (
    f"{_LOOK}; correct the deployment, or choose another variant or build (engines.llama_cpp.version)"
)


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """Seconds. `stall_s`: how long requests may run without any progress. `canary_s`: how often an idle engine is asked for something."""

    interval_s: float = 10.0
    stall_s: float = 120.0
    idle_failures: int = 3
    canary_s: float = 300.0


async def exit_error(ended: EngineExit, engine: RunningEngine, *, while_loading: bool) -> EngineError:
    """The error that says how an engine ended and what it said last: `engine_oom_killed`, `engine_early_exit` or `engine_exited`."""
    lines = await engine.last_lines(_TAIL_LINES)
    last = f": {lines[-1]}" if lines else ", and it printed nothing"
    killed = ended.cause in ("oom", "oom_likely")
    return EngineError(
        "engine_oom_killed" if killed else "engine_early_exit" if while_loading else "engine_exited",
        f"the engine ended {'while loading ' if while_loading else ''}with {ended}{last}",
        place=f"pid {engine.pid}",
        next_step=_killed_next_step(ended) if killed else _DID_NOT_LOAD if while_loading else _LOOK,
        retryable=True,
        detail={"output": list(lines), "cause": ended.cause},
    )


def _killed_next_step(ended: EngineExit) -> str:
    less = "choose a smaller context, fewer slots or a smaller variant"
    if ended.ceiling_bytes is None:
        return f"{less}, or give the host more memory"
    return f"if it grew with its requests, it leaks: take another build; if it needs more than was planned, say memory: in its deployment, or {less}"


async def await_ready(
    engine: RunningEngine, client: EngineClient, spec: LaunchSpec, driver: EngineDriver, *, token: bool
) -> None:
    """Returns when the engine is ready by the rules above.

    Raises EngineError `engine_early_exit`, `engine_oom_killed`, `engine_readiness_timeout`, `engine_not_ours`, `engine_exposed`,
    `engine_mismatch`, `engine_health_failed`.
    """
    probing = asyncio.create_task(_become_ready(engine, client, spec, driver, token=token))
    exiting = asyncio.create_task(engine.wait())
    stalling = asyncio.create_task(_stall(engine, spec.ready_deadline_s))
    tasks = {probing, exiting, stalling}
    try:
        done, _ = await asyncio.wait(tasks, timeout=_LONGEST_START_S, return_when=asyncio.FIRST_COMPLETED)
        if probing in done and probing.exception() is not None:
            # What was asked may have failed since the engine was ending: its end explains more.
            done |= (await asyncio.wait({exiting}, timeout=_END_SHOWS_S))[0]
        if exiting in done:
            raise await exit_error(exiting.result(), engine, while_loading=True)
        if probing not in done:
            lines = await engine.last_lines(1)
            idle = f" and did nothing for {spec.ready_deadline_s:.0f} s" if stalling in done else " within an hour"
            raise EngineError(
                "engine_readiness_timeout",
                f"the engine did not become ready{idle}" + (f": {lines[-1]}" if lines else ""),
                next_step="look at what it printed (sbctl logs); slow disks show as reading, this one did not",
                retryable=True,
            )
        probing.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _stall(engine: RunningEngine, after_s: float) -> None:
    """Returns once the engine neither computed nor read for so long. What cannot be looked at counts as idle."""
    loop = asyncio.get_running_loop()
    seen, moved_at_s = await asyncio.to_thread(engine.effort), loop.time()
    while loop.time() - moved_at_s < after_s:
        await asyncio.sleep(min(_EFFORT_EVERY_S, after_s))
        now = await asyncio.to_thread(engine.effort)
        if now is not None and now != seen:
            seen, moved_at_s = now, loop.time()


async def _become_ready(
    engine: RunningEngine, client: EngineClient, spec: LaunchSpec, driver: EngineDriver, *, token: bool
) -> None:
    probe = spec.probe
    while await client.status(probe.path, timeout_s=probe.timeout_s) != 200:  # noqa: ASYNC110 - another process has no event to wait for
        await asyncio.sleep(ENGINE_PROBE_INTERVAL_S)
    await engine.prove_listener()
    facts = await client.json(probe.facts_path) if probe.facts_path is not None else None
    slots = await client.json(probe.slots_path) if probe.slots_path is not None else None
    problem = driver.mismatch(spec, facts if isinstance(facts, dict) else {}, slots)
    if problem is not None:
        raise EngineError(
            "engine_mismatch",
            f"the engine is not what was started: {problem}",
            place=f"pid {engine.pid}",
            next_step="choose what this build can do (context, max_concurrency), or another build (engines.llama_cpp.version)",
        )
    if token:
        await client.produce(probe.canary, timeout_s=spec.ready_deadline_s)


class ProgressWatch:
    """Watches one ready engine. `check` is called at intervals; it says why the engine must go, or None."""

    def __init__(self, engine: RunningEngine, client: EngineClient, probe: ProbePlan, times: WatchTimes) -> None:
        self._engine = engine
        self._client = client
        self._probe = probe
        self._times = times
        self._last_seen: tuple[float, ...] | None = None
        self._loop = asyncio.get_running_loop()
        now_s = self._loop.time()
        self._progress_at_s = now_s
        self._answered_at_s = now_s
        self._free_at_s = now_s
        self._idle_failures = 0

    def progressed(self) -> None:
        """Bytes of an answer arrived."""
        self._progress_at_s = self._answered_at_s = self._loop.time()

    async def check(self, *, active: int) -> EngineError | None:
        return await self._while_busy(active) if active else await self._while_idle()

    async def _last_words(self) -> str | None:
        """Looked for only when nothing moves: reading what an engine printed may cost more than asking it."""
        lines = await self._engine.last_lines(_TAIL_LINES) if self._probe.fatal_output else ()
        return next((line for line in lines if any(mark in line for mark in self._probe.fatal_output)), None)

    async def _while_busy(self, active: int) -> EngineError | None:
        now_s = self._free_at_s = asyncio.get_running_loop().time()
        text = None if self._probe.metrics_path is None else await self._client.text(self._probe.metrics_path)
        seen = _counters(text, self._probe.counters)
        if seen is not None and seen != self._last_seen:
            self._last_seen = seen
            self._progress_at_s = asyncio.get_running_loop().time()
        stalled_s = now_s - self._progress_at_s
        if stalled_s > 0 and (lost := await self._last_words()) is not None:
            return _unhealthy(f"it printed {lost[:200]!r} and produced nothing afterwards")
        if stalled_s > self._times.stall_s:
            return _unhealthy(f"{active} requests ran for {stalled_s:.0f} s without a new token")
        return None

    async def _while_idle(self) -> EngineError | None:
        now_s = self._progress_at_s = asyncio.get_running_loop().time()
        status = await self._client.status(self._probe.path, timeout_s=self._probe.timeout_s)
        self._idle_failures = 0 if status == 200 else self._idle_failures + 1
        if self._idle_failures >= self._times.idle_failures:
            return _unhealthy(f"its health route failed {self._idle_failures} times while idle")
        if self._idle_failures:
            return None
        slots = None if self._probe.slots_path is None else await self._client.json(self._probe.slots_path)
        if not _is_working(slots):
            self._free_at_s = now_s
        elif now_s - self._free_at_s > self._times.stall_s:
            return _unhealthy(f"a slot worked on for {now_s - self._free_at_s:.0f} s after its caller had left")
        elif now_s - self._free_at_s > 0:
            return None
        if now_s - self._answered_at_s < self._times.canary_s:
            return None
        return await self._canary()

    async def _canary(self) -> EngineError | None:
        asked_at_s = asyncio.get_running_loop().time()
        try:
            await self._client.produce(self._probe.canary, timeout_s=min(_CANARY_TIMEOUT_S, self._times.stall_s))
        except EngineError as error:
            if self._answered_at_s > asked_at_s:
                return None  # callers came meanwhile, and got answers
            return _unhealthy(f"while idle, {error.message}")
        self._answered_at_s = asyncio.get_running_loop().time()
        return None


def _unhealthy(why: str) -> EngineError:
    return EngineError("engine_unhealthy", f"the engine was restarted: {why}", next_step=_LOOK, retryable=True)


def _is_working(slots: Any) -> bool:
    return isinstance(slots, list) and any(isinstance(slot, dict) and slot.get("is_processing") for slot in slots)


def _counters(metrics: str | None, names: tuple[str, ...]) -> tuple[float, ...] | None:
    """The engine's counters of work; None when it gave none."""
    if metrics is None:
        return None
    found = []
    for line in metrics.splitlines():
        name, _, value = line.partition(" ")
        if name in names:
            try:
                found.append(float(value))
            except ValueError:
                return None
    return tuple(found) or None
