"""`models ps|load|stop|drain|reset`: replicas on one or more hosts, looked at and moved, waiting until it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from sbctl.base.errors import DegradedError, HostError, SbctlError
from sbctl.base.limits import SNAPSHOT_DEADLINE_S
from sbctl.cli.node_calls import Nodes
from sbctl.node.messages import DeploymentAction, Method
from sbctl.node.snapshot import DeploymentState
from sbctl.remote.answers import read_answer
from sbctl.remote.session import HostSession
from sbctl.views.models_views import PlaceError
from sbctl.views.replica_views import MovedRow, PsRow
from sbctl.views.transfers import Report

__all__ = ["Moving", "moved", "replicas"]

Moving = Literal["load", "stop", "drain", "reset"]

_WAIT_S: Final = 24 * 3600.0
"""For the answer of a job; a host that falls silent is noticed much earlier."""
_DRAIN_SLACK_S: Final = 120.0


def replicas(nodes: Nodes) -> tuple[list[PsRow], list[PlaceError]]:
    """One row a replica. A host whose runtime does not answer is an error."""

    def work(name: str, session: HostSession) -> list[PsRow]:
        snapshot = session.snapshot(SNAPSHOT_DEADLINE_S)
        if not snapshot.runtime.healthy:
            raise HostError(
                "runtime.unreachable",
                "the runtime on this host does not answer",
                place=name,
                next_step="sbctl status says why; sbctl apply starts it",
                retryable=True,
            )
        return [PsRow(name, state, replica) for state in snapshot.deployments for replica in state.replicas]

    found, errors = nodes.each(work)
    return [row for _name, rows in found for row in rows], errors


def moved(
    nodes: Nodes,
    deployment: str,
    action: Moving,
    *,
    by: str,
    drain_s: float | None,
    begin: Callable[[str], Report],
) -> tuple[list[MovedRow], list[PlaceError]]:
    """Until it is done on every host that has the deployment; it is an error only where no host has it."""
    asked = DeploymentAction(deployment=deployment, action=action, by=by, drain_s=drain_s)
    deadline_s = _WAIT_S if drain_s is None else drain_s + _DRAIN_SLACK_S

    def work(name: str, session: HostSession) -> DeploymentState:
        title = f"{action} {deployment}" if len(nodes.names) == 1 else f"{name} {action} {deployment}"
        raw = session.call(
            Method.DEPLOYMENT_ACTION,
            asked.model_dump(mode="json"),
            secrets={},
            deadline_s=deadline_s,
            progress=begin(title),
        )
        return read_answer(DeploymentState, raw, name)

    found, errors = nodes.each(work)
    if found:
        errors = [one for one in errors if one.error.code != "unknown_deployment"]
    rows = [MovedRow(name, state) for name, state in found]
    return rows, [*errors, *_unlike(rows, action)]


def _unlike(rows: list[MovedRow], action: Moving) -> list[PlaceError]:
    """Somebody else may have moved it meanwhile."""
    if action != "load":
        return []
    return [PlaceError(row.host, _not_ready(row), row.state.deployment) for row in rows if row.state.state != "ready"]


def _not_ready(row: MovedRow) -> SbctlError:
    return DegradedError(
        "deployment.not_ready",
        f"it was loaded, and is {row.state.state} now",
        place=f"{row.host}/{row.state.deployment}",
        next_step="sbctl events and sbctl logs say what happened",
    )
