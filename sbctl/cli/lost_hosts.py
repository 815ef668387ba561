"""What planning does about hosts that were given up as lost: refused while nobody took them in again, installed anew when somebody did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sbctl.base.errors import RefusedError
from sbctl.base.ids import Address
from sbctl.base.truths import Desired
from sbctl.cli.workspace import Workspace
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import PlanMode
from sbctl.state.model import Tombstone

__all__ = ["refuse_lost", "refuse_lost_machines", "reinstalled", "without_lost"]


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


def reinstalled(
    workspace: Workspace, desired: Iterable[Desired], snapshots: Mapping[str, NodeSnapshot]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Addresses to make anew, and why: hosts that come back with a runtime of the time before they were given up."""
    state = workspace.state
    if state is None:
        return (), ()
    wanted = {one.address for one in desired}
    replaces, notes = [], []
    for host, tombstone in sorted(state.tombstones.items()):
        runtime, snapshot = Address("runtime", host), snapshots.get(host)
        if not tombstone.readmitted or snapshot is None or runtime not in wanted or runtime in state.resources:
            continue
        if snapshot.runtime.installed_versions:
            replaces.append(str(runtime))
            notes.append(
                f"host {host} was given up as lost in serial {tombstone.serial} and comes back: its runtime is installed anew, "
                "without what it was told before"
            )
    return tuple(replaces), tuple(notes)
