"""What a replica's owner is told, and what it needs of the world."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sbctl.base.errors import EngineError, SbctlError
from sbctl.base.limits import CRASH_LOOP_ATTEMPTS
from sbctl.runtime.event_log import NO_EVENTS, EventSink
from sbctl.runtime.launch import Launched, LaunchPorts
from sbctl.runtime.provision import Progress
from sbctl.runtime.replica_states import ReplicaPhase
from sbctl.runtime.residency import Residency

__all__ = [
    "Evicted",
    "Load",
    "LoadedBy",
    "Message",
    "ReplicaPorts",
    "Report",
    "Reset",
    "Stop",
    "StoppedBy",
    "as_engine_error",
    "for_a_reset",
    "refused",
    "settle",
    "why_stopped",
]

LoadedBy = Literal["request", "operator", "reconcile"]
StoppedBy = Literal["operator", "idle"]
Evicted = Literal["lru", "keep_alive", "manual"]
"""Why an idle engine was unloaded: another needed its room, nobody used it, an operator said so."""


@dataclass(frozen=True, slots=True)
class ReplicaPorts:
    """`launched` is told of every launch: engine, model, outcome `ready` or `failed`, seconds; `evicted` of every engine that was unloaded.
    `chance` gives 0..1. `events` remembers what happens. `device_numbers`: what this host calls its devices, by their ids."""

    launch: LaunchPorts
    residency: Residency = field(default_factory=Residency)
    chance: Callable[[], float] = random.random
    launched: Callable[[str, str, Literal["ready", "failed"], float], None] = lambda _engine, _model, _outcome, _s: None
    evicted: Callable[[Evicted], None] = lambda _reason: None
    events: EventSink = NO_EVENTS
    device_numbers: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Load:
    """Start, or join the start under way."""

    waiter: asyncio.Future[None]
    by: LoadedBy
    progress: Progress


@dataclass(slots=True)
class Stop:
    """`by` None: retired or cleared. `last`: nothing is answered afterwards. `leave`: a ready engine is let go of, not ended.
    `why`: what the event says."""

    waiter: asyncio.Future[None]
    by: StoppedBy | None
    drain_s: float
    only_if_idle: Evicted | None = None
    """It is unloaded for this reason, unless it has requests."""
    why: str = ""
    last: bool = False
    leave: bool = False


@dataclass(slots=True)
class Reset:
    """Forget failures."""

    waiter: asyncio.Future[None]


@dataclass(slots=True)
class Report:
    """From work that belongs to launch number `launch`: exactly one of the fields is set."""

    launch: int
    entered: ReplicaPhase | None = None
    finished: asyncio.Task[Launched] | None = None
    broken: SbctlError | None = None
    retry_due: bool = False


Message = Load | Stop | Reset | Report


def why_stopped(ask: Stop) -> str:
    """For the event of its end."""
    if ask.leave:
        return "left running for the next runtime"
    return ask.why or {"operator": "by an operator", "idle": "it was idle", None: "it is not wanted any more"}[ask.by]


def refused(code: str, message: str) -> EngineError:
    """What a caller hears who cannot be served now."""
    return EngineError(code, message, retryable=code != "crash_loop")


def for_a_reset(stopped_by: StoppedBy | None, *, crash_looping: bool) -> EngineError | None:
    """What a request hears that may not start a replica: somebody else has to."""
    if stopped_by == "operator":
        return refused("stopped", "an operator stopped this model")
    if crash_looping:
        text = f"the engine failed {CRASH_LOOP_ATTEMPTS} times in a row and is not restarted until a reset"
        return refused("crash_loop", text)
    return None


def as_engine_error(error: BaseException) -> SbctlError:
    """An error of ours as it is, any other by its kind."""
    if isinstance(error, SbctlError):
        return error
    return EngineError(
        "engine_internal",
        f"the launch failed unexpectedly: {type(error).__name__}: {error}",
        next_step="this is a defect: report it with what sbctl logs has",
    )


def settle(waiter: asyncio.Future[None], error: SbctlError | None = None) -> None:
    """Answer a waiter, unless it was or left."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
