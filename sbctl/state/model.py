"""The nouns of the recorded truth.

A *lineage* is one fleet's state for its whole life (a UUID), a *serial* one run that changed it: `apply`, `destroy`, `state rm`, …
A *run* is open from `begin_run` to `finish`; a run whose process died is closed by the next one. A *snapshot* is what was recorded when
a run ended, with the desired state it had been asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from sbctl.base.ids import Address
from sbctl.base.truths import Desired, Recorded

__all__ = [
    "JournalEntry",
    "LockInfo",
    "OpenIntent",
    "PlannedChange",
    "PlannedStep",
    "RunInfo",
    "RunStatus",
    "RunSummary",
    "StateSnapshot",
    "StateView",
    "StepResult",
    "Tombstone",
]

StepResult = Literal["done", "not_done", "unknown"]
"""`unknown`: only the host can tell; the next plan reads it there."""

RunStatus = Literal["running", "applied", "partial", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class LockInfo:
    """Who holds the state. It informs the one who waits; the kernel's lock decides."""

    who: str
    """`user@host`"""
    pid: int
    command: str
    since: datetime


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Who started a run and from where. `command` is the command's name, never its arguments."""

    command: str
    operator: str
    commit: str = ""
    ci_url: str = ""
    tool_version: str = ""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line of history. `finished_at` is None while the run is open; for a dead run it is its last sign of life.

    `counts` has `done`, `not_done`, `unknown` (steps), `recorded` and `forgotten` (resources).
    """

    serial: int
    info: RunInfo
    status: RunStatus
    started_at: datetime
    finished_at: datetime | None = None
    resources: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenIntent:
    """A step that was begun and has no outcome: what it did, only its host can tell."""

    step_key: str
    address: Address
    action: str
    host: str
    method: str
    title: str
    serial: int
    at: datetime


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One durable fact in the order in which it became one. `event`: intent, outcome, record, forget, revision, trust, close."""

    sequence: int
    serial: int
    event: str
    at: datetime
    subject: str
    """A step key, an address, a scope, or a signer set's epoch."""
    detail: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """One host that was given up as lost."""

    host: str
    lineage: str
    serial: int
    """The run that gave it up."""
    at: datetime
    why: str = ""
    machine_id: str = ""
    """Of the machine as it was seen last; empty when nobody remembers."""
    address: str = ""
    """How it was reached."""
    resources: tuple[str, ...] = ()
    """What was recorded on it, and may still be there."""
    certificate: Mapping[str, Any] = field(default_factory=dict)
    """The record of its identity in the cluster; empty when it had none."""
    readmitted: bool = False
    """It may come back: what still runs there is installed anew."""


@dataclass(frozen=True, slots=True)
class StateView:
    """The recorded truth at one moment, verified."""

    lineage: str
    serial: int
    fleet_name: str
    resources: Mapping[Address, Recorded]
    signers: Mapping[str, str]
    key_epoch: int
    fingerprint_key: bytes = field(repr=False)
    """Keys the fingerprints of secrets in this lineage; 32 bytes, never printed or exported."""
    revisions: Mapping[str, int] = field(default_factory=dict)
    """Scope → the highest bundle revision ever allocated for it."""
    open_intents: tuple[OpenIntent, ...] = ()
    last_run: RunSummary | None = None
    tombstones: Mapping[str, Tombstone] = field(default_factory=dict)
    """Hosts that were given up as lost, by name."""


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """What one run left behind. `digest` is SHA-256 over all of it, verified when it was read."""

    lineage: str
    serial: int
    run: RunSummary
    resources: Mapping[Address, Recorded]
    desired: tuple[Desired, ...]
    signers: Mapping[str, str]
    key_epoch: int
    digest: str


class PlannedStep(Protocol):
    """What the journal keeps of a step; `sbctl.plan.model.Step` is one."""

    @property
    def key(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def title(self) -> str: ...


class PlannedChange(Protocol):
    """What the journal keeps of a change; `sbctl.plan.model.Change` is one."""

    @property
    def address(self) -> Address: ...
    @property
    def action(self) -> str: ...
    @property
    def host(self) -> str: ...
