"""The API's certificate from the file on the host to the runtime that serves, and from files that somebody else keeps to that file.

sbctl-public-tls.{path,timer,service}   under the system's systemd, where the runtime's account may not read those files: root looks
                                        when they change, and every few hours in case a change was missed
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sbctl.base import fs
from sbctl.base.clock import SYSTEM_CLOCK, Clock
from sbctl.base.errors import HostError
from sbctl.base.flock import exclusive
from sbctl.base.secret import Secret
from sbctl.node.messages import RuntimeConfig
from sbctl.node.paths import NodePaths, node_paths
from sbctl.runtime.arguments import Arguments
from sbctl.runtime.nodeops.control_client import ControlClient
from sbctl.runtime.nodeops.side_units import install_units, remove_units, render
from sbctl.runtime.nodeops.snapshot import stored_config
from sbctl.runtime.nodeops.units import Systemd
from sbctl.runtime.public_tls_files import NodeFiles, installed_fingerprint, node_files_of, pair_path, write_pair

__all__ = ["WATCH_UNITS", "hand_over", "run_public_tls", "take_from_host", "tend_watch"]

WATCH_UNITS: Final = ("sbctl-public-tls.path", "sbctl-public-tls.timer", "sbctl-public-tls.service")
_LOCK_DEADLINE_S: Final = 120.0
_TAKE_S: Final = 15.0
_TRIES: Final = 5
_AGAIN_S: Final = 2.0
"""Who renews writes two files, one after the other."""


def hand_over(paths: NodePaths, control: ControlClient) -> bool:
    """Let a running runtime that serves TLS show the installed pair; False when there is none: it takes the pair at its start.

    Raises what the runtime says, which goes on with the former one.
    """
    status = control.status()
    if status is None or status.get("tls") is None:
        return False
    told = status["tls"]
    if told.get("used") != installed_fingerprint(paths) or told.get("problem") is not None:
        control.take_certificate(Secret(fs.read_bounded(pair_path(paths), max_bytes=1 << 20)), timeout_s=_TAKE_S)
    return True


def take_from_host(paths: NodePaths, files: NodeFiles, control: ControlClient, clock: Clock) -> bool:
    """Install what the files hold now and hand it over; True when it is another certificate. A pair that does not belong together is looked at
    again: it is being written.

    Raises HostError `tls.files_*`, what the runtime says, SbctlError `disk.*`.
    """
    changed = False
    for attempt in range(1, _TRIES + 1):
        seen = files.stamp()
        try:
            changed = write_pair(paths, files.read()) or changed
            hand_over(paths, control)
        except HostError:
            if attempt == _TRIES:
                raise
            clock.sleep_s(_AGAIN_S)
            continue
        if files.stamp() == seen:
            break
    return changed


def tend_watch(systemd: Systemd | None, paths: NodePaths, version_directory: Path, config: RuntimeConfig) -> None:
    """Have the files watched where that needs root, and nothing left of it elsewhere. Raises HostError `runtime.unit_*`, `host.systemctl_failed`."""
    if systemd is None or systemd.kind != "system":
        return
    files = node_files_of(config)
    if files is None:
        remove_units(systemd, WATCH_UNITS)
        return
    values = {
        "python": version_directory / "bin" / "python",
        "etc": paths.etc,
        "files": sorted({files.chain, files.key}),
        "directories": sorted({files.chain.parent, files.key.parent}),
    }
    changed = install_units(systemd, render(WATCH_UNITS, values))
    systemd.must("enable", "--now", *WATCH_UNITS[:2])
    if changed:
        systemd.must("restart", *WATCH_UNITS[:2])


def run_public_tls(argv: list[str]) -> int:
    """`sbctl-runtime public-tls`. Raises what reading, installing and the runtime raise."""
    Arguments(prog="sbctl-runtime public-tls").parse_args(argv)
    os.umask(0o077)
    paths = node_paths(os.getuid(), os.environ)
    config, _digest = stored_config(paths)
    files = None if config is None else node_files_of(config)
    if files is None:
        return 0
    with exclusive(paths.activation_lock, deadline_s=_LOCK_DEADLINE_S, check=lambda: None):
        take_from_host(paths, files, ControlClient(paths.control_socket), SYSTEM_CLOCK)
    return 0
