"""When an engine counts as ready, and when it no longer does.

Ready: its health route answers 200, the listener is the engine's own process, it gives each slot the promised context, and (for the first
start of a generation) it produced one token. A health route alone is not trusted: engines answer it while they hang.

Alive afterwards is progress: while requests run, the engine's token counters must move; while none does, its health route must answer.
A busy engine that is slow to answer a probe is not restarted for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from sbctl.base.errors import EngineError
from sbctl.base.limits import ENGINE_PROBE_INTERVAL_S
from sbctl.engines.model import LaunchSpec
from sbctl.runtime.engine_client import EngineClient
from sbctl.runtime.engine_host import EngineExit, RunningEngine

__all__ = ["ProgressWatch", "WatchTimes", "await_ready", "exit_error"]

_TAIL_LINES: Final = 15
_COUNTERS: Final = ("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total", "llamacpp:n_decode_total")


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """Seconds. `stall_s`: how long requests may run without any progress."""

    interval_s: float = 10.0
    stall_s: float = 120.0
    idle_failures: int = 3


async def exit_error(ended: EngineExit, engine: RunningEngine, *, while_loading: bool) -> EngineError:
    """The error that says how an engine ended and what it said last."""
    lines = await engine.last_lines(_TAIL_LINES)
    last = f": {lines[-1]}" if lines else ", and it printed nothing"
    return EngineError(
        "engine_early_exit" if while_loading else "engine_exited",
        f"the engine ended {'while loading ' if while_loading else ''}with {ended}{last}",
        place=f"pid {engine.pid}",
        retryable=True,
        detail={"output": list(lines)},
    )


async def await_ready(
    engine: RunningEngine, client: EngineClient, spec: LaunchSpec, *, model: str, token: bool
) -> None:
    """Returns when the engine is ready by the rules above.

    Raises EngineError `engine_early_exit`, `engine_readiness_timeout`, `engine_not_ours`, `engine_exposed`, `engine_context_too_small`,
    `engine_health_failed`.
    """
    probing = asyncio.create_task(_become_ready(engine, client, spec, model=model, token=token))
    exiting = asyncio.create_task(engine.wait())
    try:
        done, _ = await asyncio.wait(
            {probing, exiting}, timeout=spec.ready_deadline_s, return_when=asyncio.FIRST_COMPLETED
        )
        if exiting in done:
            raise await exit_error(exiting.result(), engine, while_loading=True)
        if probing not in done:
            lines = await engine.last_lines(1)
            raise EngineError(
                "engine_readiness_timeout",
                f"the engine did not become ready in {spec.ready_deadline_s:.0f} s"
                + (f": {lines[-1]}" if lines else ""),
                retryable=True,
            )
        probing.result()
    finally:
        for task in (probing, exiting):
            task.cancel()
        await asyncio.wait({probing, exiting})


async def _become_ready(
    engine: RunningEngine, client: EngineClient, spec: LaunchSpec, *, model: str, token: bool
) -> None:
    while await client.status(spec.probe_path) != 200:  # noqa: ASYNC110 - another process has no event to wait for
        await asyncio.sleep(ENGINE_PROBE_INTERVAL_S)
    await engine.prove_listener()
    _check_context(await client.json("/props"), spec)
    if token:
        await client.produce_token(model, timeout_s=spec.ready_deadline_s)


def _check_context(props: Any, spec: LaunchSpec) -> None:
    settings = props.get("default_generation_settings") if isinstance(props, dict) else None
    observed = settings.get("n_ctx") if isinstance(settings, dict) else None
    if isinstance(observed, int) and observed < spec.context_length:
        raise EngineError(
            "engine_context_too_small",
            f"the engine gives a request {observed} tokens of context, {spec.context_length} were asked for",
            next_step="choose a smaller context or an engine build that accepts this one",
        )


class ProgressWatch:
    """Watches one ready engine. `check` is called at intervals; it says why the engine must go, or None."""

    def __init__(self, client: EngineClient, probe_path: str, times: WatchTimes) -> None:
        self._client = client
        self._probe_path = probe_path
        self._times = times
        self._last_seen: tuple[float, ...] | None = None
        self._progress_at_s = asyncio.get_running_loop().time()
        self._idle_failures = 0

    def progressed(self) -> None:
        """Bytes of an answer arrived."""
        self._progress_at_s = asyncio.get_running_loop().time()

    async def check(self, *, active: int) -> EngineError | None:
        now_s = asyncio.get_running_loop().time()
        if not active:
            self._progress_at_s = now_s
            healthy = await self._client.status(self._probe_path) == 200
            self._idle_failures = 0 if healthy else self._idle_failures + 1
            if self._idle_failures >= self._times.idle_failures:
                return _unhealthy(f"its health route failed {self._idle_failures} times while idle")
            return None
        seen = _counters(await self._client.text("/metrics"))
        if seen is not None and seen != self._last_seen:
            self._last_seen = seen
            self._progress_at_s = asyncio.get_running_loop().time()
        stalled_s = now_s - self._progress_at_s
        if stalled_s > self._times.stall_s:
            return _unhealthy(f"{active} requests ran for {stalled_s:.0f} s without a new token")
        return None


def _unhealthy(why: str) -> EngineError:
    return EngineError("engine_unhealthy", f"the engine was restarted: {why}", retryable=True)


def _counters(metrics: str | None) -> tuple[float, ...] | None:
    """The token counters of llama.cpp's metrics; None when the engine gave none."""
    if metrics is None:
        return None
    found = []
    for line in metrics.splitlines():
        name, _, value = line.partition(" ")
        if name in _COUNTERS:
            try:
                found.append(float(value))
            except ValueError:
                return None
    return tuple(found) or None
