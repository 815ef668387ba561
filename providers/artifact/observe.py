"""Observed: whether the cache holds the recorded bytes, whole."""

from __future__ import annotations

from providers.observation import UNREACHABLE, observation
from sbctl.node.snapshot import ArtifactState, NodeSnapshot
from sbctl.plan.model import Observed, Recorded

__all__ = ["find_artifact", "interpret"]


def find_artifact(snapshot: NodeSnapshot, artifact: str) -> ArtifactState | None:
    return next((state for state in snapshot.artifacts if state.artifact == artifact), None)


def interpret(snapshot: NodeSnapshot | None, recorded: Recorded | None) -> Observed:
    """An address names a model's variant and a host reports content, so without a record nothing is decisive."""
    if snapshot is None:
        return UNREACHABLE
    state = None if recorded is None else find_artifact(snapshot, recorded.spec["facts"]["artifact"])
    decisive = {} if recorded is None else {"state": "absent" if state is None else state.state}
    informative = {} if state is None else {"size_bytes": state.size_bytes, "reason": state.reason}
    return observation(snapshot, present=state is not None, decisive=decisive, informative=informative)
