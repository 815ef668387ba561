"""The devices of an assignment that this host does not give: refused by name. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sbctl.base.errors import RefusedError
from sbctl.node.cluster_documents import AssignedDeployment, AssignedReplica
from sbctl.runtime.host_devices import WITHHELD, HostDevices
from sbctl.trust.bundle import DeploymentMember

__all__ = ["refused_devices"]


def refused_devices(
    deployments: Mapping[str, Iterable[AssignedDeployment]],
    members: Mapping[str, DeploymentMember],
    devices: HostDevices,
) -> dict[str, RefusedError]:
    """Of what is to start: `assignment.unknown_device`, `assignment.withheld_device`, `assignment.wrong_devices`, by deployment."""
    found = {}
    for name, member in members.items():
        replicas = (replica for part in deployments.get(name, ()) if part.phase == "start" for replica in part.replicas)
        error = next((error for each in replicas if (error := _refused(name, member, each, devices))), None)
        if error is not None:
            found[name] = error
    return found


def _refused(
    name: str, member: DeploymentMember, replica: AssignedReplica, devices: HostDevices
) -> RefusedError | None:
    known = devices.by_number()
    who = f"replica {replica.slot} of {name}"
    for number in replica.devices:
        if number not in known:
            there = ", ".join(map(str, known)) or "none"
            return RefusedError(
                "assignment.unknown_device",
                f"{who} is assigned to device {number}, and this host has no such device; it has: {there}",
                place=f"device {number}",
                next_step="the lease-holder places it anew by what this host says of its devices",
            )
        if withheld := known[number].withheld:
            return RefusedError(
                "assignment.withheld_device",
                f"{who} is assigned to device {number} ({known[number].device_id}), which engines do not get: {WITHHELD[withheld]}",
                place=f"device {number}",
                next_step="the lease-holder places it anew by what this host says of its devices",
            )
    wanted = member.tensor_parallel if member.engine.computes_on_devices else 0
    count = len(replica.devices)
    if len(set(replica.devices)) != count or (count and wanted is not None and count != wanted):
        spans = "runs on the processor" if wanted == 0 else f"spans {wanted}" if wanted else "takes each once"
        told = ", ".join(map(str, replica.devices))
        return RefusedError(
            "assignment.wrong_devices",
            f"{who} is assigned to the devices {told}, and {spans}",
            next_step="the lease-holder and this node read one bundle differently: bring all to one version (sbctl apply)",
        )
    return None
