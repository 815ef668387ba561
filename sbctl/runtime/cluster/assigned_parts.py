"""What an assignment says of one deployment, and what of a bundle concerns a node that runs nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sbctl.node.cluster_documents import AssignedDeployment, AssignmentDocument
from sbctl.runtime.host_devices import HostDevices
from sbctl.runtime.staying import AssignedAs
from sbctl.trust.bundle import BundleContent

__all__ = ["assigned_as", "drain_seconds", "reason_of", "wish_of", "without_deployments"]


def assigned_as(parts: Iterable[AssignedDeployment], devices: HostDevices) -> AssignedAs:
    """By what is to start, on the devices that it says; else by what is to be kept, which stays wherever it lies."""
    several = tuple(parts)
    starts = [part for part in several if part.phase == "start"]
    chosen = starts or [part for part in several if part.phase == "retain"]
    replicas = [replica for part in chosen for replica in part.replicas]
    known = devices.by_number()
    given = tuple(tuple(known[n].device_id for n in replica.devices if n in known) for replica in replicas)
    slots = tuple(replica.slot for replica in replicas)
    return AssignedAs(chosen[0].generation, slots or (0,), given if starts else ())


def drain_seconds(document: AssignmentDocument, now: datetime) -> dict[str, float]:
    """How long what is given up may finish, by the deadlines of the assignment."""
    now_ms = int(now.timestamp() * 1000)
    deadlines = {
        name: [part.handoff_deadline_unix_ms for part in parts if part.phase == "drain"]
        for name, parts in document.deployments.items()
    }
    return {
        name: max(0.0, (max(known) - now_ms) / 1000)
        for name, found in deadlines.items()
        if (known := [each for each in found if each is not None])
    }


def wish_of(parts: Iterable[AssignedDeployment]) -> int:
    """The number of the newest wish to try it again."""
    return max((part.tried_again for part in parts), default=0)


def without_deployments(content: BundleContent) -> BundleContent:
    """For a gateway alone: origins and keys."""
    fields = {name: getattr(content, name) for name in BundleContent.model_fields if name != "deployments"}
    return BundleContent(**fields, deployments={})


def reason_of(code: str) -> str:
    """A dotted code as documents of the cluster have them."""
    return "".join(char if char.isalnum() and char.isascii() else "_" for char in code.lower())[:64] or "failed"
