"""Observed: the identity as its files on the host say."""

from __future__ import annotations

from providers.observation import UNREACHABLE, observation
from sbctl.node.snapshot import CertificateState, NodeSnapshot
from sbctl.plan.model import Observed

__all__ = ["interpret"]


def interpret(snapshot: NodeSnapshot | None) -> Observed:
    if snapshot is None:
        return UNREACHABLE
    state = snapshot.certificate or CertificateState()
    decisive = {
        "fingerprint": state.fingerprint,
        "identity_epoch": state.identity_epoch,
        "not_before": state.not_before,
        "not_after": state.not_after,
        "ca": list(state.ca),
        "revocations": state.revocations,
        "problem": state.problem,
    }
    informative = {"serial": state.serial, "issuer": state.issuer, "used": state.used}
    return observation(snapshot, present=snapshot.certificate is not None, decisive=decisive, informative=informative)
