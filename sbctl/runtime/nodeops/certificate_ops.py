"""`certificate.request|install|remove`: the node's identity in its cluster.

Install: clocks ► which key ► into use (`identity_switch`). Done again it finds its work done.
"""

from __future__ import annotations

import os
import stat
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from sbctl.base import fs
from sbctl.base.clock import rfc3339
from sbctl.base.errors import HostError, InputError, RefusedError
from sbctl.base.secret import Secret
from sbctl.node.identity_messages import CertificateInstall, CertificateRemove, CertificateRequest
from sbctl.node.records import EventKind
from sbctl.runtime.event_log import record_event
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.enrollment_ops import restart_server
from sbctl.runtime.nodeops.identity_switch import take_identity
from sbctl.runtime.nodeops.runtime_ops import refuse_other_lineage
from sbctl.runtime.nodeops.side_units import RENEWAL_UNITS, remove_units, system_of_root
from sbctl.runtime.nodeops.snapshot import host_facts
from sbctl.runtime.nodeops.store_ops import refresh_store
from sbctl.trust.certificates import certificate_facts, public_key_digest
from sbctl.trust.enrollment_source import SOURCE_FILE
from sbctl.trust.identity import check_clocks
from sbctl.trust.node_identity import NodeIdentity, NodeIdentityFiles

__all__ = ["install_certificate", "remove_certificate", "request_certificate"]

_NODE_KEY: Final = "node_key"
_KEY_MAX_BYTES: Final = 16 * 1024


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
    taken = take_identity(context.paths, content, key, now)
    _end_renewals(context)
    identity = taken.identity
    if taken.changed:
        _remember(context, identity)
        restart_server(context)
        refresh_store(context)
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
    _end_renewals(context)
    return {"removed": IdentityFiles(context.paths).remove()}


def _end_renewals(context: NodeContext) -> None:
    """An apply gives the identity from now on: the host does not renew by itself at a server where it enrolled before."""
    systemd = system_of_root(context.uid, context.environ)
    if systemd is not None:
        remove_units(systemd, RENEWAL_UNITS)
    fs.remove_file(context.paths.etc / SOURCE_FILE)


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
    if params.key_file is not None:
        return content, _key_at(Path(params.key_file))
    return content, sent if sent is not None else _key_of(files, certificate)


def _key_at(path: Path) -> Secret:
    """A private key that the user's own PKI brought to this host."""
    try:
        status = os.lstat(path)
    except OSError as error:
        raise HostError(
            "certificate.key_file",
            f"the private key that sb.yml names cannot be read on this host: {error.strerror}",
            place=str(path),
            next_step="bring it there, readable for root alone (mode 0600), then run sbctl apply again",
        ) from None
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
        raise RefusedError(
            "certificate.key_file",
            f"the private key must be a regular file that its owner alone can read; mode {stat.S_IMODE(status.st_mode):04o}, owner {status.st_uid}",
            place=str(path),
            next_step=f"whoever could read it may have it; chmod 600 {path}, or have your PKI make another",
        )
    return Secret(fs.read_bounded(path, max_bytes=_KEY_MAX_BYTES))


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
