"""`store.install|remove`: the cluster's store on an authority's host.

    <etc>/store/          root's alone: nats.conf, the names of the members, which program runs, and what was taken up last (`applied.json`)
    <opt>/store/<version> the program from its wheel
    sbctl-store.service   an account of its own; its data is systemd's (StateDirectory); beside the server its keeper (`store_keeper`)

Where no systemd is, below a prefix, a small parent keeps the server running, and its data is in `<state>/store`.

Only other users: the server reads its configuration anew, and who is connected stays. Anything else restarts it, and while it is one of three
that only happens when the two others are there, and is done when the group is whole again. `applied.json` is written last, so whatever a crash
cuts is done again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from sbctl.base import fs
from sbctl.base.display import format_bytes
from sbctl.base.errors import HostError, InputError, SbctlError
from sbctl.node.store_messages import StoreInstall, StoreRemove
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.runtime_ops import refuse_other_lineage
from sbctl.runtime.nodeops.side_units import STORE_UNIT, installed_units, remove_units, system_of_root
from sbctl.runtime.nodeops.snapshot import host_facts
from sbctl.runtime.nodeops.store_config import check_names
from sbctl.runtime.nodeops.store_health import Health, look
from sbctl.runtime.nodeops.store_installation import (
    STATES,
    Installation,
    applied_before,
    content_digest,
    signal_reload,
    store_data,
    store_home,
)
from sbctl.runtime.nodeops.store_ports import refuse_taken_ports
from sbctl.runtime.nodeops.store_program import ensure_program, programs_directory
from sbctl.runtime.nodeops.units import units_digest
from sbctl.runtime.store_exec import PROGRAM_FILE
from sbctl.runtime.store_keeper import Restarts, room
from sbctl.runtime.supervise import STORE, stop_supervised
from sbctl.trust.certificates import certificate_facts

__all__ = ["install_store", "refresh_store", "remove_store", "remove_store_server", "store_state"]

_MAX_BYTES: Final = 16 * 1024 * 1024


def install_store(context: NodeContext, params: StoreInstall) -> dict[str, Any]:
    """Raises RefusedError of the lineage, `store.too_old`, `store.quorum_at_risk`; InputError `store.name_taken`, `store.members`; HostError
    `store.no_identity`, `store.port_in_use`, `store.no_program`, `store.config_refused`, `store.not_started`, `store.not_whole`; SbctlError `disk.*`."""
    refuse_other_lineage(host_facts(context), params.lineage)
    check_names(params)
    _check_identity(context, params)
    systemd = system_of_root(context.uid, context.environ)
    refuse_taken_ports(params, is_installed=store_home(context).is_dir(), in_unit=systemd is not None)
    installation = Installation(context, params, systemd, ensure_program(context, params))
    installation.check()
    installation.remember(_bring_about(installation, applied_before(context), expects_quorum=params.expects_quorum))
    installation.tidy()
    state = store_state(context)
    return {name: state[name] for name in ("content_sha256", "unit_sha256", "version")}


def _bring_about(installation: Installation, before: dict[str, Any] | None, *, expects_quorum: bool) -> Health:
    """By a restart, a reload, or nothing."""
    wanted = installation.wanted
    same_group = before is not None and before.get("group") == wanted["group"]
    if before is None or before.get("static") != wanted["static"] or not installation.is_at_work():
        if same_group:
            installation.await_peers()
        installation.write()
        installation.restart()
        return installation.await_start(whole=same_group or expects_quorum)
    if before.get("content") != wanted["content"]:
        installation.write()
        return installation.reload()
    return installation.await_start(whole=False)


def _check_identity(context: NodeContext, params: StoreInstall) -> None:
    try:
        facts = certificate_facts(IdentityFiles(context.paths).read().certificate)
    except InputError as error:
        raise HostError(
            "store.no_identity",
            f"the store shows the host's identity, and there is none that can be read: {error.message}",
            place=error.place,
            next_step="add fleet.identity (sbctl cluster init makes it), then sbctl apply",
        ) from None
    if facts.subject != params.node_id:
        raise HostError(
            "store.no_identity",
            f"the identity of this host is that of {facts.subject}, not of {params.node_id}",
            next_step="sbctl apply gives it the right one",
        )


def refresh_store(context: NodeContext) -> None:
    """The host's identity changed, which the store shows: it takes it up without a restart. Nothing where none is installed."""
    if not store_home(context).is_dir():
        return
    systemd = system_of_root(context.uid, context.environ)
    if systemd is None:
        signal_reload(context, None)
    elif systemd.is_active(STORE_UNIT):
        systemd.must("reload", STORE_UNIT)


def store_state(context: NodeContext) -> dict[str, Any]:
    """What a snapshot tells of an installed store; never raises."""
    applied = applied_before(context) or {}
    systemd = system_of_root(context.uid, context.environ)
    files = [_read(store_home(context) / name) for name in ("nats.conf", "hosts", PROGRAM_FILE)]
    others = [str(name) for name in applied.get("members", ()) if name != applied.get("node")]
    health = look(int(applied["monitor_port"]), others=others) if "monitor_port" in applied else None
    data = store_data(context, systemd)
    restarts = Restarts.read(data)
    told: dict[str, Any] = {
        "content_sha256": content_digest(*files),
        "unit_sha256": None,
        "version": str(applied.get("version", "")),
        "running": health is not None and not health.is_stuck,
        "up_to_date": health is not None and health.config == applied.get("config"),
        "whole": health is not None and health.is_whole,
        "leader": None if health is None else health.leader,
        "problem": _problem(health, data),
        "stuck": health is not None and health.is_stuck,
        "restarts": restarts.count,
        "restarted_at": restarts.last_at,
    }
    if systemd is not None:
        told["unit_sha256"] = units_digest(installed_units(systemd, [STORE_UNIT]))
    return told


def _problem(health: Health | None, data: Path) -> str | None:
    if health is None:
        return "it does not run"
    if not health.is_stuck:
        return health.problem
    try:
        free, needed = room(data)
    except OSError as error:
        return f"it takes no writes, and its data in {data} cannot be looked at: {error.strerror}"
    if free < needed:
        return f"its disk is full: {format_bytes(free)} free in {data}, {format_bytes(needed)} are needed; then it starts anew by itself"
    return f"its disk was full; {format_bytes(free)} are free in {data}, and it starts anew by itself within minutes"


def remove_store(context: NodeContext, params: StoreRemove) -> dict[str, Any]:
    """Raises RefusedError `host.other_lineage`, HostError `host.systemctl_failed`, SbctlError `disk.*`."""
    refuse_other_lineage(host_facts(context), params.lineage)
    return {"removed": remove_store_server(context)}


def remove_store_server(context: NodeContext) -> bool:
    """Unit, data, program, configuration; whether anything was there."""
    systemd = system_of_root(context.uid, context.environ)
    if systemd is not None:
        found = remove_units(systemd, [STORE_UNIT])
        if STATES[0].is_symlink():
            fs.remove_file(STATES[0])
        states: tuple[Path, ...] = STATES
    else:
        found = stop_supervised(context.paths, what=STORE)
        states = (store_data(context, None),)
        for name in (STORE.name + ".lock", STORE.name + ".json"):
            fs.remove_file(context.paths.state / name)
    for directory in (*states, store_home(context), programs_directory(context)):
        if directory.is_dir():
            found = fs.remove_tree(directory) or found
    return found


def _read(path: Path) -> bytes:
    try:
        return fs.read_bounded(path, max_bytes=_MAX_BYTES)
    except SbctlError:
        return b""
