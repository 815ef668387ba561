"""`runtime.remove`: stop the runtime and its engines, then take away unit, programs, configuration, secrets and state; weights stay.

Everything is stopped and seen to be gone before the first file goes, so an interrupted removal is finished by the next one. The node
interface itself runs from a directory that goes; nothing is imported after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any, Final

from sbctl.artifacts.cache import ArtifactCache
from sbctl.base import fs
from sbctl.base.errors import HostError, SbctlError
from sbctl.base.flock import FileLock, exclusive
from sbctl.node.messages import RuntimeRemove
from sbctl.node.paths import NodePaths
from sbctl.runtime.nodeops import activation_journal
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.control_client import ControlClient
from sbctl.runtime.nodeops.enrollment_ops import remove_server
from sbctl.runtime.nodeops.launcher_units import remove_launcher
from sbctl.runtime.nodeops.runtime_ops import refuse_other_lineage, refuse_started_by_hand
from sbctl.runtime.nodeops.side_units import RENEWAL_UNITS, remove_units
from sbctl.runtime.nodeops.snapshot import cache_root, host_facts
from sbctl.runtime.nodeops.store_ops import remove_store_server
from sbctl.runtime.nodeops.tls_handover import WATCH_UNITS
from sbctl.runtime.nodeops.units import Systemd, Units, systemd_of
from sbctl.runtime.nodeops.users import remove_users, take_back_cache
from sbctl.runtime.ownership import OwnershipRecords
from sbctl.runtime.supervise import stop_supervised

__all__ = ["remove_runtime"]

_KEPT_IN_ETC: Final = frozenset({"marker.json", "marker.lock"})
_STOP_DEADLINE_S: Final = 300.0
_GONE_DEADLINE_S: Final = 30.0
_POLL_S: Final = 0.1


def remove_runtime(context: NodeContext, params: RuntimeRemove) -> dict[str, Any]:
    """Raises RefusedError `host.other_lineage`, `runtime.started_by_hand`; HostError `runtime.not_stopped`; SbctlError `disk.*`."""
    paths = context.paths
    facts = host_facts(context)
    refuse_other_lineage(facts, params.lineage)
    client = ControlClient(paths.control_socket)
    refuse_started_by_hand(client.status())
    _say_farewell(client)
    context.report(0, None, "stopping the runtime and its engines")
    systemd = systemd_of(facts["host"]["init"], context.environ, context.uid)
    fs.ensure_directory(paths.etc, mode=0o755)
    with exclusive(paths.activation_lock, deadline_s=_STOP_DEADLINE_S, check=context.cancellation.check):
        activation_journal.end(paths)
        units = systemd.installed() if systemd is not None else {}
        if systemd is not None and units:
            _stop_units(systemd, units)
        stop_supervised(paths)
        _see_it_gone(context)
        cache = cache_root(paths)
        ArtifactCache(cache, context.clock).dismantle_if_empty()
        if systemd is not None and systemd.kind == "system":
            remove_launcher(paths)
            remove_units(systemd, (*RENEWAL_UNITS, *WATCH_UNITS))
            remove_server(context)
        remove_store_server(context)
        if systemd is not None and systemd.kind == "system":
            take_back_cache(cache)
        if systemd is not None and units:
            _remove_units(systemd, units)
        _remove_files(paths)
        if systemd is not None and systemd.kind == "system":
            remove_users()
    return {}


def _say_farewell(client: ControlClient) -> None:
    """A node of a cluster takes its last word back when it stops, so that nobody waits for it. Without its store, or where it does not answer,
    the others see it fall silent."""
    with contextlib.suppress(SbctlError):
        if client.cluster() is not None:
            client.drain("leave")


def _stop_units(systemd: Systemd, units: Units) -> None:
    """The port first: a connection would start the runtime anew."""
    systemd.must("disable", *units)
    systemd.must("stop", *sorted(units, reverse=True), deadline_s=_STOP_DEADLINE_S)


def _remove_units(systemd: Systemd, units: Units) -> None:
    for name in units:
        fs.remove_file(systemd.directory / name)
    systemd.must("daemon-reload")
    systemd.ctl("reset-failed", *units)


def _see_it_gone(context: NodeContext) -> None:
    """The serve lock is free, and no engine of its records lives on."""
    paths = context.paths
    if not paths.state.is_dir():
        return
    lock = FileLock(paths.state / "serve.lock")
    began = context.clock.monotonic_s()
    while not lock.try_acquire():
        if context.clock.monotonic_s() - began > _GONE_DEADLINE_S:
            raise HostError(
                "runtime.not_stopped",
                "a runtime still serves this state directory",
                place=str(paths.state),
                next_step="look who started it, stop it, then run the command again",
            )
        context.clock.sleep_s(_POLL_S)
    try:
        asyncio.run(OwnershipRecords(paths.engine_records).reap())
    finally:
        lock.release()


def _remove_files(paths: NodePaths) -> None:
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(paths.etc)):
            if name not in _KEPT_IN_ETC:
                _remove(paths, name)
    for directory in (paths.state, paths.opt):
        if directory.is_dir():
            fs.remove_tree(directory)


def _remove(paths: NodePaths, name: str) -> None:
    path = paths.etc / name
    if path.is_dir() and not path.is_symlink():
        fs.remove_tree(path)
    else:
        fs.remove_file(path)
