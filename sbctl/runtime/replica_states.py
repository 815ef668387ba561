"""The states of a replica and the only ways between them.

    configured ─► assigned ─► cached ─► preparing ─► ready ─► draining ─► stopped
                     ▲           │          │          │          │           │
                     └───────────┴──────────┴── failed ◄──────────┘           │
                     ▲                            │                           │
                     └────────────────────────────┴───────────────────────────┘

configured   known, nothing was checked             ready      answers requests
assigned     weights and engine are being checked   draining   finishes what runs, takes nothing new
cached       weights are verified on this disk      stopped    by an operator, or idle for keep_alive
preparing    the engine process loads               failed     the reason says why; restarted with backoff unless it crash-loops
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from sbctl.base.errors import SbctlError
from sbctl.node.snapshot import ReplicaState
from sbctl.runtime.admission import Gate

__all__ = ["TRANSITIONS", "ReplicaPhase", "check_transition", "told_state"]

_ERROR_MAX_CHARS: Final = 512


class ReplicaPhase(StrEnum):
    """Values are what status rows and metrics say."""

    CONFIGURED = "configured"
    ASSIGNED = "assigned"
    CACHED = "cached"
    PREPARING = "preparing"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


_P = ReplicaPhase

TRANSITIONS: Final[Mapping[ReplicaPhase, frozenset[ReplicaPhase]]] = {
    _P.CONFIGURED: frozenset({_P.ASSIGNED, _P.CACHED, _P.STOPPED}),
    _P.ASSIGNED: frozenset({_P.CACHED, _P.FAILED, _P.STOPPED}),
    _P.CACHED: frozenset({_P.ASSIGNED, _P.PREPARING, _P.FAILED, _P.STOPPED}),
    _P.PREPARING: frozenset({_P.READY, _P.FAILED, _P.STOPPED}),
    _P.READY: frozenset({_P.DRAINING, _P.FAILED}),
    _P.DRAINING: frozenset({_P.STOPPED, _P.FAILED}),
    _P.STOPPED: frozenset({_P.ASSIGNED, _P.CONFIGURED}),
    _P.FAILED: frozenset({_P.ASSIGNED, _P.CONFIGURED, _P.STOPPED}),
}


def check_transition(before: ReplicaPhase, after: ReplicaPhase) -> None:
    """Raises RuntimeError for a transition that is not in the table: a bug, never a condition."""
    if after not in TRANSITIONS[before]:
        raise RuntimeError(f"a replica cannot go from {before} to {after}")


def told_state(  # noqa: PLR0917 - the fields of a row
    number: int,
    phase: ReplicaPhase,
    pid: int | None,
    restarts: int,
    gate: Gate,
    error: SbctlError | None,
    *,
    looping: bool,
) -> ReplicaState:
    """For status rows. `pid` of its engine once that is ready; `looping`: it is not tried again by itself."""
    return ReplicaState(
        replica=number,
        state=phase.value,
        pid=pid,
        restarts=restarts,
        active_requests=gate.active,
        queued_requests=gate.queued,
        last_error=None if error is None else error.message[:_ERROR_MAX_CHARS],
        next_step=None if error is None else _next_step(error, looping=looping),
        reason_code=None if error is None else "crash_loop" if looping else error.code,
    )


def _next_step(error: SbctlError, *, looping: bool) -> str | None:
    steps = (error.next_step, "once it is mended: sbctl models reset DEPLOYMENT" if looping else None)
    return "; ".join(step for step in steps if step)[:_ERROR_MAX_CHARS] or None
