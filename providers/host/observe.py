"""Observed: whose marker the host carries."""

from __future__ import annotations

from providers.observation import UNREACHABLE
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Observed, Recorded

__all__ = ["interpret"]


def interpret(snapshot: NodeSnapshot | None, recorded: Recorded | None) -> Observed:
    """Without a record the marker stands for itself; `diff` compares its lineage with the desired one."""
    if snapshot is None:
        return UNREACHABLE
    marker = snapshot.marker
    facts = snapshot.host
    decisive = {"marker": None if marker is None else {"lineage": marker.lineage, "host": marker.host}}
    informative = {
        "hostname": facts.hostname,
        "os": f"{facts.os_id} {facts.os_version}".strip(),
        "arch": facts.arch,
        "cpu_count": facts.cpu_count,
        "memory_available_bytes": facts.memory_available_bytes,
        "init": facts.init,
    }
    if recorded is not None and marker is not None and recorded.spec["lineage"] != marker.lineage:
        return Observed("present", "other_lineage", decisive, informative)
    # The marker needs no program of ours, so it is known on every host that answers.
    if marker is None:
        return Observed("absent", "unmarked", decisive, informative)
    return Observed("present", "ours", decisive, informative)
