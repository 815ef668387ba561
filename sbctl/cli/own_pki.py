"""Files of a PKI of the user's own (`fleet.identity.mode: manual`): read for a plan, and read again when a step installs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from sbctl.base import fs
from sbctl.base.errors import RefusedError, SbctlError
from sbctl.base.secret import Secret
from sbctl.config.compiled import CompiledConfig, CompiledHost, OwnPki
from sbctl.trust.certificates import PEM_MAX_BYTES, certificate_facts, read_chain
from sbctl.trust.own_pki import OwnIdentity, agree, read_own

__all__ = ["own_files", "with_own_identities"]

_PLACEHOLDER: Final = "{host}"
_READ_FOR_PLANS: Final = ("file:", "env:")


def with_own_identities(
    config: CompiledConfig, pki: OwnPki, *, resolve: Callable[[str], Secret], now: datetime, offline: bool
) -> CompiledConfig:
    """What the files of every host say, verified. A key that a command gives is checked when it is installed. Two sb.yml are compared without
    files.

    Raises InputError `file.*`, `secret.*`, `identity.own_mismatch`, …; RefusedError `certificate.*`, each naming host and file.
    """
    assert config.identity is not None
    found: dict[str, OwnIdentity] = {}
    for name, host in config.hosts.items():
        if offline:
            found[name] = OwnIdentity.unread(config.identity.server_name, pki.key_file.replace(_PLACEHOLDER, name))
            continue
        found[name] = _read(pki, host, resolve, now)
    if not offline:
        agree(found, config.identity.server_name)
    return replace(config, own_identities=found)


def _read(pki: OwnPki, host: CompiledHost, resolve: Callable[[str], Secret], now: datetime) -> OwnIdentity:
    certificate = Path(pki.cert_file.replace(_PLACEHOLDER, host.name))
    reference = pki.key_file.replace(_PLACEHOLDER, host.name)
    try:
        key = resolve(reference) if reference.startswith(_READ_FOR_PLANS) else None
        return read_own(
            _text(certificate),
            _text(Path(pki.ca_file)),
            host=host.name,
            roles=host.roles,
            labels=host.labels,
            key=(reference, key),
            now=now,
        )
    except SbctlError as error:
        error.place = error.place or str(certificate)
        if error.code in ("certificate.expired", "certificate.untrusted", "certificate.weak_key"):
            error.next_step = "have your PKI issue the next certificate of this host, with a higher identity_epoch"
        raise


def own_files(pki: OwnPki, host: str, spec: Mapping[str, Any]) -> Mapping[str, str]:
    """`certificate` and `ca` as they are installed, PEM. Raises RefusedError `identity.files_changed` when they are not those of the plan."""
    certificate, ca = _text(Path(pki.cert_file.replace(_PLACEHOLDER, host))), _text(Path(pki.ca_file))
    there = (certificate_facts(certificate).fingerprint, [one.fingerprint for one in read_chain(ca)])
    if there != (spec["fingerprint"], list(spec["ca"])):
        raise RefusedError(
            "identity.files_changed",
            f"certificate or CA of {host} are not those that were planned",
            place=pki.cert_file.replace(_PLACEHOLDER, host),
            next_step="plan again",
        )
    return {"certificate": certificate, "ca": ca}


def _text(path: Path) -> str:
    return fs.read_bounded(path, max_bytes=PEM_MAX_BYTES).decode("utf-8", "replace")
