"""Observed: the store's files and unit as they stand, and what its server says."""

from __future__ import annotations

from providers.observation import UNREACHABLE, observation
from sbctl.node.snapshot import NodeSnapshot, StoreState
from sbctl.plan.model import Observed

__all__ = ["interpret"]


def interpret(snapshot: NodeSnapshot | None) -> Observed:
    if snapshot is None:
        return UNREACHABLE
    state = snapshot.store or StoreState()
    decisive = {
        "content_sha256": state.content_sha256,
        "unit_sha256": state.unit_sha256,
        "version": state.version,
        "running": state.running,
        "up_to_date": state.up_to_date,
    }
    own = snapshot.store_program
    informative = {
        "whole": state.whole,
        "leader": state.leader,
        "problem": state.problem,
        "program": None if own is None else {"path": own.path, "version": own.version},
    }
    return observation(snapshot, present=snapshot.store is not None, decisive=decisive, informative=informative)
