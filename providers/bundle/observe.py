"""Observed: which bundle the runtime holds, on an authority that of its cluster. A runtime that is down may still name the one it accepted; what it serves is not known then."""

from __future__ import annotations

from typing import Any

from providers.observation import UNREACHABLE, observation
from sbctl.node.snapshot import BundleState, NodeSnapshot
from sbctl.plan.model import Observed

__all__ = ["facts_of", "interpret"]


def interpret(snapshot: NodeSnapshot | None) -> Observed:
    if snapshot is None:
        return UNREACHABLE
    cluster = snapshot.cluster
    held = cluster.bundle if cluster is not None and cluster.is_authority else snapshot.bundle
    return observation(snapshot, present=held is not None, decisive=facts_of(held))


def facts_of(held: BundleState | None) -> dict[str, Any]:
    """What is compared of it."""
    return {
        "revision": None if held is None else held.revision,
        "content_digest": None if held is None else held.content_digest,
        "key_epoch": None if held is None else held.key_epoch,
        "signer": None if held is None else held.signer,
    }
