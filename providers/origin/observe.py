"""Observed: whether there is a bundle that could serve the hostname."""

from __future__ import annotations

from providers.observation import UNREACHABLE, observation
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Observed

__all__ = ["interpret"]


def interpret(snapshot: NodeSnapshot | None) -> Observed:
    """Nothing is decisive here: the bundle's digest covers every origin, and is sealed with the bundle's own row."""
    if snapshot is None:
        return UNREACHABLE
    return observation(snapshot, present=snapshot.bundle is not None)
