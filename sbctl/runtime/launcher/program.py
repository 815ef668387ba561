"""`sbctl-runtime launcher`: the server on the socket that systemd listens on for it. Its own lines go to the journal."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import socket
import stat
import sys
from collections.abc import Mapping
from typing import Final

from sbctl.base.display import display_safe
from sbctl.base.errors import HostError, RefusedError, UsageError
from sbctl.node.paths import node_paths
from sbctl.runtime.launcher.engine_units import EngineUnits, Owners
from sbctl.runtime.launcher.server import LauncherServer
from sbctl.runtime.launcher.site import SITE_FILE, Site, read_site
from sbctl.runtime.launcher.units import SystemdUnits
from sbctl.runtime.notify import Notifier

__all__ = ["run_launcher"]

_FIRST_FD: Final = 3
_RUNTIME_USER: Final = "sbctl"
_ENGINE_USER: Final = "sbctl-engine"


def run_launcher(argv: list[str]) -> int:
    """Serve until idle or told to stop; engines run on. Raises UsageError, RefusedError `launcher.not_root`, HostError `launcher.no_socket`."""
    if argv:
        raise UsageError("launcher.usage", "the launcher takes no arguments; systemd starts it by its socket")
    if os.geteuid() != 0:
        raise RefusedError(
            "launcher.not_root",
            "only root can start engines as another user",
            next_step="let systemd start it: systemctl start sbctl-launcher.socket",
        )
    os.umask(0o077)
    asyncio.run(_serve(_listener(os.environ)))
    return 0


async def _serve(listener: socket.socket) -> None:
    site_path = node_paths(0, {}).etc / SITE_FILE

    def site() -> Site:
        return read_site(site_path)

    server = LauncherServer(EngineUnits(SystemdUnits(), site, _owners), site, _allowed, _say)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    Notifier(os.environ).ready("waiting for the runtime")
    await server.serve(listener)


def _listener(environ: Mapping[str, str]) -> socket.socket:
    """The listening UNIX socket that systemd passed (sd_listen_fds(3))."""
    mine = environ.get("LISTEN_PID") == str(os.getpid()) and environ.get("LISTEN_FDS") == "1"
    if not mine or not stat.S_ISSOCK(os.fstat(_FIRST_FD).st_mode):
        raise HostError(
            "launcher.no_socket",
            "systemd handed over no socket",
            next_step="start it by its socket: systemctl start sbctl-launcher.socket",
        )
    os.set_inheritable(_FIRST_FD, False)
    listener = socket.socket(fileno=_FIRST_FD)
    listener.setblocking(False)
    return listener


def _allowed() -> frozenset[int]:
    try:
        return frozenset({0, pwd.getpwnam(_RUNTIME_USER).pw_uid})
    except KeyError:
        return frozenset({0})


def _owners() -> Owners:
    """Raises HostError `launcher.no_accounts`."""
    try:
        engine, runtime = pwd.getpwnam(_ENGINE_USER), pwd.getpwnam(_RUNTIME_USER)
    except KeyError as error:
        raise HostError(
            "launcher.no_accounts", "the accounts sbctl and sbctl-engine are missing", next_step="run sbctl apply"
        ) from error
    if engine.pw_uid == 0:
        raise HostError(
            "launcher.no_accounts", "the account sbctl-engine has root's rights", next_step="run sbctl apply"
        )
    return Owners(engine.pw_uid, runtime.pw_gid)


def _say(line: str) -> None:
    sys.stderr.write(f"{display_safe(line, max_chars=1024)}\n")
    sys.stderr.flush()
