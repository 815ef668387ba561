"""What an apply came to: one row for each change, one for each host, and the exit code that follows from them.

Status of a change:

    done         carried out, read back, recorded
    failed       a step did not work, or the host does not show what was applied
    unknown      a step may or may not have happened and the host could not be asked; the next plan reads it
    interrupted  begun, and stopped between two steps by a signal
    skipped      not begun, because something it stands on failed
    not_started  not begun, because its host was unreachable or had changed, or the run was stopped
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from sbctl.base.errors import (
    DegradedError,
    ExitCode,
    LockedError,
    SbctlError,
    StalePlanError,
    UnreachableError,
    worst_exit,
)
from sbctl.base.ids import Address
from sbctl.base.limits import LEAVE_DEADLINE_S, SNAPSHOT_DEADLINE_S
from sbctl.base.update_policy import UpdatePolicy
from sbctl.node.lease import LeaseClaim
from sbctl.plan.model import Action, PlanMode

__all__ = [
    "CHANGE_STATUSES",
    "ApplyOptions",
    "ApplyResult",
    "ChangeResult",
    "ChangeStatus",
    "HostResult",
    "HostStatus",
    "NodeBehind",
    "RunStatus",
    "host_status",
    "next_step_of",
    "nodes_behind",
    "status_counts",
]

ChangeStatus = Literal["done", "failed", "unknown", "interrupted", "skipped", "not_started"]
CHANGE_STATUSES: Final[tuple[ChangeStatus, ...]] = get_args(ChangeStatus)

HostStatus = Literal[
    "done", "unchanged", "partial", "failed", "stale", "leased", "unreachable", "unknown", "interrupted", "not_started"
]
RunStatus = Literal["applied", "partial", "failed", "interrupted"]

_DEFAULT_NEXT_STEP: Final[dict[str, str]] = {
    "failed": "repair the cause, then run apply again: what is done is not repeated",
    "unknown": "run plan: it reads the host before anything else",
    "interrupted": "run apply again to continue",
}


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """How to walk the plan. Durations are monotonic seconds."""

    parallelism: int = 10
    """Hosts at the same time."""
    fail_fast: bool = False
    """The first failure starts no further change on any host; running changes finish."""
    allow_unreachable: bool = False
    """Hosts that gave no answer while planning do not count in the exit code."""
    snapshot_deadline_s: float = SNAPSHOT_DEADLINE_S
    heartbeat_s: float = 10.0
    settle_delays_s: tuple[float, ...] = (0.2, 0.8, 2.0)
    """Waits before the host is read back again when it does not yet show what was applied."""
    lease: LeaseClaim | None = None
    """What every host is claimed with before its first change; None: hosts are not leased."""
    lease_wait_s: float = 0.0
    """How long another operator's lease is waited for."""
    update: UpdatePolicy | None = None
    """How the run rolls over hosts; None: all at once, as far as `parallelism` goes."""
    drain_deadline_s: float = 60.0
    """How long running requests may go on before a change that restarts something; only with `update`."""
    leave_deadline_s: float = LEAVE_DEADLINE_S
    """So long what a worker runs may take to be ready elsewhere before it is taken out of its cluster."""
    leave_anyway: bool = False
    """A worker whose replicas have no place elsewhere in time is taken out all the same."""
    hard_stop_wait_s: float = 5.0
    """After the second signal: how long running calls may take to notice that their session is closed."""


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """`cause` is the error behind everything but done and skipped; `because` one sentence for what was not begun."""

    address: Address
    action: Action
    host: str
    status: ChangeStatus
    cause: SbctlError | None = None
    because: str = ""
    step: str | None = None
    """Title of the step that did not work."""
    steps_done: int = 0
    steps_total: int = 0
    duration_s: float = 0.0
    member_of: Address | None = None
    carries_only: bool = False
    """A bundle that asked for nothing of its own."""


@dataclass(frozen=True, slots=True)
class HostResult:
    """`degraded`: one sentence for each replica that the host's runtime reports as failed after a change of ours."""

    host: str
    status: HostStatus
    counts: Mapping[str, int]
    error: SbctlError | None = None
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The whole run. `changes` has every actionable row of the plan in plan order, `hosts` every host of the plan by name."""

    serial: int
    mode: PlanMode
    status: RunStatus
    changes: tuple[ChangeResult, ...]
    hosts: tuple[HostResult, ...]
    duration_s: float
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Hosts that gave no answer while planning, with one sentence each."""
    allow_unreachable: bool = False
    signal_name: str | None = None
    """Set when a signal kept something from being done."""
    interrupt_code: ExitCode = ExitCode.DONE
    journal_error: SbctlError | None = None
    """The state could not be written: nothing was started after that."""

    @property
    def counts(self) -> dict[str, int]:
        """Every status, also those with none; counted as the plan counts (`Plan.counted`)."""
        return status_counts(self.changes)

    @property
    def degraded(self) -> Mapping[str, tuple[str, ...]]:
        return {host.host: host.degraded for host in self.hosts if host.degraded}

    @property
    def exit_code(self) -> ExitCode:
        """By the one precedence of `base.errors`: what was interrupted, failed, is unreachable or degraded."""
        return worst_exit(self._exit_codes())

    def _exit_codes(self) -> Iterable[ExitCode]:
        yield self.interrupt_code
        if self.journal_error is not None:
            yield self.journal_error.exit_code
        for change in self.changes:
            if change.cause is not None:
                yield change.cause.exit_code
            elif change.status in ("failed", "unknown"):
                yield ExitCode.FAILED
        for host in self.hosts:
            if host.error is not None:
                yield host.error.exit_code
        if self.degraded:
            yield DegradedError.exit_code
        if self.unreachable and not self.allow_unreachable:
            yield UnreachableError.exit_code


def status_counts(changes: Iterable[ChangeResult]) -> dict[str, int]:
    """By status; a bundle that was sent only for its members is not counted beside them."""
    rows = tuple(changes)
    carrying = {row.member_of for row in rows}
    found = Counter(row.status for row in rows if not (row.carries_only and row.address in carrying))
    return {status: found[status] for status in CHANGE_STATUSES}


def next_step_of(change: ChangeResult) -> str | None:
    """What the reader should do about a change that is not done; None when its cause is another row of the summary."""
    if change.status in {"done", "skipped"}:
        return None
    if change.cause is not None and change.cause.next_step:
        return change.cause.next_step
    return _DEFAULT_NEXT_STEP.get(change.status)


@dataclass(frozen=True, slots=True)
class NodeBehind:
    """A node of a cluster that was not ready with the bundle in time."""

    node: str
    state: str
    detail: str
    next_step: str


def nodes_behind(error: SbctlError) -> tuple[NodeBehind, ...]:
    """Whom `cluster.not_ready` names; nobody for any other error."""
    told = error.detail.get("behind") if error.code == "cluster.not_ready" else None
    if not isinstance(told, Mapping):
        return ()
    return tuple(
        NodeBehind(str(node), str(one.get("state", "")), str(one.get("detail", "")), str(one.get("next_step", "")))
        for node, one in sorted(told.items())
        if isinstance(one, Mapping)
    )


def host_status(changes: Iterable[ChangeResult], error: SbctlError | None) -> HostStatus:
    """The worst that can be said of one host, from its rows and from what kept it from being started."""
    if isinstance(error, StalePlanError):
        return "stale"
    if isinstance(error, LockedError) and error.code == "host.leased":
        return "leased"
    if isinstance(error, UnreachableError):
        return "unreachable"
    statuses = {change.status for change in changes}
    for status in ("unknown", "failed", "interrupted"):
        if status in statuses:
            return status
    if error is not None:
        return "failed"
    if statuses & {"skipped", "not_started"}:
        return "partial" if "done" in statuses else "not_started"
    return "done" if statuses else "unchanged"
