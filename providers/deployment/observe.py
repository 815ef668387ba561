"""Observed: what the runtime serves under this id, and whether an operator stopped it."""

from __future__ import annotations

from providers.observation import UNREACHABLE, observation
from sbctl.base.ids import Address
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Observed

__all__ = ["interpret"]


def interpret(snapshot: NodeSnapshot | None, address: Address) -> Observed:
    """A runtime that is down says nothing of its deployments: `known` is false then, and nothing is concluded."""
    if snapshot is None:
        return UNREACHABLE
    if not (snapshot.bootstrapped and snapshot.runtime.healthy):
        return observation(snapshot, present=False, decisive={"known": False})
    if snapshot.cluster is not None and snapshot.cluster.is_authority:
        return _published(snapshot, address)
    state = next((state for state in snapshot.deployments if state.deployment == address.name), None)
    if state is None:
        return observation(snapshot, present=False, decisive={"known": True})
    decisive = {
        "known": True,
        "content_digest": state.content_digest,
        "stopped_by_operator": state.stopped_by == "operator",
    }
    informative = {
        "state": state.state,
        "generation": state.generation,
        "replicas": [replica.state for replica in state.replicas],
        "last_error": state.last_error,
    }
    return observation(snapshot, present=True, decisive=decisive, informative=informative)


def _published(snapshot: NodeSnapshot, address: Address) -> Observed:
    """On an authority: what the cluster's bundle says under this id. What nodes made of it is status."""
    assert snapshot.cluster is not None
    digest = snapshot.cluster.members.get(address.name or "")
    if digest is None:
        return observation(snapshot, present=False, decisive={"known": True})
    decisive = {"known": True, "content_digest": digest, "stopped_by_operator": False}
    return observation(snapshot, present=True, decisive=decisive)
