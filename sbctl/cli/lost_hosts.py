"""What planning does about hosts that were given up as lost: refused while nobody took them in again, installed anew when somebody did."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from sbctl.base.errors import RefusedError
from sbctl.base.limits import NODE_CALL_DEADLINE_S, SNAPSHOT_DEADLINE_S
from sbctl.base.truths import Desired
from sbctl.cli.workspace import Workspace
from sbctl.node.lease import LeaseClaim
from sbctl.node.messages import Method
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import PlanMode
from sbctl.remote.session import HostSession
from sbctl.remote.transport import no_progress
from sbctl.state.model import Tombstone
from sbctl.state.operator import who
from sbctl.views.console import note

__all__ = ["bare", "clear_returned", "refuse_lost", "refuse_lost_machines", "returned_hosts", "without_lost"]


def _lost(workspace: Workspace) -> Mapping[str, Tombstone]:
    state = workspace.state
    return {} if state is None else {host: one for host, one in state.tombstones.items() if not one.readmitted}


def refuse_lost(workspace: Workspace, hosts: Iterable[str]) -> None:
    """Raises RefusedError `host.forgotten` for a host that sb.yml lists and that was given up."""
    lost = _lost(workspace)
    for host in sorted(hosts):
        if host in lost:
            raise RefusedError(
                "host.forgotten",
                f"{host} was given up as lost in serial {lost[host].serial}, and sb.yml still lists it",
                place=f"host.{host}",
                next_step=f"take it out of sb.yml; or take it in again (sbctl host forget {host} --undo), or give it another name",
            )


def without_lost(workspace: Workspace, desired: tuple[Desired, ...], mode: PlanMode) -> tuple[Desired, ...]:
    """A rollback does not bring back what was given up."""
    lost = _lost(workspace) if mode == "rollback" else {}
    return tuple(one for one in desired if one.host not in lost) if lost else desired


def refuse_lost_machines(workspace: Workspace, snapshots: Mapping[str, NodeSnapshot]) -> None:
    """Raises RefusedError `host.forgotten_machine` where a machine carries the marker of a host that was given up."""
    lost = _lost(workspace)
    for host, snapshot in sorted(snapshots.items()):
        marker = snapshot.marker
        if marker is not None and marker.lineage == workspace.lineage and marker.host in lost:
            raise RefusedError(
                "host.forgotten_machine",
                f"the machine at {host} is {marker.host}, which was given up as lost in serial {lost[marker.host].serial}",
                place=f"host.{host}",
                next_step=f"take it in again under its name (sbctl host forget {marker.host} --undo), or install the machine anew",
            )


def returned_hosts(
    workspace: Workspace, desired: Iterable[Desired], snapshots: Mapping[str, NodeSnapshot]
) -> dict[str, str]:
    """Hosts that were taken in again and still carry what ran there before they were given up, with what the plan says of each."""
    state = workspace.state
    if state is None:
        return {}
    wanted = {one.host for one in desired}
    recorded = {one.host for one in state.resources.values()}
    found: dict[str, str] = {}
    for host, tombstone in sorted(state.tombstones.items()):
        snapshot = snapshots.get(host)
        if not tombstone.readmitted or snapshot is None or host not in wanted or host in recorded:
            continue
        marker = snapshot.marker
        if marker is not None and (marker.lineage, marker.host) == (workspace.lineage, host):
            found[host] = (
                f"host {host} was given up as lost in serial {tombstone.serial} and comes back: apply first removes everything of ours "
                "that is left there, then installs it anew"
            )
    return found


def bare(snapshot: NodeSnapshot) -> NodeSnapshot:
    """The host as it will be once everything of ours is removed from it."""
    return NodeSnapshot(bootstrapped=False, host=snapshot.host, paths=snapshot.paths, disk=snapshot.disk)


def clear_returned(workspace: Workspace, hosts: Iterable[str], sessions: Mapping[str, HostSession]) -> None:
    """Remove everything of ours from hosts that come back. Raises LockedError `host.leased`, UnreachableError, HostError."""
    owner = who(workspace.environ)
    for host in hosts:
        session = sessions[host]
        claim = LeaseClaim(owner, "removing what was left when it was given up", workspace.lineage, uuid.uuid4().hex)
        session.take_lease(claim, wait_s=0.0, deadline_s=SNAPSHOT_DEADLINE_S, cancelled=lambda: False)
        note(f"{host}: removing what was left there when it was given up")
        steps: list[tuple[Method, dict[str, object]]] = [(Method.HOST_UNMARK, {"lineage": workspace.lineage})]
        if session.snapshot(SNAPSHOT_DEADLINE_S).runtime.installed_versions:
            steps.insert(0, (Method.RUNTIME_REMOVE, {"lineage": workspace.lineage}))
        for method, params in steps:
            session.call(method, params, secrets={}, deadline_s=NODE_CALL_DEADLINE_S, progress=no_progress)
