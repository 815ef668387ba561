"""The result of an apply as JSON: the same content as the text, one status vocabulary with the events."""

from __future__ import annotations

from typing import Any

from sbctl.apply.outcome import CHANGE_STATUSES, ApplyResult, ChangeResult, HostResult, next_step_of
from sbctl.base.errors import ExitCode

__all__ = ["apply_body", "nothing_to_apply_body"]


def apply_body(result: ApplyResult) -> dict[str, Any]:
    """Every change of the plan in plan order, every host by name. Errors are in their wire form, without secrets."""
    return {
        "mode": result.mode,
        "serial": result.serial,
        "status": result.status,
        "exit_code": int(result.exit_code),
        "counts": dict(result.counts),
        "duration_s": round(result.duration_s, 3),
        "interrupted_by": result.signal_name,
        "state_error": None if result.journal_error is None else result.journal_error.to_wire(),
        "changes": [_change(change) for change in result.changes],
        "hosts": [_host(host, result) for host in result.hosts],
    }


def nothing_to_apply_body() -> dict[str, Any]:
    """The same fields when there was nothing to carry out, so no run and no serial."""
    return {
        "mode": "apply",
        "serial": None,
        "status": "applied",
        "exit_code": int(ExitCode.DONE),
        "counts": dict.fromkeys(CHANGE_STATUSES, 0),
        "duration_s": 0.0,
        "interrupted_by": None,
        "state_error": None,
        "changes": [],
        "hosts": [],
    }


def _change(change: ChangeResult) -> dict[str, Any]:
    return {
        "address": str(change.address),
        "host": change.host,
        "action": change.action,
        "status": change.status,
        "member_of": None if change.member_of is None else str(change.member_of),
        "step": change.step,
        "steps_done": change.steps_done,
        "steps_total": change.steps_total,
        "because": change.because,
        "error": None if change.cause is None else change.cause.to_wire(),
        "next_step": next_step_of(change),
        "duration_s": round(change.duration_s, 3),
    }


def _host(host: HostResult, result: ApplyResult) -> dict[str, Any]:
    return {
        "host": host.host,
        "status": host.status,
        "counts": dict(host.counts),
        "error": None if host.error is None else host.error.to_wire(),
        "unreachable": result.unreachable.get(host.host),
        "degraded": list(host.degraded),
    }
