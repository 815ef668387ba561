"""Which artifacts this node's deployments need, as the accepted bundle and its admin API say: what no collection may take.

Read from the copy that the runtime writes, without its signature: it was verified when it was accepted, and all that follows from it here is
that something stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sbctl.base.errors import InputError, SbctlError
from sbctl.base.fs import read_bounded
from sbctl.base.limits import BUNDLE_MAX_BYTES
from sbctl.runtime.deployments_revision import DEPLOYMENTS_COPY, members_of
from sbctl.trust.bundle import DeploymentMember
from sbctl.trust.envelope import unverified_payload
from sbctl.trust.verifier import parse_bundle

__all__ = ["assigned_artifacts"]


def assigned_artifacts(bundle_copy: Path) -> Mapping[str, tuple[str, ...]] | None:
    """Artifact → ids of the deployments that serve it; empty where no bundle was accepted, None where it cannot be told."""
    try:
        text = read_bounded(bundle_copy, max_bytes=4 * BUNDLE_MAX_BYTES).decode()
        _type, raw, _keyids = unverified_payload(text, max_bytes=BUNDLE_MAX_BYTES)
        payload = parse_bundle(raw)
    except InputError as error:
        return {} if error.code == "file.missing" else None
    except (SbctlError, ValueError):
        return None
    owned = _owned(bundle_copy.with_name(DEPLOYMENTS_COPY))
    if owned is None:
        return None
    found: dict[str, tuple[str, ...]] = {}
    for name, member in sorted((*payload.content.deployments.items(), *owned.items()), key=lambda each: each[0]):
        for artifact in dict.fromkeys(member.artifacts):
            found[artifact] = tuple(dict.fromkeys((*found.get(artifact, ()), name)))
    return found


def _owned(copy: Path) -> Mapping[str, DeploymentMember] | None:
    """What the admin API added or exchanged, where it owns the deployments."""
    try:
        return members_of(read_bounded(copy, max_bytes=4 * BUNDLE_MAX_BYTES).decode())
    except InputError as error:
        return {} if error.code == "file.missing" else None
    except (SbctlError, ValueError):
        return None
