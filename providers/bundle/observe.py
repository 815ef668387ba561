"""Observed: which bundle the runtime holds. A runtime that is down may still name the one it accepted; what it serves is not known then."""

from __future__ import annotations

from providers.observation import UNREACHABLE, observation
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Observed

__all__ = ["interpret"]


def interpret(snapshot: NodeSnapshot | None) -> Observed:
    if snapshot is None:
        return UNREACHABLE
    held = snapshot.bundle
    decisive = {
        "revision": None if held is None else held.revision,
        "content_digest": None if held is None else held.content_digest,
        "key_epoch": None if held is None else held.key_epoch,
        "signer": None if held is None else held.signer,
    }
    return observation(snapshot, present=held is not None, decisive=decisive)
