"""`runtime.activate`: make one installed version the running runtime, with this configuration, trust and secrets.

    check owner, trust, ports, units ► keep what is replaced ► files, units, `current`, each atomic ► start or restart only when something
    decisive differs from what runs ► healthy ► the new one is what a later activation falls back to

Done again it finds its work done and restarts nothing. Where a healthy runtime is replaced and the new one does not become healthy in time,
the old one is put back and serves again. From the first replaced file on, a closed channel cancels nothing, and a guard beside this process
ends what it leaves.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets as random_secrets
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sbctl.artifacts.egress import EGRESS_SECRETS, PROVIDER_KEY_PATTERN
from sbctl.base import fs
from sbctl.base.digests import canonical_json, sha256_bytes
from sbctl.base.errors import HostError, InputError, RefusedError, SbctlError
from sbctl.base.flock import exclusive, held
from sbctl.base.limits import BUNDLE_MAX_BYTES
from sbctl.node.facts import installed_versions, standalone_of
from sbctl.node.messages import RuntimeActivate, RuntimeConfig
from sbctl.node.paths import NodePaths
from sbctl.node.standalone import sweep_pythons
from sbctl.runtime.binding import refuse_taken_ports
from sbctl.runtime.nodeops import activation_journal
from sbctl.runtime.nodeops.activation_end import commit, post_guard, roll_back, settle
from sbctl.runtime.nodeops.activation_journal import Activation
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.launcher_units import install_launcher, launcher_files
from sbctl.runtime.nodeops.running import (
    HEALTHY_DEADLINE_S,
    LocalRuntime,
    Wanted,
    link_version,
    local_runtime,
    stamp_path,
    stored_stamp,
)
from sbctl.runtime.nodeops.side_units import ENROLLMENT_UNIT, RENEWAL_UNITS, installed_units
from sbctl.runtime.nodeops.snapshot import cache_root, host_facts, stored_config
from sbctl.runtime.nodeops.tls_handover import hand_over, tend_watch
from sbctl.runtime.nodeops.units import GUARD_NAME, Units, render_units, socket_addresses, units_digest
from sbctl.runtime.nodeops.users import ensure_users
from sbctl.runtime.public_tls_files import node_files_of, pair_path
from sbctl.runtime.settings import load_trust
from sbctl.trust.bundle import TrustSet
from sbctl.trust.verifier import trust_digest, verify_trust

__all__ = ["activate", "refuse_other_lineage", "refuse_started_by_hand"]

_PASSWORD: Final = "admin_password"  # noqa: S105 - the name of the file
_LOCK_DEADLINE_S: Final = 240.0
_GUARD_ENDS_S: Final = 10.0
_FILE_MAX_BYTES: Final = 4 * BUNDLE_MAX_BYTES


@dataclass(frozen=True, slots=True)
class _Prepared:
    """All that will stand on the host, before any of it does."""

    wanted: Wanted
    config: RuntimeConfig
    files: Mapping[Path, bytes]
    """0600 each."""
    units: Units

    def stands(self, runtime: LocalRuntime) -> bool:
        """Whether all of it stands there already."""
        return (
            all(_stored(path) == data for path, data in self.files.items())
            and (runtime.systemd is None or runtime.systemd.installed() == self.units)
            and link_version(runtime.paths.current) == self.wanted.version
        )


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
    """Raises RefusedError of lineage and trust, HostError `runtime.not_installed`, `runtime.port_in_use`, `runtime.unit_invalid`,
    `runtime.not_healthy`, `runtime.rolled_back`, `runtime.rollback_failed`, LockedError `host.locked`, SbctlError `disk.*`."""
    facts = host_facts(context)
    refuse_other_lineage(facts, params.config.lineage)
    if params.version not in facts["runtime"]["installed_versions"]:
        raise HostError(
            "runtime.not_installed", f"runtime {params.version} is not installed here", place=str(context.paths.opt)
        )
    fs.ensure_directory(context.paths.etc, mode=0o755)
    with exclusive(context.paths.activation_lock, deadline_s=_LOCK_DEADLINE_S, check=context.cancellation.check):
        return _activate_alone(context, params, local_runtime(context, facts["host"]["init"]))


def _activate_alone(context: NodeContext, params: RuntimeActivate, runtime: LocalRuntime) -> dict[str, Any]:
    paths = context.paths
    settle(runtime)
    status = runtime.control.status()
    refuse_started_by_hand(status)
    _refuse_taken_ports(runtime, params.config, status)
    if link_version(paths.proven) is None:
        fs.replace_symlink(paths.proven, link_version(paths.current) or params.version)
    prepared = _prepare(context, params, runtime)
    restart = runtime.must_restart(prepared.wanted)
    context.cancellation.check()
    former = link_version(paths.current)
    if restart or not prepared.stands(runtime):
        running = _replace(context, runtime, prepared, status, restart=restart)
    else:
        running = runtime.await_healthy(prepared.wanted, deadline_s=HEALTHY_DEADLINE_S, check=lambda: None)
    _tend_public_tls(runtime, params)
    _forget_secrets(paths, params.config)
    if former not in (None, params.version):
        _prune(runtime, kept={params.version, former})
    sweep_pythons(paths)
    return {
        "pid": running.get("pid"),
        "unit_sha256": units_digest(prepared.units),
        "config_sha256": prepared.wanted.config_sha256,
        "trust_digest": prepared.wanted.trust_digest,
        "supervision": runtime.supervision,
    }


def _tend_public_tls(runtime: LocalRuntime, params: RuntimeActivate) -> None:
    """What runs shows what is installed; files of somebody else are watched; a certificate that nothing uses goes, with its key."""
    paths, config = runtime.paths, params.config
    if config.has_tls:
        hand_over(paths, runtime.control)
    else:
        _forget(pair_path(paths))
    tend_watch(runtime.systemd, paths, paths.version(params.version), config)


def _refuse_taken_ports(runtime: LocalRuntime, config: RuntimeConfig, status: Mapping[str, Any] | None) -> None:
    """Before a working runtime is stopped for ports that it cannot get. One that lives and does not answer may hold them itself."""
    paths = runtime.paths
    if status is None and paths.state.is_dir():
        with held(paths.state / "serve.lock") as nobody_serves:
            if not nobody_serves:
                return
    told = [(status or {}).get(name) for name in ("http_url", "https_url", "admin_url")]
    ours = {url.partition("://")[2] for url in told if isinstance(url, str)}
    refuse_taken_ports(config, ours | runtime.held_addresses(), pid=(status or {}).get("pid"))


def _prepare(context: NodeContext, params: RuntimeActivate, runtime: LocalRuntime) -> _Prepared:
    """Raises RefusedError of trust, HostError `runtime.unit_value_refused`, `runtime.unit_invalid`."""
    paths, config = context.paths, params.config
    current = _current_trust(paths)
    trust = _verified_trust(params, current)
    data = canonical_json(config.model_dump(mode="json"))
    password = _password(context)
    units: Units = {}
    if runtime.systemd is not None:
        units = render_units(runtime.systemd.kind, paths, paths.version(params.version), config)
    egress = _egress_secrets(context, config)
    files = {paths.runtime_config: data, paths.secrets / _PASSWORD: password, **egress, **_public_pair(paths, config)}
    if trust != current:
        files[paths.trust] = params.trust_envelope.encode()
    python = standalone_of(paths, params.version).encode()
    parts = ((units_digest(units) or "").encode(), password, *([python] if python else ()), *egress.values())
    stamp = sha256_bytes(b"\0".join(parts))
    wanted = Wanted(params.version, sha256_bytes(data), trust_digest(trust), stamp)
    return _Prepared(wanted, config, files, units)


def _public_pair(paths: NodePaths, config: RuntimeConfig) -> Mapping[Path, bytes]:
    """What of the public certificate is written now: the pair of files that somebody else keeps here. One that is sent stands there already.

    Raises HostError `tls.files_unreadable`, `tls.files_refused`, `tls.not_installed`.
    """
    files = node_files_of(config)
    if files is not None:
        return {pair_path(paths): files.read().reveal()}
    if config.has_tls and not pair_path(paths).exists():
        raise HostError(
            "tls.not_installed",
            "the runtime shall serve TLS, and its certificate is not on this host",
            place=str(pair_path(paths)),
            next_step="plan again: sbctl apply sends it",
        )
    return {}


def _current_trust(paths: NodePaths) -> TrustSet | None:
    """The set this host holds. A damaged one is an error: a host that cannot tell whom it trusts takes nobody's word."""
    try:
        return load_trust(paths)[0]
    except SbctlError as error:
        raise RefusedError(
            "trust.damaged",
            f"the signer set on this host cannot be read: {error.message}",
            place=str(paths.trust),
            next_step="look who wrote it; remove the file to trust this fleet's operator anew over the login",
        ) from error


def _verified_trust(params: RuntimeActivate, current: TrustSet | None) -> TrustSet:
    try:
        return verify_trust(params.trust_envelope, current=current, lineage=params.config.lineage)
    except RefusedError as error:
        names = ", ".join(sorted(current.signers)) if current is not None else "nobody"
        raise RefusedError(
            error.code,
            f"this host trusts {names}, and who signed now is not one of them: {error.message}",
            place=error.place,
            next_step="have one of them sign (sbctl key list names the keys); if somebody replaced the set on the host,"
            f" run sbctl destroy --target runtime.{params.config.host}, then sbctl apply",
        ) from error


def _password(context: NodeContext) -> bytes:
    """The one that was sent, else the one that is there, else a new one."""
    sent = context.secrets.get(_PASSWORD)
    if sent is not None:
        return sent.reveal()
    return _stored(context.paths.secrets / _PASSWORD) or random_secrets.token_urlsafe(24).encode()


def _forget_secrets(paths: NodePaths, config: RuntimeConfig) -> None:
    """Of an egress or an external provider that is no longer so."""
    for name in {*EGRESS_SECRETS, *_provider_keys(paths)}.difference(config.egress.secrets, config.provider_keys):
        _forget(paths.secrets / name)


def _provider_keys(paths: NodePaths) -> list[str]:
    """Names of those that are here."""
    found = paths.secrets.iterdir() if paths.secrets.is_dir() else ()
    return [path.name for path in found if re.fullmatch(PROVIDER_KEY_PATTERN, path.name)]


def _forget(path: Path) -> None:
    """The activation is done by now: where the disk refuses, the next one removes it."""
    if os.path.lexists(path):
        with contextlib.suppress(SbctlError):
            fs.remove_file(path)


def _egress_secrets(context: NodeContext, config: RuntimeConfig) -> dict[Path, bytes]:
    """As sent, else as they are here already. Raises InputError `egress.secret_missing`."""
    found = {}
    for name in (*config.egress.secrets, *config.provider_keys):
        path, sent = context.paths.secrets / name, context.secrets.get(name)
        value = sent.reveal() if sent is not None else _stored(path)
        if value is None:
            raise InputError(
                "egress.secret_missing", f"the secret {name} was not sent", place=str(path), next_step="run sbctl apply"
            )
        found[path] = value
    return found


def _stored(path: Path) -> bytes | None:
    try:
        return fs.read_bounded(path, max_bytes=_FILE_MAX_BYTES)
    except InputError as error:
        if error.code != "file.missing":
            raise
        return None


def _replace(
    context: NodeContext, runtime: LocalRuntime, prepared: _Prepared, status: Mapping[str, Any] | None, *, restart: bool
) -> Mapping[str, Any]:
    """What stands by what was prepared, and run it. From here on nothing is left half done, whoever goes away."""
    if runtime.has_accounts:
        ensure_users()
    if runtime.systemd is not None:
        runtime.systemd.verify(prepared.units)
    rebind = runtime.systemd is not None and socket_addresses(runtime.systemd.installed()) != socket_addresses(
        prepared.units
    )
    activation = _keep_former(runtime, prepared, status, rebind=rebind)
    if activation is None:
        return _switch(context, runtime, prepared, restart=restart, rebind=rebind, keeps_former=False)
    guard: subprocess.Popen[bytes] | None = None
    try:
        guard = post_guard(runtime)
        running = _switch(context, runtime, prepared, restart=restart, rebind=rebind, keeps_former=True)
    except SbctlError as error:
        _tell(context, "putting the former runtime back")
        raise roll_back(runtime, activation, error) from error
    finally:
        if guard is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                guard.wait(_GUARD_ENDS_S)
    return running


def _keep_former(
    runtime: LocalRuntime, prepared: _Prepared, status: Mapping[str, Any] | None, *, rebind: bool
) -> Activation | None:
    """The journal of what is replaced; None when nothing healthy is there to fall back to."""
    paths, systemd = runtime.paths, runtime.systemd
    version = link_version(paths.current)
    config_sha256 = stored_config(paths)[1]
    if status is None or not status.get("healthy") or version is None or config_sha256 is None:
        return None
    if systemd is not None and GUARD_NAME not in (found := systemd.installed()):
        systemd.install({**found, GUARD_NAME: prepared.units[GUARD_NAME]})
        systemd.must("enable", GUARD_NAME)
    previous = Wanted(version, config_sha256, load_trust(paths)[1], stored_stamp(paths))
    replaced = [paths.runtime_config, paths.trust, paths.secrets / _PASSWORD, pair_path(paths), stamp_path(paths)]
    replaced += [paths.secrets / name for name in (*EGRESS_SECRETS, *_provider_keys(paths))]
    replaced.append(paths.current)
    if systemd is not None:
        replaced.extend((*systemd.unit_paths(), *launcher_files(paths)))
    return activation_journal.begin(
        paths,
        replaced,
        wanted=prepared.wanted,
        previous=previous,
        previous_pid=int(status.get("pid") or 0),
        rebind=rebind,
    )


def _switch(
    context: NodeContext,
    runtime: LocalRuntime,
    prepared: _Prepared,
    *,
    restart: bool,
    rebind: bool,
    keeps_former: bool,
) -> Mapping[str, Any]:
    paths, wanted = context.paths, prepared.wanted
    former, _ = stored_config(paths)
    for directory in (paths.secrets, paths.state):
        fs.ensure_directory(directory, mode=0o700)
    for path, data in prepared.files.items():
        if _stored(path) != data:
            fs.write_atomic(path, data, mode=0o600)
    cache = cache_root(paths)
    fs.ensure_directory(cache, mode=0o755)
    runtime.give_files(cache)
    if runtime.has_accounts:
        install_launcher(paths, paths.version(wanted.version), prepared.config, former)
    if runtime.systemd is not None:
        runtime.systemd.install(prepared.units)
    if link_version(paths.current) != wanted.version:
        fs.replace_symlink(paths.current, wanted.version)
    if keeps_former:
        activation_journal.mark_switched(paths)
    _tell(context, "starting the runtime")
    runtime.run(wanted.version, restart=restart, rebind=rebind)
    running = runtime.await_healthy(wanted, deadline_s=HEALTHY_DEADLINE_S, check=lambda: None)
    commit(runtime, wanted)
    return running


def _tell(context: NodeContext, note: str) -> None:
    """Nobody may be listening any more."""
    with contextlib.suppress(OSError):
        context.report(0, None, note)


def _prune(runtime: LocalRuntime, *, kept: set[str | None]) -> None:
    """Versions that were neither proved now nor ran before; not the one that this process runs from, and none that a unit still begins."""
    for version in installed_versions(runtime.paths):
        place = runtime.paths.version(version)
        if version not in kept and place != Path(sys.prefix) and not _begins_a_unit(place, runtime):
            fs.remove_tree(place)


def _begins_a_unit(place: Path, runtime: LocalRuntime) -> bool:
    """The enrollment server, or a renewal, whose own resource was not brought along (`--target runtime.H`)."""
    if runtime.systemd is None:
        return False
    units = installed_units(runtime.systemd, (ENROLLMENT_UNIT, *RENEWAL_UNITS))
    return any(f"{place}/".encode() in text for text in units.values())
