"""Taking an identity into use: complete directory beside the old one ► verified as the runtime would ► epoch fence ► switch ► the running runtime
takes it up, or the old one is back ► the old one goes. Done again it finds its work done."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from sbctl.base.errors import HostError, RefusedError, SbctlError
from sbctl.base.secret import Secret
from sbctl.node.paths import NodePaths
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.runtime.nodeops.control_client import ControlClient
from sbctl.trust.identity import HighWater, admit
from sbctl.trust.node_identity import NodeIdentity, NodeIdentityFiles

__all__ = ["TakenIdentity", "take_identity"]

_RELOAD_DEADLINE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class TakenIdentity:
    """`changed` is False when it was in use already."""

    identity: NodeIdentity
    changed: bool


def take_identity(paths: NodePaths, content: NodeIdentityFiles, key: Secret, now: datetime) -> TakenIdentity:
    """Raises RefusedError of trust and epoch, what a running runtime says, SbctlError `disk.*`."""
    files = IdentityFiles(paths)
    directory = files.stage(content, key)
    identity = files.verified(now, directory)
    _refuse_rollback(files, identity, now)
    before = files.in_use()
    if before != directory:
        files.switch(directory)
    _take_up(paths, files, identity, before)
    files.tidy()
    return TakenIdentity(identity, changed=before != directory)


def _refuse_rollback(files: IdentityFiles, identity: NodeIdentity, now: datetime) -> None:
    """One that is broken or expired fences nothing, and neither does that of another cluster or name."""
    if not files.exists():
        return
    try:
        installed = files.verified(now)
    except SbctlError:
        return
    if (installed.claims.cluster_id, installed.claims.node_id) != (identity.claims.cluster_id, identity.claims.node_id):
        return
    if installed.attestation == identity.attestation:
        admit(_mark(installed), _mark(identity))
        if identity.revocations < installed.revocations:
            raise RefusedError(
                "identity.revocations_rollback",
                f"revocation list {identity.revocations} is older than list {installed.revocations}, which is installed",
                next_step="an old copy of the authority directory is in use: bring the current one",
            )


def _mark(identity: NodeIdentity) -> HighWater:
    return HighWater(identity.claims.identity_epoch, identity.certificate.fingerprint)


def _take_up(paths: NodePaths, files: IdentityFiles, identity: NodeIdentity, before: Path | None) -> None:
    """A runtime that uses an identity now holds this one. Raises what it says, after the old one is back."""
    control = ControlClient(paths.control_socket)
    status = control.status()
    if status is None or status.get("identity") is None:
        return
    try:
        held = control.reload_identity(timeout_s=_RELOAD_DEADLINE_S)
        if held.get("fingerprint") != identity.certificate.fingerprint:
            raise HostError(
                "certificate.not_taken_up",
                "the runtime holds another identity than was installed",
                next_step="the former one is in use again; look at: journalctl -u sbctl-runtime, then run it again",
            )
    except SbctlError:
        if before is not None and before.is_dir():
            files.switch(before)
            control.reload_identity(timeout_s=_RELOAD_DEADLINE_S)
        raise
