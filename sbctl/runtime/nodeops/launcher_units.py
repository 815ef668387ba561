"""The engine launcher on a host: its socket and service units, and the file in which root lists what engines may be started from.

    /etc/systemd/system/sbctl-launcher.{socket,service}     listening; the service starts with the first request
    <etc>/launcher.json                                     root's own; `sbctl.runtime.launcher.site` reads it
    /run/sbctl                                              the socket, and the engines' sockets below `engines/`

Units hold no timestamp, are judged by systemd-analyze before they replace what is there, and an unchanged one is not touched.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from sbctl.base import fs
from sbctl.base.digests import canonical_json
from sbctl.base.errors import HostError, InputError
from sbctl.engines.detect import PROGRAM_NAME, find_llama_server
from sbctl.node.messages import RuntimeConfig
from sbctl.node.paths import NodePaths
from sbctl.runtime.launcher.site import (
    AWAY_S,
    RUN_DIRECTORY,
    SITE_FILE,
    SOCKET_PATH,
    UNIT_GLOB,
    Site,
    read_site,
    site_document,
)
from sbctl.runtime.nodeops.programs import Finished, run_program
from sbctl.runtime.nodeops.units import refused_by_systemd, templates
from sbctl.runtime.nodeops.users import RUNTIME_USER

__all__ = [
    "LAUNCHER_SERVICE",
    "LAUNCHER_SOCKET",
    "SERVICE_PATH",
    "allow_programs",
    "install_launcher",
    "launcher_files",
    "remove_launcher",
    "stop_engines",
]

LAUNCHER_SOCKET: Final = "sbctl-launcher.socket"
LAUNCHER_SERVICE: Final = "sbctl-launcher.service"
_UNITS: Final = Path("/etc/systemd/system")
SERVICE_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Of the runtime's unit."""
_QUICK_S: Final = 30.0
_STOP_S: Final = 120.0


def render_launcher(version_directory: Path) -> dict[str, bytes]:
    """Unit name → text. Raises HostError `runtime.unit_value_refused`."""
    environment = templates()
    values = {
        "python": version_directory / "bin" / "python",
        "socket": SOCKET_PATH,
        "run": RUN_DIRECTORY,
        "user": RUNTIME_USER,
    }
    names = (LAUNCHER_SOCKET, LAUNCHER_SERVICE)
    return {name: environment.get_template(f"{name}.j2").render(values).encode("ascii") for name in names}


def launcher_files(paths: NodePaths) -> tuple[Path, ...]:
    """What `install_launcher` writes, there or not."""
    return (_UNITS / LAUNCHER_SOCKET, _UNITS / LAUNCHER_SERVICE, paths.etc / SITE_FILE)


def install_launcher(
    paths: NodePaths, version_directory: Path, config: RuntimeConfig, former: RuntimeConfig | None
) -> bool:
    """Make the launcher of this version listen; True when something had to change. Engines that run are not touched. `former`: the
    configuration until now.

    Call after `ensure_users`, before the runtime starts. Raises HostError `runtime.unit_invalid`, `host.systemctl_failed`, SbctlError `disk.*`.
    """
    cache = Path(config.cache_directory) if config.cache_directory else paths.models
    known = _known_site(paths)
    document = site_document(
        weights=[cache],
        programs=_listed(() if known is None else known.programs, config, former),
        engines=paths.engines,
        away_s=AWAY_S if known is None else known.away_s,
    )
    wanted = canonical_json(document)
    changed = _write_when_other(paths.etc / SITE_FILE, wanted)
    units = render_launcher(version_directory)
    changed_units = [name for name, text in units.items() if _installed(name) != text]
    if changed_units:
        _verify(units)
        for name in changed_units:
            fs.write_atomic(_UNITS / name, units[name], mode=0o644)
        _must("daemon-reload")
    listening = _ctl("is-active", "--quiet", LAUNCHER_SOCKET).returncode == 0
    if LAUNCHER_SOCKET in changed_units and listening:
        _must("restart", LAUNCHER_SOCKET)
    _must("enable", "--now", LAUNCHER_SOCKET)
    if changed or changed_units:
        _must("try-restart", LAUNCHER_SERVICE)
    return changed or bool(changed_units) or not listening


def _listed(known: Collection[Path], config: RuntimeConfig, former: RuntimeConfig | None) -> frozenset[Path]:
    """On a worker of a cluster what its configuration names, and what the one before it did, since that runs until the cluster says
    otherwise. On any other host the bundle decides."""
    if config.cluster is None or "worker" not in config.cluster.roles:
        return frozenset(known)
    if former is None or former.cluster is None:
        return frozenset(known) | _named(config)
    return (frozenset(known) & _named(former)) | _named(config)


def _named(config: RuntimeConfig) -> frozenset[Path]:
    named = () if config.cluster is None else config.cluster.programs
    found = (Path(name) if name != PROGRAM_NAME else find_llama_server(SERVICE_PATH) for name in named)
    return frozenset(program for program in found if program is not None)


def allow_programs(paths: NodePaths, programs: Collection[Path], *, keep: bool) -> None:
    """List these engine programs of the user's for the launcher, with those that are listed already (`keep`) or instead of them.

    Nothing where no launcher is installed. Raises InputError `launcher.site_*`, SbctlError `disk.*`.
    """
    site = paths.etc / SITE_FILE
    if not site.is_file():
        return
    known = read_site(site)
    wanted = {*programs, *known.programs} if keep else programs
    document = site_document(weights=known.weights, programs=wanted, engines=known.engines, away_s=known.away_s)
    _write_when_other(site, canonical_json(document))


def stop_engines() -> None:
    """Stop every engine unit of this host now, whoever asked for it. Raises HostError `host.engines_not_stopped`."""
    done = _ctl("stop", UNIT_GLOB, deadline_s=_STOP_S)
    _ctl("reset-failed", UNIT_GLOB)
    left = _ctl("list-units", "--plain", "--no-legend", "--state=active,activating,deactivating", UNIT_GLOB)
    names = [line.split()[0] for line in left.output.splitlines() if line.strip()]
    if names:
        raise HostError(
            "host.engines_not_stopped",
            f"{len(names)} engines still run: {done.tail() or 'systemctl gave no reason'}",
            place=names[0],
            next_step=f"look at: systemctl status {names[0]}",
        )


def remove_launcher(paths: NodePaths) -> None:
    """Stop all engines, then take the launcher away; done again it finds nothing. Raises HostError `host.engines_not_stopped`."""
    there = [name for name in (LAUNCHER_SOCKET, LAUNCHER_SERVICE) if (_UNITS / name).exists()]
    if there:
        _must("disable", "--now", LAUNCHER_SOCKET)
        _must("stop", LAUNCHER_SERVICE, deadline_s=_STOP_S)
    stop_engines()
    for name in there:
        fs.remove_file(_UNITS / name)
    if there:
        _must("daemon-reload")
        _ctl("reset-failed", LAUNCHER_SOCKET, LAUNCHER_SERVICE)
    if paths.etc.is_dir():
        fs.remove_file(paths.etc / SITE_FILE)
    if RUN_DIRECTORY.is_dir():
        fs.remove_tree(RUN_DIRECTORY)


def _known_site(paths: NodePaths) -> Site | None:
    """Programs that are listed stay listed until the next bundle says otherwise; a damaged list is made anew."""
    try:
        return read_site(paths.etc / SITE_FILE)
    except InputError:
        return None


def _write_when_other(path: Path, data: bytes) -> bool:
    try:
        if fs.read_bounded(path, max_bytes=1 << 20) == data:
            return False
    except InputError:
        pass
    fs.write_atomic(path, data, mode=0o644)
    return True


def _installed(name: str) -> bytes | None:
    path = _UNITS / name
    return fs.read_bounded(path, max_bytes=1 << 20) if path.is_file() and not path.is_symlink() else None


def _verify(units: dict[str, bytes]) -> None:
    """Both together, since one names the other. Raises HostError `runtime.unit_invalid`."""
    said = refused_by_systemd(_UNITS, units)
    if said is not None:
        raise HostError(
            "runtime.unit_invalid",
            f"systemd refuses the unit: {said}",
            place=LAUNCHER_SERVICE,
            next_step="what ran before runs on; see whether this version of systemd knows what the unit asks for: systemctl --version",
        )


def _ctl(*arguments: str, deadline_s: float = _QUICK_S) -> Finished:
    return run_program(("systemctl", "--no-ask-password", *arguments), deadline_s=deadline_s)


def _must(*arguments: str, deadline_s: float = _QUICK_S) -> None:
    done = _ctl(*arguments, deadline_s=deadline_s)
    if done.returncode:
        raise HostError(
            "host.systemctl_failed",
            f"systemctl {arguments[0]} failed: {done.tail() or f'status {done.returncode}'}",
            place=LAUNCHER_SERVICE,
            next_step=f"look at: systemctl status {LAUNCHER_SERVICE} {LAUNCHER_SOCKET}",
        )
