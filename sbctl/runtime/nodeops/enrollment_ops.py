"""`enrollment.request|install|remove|ask`: the enrollment server of an authority's host.

    <etc>/enrollment/        root's alone: its two keys, what the operator signed for them, what hosts trust (`delegated_files`)
    sbctl-enrollment.service an account of its own, which gets those files as credentials; its state is systemd's (StateDirectory)

Keys are made here and stay. Installing writes files and unit, and restarts the server when something of them changed. Without systemd nothing
is started, which a plan refuses beforehand.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from sbctl.base import fs
from sbctl.base.clock import rfc3339
from sbctl.base.digests import canonical_json, fingerprint, sha256_bytes
from sbctl.base.errors import HostError, InputError, SbctlError
from sbctl.base.secret import Secret
from sbctl.node.identity_messages import EnrollmentAsk, EnrollmentInstall, EnrollmentRemove, EnrollmentRequest
from sbctl.node.paths import NodePaths
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.control_client import ControlClient
from sbctl.runtime.nodeops.runtime_ops import refuse_other_lineage
from sbctl.runtime.nodeops.side_units import (
    ENROLLMENT_UNIT,
    install_units,
    installed_units,
    remove_units,
    render,
    system_of_root,
)
from sbctl.runtime.nodeops.snapshot import host_facts
from sbctl.runtime.nodeops.units import units_digest
from sbctl.trust.authority_directory import AuthoritySettings
from sbctl.trust.authority_keys import AuthorityKeys
from sbctl.trust.certificate_making import create_request, generate_private_key
from sbctl.trust.certificates import certificate_facts, public_key_digest
from sbctl.trust.delegated_files import IDENTITY_FILES, SUPPLIED_FILES, ServerSettings
from sbctl.trust.delegation import check_delegation, open_delegation
from sbctl.trust.identity import check_clocks
from sbctl.trust.keys import SigningKey
from sbctl.trust.revocation import open_revocations

__all__ = [
    "ask_enrollment",
    "enrollment_state",
    "install_enrollment",
    "remove_enrollment",
    "remove_server",
    "request_delegation",
    "restart_server",
]

_NAME: Final = "sbctl-enrollment"
_STATES: Final = (Path("/var/lib") / _NAME, Path("/var/lib/private") / _NAME)
_CONTROL: Final = Path("/run") / _NAME / "control.sock"
_ROTATION: Final = "rotation"
_MAX_BYTES: Final = 4 * 1024 * 1024
_ASK_S: Final = 60.0
_LOW_PORTS: Final = 1024


def _directory(paths: NodePaths) -> Path:
    return paths.etc / "enrollment"


def request_delegation(context: NodeContext, params: EnrollmentRequest) -> dict[str, Any]:
    """Raises RefusedError `host.other_lineage`, SbctlError `disk.*`."""
    refuse_other_lineage(host_facts(context), params.lineage)
    directory = _directory(context.paths)
    fs.ensure_directory(directory)
    os.chmod(directory, 0o700)
    found = _keys(directory, params.rotation)
    if found is None:
        ca, signing = generate_private_key(), SigningKey.generate()
        fs.write_atomic(directory / "ca-key.pem", ca.reveal())
        fs.write_atomic(directory / "authority-signing.key", signing.to_pem().reveal())
        # Last: with it the two above are a pair of this rotation.
        fs.write_atomic(directory / _ROTATION, str(params.rotation).encode())
        found = ca, signing
    ca, signing = found
    return {"request": create_request(ca, "enrollment"), "verifying_key": signing.public_text}


def _keys(directory: Path, rotation: int) -> tuple[Secret, SigningKey] | None:
    """The keys of this rotation; None when there are none, or they cannot be used."""
    try:
        if fs.read_bounded(directory / _ROTATION, max_bytes=32) != str(rotation).encode():
            return None
        ca = Secret(fs.read_bounded(directory / "ca-key.pem", max_bytes=_MAX_BYTES))
        public_key_digest(ca)
        pem = Secret(fs.read_bounded(directory / "authority-signing.key", max_bytes=_MAX_BYTES))
        return ca, SigningKey.from_pem(pem)
    except SbctlError:
        return None


def install_enrollment(context: NodeContext, params: EnrollmentInstall) -> dict[str, Any]:
    """Raises RefusedError of lineage, clock and trust; HostError `enrollment.keys_changed`, `runtime.unit_invalid`, `enrollment.not_started`;
    SbctlError `disk.*`."""
    refuse_other_lineage(host_facts(context), params.lineage)
    now, paths = context.clock.now(), context.paths
    check_clocks(now, datetime.fromisoformat(params.operator_time))
    _verify(_directory(paths), params, now)
    changed = _write(_directory(paths), params)
    systemd = system_of_root(context.uid, context.environ)
    if systemd is not None:
        units = render(
            [ENROLLMENT_UNIT],
            {
                "python": paths.version(params.version) / "bin" / "python",
                "etc": paths.etc,
                "enrollment": _directory(paths),
                "supplied": SUPPLIED_FILES,
                "identity": IDENTITY_FILES,
                "low_port": params.port < _LOW_PORTS,
            },
        )
        changed = install_units(systemd, units) or changed
        systemd.must("enable", ENROLLMENT_UNIT)
        if changed or not systemd.is_active(ENROLLMENT_UNIT):
            done = systemd.ctl("restart", ENROLLMENT_UNIT, deadline_s=120.0)
            if done.returncode:
                raise HostError(
                    "enrollment.not_started",
                    f"the enrollment server does not start: {systemd.why(ENROLLMENT_UNIT) or done.tail()}"[:1000],
                    place=ENROLLMENT_UNIT,
                    next_step=f"look at: systemctl status {ENROLLMENT_UNIT}",
                )
    state = enrollment_state(context)
    return {name: state[name] for name in ("content_sha256", "unit_sha256", "fingerprint")}


def _verify(directory: Path, params: EnrollmentInstall, now: datetime) -> None:
    """The operator signed for the keys that are here, and its word holds."""
    keys = AuthorityKeys.parse(params.authority_keys)
    delegation = open_delegation(params.delegation, keys)
    check_delegation(delegation, open_revocations(params.revocations, keys), now=now)
    facts = certificate_facts(params.certificate)
    ca = Secret(fs.read_bounded(directory / "ca-key.pem", max_bytes=_MAX_BYTES))
    signing = SigningKey.from_pem(Secret(fs.read_bounded(directory / "authority-signing.key", max_bytes=_MAX_BYTES)))
    here = (public_key_digest(ca), signing.public_text, facts.fingerprint, params.node_id)
    if here != (facts.key_sha256, delegation.verifying_key, delegation.ca_sha256, delegation.node_id):
        raise HostError(
            "enrollment.keys_changed",
            "what was signed is not for the keys of this host",
            place=str(directory),
            next_step="run sbctl apply again: the host asks for the keys that it has",
        )


def _write(directory: Path, params: EnrollmentInstall) -> bool:
    settings = AuthoritySettings(cluster_id=params.cluster_id, server_name=params.server_name, node_id=params.node_id)
    server = ServerSettings(
        bind_address=params.bind_address,
        port=params.port,
        validity_hours=params.validity_hours,
        reserved=params.reserved,
    )
    texts = {
        "authority.json": canonical_json(settings.model_dump(mode="json")),
        "server.json": canonical_json(server.model_dump(mode="json")),
        "ca.pem": params.certificate.encode(),
        "delegation.json": params.delegation.encode(),
        "roots.pem": params.roots.encode(),
        "authority-verifying.key": params.authority_keys.encode(),
        "revocations.json": params.revocations.encode(),
    }
    changed = False
    for name, data in texts.items():
        if _read(directory / name) != data:
            fs.write_atomic(directory / name, data)
            changed = True
    return changed


def enrollment_state(context: NodeContext) -> dict[str, Any]:
    """What a snapshot tells; never raises."""
    directory = _directory(context.paths)
    content = {name: sha256_bytes(_read(directory / name) or b"") for name in SUPPLIED_FILES}
    told: dict[str, Any] = {"content_sha256": fingerprint(content), "unit_sha256": None, "running": None}
    try:
        facts = certificate_facts((_read(directory / "ca.pem") or b"").decode("utf-8", "replace"))
        told |= {
            "fingerprint": facts.fingerprint,
            "not_before": rfc3339(facts.not_before),
            "not_after": rfc3339(facts.not_after),
        }
    except SbctlError:
        told["fingerprint"] = None
    systemd = system_of_root(context.uid, context.environ)
    if systemd is not None:
        told["unit_sha256"] = units_digest(installed_units(systemd, [ENROLLMENT_UNIT]))
        told["running"] = systemd.is_active(ENROLLMENT_UNIT)
    return told


def remove_enrollment(context: NodeContext, params: EnrollmentRemove) -> dict[str, Any]:
    """Raises RefusedError `host.other_lineage`, HostError `host.systemctl_failed`, SbctlError `disk.*`."""
    refuse_other_lineage(host_facts(context), params.lineage)
    return {"removed": remove_server(context)}


def remove_server(context: NodeContext) -> bool:
    """Unit, state, keys; whether anything was there."""
    systemd = system_of_root(context.uid, context.environ)
    found = False
    if systemd is not None:
        found = remove_units(systemd, [ENROLLMENT_UNIT])
        if _STATES[0].is_symlink():
            fs.remove_file(_STATES[0])
        for state in _STATES:
            if state.is_dir():
                fs.remove_tree(state)
    directory = _directory(context.paths)
    return (fs.remove_tree(directory) if directory.is_dir() else False) or found


def restart_server(context: NodeContext) -> None:
    """The host's identity changed, which the server shows: it reads it at its start. Nothing where none is installed."""
    systemd = system_of_root(context.uid, context.environ)
    if systemd is not None and installed_units(systemd, [ENROLLMENT_UNIT]):
        systemd.must("try-restart", ENROLLMENT_UNIT)


def ask_enrollment(context: NodeContext, params: EnrollmentAsk) -> dict[str, Any]:
    """Raises RefusedError `host.other_lineage`, UnreachableError `enrollment.not_running`, and what the server says."""
    refuse_other_lineage(host_facts(context), params.lineage)
    method, path = {
        "status": ("GET", "status"),
        "token_list": ("GET", "tokens"),
        "token_create": ("POST", "tokens"),
        "token_revoke": ("DELETE", f"tokens/{params.asked.get('id', '')}"),
        "nodes": ("GET", "nodes"),
    }[params.action]
    body = params.asked if method == "POST" else None
    try:
        return ControlClient(_CONTROL).ask(method, f"/control/v1/{path}", body, timeout_s=_ASK_S)
    except SbctlError as error:
        if error.code != "runtime.unreachable":
            raise
        raise HostError(
            "enrollment.not_running",
            "the enrollment server on this host does not answer",
            place=str(_CONTROL),
            next_step=f"sbctl apply starts it; look at: systemctl status {ENROLLMENT_UNIT}",
            retryable=True,
        ) from None


def _read(path: Path) -> bytes | None:
    try:
        return fs.read_bounded(path, max_bytes=_MAX_BYTES)
    except InputError:
        return None
