"""Observed: the runtime's files as they stand, and whether it runs and is healthy."""

from __future__ import annotations

from providers.observation import UNREACHABLE, observation
from sbctl.node.snapshot import NodeSnapshot, RuntimeState
from sbctl.plan.model import Observed

__all__ = ["interpret"]


def interpret(snapshot: NodeSnapshot | None) -> Observed:
    """Present: something of the runtime beside its installed programs is there (those alone belong to the host)."""
    if snapshot is None:
        return UNREACHABLE
    state = snapshot.runtime
    decisive = {
        "current_version": state.current_version,
        "version_running": state.version_running,
        "config_sha256": state.config_sha256,
        "trust_digest": state.trust_digest,
        "unit_sha256": state.unit_sha256,
        "running": state.running,
        "healthy": state.healthy,
        "started_by_hand": state.started_by_hand,
        "certificate": None if state.tls is None or state.tls.followed else state.tls.installed,
    }
    informative = {
        "installed_versions": list(state.installed_versions),
        "supervision": state.supervision,
        "pid": state.pid,
        "http_url": state.http_url,
        "https_url": state.https_url,
        "certificate_used": None if state.tls is None else state.tls.used,
        "admin_url": state.admin_url,
    }
    return observation(snapshot, present=_exists(state), decisive=decisive, informative=informative)


def _exists(state: RuntimeState) -> bool:
    files = (state.config_sha256, state.trust_digest, state.unit_sha256)
    return state.running or state.started_by_hand or any(file is not None for file in files)
