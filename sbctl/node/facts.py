"""What a host can say about itself with nothing but a Python 3.8: identity, system, interpreters, marker, installed runtimes, disk.

Standard library only, since the bootstrap sends this module as text; the node interface calls the same function for its snapshot. Every
value is best effort: what cannot be read is left out and means unknown. Only a damaged marker is an error, because a host whose owner
cannot be read must not look like a free one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sbctl.node.lease_file import read_lease
from sbctl.node.machine import cgroup_version, filesystem_of, memory_limit, nvidia_driver, pci_gpus, port_holders
from sbctl.node.paths import PREFIX_VARIABLE, STANDALONE_RECORD, NodePaths, node_paths

__all__ = ["FactsError", "answer", "gather", "installed_versions", "read_marker", "standalone_of", "standalone_pythons"]

_MARKER_MAX_BYTES = 64 * 1024
_SMALL_FILE_BYTES = 64 * 1024
_PROBE_DEADLINE_S = 5
_KEPT_VARIABLES = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
)
_DISKS = ("cache", "state", "opt")
_PYTHON_DIRECTORIES = ("/usr/bin", "/usr/local/bin", "/opt/python/bin")
_PYTHON_NAME = re.compile(r"python3(\.[0-9]{1,2})?")
_OLDEST = (3, 8)
"""What runs our bootstrap; the runtime needs 3.11, which whoever chooses an interpreter looks at."""
_PROBE = (
    "import os,sys;print(*sys.version_info[:3],os.path.realpath(getattr(sys,'_base_executable','')or sys.executable))"
)
_probed: dict[tuple[str, int, int, int], str] = {}
"""What an interpreter said, by path, inode, size and time of change: a node process tells its host again and again."""


class FactsError(Exception):
    """A fact that must not be guessed: `code`, one sentence, the path."""

    def __init__(self, code: str, message: str, place: str, next_step: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.place = place
        self.next_step = next_step


def gather(
    env: Mapping[str, str],
    uid: int,
    extra_pythons: Iterable[str] = (),
    *,
    pythons_if_installed: bool = True,
    ports: Iterable[int] = (),
) -> dict[str, Any]:
    """The parts of a snapshot that need no runtime: `host`, `marker`, `lease`, `paths`, `disk`, `runtime`; and the `environment` to start one in.

    `extra_pythons` are paths of interpreters to look at besides PATH and the usual places; with `pythons_if_installed` false and a runtime
    installed none is looked at but this one, since each has to be started. `ports` are TCP ports whose listeners are told. Raises FactsError,
    ValueError (no home).
    """
    paths = node_paths(uid, env)
    installed = installed_versions(paths)
    environment = {name: env[name] for name in _KEPT_VARIABLES if env.get(name)}
    if "HOME" not in environment:
        environment["HOME"] = os.path.expanduser("~") if uid else "/root"
    looked_at = [*extra_pythons, *_python_candidates(env)] if pythons_if_installed or not installed else []
    return {
        "host": {**_host_facts(env, uid, looked_at, paths), "ports": port_holders(ports)},
        "marker": read_marker(paths),
        "lease": read_lease(paths),
        "paths": {name: str(getattr(paths, name)) for name in ("etc", "state", "cache", "opt", "staging")},
        "disk": {
            **{f"{name}_free_bytes": _free_bytes(getattr(paths, name)) for name in _DISKS},
            **{f"{name}_filesystem": filesystem_of(getattr(paths, name)) for name in _DISKS},
        },
        "runtime": {
            "installed_versions": installed,
            "current_version": _current_version(paths, installed),
            "standalone_pythons": standalone_pythons(paths),
            "standalone_used": {
                version: digest for version in installed for digest in [standalone_of(paths, version)] if digest
            },
        },
        "environment": environment,
    }


def read_marker(paths: NodePaths) -> dict[str, str] | None:
    """Whose host this is; None when nobody claimed it. Raises FactsError `host.marker_damaged`."""
    try:
        fd = os.open(str(paths.marker), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _damaged(paths, f"the marker of this host cannot be opened: {error.strerror}") from error
    try:
        text = os.read(fd, _MARKER_MAX_BYTES)
    except OSError as error:
        raise _damaged(paths, f"the marker of this host cannot be read: {error.strerror}") from error
    finally:
        os.close(fd)
    try:
        value = json.loads(text.decode("utf-8"))
        marker = {"lineage": value["lineage"], "host": value["host"]}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(paths, "the marker of this host is damaged, so its owner is unknown") from error
    if not all(isinstance(part, str) and part for part in marker.values()):
        raise _damaged(paths, "the marker of this host is damaged, so its owner is unknown")
    return marker


def installed_versions(paths: NodePaths) -> list[str]:
    """Versions of the runtime that are completely installed, in the order of their names."""
    try:
        names = sorted(os.listdir(str(paths.opt)))
    except OSError:
        return []
    return [
        name
        for name in names
        if not name.startswith(".")
        and name not in (paths.current.name, paths.proven.name)
        and os.path.lexists(paths.version(name) / "bin/sbctl-runtime")
    ]


def standalone_pythons(paths: NodePaths) -> list[str]:
    """Digests of the standalone archives that are unpacked whole, in order."""
    try:
        names = sorted(os.listdir(str(paths.pythons)))
    except OSError:
        return []
    found = []
    for name in names:
        digest = _first_line(str(paths.pythons / name / STANDALONE_RECORD))
        if re.fullmatch(r"[0-9a-f]{64}", digest) and digest[:12] == name:
            found.append(digest)
    return found


def standalone_of(paths: NodePaths, version: str) -> str:
    """Digest of the standalone archive that a version of the runtime runs on; empty for a Python of the host."""
    program = os.path.realpath(str(paths.version(version) / "bin/python"))
    base = str(paths.pythons) + os.sep
    name = program[len(base) :].split(os.sep)[0] if program.startswith(base) else ""
    return _first_line(str(paths.pythons / name / STANDALONE_RECORD)) if name else ""


def answer(document: Mapping[str, Any]) -> None:
    """Gather and print one line behind the document's marker, which no banner can contain: `{"result": …}` or `{"error": …}`."""
    try:
        extra, always = document.get("extra_pythons", ()), document.get("pythons_if_installed", True)
        ports = document.get("ports", ())
        reply = {"result": gather(os.environ, os.getuid(), extra, pythons_if_installed=always, ports=ports)}
    except FactsError as error:
        reply = {"error": _wire(error.code, error.message, error.place, error.next_step)}
    except (OSError, ValueError) as error:
        reply = {"error": _wire("host.facts_failed", f"the facts cannot be gathered: {error}", None, None)}
    sys.stdout.write("\n" + document["marker"] + json.dumps(reply) + "\n")
    sys.stdout.flush()


def _wire(code: str, message: str, place: str | None, next_step: str | None) -> dict[str, Any]:
    return {"family": "HostError", "code": code, "message": message, "place": place, "next_step": next_step}


def _damaged(paths: NodePaths, message: str) -> FactsError:
    step = "look who wrote it; remove the file only when no fleet uses this host"
    return FactsError("host.marker_damaged", message, str(paths.marker), step)


def _host_facts(env: Mapping[str, str], uid: int, pythons: Iterable[str], paths: NodePaths) -> dict[str, Any]:
    system = os.uname()
    release = _os_release()
    total, available = _memory()
    return {
        "hostname": system.nodename,
        "machine_id": _first_line("/etc/machine-id"),
        "boot_id": _first_line("/proc/sys/kernel/random/boot_id"),
        "os_id": release.get("ID", ""),
        "os_version": release.get("VERSION_ID", ""),
        "kernel": system.release,
        "arch": system.machine,
        "libc": _libc(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "memory_total_bytes": total,
        "memory_available_bytes": available,
        "memory_limit_bytes": memory_limit(),
        "uid": uid,
        "init": _init(env, uid),
        "gpus": pci_gpus(),
        "nvidia_driver": nvidia_driver(),
        "cgroup": cgroup_version(),
        "pythons": _pythons(pythons, str(paths.pythons)),
        "now": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),  # noqa: UP017 - 3.8
    }


def _init(env: Mapping[str, str], uid: int) -> str:
    if env.get(PREFIX_VARIABLE) or not os.path.isdir("/run/systemd/system"):
        return "none"
    if uid == 0:
        return "systemd_system"
    runtime_directory = env.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
    return "systemd_user" if os.path.exists(os.path.join(runtime_directory, "systemd/private")) else "none"


def _libc() -> str:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        if name == "glibc" and version:
            return "glibc-" + version
    except (ValueError, OSError):
        pass
    for loader in sorted(Path("/lib").glob("ld-musl-*.so.1")):
        shown = _run([str(loader)])
        match = re.search(r"Version (\d+\.\d+)", shown)
        if match:
            return "musl-" + match.group(1)
    return ""


def _pythons(candidates: Iterable[str], ours: str) -> list[dict[str, str]]:
    """Interpreters of 3.8 or newer, each once by its real path; one that serves us now needs no probe. Those below `ours` are the fleet's
    and go with it, so they are none of the host's."""
    found: dict[str, tuple[int, ...]] = {}
    own = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
    if own and os.access(own, os.X_OK):
        found[own] = tuple(sys.version_info[:3])
    seen = {own}
    for candidate in candidates:
        real = os.path.realpath(candidate)
        if real in seen:
            continue
        seen.add(real)
        try:
            major, minor, micro, base = _probe(candidate).rstrip("\n").split(" ", 3)
            version = int(major), int(minor), int(micro)
        except ValueError:
            continue
        if os.path.isabs(base) and "\n" not in base:
            found.setdefault(base, version)
    newest_first = sorted(found.items(), key=lambda item: (item[1], item[0]), reverse=True)
    return [
        {"path": path, "version": ".".join(str(part) for part in version)}
        for path, version in newest_first
        if version >= _OLDEST and len(path) <= 512 and not path.startswith(ours + os.sep)
    ][:16]


def _probe(python: str) -> str:
    try:
        status = os.stat(python)
    except OSError:
        return ""
    key = (python, status.st_ino, status.st_size, status.st_mtime_ns)
    if not _probed.get(key):
        _probed[key] = _run([python, "-I", "-S", "-c", _PROBE])
    return _probed[key]


def _python_candidates(env: Mapping[str, str]) -> list[str]:
    directories = [part for part in env.get("PATH", "").split(os.pathsep) if os.path.isabs(part)]
    candidates = []
    for directory in dict.fromkeys([*directories[:32], *_PYTHON_DIRECTORIES]):
        try:
            names = sorted(name for name in os.listdir(directory) if _PYTHON_NAME.fullmatch(name))
        except OSError:
            continue
        for name in names:
            path = os.path.join(directory, name)
            if os.access(path, os.X_OK) and _is_program(path):
                candidates.append(path)
    return candidates


def _is_program(path: str) -> bool:
    """A machine-code program: wrapper scripts of version switchers are slow and name what stands elsewhere anyway."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _run(argv: list[str]) -> str:
    """Both streams of a short command; empty when it cannot be run."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/bin:/bin", "LANG": "C"},
            timeout=_PROBE_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout[:_SMALL_FILE_BYTES].decode("utf-8", "replace")


def _current_version(paths: NodePaths, installed: list[str]) -> str | None:
    try:
        name = os.readlink(str(paths.current)).rstrip("/")
    except OSError:
        return None
    return name if name in installed else None


def _first_line(path: str) -> str:
    lines = _small_file(path).splitlines()
    return lines[0].strip() if lines else ""


def _small_file(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_SMALL_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _os_release() -> dict[str, str]:
    values = {}
    for line in (_small_file("/etc/os-release") or _small_file("/usr/lib/os-release")).splitlines():
        name, equals, value = line.partition("=")
        if equals:
            values[name.strip()] = value.strip().strip("\"'")
    return values


def _memory() -> tuple[int, int]:
    values = {}
    for line in _small_file("/proc/meminfo").splitlines():
        match = re.fullmatch(r"(MemTotal|MemAvailable):\s+(\d+) kB", line.strip())
        if match:
            values[match.group(1)] = int(match.group(2)) * 1024
    return values.get("MemTotal", 0), values.get("MemAvailable", 0)


def _free_bytes(path: Path) -> int | None:
    for candidate in (path, *path.parents):
        try:
            status = os.statvfs(str(candidate))
        except OSError:
            continue
        return status.f_bavail * status.f_frsize
    return None
