"""Observed: the builds of one engine kind that we installed, and the programs of the host that could serve instead."""

from __future__ import annotations

from typing import Any

from providers.observation import UNREACHABLE, observation
from sbctl.base.ids import Address
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Observed, Recorded

__all__ = ["interpret"]


def interpret(snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
    """`installed` (build → digest) is decisive; `programs` (path → version, in PATH order) only where the state says that one is used."""
    if snapshot is None:
        return UNREACHABLE
    ours = {
        engine.version: engine.digest for engine in snapshot.engines if engine.engine == address.name and engine.ours
    }
    programs = {
        engine.path: engine.version
        for engine in snapshot.engines
        if engine.engine == address.name and not engine.ours and engine.launch == "binary"
    }
    decisive: dict[str, Any] = {"installed": dict(sorted(ours.items()))}
    informative: dict[str, Any] = {"programs": programs}
    uses_program = recorded is not None and recorded.spec["launch"] == "binary" and not recorded.record.get("digests")
    if uses_program:
        decisive["programs"] = dict(sorted(programs.items()))
    present = bool(programs if uses_program else ours)
    return observation(snapshot, present=present, decisive=decisive, informative=informative)
