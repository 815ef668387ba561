"""Observed: whether the runtime serves the hostname, and what it routes there."""

from __future__ import annotations

from providers.observation import UNREACHABLE, observation
from sbctl.base.ids import Address
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Observed

__all__ = ["interpret"]


def interpret(snapshot: NodeSnapshot | None, address: Address) -> Observed:
    """A runtime that is down says nothing of its origins: `known` is false then, and nothing is concluded."""
    if snapshot is None:
        return UNREACHABLE
    published = snapshot.cluster is not None and snapshot.cluster.is_authority
    held = snapshot.cluster.bundle if snapshot.cluster is not None and published else snapshot.bundle
    known = snapshot.bootstrapped and snapshot.runtime.healthy
    if held is None or not known:
        return observation(snapshot, present=False, decisive={"known": known})
    served = held.origins or {}
    decisive = {"known": held.origins is not None, "content_digest": served.get(address.name or "")}
    return observation(snapshot, present=address.name in served, decisive=decisive)
