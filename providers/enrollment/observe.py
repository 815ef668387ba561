"""Observed: the server's files and unit as they stand, and whether it runs."""

from __future__ import annotations

from providers.observation import UNREACHABLE, observation
from sbctl.node.snapshot import EnrollmentState, NodeSnapshot
from sbctl.plan.model import Observed

__all__ = ["interpret"]


def interpret(snapshot: NodeSnapshot | None) -> Observed:
    if snapshot is None:
        return UNREACHABLE
    state = snapshot.enrollment or EnrollmentState()
    decisive = {
        "content_sha256": state.content_sha256,
        "unit_sha256": state.unit_sha256,
        "not_before": state.not_before,
        "not_after": state.not_after,
        "running": state.running,
    }
    informative = {"fingerprint": state.fingerprint}
    return observation(snapshot, present=snapshot.enrollment is not None, decisive=decisive, informative=informative)
