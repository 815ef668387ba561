"""`runtime.activate`: make one installed version the running runtime, with this configuration, trust and secrets.

Order: check owner and trust ► files, each atomic ► unit, verified ► `current` ► start or restart only when something decisive differs from
what runs ► healthy. Done again it finds its work done and restarts nothing. A failure leaves files that the next activation compares anew.
"""

from __future__ import annotations

import os
import secrets as random_secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sbctl.base import fs
from sbctl.base.digests import canonical_json, sha256_bytes
from sbctl.base.errors import HostError, InputError, RefusedError, SbctlError
from sbctl.base.flock import held
from sbctl.base.limits import BUNDLE_MAX_BYTES
from sbctl.node.messages import RuntimeActivate, RuntimeConfig
from sbctl.node.paths import NodePaths
from sbctl.runtime.binding import refuse_taken_ports
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.control_client import ControlClient
from sbctl.runtime.nodeops.snapshot import host_facts, stored_config
from sbctl.runtime.nodeops.units import UNIT_NAME, Systemd, render_unit, systemd_of
from sbctl.runtime.settings import load_trust
from sbctl.runtime.supervise import start_supervised, stop_supervised, supervisor_of
from sbctl.trust.verifier import trust_digest, verify_trust

__all__ = ["activate", "refuse_other_lineage", "refuse_started_by_hand"]

_PASSWORD: Final = "admin_password"  # noqa: S105 - the name of the file
_STAMP: Final = "activated"
_HEALTHY_DEADLINE_S: Final = 60.0
_START_DEADLINE_S: Final = 300.0
_POLL_S: Final = 0.1
_FILE_MAX_BYTES: Final = 4 * BUNDLE_MAX_BYTES


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What must be running, as the control socket reports it."""

    version: str
    config_sha256: str
    trust_digest: str
    stamp: str
    """Of the unit and the password, which no status reports; stored once a runtime that was started after them was healthy."""
    stamp_path: Path

    def differs(self, status: Mapping[str, Any] | None) -> str | None:
        """What is not so yet, in a phrase; None when all is."""
        if status is None:
            return "it does not answer"
        if not status.get("healthy"):
            return "it is not healthy"
        for name in ("version", "config_sha256", "trust_digest"):
            if status.get(name) != getattr(self, name):
                return f"it runs with another {name.partition('_')[0]}"
        return None


def refuse_other_lineage(facts: Mapping[str, Any], lineage: str) -> None:
    """Raises RefusedError `host.other_lineage` when another fleet holds this host."""
    marker = facts["marker"]
    if marker and marker["lineage"] != lineage:
        raise RefusedError(
            "host.other_lineage",
            f'this machine belongs to another fleet: it is its host "{marker["host"]}"',
            next_step="destroy it from the fleet that owns it, or take the machine out of this sb.yml",
        )


def refuse_started_by_hand(status: Mapping[str, Any] | None) -> None:
    """Raises RefusedError `runtime.started_by_hand`."""
    if status is not None and status.get("started_by_hand"):
        raise RefusedError(
            "runtime.started_by_hand",
            "the runtime here was started by hand (sbctl-runtime serve --config): its own file rules it",
            place=f"pid {status.get('pid')}",
            next_step="stop it, then run the command again",
        )


def activate(context: NodeContext, params: RuntimeActivate) -> dict[str, Any]:
    """Raises RefusedError of lineage and trust, HostError `runtime.not_installed`, `runtime.port_in_use`, `runtime.not_healthy`,
    SbctlError `disk.*`."""
    paths, config = context.paths, params.config
    facts = host_facts(context)
    refuse_other_lineage(facts, config.lineage)
    if params.version not in facts["runtime"]["installed_versions"]:
        raise HostError(
            "runtime.not_installed", f"runtime {params.version} is not installed here", place=str(paths.opt)
        )
    control = ControlClient(paths.control_socket)
    status = control.status()
    refuse_started_by_hand(status)
    _refuse_taken_ports(paths, config, status)
    version_directory = paths.version(params.version)
    systemd = systemd_of(facts["host"]["init"], context.environ, context.uid)
    unit = None if systemd is None else render_unit(systemd.kind, paths, version_directory, config)
    wanted = _write_files(context, params, unit)
    if systemd is not None and unit is not None:
        systemd.install(unit)
    if not paths.current.is_symlink() or os.readlink(paths.current) != params.version:
        fs.replace_symlink(paths.current, params.version)
    context.cancellation.check()
    context.report(0, None, "starting the runtime")
    if systemd is not None:
        _run_under_systemd(paths, systemd, control, wanted)
    else:
        _run_under_parent(context, version_directory, control, wanted)
    running = _await_healthy(context, control, wanted, systemd)
    if wanted.stamp != _stored_stamp(wanted.stamp_path):
        fs.write_atomic(wanted.stamp_path, wanted.stamp.encode(), mode=0o600)
    return {
        "pid": running.get("pid"),
        "unit_sha256": None if unit is None else sha256_bytes(unit),
        "config_sha256": wanted.config_sha256,
        "trust_digest": wanted.trust_digest,
        "supervision": systemd.kind if systemd is not None else "parent",
    }


def _refuse_taken_ports(paths: NodePaths, config: RuntimeConfig, status: Mapping[str, Any] | None) -> None:
    """Before a working runtime is stopped for ports that it cannot get. One that lives and does not answer may hold them itself."""
    if status is None and paths.state.is_dir():
        with held(paths.state / "serve.lock") as nobody_serves:
            if not nobody_serves:
                return
    refuse_taken_ports(config, [str((status or {}).get(name)) for name in ("http_url", "admin_url")])


def _write_files(context: NodeContext, params: RuntimeActivate, unit: bytes | None) -> _Wanted:
    paths, config = context.paths, params.config
    current, _ = _current_trust(paths)
    trust = verify_trust(params.trust_envelope, current=current, lineage=config.lineage)
    cache = Path(config.cache_directory) if config.cache_directory else paths.models
    fs.ensure_directory(paths.etc, mode=0o755)
    for directory, mode in ((paths.secrets, 0o700), (paths.state, 0o700), (cache, 0o755)):
        fs.ensure_directory(directory, mode=mode)
    data = canonical_json(config.model_dump(mode="json"))
    if stored_config(paths)[1] != sha256_bytes(data):
        fs.write_atomic(paths.runtime_config, data, mode=0o600)
    if trust != current:
        fs.write_atomic(paths.trust, params.trust_envelope.encode(), mode=0o600)
    stamp = sha256_bytes(b"\0".join((unit or b"", _write_password(context))))
    return _Wanted(params.version, sha256_bytes(data), trust_digest(trust), stamp, paths.secrets / _STAMP)


def _current_trust(paths: NodePaths) -> tuple[Any, str | None]:
    """The set this host holds. A damaged one is an error: a host that cannot tell whom it trusts takes nobody's word."""
    try:
        return load_trust(paths)
    except SbctlError as error:
        raise RefusedError(
            "trust.damaged",
            f"the signer set on this host cannot be read: {error.message}",
            place=str(paths.trust),
            next_step="look who wrote it; remove the file to trust this fleet's operator anew over the login",
        ) from error


def _write_password(context: NodeContext) -> bytes:
    """The one that was sent, else the one that is there, else a new one."""
    path = context.paths.secrets / _PASSWORD
    sent = context.secrets.get(_PASSWORD)
    try:
        stored = fs.read_bounded(path, max_bytes=_FILE_MAX_BYTES)
    except InputError as error:
        if error.code != "file.missing":
            raise
        stored = b""
    value = sent.reveal() if sent is not None else stored or random_secrets.token_urlsafe(24).encode()
    if value != stored:
        fs.write_atomic(path, value, mode=0o600)
    return value


def _must_restart(control: ControlClient, wanted: _Wanted) -> bool:
    """Whether what runs is not what the files say."""
    return wanted.differs(control.status()) is not None or wanted.stamp != _stored_stamp(wanted.stamp_path)


def _stored_stamp(path: Path) -> str:
    try:
        return fs.read_bounded(path, max_bytes=1024).decode("ascii", "replace")
    except InputError:
        return ""


def _run_under_systemd(paths: NodePaths, systemd: Systemd, control: ControlClient, wanted: _Wanted) -> None:
    if supervisor_of(paths) is not None:
        stop_supervised(paths)
    restart = _must_restart(control, wanted)
    systemd.must("daemon-reload")
    systemd.must("enable", UNIT_NAME)
    done = systemd.ctl("restart" if restart else "start", UNIT_NAME, deadline_s=_START_DEADLINE_S)
    if done.returncode:
        raise _not_healthy(paths, "it ended while it started", systemd.why() or done.tail())


def _run_under_parent(context: NodeContext, version_directory: Path, control: ControlClient, wanted: _Wanted) -> None:
    if supervisor_of(context.paths) is not None and _must_restart(control, wanted):
        stop_supervised(context.paths)
    start_supervised(context.paths, version_directory, context.environ)


def _await_healthy(
    context: NodeContext, control: ControlClient, wanted: _Wanted, systemd: Systemd | None
) -> Mapping[str, Any]:
    began = context.clock.monotonic_s()
    while True:
        context.cancellation.check()
        status = control.status()
        missing = wanted.differs(status)
        if missing is None and status is not None:
            return status
        if systemd is None and supervisor_of(context.paths) is None:
            raise _not_healthy(context.paths, "its supervisor ended", _log_tail(context.paths))
        if context.clock.monotonic_s() - began > _HEALTHY_DEADLINE_S:
            break
        context.clock.sleep_s(_POLL_S)
    said = systemd.why() if systemd is not None else _log_tail(context.paths)
    raise _not_healthy(context.paths, f"after {_HEALTHY_DEADLINE_S:.0f} s {missing}", said)


def _not_healthy(paths: NodePaths, what: str, said: str) -> HostError:
    return HostError(
        "runtime.not_healthy",
        f"the runtime did not come up: {what}" + (f"; it said: {said}" if said else ""),
        place=str(paths.control_socket),
        next_step="correct what it says, then run sbctl apply again",
    )


def _log_tail(paths: NodePaths) -> str:
    from sbctl.base.display import display_safe
    from sbctl.base.secret import redact

    try:
        with (paths.logs / "runtime.log").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().decode("utf-8", "replace").splitlines()[-5:]
    except OSError:
        return ""
    return display_safe(redact("; ".join(lines)), max_chars=1500)
