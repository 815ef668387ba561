"""Replicas as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import RenderableType

from sbctl.base.display import format_bytes
from sbctl.node.snapshot import DeploymentState, ReplicaState
from sbctl.views.models_views import PlaceError, errors_body
from sbctl.views.tables import Cell, Column, render_rows

__all__ = ["MovedRow", "PsRow", "moved_body", "ps_body", "ps_text"]

_STYLES: Final = {"ready": "green", "failed": "red", "preparing": "yellow", "draining": "yellow"}


@dataclass(frozen=True, slots=True)
class PsRow:
    """One replica on one host."""

    host: str
    deployment: DeploymentState
    replica: ReplicaState


@dataclass(frozen=True, slots=True)
class MovedRow:
    """A deployment on one host, after what was asked of it."""

    host: str
    state: DeploymentState


def ps_body(rows: Sequence[PsRow], errors: Sequence[PlaceError]) -> dict[str, Any]:
    """As the admin API's status has it, with the host of each replica; `models` is the same list, as SBproxy's scripts know it."""
    told = [
        {
            "host": row.host,
            "deployment": row.deployment.deployment,
            "generation": row.deployment.generation,
            "stopped_by": row.deployment.stopped_by,
            "warm": row.deployment.warm,
            "keep_alive_secs": row.deployment.keep_alive_secs,
            **row.replica.model_dump(mode="json"),
        }
        for row in rows
    ]
    blockers = [
        f"{row.host}/{row.deployment.deployment}: {row.replica.reason_code}"
        for row in rows
        if row.replica.state == "failed"
    ]
    advice = "sbctl logs says why; sbctl models reset DEPLOYMENT once it is mended" if blockers else None
    return {
        "serving": any(row.replica.state == "ready" for row in rows),
        "deployments": told,
        "models": told,
        "local_serving": {"ready": not blockers, "blockers": blockers, "recommendation": advice},
        "errors": errors_body(errors),
    }


def ps_text(rows: Sequence[PsRow], *, several: bool) -> RenderableType:
    columns: list[Column | str] = [
        "deployment",
        Column("replica", "right"),
        Column("state", style_by=_STYLES),
        Column("active", "right"),
        Column("queued", "right"),
        Column("restarts", "right"),
        Column("memory", "right"),
        "reason",
    ]
    cells: list[Sequence[Cell]] = []
    for row in rows:
        one = row.replica
        line: tuple[Cell, ...] = (
            row.deployment.deployment,
            one.replica,
            one.state,
            one.active_requests,
            one.queued_requests,
            one.restarts,
            None if one.memory_bytes is None else format_bytes(one.memory_bytes),
            _reason(row),
        )
        cells.append((row.host, *line) if several else line)
    return render_rows(["host", *columns] if several else columns, cells, empty="nothing is deployed")


def _reason(row: PsRow) -> str | None:
    one = row.replica
    if one.cause:
        return f"{one.reason_code}: {one.cause}" if one.reason_code else one.cause
    stopped = {"operator": "stopped by an operator", "idle": "unloaded while idle"}
    if one.state == "stopped":
        return stopped.get(row.deployment.stopped_by or "")
    return _why_it_stays(row.deployment) if one.state == "ready" else None


def _why_it_stays(deployment: DeploymentState) -> str | None:
    """And how long; None of a runtime that does not tell."""
    if deployment.warm is None:
        return None
    if deployment.keep_alive_secs is not None:
        return f"unloaded after {deployment.keep_alive_secs} s without a request"
    return "warm: it stays loaded" if deployment.warm else "stays until another model needs its room"


def moved_body(deployment: str, rows: Sequence[MovedRow], errors: Sequence[PlaceError]) -> dict[str, Any]:
    return {
        "deployment": deployment,
        "hosts": [{"host": row.host, **row.state.model_dump(mode="json")} for row in rows],
        "errors": errors_body(errors),
    }
