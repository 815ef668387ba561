"""What happens during an apply, as values: one vocabulary for the live view, plain lines and JSON.

    run_started
      host_started ─► [step_started ─► (step_progress | node_progressed)* ─► step_finished]* ─► change_done | change_failed | change_skipped ─► host_finished
    heartbeat (after ten seconds without other news), rollout_paused (between batches of hosts), cancel_requested
    run_finished

Events of one host come in this order; those of different hosts interleave. `sequence` has no gaps. Events inform: nothing decides by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any, ClassVar, Final, Literal, Protocol

from sbctl.base.clock import rfc3339
from sbctl.base.errors import SbctlError
from sbctl.base.ids import Address
from sbctl.plan.model import Action

__all__ = [
    "EVENT_SCHEMA_VERSION",
    "CancelRequested",
    "ChangeDone",
    "ChangeFailed",
    "ChangeSkipped",
    "Event",
    "EventSink",
    "Heartbeat",
    "HostFinished",
    "HostStarted",
    "MultiSink",
    "NodeProgressed",
    "RolloutPaused",
    "RunFinished",
    "RunStarted",
    "RunningNow",
    "Stamped",
    "StepFinished",
    "StepProgress",
    "StepStarted",
    "event_document",
]

EVENT_SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The first event of a run."""

    type: ClassVar[str] = "run_started"
    serial: int
    mode: str
    hosts: tuple[str, ...]
    changes: int
    steps: int


@dataclass(frozen=True, slots=True)
class HostStarted:
    """Before the host is read; its changes follow. A host that the end of the run came before has no such event."""

    type: ClassVar[str] = "host_started"
    host: str
    changes: int
    steps: int


@dataclass(frozen=True, slots=True)
class StepStarted:
    """The intent is durable. `number` counts from 1 within the change."""

    type: ClassVar[str] = "step_started"
    host: str
    address: Address
    key: str
    method: str
    title: str
    number: int
    of: int


@dataclass(frozen=True, slots=True)
class StepProgress:
    """`done` and `total` in bytes, or in small units where nothing is transferred; `total` None: not known."""

    type: ClassVar[str] = "step_progress"
    host: str
    address: Address
    key: str
    done: int
    total: int | None


@dataclass(frozen=True, slots=True)
class NodeProgressed:
    """A node of the cluster got further with the bundle that the step on `host` publishes. `state`: behind, unseen, accepted, prepared,
    ready, idle (nothing is placed there), failed; `detail`: what it waits for, or why it failed."""

    type: ClassVar[str] = "node_progressed"
    host: str
    address: Address
    key: str
    node: str
    state: str
    detail: str


@dataclass(frozen=True, slots=True)
class StepFinished:
    """`not_done`: the host said no. `unknown`: even reading the host again did not tell."""

    type: ClassVar[str] = "step_finished"
    host: str
    address: Address
    key: str
    title: str
    result: Literal["done", "not_done", "unknown"]
    duration_s: float
    error: SbctlError | None = None


@dataclass(frozen=True, slots=True)
class ChangeDone:
    """Carried out, read back and recorded."""

    type: ClassVar[str] = "change_done"
    host: str
    address: Address
    action: Action
    duration_s: float


@dataclass(frozen=True, slots=True)
class ChangeFailed:
    """A change did not come to its end. `step`: the one that did not; None: none had begun."""

    type: ClassVar[str] = "change_failed"
    host: str
    address: Address
    action: Action
    status: Literal["failed", "unknown", "interrupted"]
    step: str | None
    error: SbctlError


@dataclass(frozen=True, slots=True)
class ChangeSkipped:
    """Nothing of this change was begun."""

    type: ClassVar[str] = "change_skipped"
    host: str
    address: Address
    action: Action
    status: Literal["skipped", "not_started"]
    because: str


@dataclass(frozen=True, slots=True)
class HostFinished:
    """Nothing more happens on this host in this run. `counts`: changes by their end; `degraded`: deployments that do not serve as asked."""

    type: ClassVar[str] = "host_finished"
    host: str
    status: str
    counts: Mapping[str, int]
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunningNow:
    """One host that is busy, for so many seconds."""

    host: str
    what: str
    since_s: float


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Still alive: who is busy with what, for how long."""

    type: ClassVar[str] = "heartbeat"
    running: tuple[RunningNow, ...]


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody asked the run to stop. `hard`: not even the steps under way are waited for."""

    type: ClassVar[str] = "cancel_requested"
    signal: str
    hard: bool


@dataclass(frozen=True, slots=True)
class RolloutPaused:
    """The next batch of hosts starts after `seconds`, as `fleet.update.pause_secs` asks; `waiting` hosts are not begun."""

    type: ClassVar[str] = "rollout_paused"
    seconds: float
    waiting: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The last event of a run."""

    type: ClassVar[str] = "run_finished"
    serial: int
    status: str
    exit_code: int
    counts: Mapping[str, int]
    hosts: Mapping[str, str]
    """Host → status; every host of the plan is here."""
    duration_s: float


Event = (
    RunStarted
    | HostStarted
    | StepStarted
    | StepProgress
    | NodeProgressed
    | StepFinished
    | ChangeDone
    | ChangeFailed
    | ChangeSkipped
    | HostFinished
    | Heartbeat
    | CancelRequested
    | RolloutPaused
    | RunFinished
)


@dataclass(frozen=True, slots=True)
class Stamped:
    """An event with its place in the run: `at` is wall time for the reader, `elapsed_s` monotonic since the run began."""

    event: Event
    sequence: int
    at: datetime
    elapsed_s: float


class EventSink(Protocol):
    """Where events go. Called under one lock, so never by two threads at once; an OSError mutes the sink, not the run."""

    def emit(self, stamped: Stamped) -> None: ...


class MultiSink:
    """Every event to every sink; one that fails by OSError or ValueError (a closed stream) is left out from then on."""

    def __init__(self, sinks: Iterable[EventSink]) -> None:
        self._sinks = list(sinks)

    def emit(self, stamped: Stamped) -> None:
        for sink in tuple(self._sinks):
            try:
                sink.emit(stamped)
            except (OSError, ValueError):
                self._sinks.remove(sink)


def _plain(value: Any) -> Any:
    if isinstance(value, Address):
        return str(value)
    if isinstance(value, SbctlError):
        return value.to_wire()
    if isinstance(value, float):
        return round(value, 3)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def event_document(stamped: Stamped) -> dict[str, Any]:
    """The JSON form: envelope fields first, then the event's own. Additions only within one schema_version."""
    return {
        "schema_version": EVENT_SCHEMA_VERSION,
        "type": stamped.event.type,
        "sequence": stamped.sequence,
        "at": rfc3339(stamped.at),
        "elapsed_s": round(stamped.elapsed_s, 3),
        **_plain(stamped.event),
    }
