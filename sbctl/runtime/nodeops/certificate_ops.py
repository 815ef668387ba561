"""`certificate.request|install|remove`: the node's identity in its cluster.

Install: clocks ► which key ► complete directory beside the old one ► verified as the runtime would ► epoch fence ► switch ► the running runtime
takes it up, or the old one is back ► the old one goes. Done again it finds its work done.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, Final

from sbctl.base.clock import rfc3339
from sbctl.base.errors import HostError, InputError, RefusedError, SbctlError
from sbctl.base.secret import Secret
from sbctl.node.messages import CertificateInstall, CertificateRemove, CertificateRequest
from sbctl.node.records import EventKind
from sbctl.runtime.event_log import record_event
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.control_client import ControlClient
from sbctl.runtime.nodeops.runtime_ops import refuse_other_lineage
from sbctl.runtime.nodeops.snapshot import host_facts
from sbctl.trust.certificates import certificate_facts, public_key_digest
from sbctl.trust.identity import HighWater, admit, check_clocks
from sbctl.trust.node_identity import NodeIdentity, NodeIdentityFiles

__all__ = ["install_certificate", "remove_certificate", "request_certificate"]

_NODE_KEY: Final = "node_key"
_RELOAD_DEADLINE_S: Final = 30.0


def request_certificate(context: NodeContext, params: CertificateRequest) -> dict[str, Any]:
    """Raises RefusedError `host.other_lineage`, SbctlError `disk.*`."""
    refuse_other_lineage(host_facts(context), params.lineage)
    return {"request": IdentityFiles(context.paths).ask(params.node_id).request}


def install_certificate(context: NodeContext, params: CertificateInstall) -> dict[str, Any]:
    """Raises RefusedError of lineage, clock, trust and epoch, HostError `certificate.no_key`, `certificate.none_installed`, and what a running
    runtime says; SbctlError `disk.*`."""
    refuse_other_lineage(host_facts(context), params.lineage)
    now = context.clock.now()
    check_clocks(now, _moment(params.operator_time))
    files = IdentityFiles(context.paths)
    content, key = _wanted(files, params, context.secrets.get(_NODE_KEY))
    directory = files.stage(content, key)
    identity = files.verified(now, directory)
    _refuse_rollback(files, identity, now)
    before = files.in_use()
    if before != directory:
        files.switch(directory)
    _take_up(context, files, identity, before)
    files.tidy()
    if before != directory:
        _remember(context, identity)
    return {
        "fingerprint": identity.certificate.fingerprint,
        "identity_epoch": identity.claims.identity_epoch,
        "issuer": identity.issuer,
        "revocations": identity.revocations,
    }


def _remember(context: NodeContext, identity: NodeIdentity) -> None:
    until = rfc3339(identity.certificate.not_after)
    said = f"epoch {identity.claims.identity_epoch}, until {until}, {identity.certificate.fingerprint}"
    record_event(context.paths.database, context.clock, EventKind.CERTIFICATE_INSTALLED, said)


def remove_certificate(context: NodeContext, params: CertificateRemove) -> dict[str, Any]:
    """Raises RefusedError `host.other_lineage`, SbctlError `disk.*`."""
    refuse_other_lineage(host_facts(context), params.lineage)
    return {"removed": IdentityFiles(context.paths).remove()}


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InputError("node.invalid_params", "operator_time is not a time with a zone")
    return moment


def _wanted(files: IdentityFiles, params: CertificateInstall, sent: Secret | None) -> tuple[NodeIdentityFiles, Secret]:
    """What is to be installed, and the private key that belongs to it."""
    certificate, identity = params.certificate, params.identity
    if certificate is None:
        if not files.exists():
            raise HostError(
                "certificate.none_installed",
                "there is no identity on this host whose surroundings could be renewed",
                next_step="plan again: sbctl apply issues one",
            )
        installed = files.read()
        certificate, identity = installed.certificate, installed.identity
    content = NodeIdentityFiles(
        certificate=certificate,
        ca=params.ca,
        identity=identity,
        authority_key=params.authority_key,
        revocations=params.revocations,
    )
    return content, sent if sent is not None else _key_of(files, certificate)


def _key_of(files: IdentityFiles, certificate: str) -> Secret:
    """The private key of a certificate: the one that waits for it, or the one in use."""
    wanted = certificate_facts(certificate).key_sha256
    pending = files.pending()
    if pending is not None and public_key_digest(pending.key) == wanted:
        return pending.key
    if files.exists():
        key = files.key()
        if public_key_digest(key) == wanted:
            return key
    raise HostError(
        "certificate.no_key",
        "this host has no private key for that certificate",
        place=str(files.store),
        next_step="run sbctl apply again: the host makes a new key and asks for a certificate",
    )


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
    if installed.attestation == identity.attestation == "enrolled":
        admit(_mark(installed), _mark(identity))
        if identity.revocations < installed.revocations:
            raise RefusedError(
                "identity.revocations_rollback",
                f"revocation list {identity.revocations} is older than list {installed.revocations}, which is installed",
                next_step="an old copy of the authority directory is in use: bring the current one",
            )


def _mark(identity: NodeIdentity) -> HighWater:
    return HighWater(identity.claims.identity_epoch, identity.certificate.fingerprint)


def _take_up(context: NodeContext, files: IdentityFiles, identity: NodeIdentity, before: Path | None) -> None:
    """A runtime that uses an identity now holds this one. Raises what it says, after the old one is back."""
    control = ControlClient(context.paths.control_socket)
    status = control.status()
    if status is None or status.get("identity") is None:
        return
    try:
        held = control.reload_identity(timeout_s=_RELOAD_DEADLINE_S)
        if held.get("fingerprint") != identity.certificate.fingerprint:
            raise HostError("certificate.not_taken_up", "the runtime holds another identity than was installed")
    except SbctlError:
        if before is not None and before.is_dir():
            files.switch(before)
            control.reload_identity(timeout_s=_RELOAD_DEADLINE_S)
        raise
