"""What a machine is made of, as far as files of the kernel tell it: devices, filesystems, control groups, who has a port.

Standard library only and Python 3.8, since the bootstrap sends this module as text. Best effort: what cannot be read is left out.
"""

from __future__ import annotations

import os
import pwd
import re
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = [
    "cgroup_version",
    "filesystem_of",
    "memory_free",
    "memory_limit",
    "nvidia_driver",
    "pci_gpus",
    "port_holders",
]

_FILE_MAX_BYTES = 1 << 20
_DEVICES_MAX = 64
_NAME_MAX_CHARS = 128
_PATH_MAX_CHARS = 1024
_NVIDIA, _AMD = "0x10de", "0x1002"
_DISPLAY_CLASS = "0x03"
_LISTEN = "0A"
_PROCESSES_MAX = 65536


_NO_LIMIT = 1 << 60
"""What version 1 of control groups writes where nothing is limited is larger."""


def pci_gpus(proc: str = "/proc", sys: str = "/sys") -> list[dict[str, str | int]]:
    """NVIDIA and AMD devices on the bus: `vendor`, `bus`, `driver` (empty: none has it), and `name`, `uuid`, `memory_total_bytes` where told."""
    found: list[dict[str, str | int]] = []
    base = sys + "/bus/pci/devices"
    for bus in _names(base):
        vendor = _text(base + "/" + bus + "/vendor").strip()
        if vendor not in (_NVIDIA, _AMD) or not _text(base + "/" + bus + "/class").startswith(_DISPLAY_CLASS):
            continue
        device: dict[str, str | int] = {
            "vendor": "nvidia" if vendor == _NVIDIA else "amd",
            "bus": bus[:_NAME_MAX_CHARS],
            "driver": os.path.basename(_link(base + "/" + bus + "/driver"))[:_NAME_MAX_CHARS],
        }
        memory = _text(base + "/" + bus + "/mem_info_vram_total").strip()
        if memory.isdigit():
            device["memory_total_bytes"] = int(memory)
        device.update(_nvidia_told(proc, bus) if vendor == _NVIDIA else {})
        found.append(device)
    return found[:_DEVICES_MAX]


def _nvidia_told(proc: str, bus: str) -> dict[str, str | int]:
    told: dict[str, str | int] = {}
    for line in _text(proc + "/driver/nvidia/gpus/" + bus + "/information").splitlines():
        label, _, value = line.partition(":")
        name = {"Model": "name", "GPU UUID": "uuid"}.get(label.strip())
        if name is not None and value.strip():
            told[name] = value.strip()[:_NAME_MAX_CHARS]
    return told


def nvidia_driver(proc: str = "/proc", sys: str = "/sys") -> str:
    """Version of the kernel's NVIDIA driver; empty where none is loaded."""
    version = _text(sys + "/module/nvidia/version").strip()
    if not version:
        match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", _text(proc + "/driver/nvidia/version"))
        version = match.group(1) if match else ""
    return version[:32]


def cgroup_version(sys: str = "/sys") -> str:
    """`v2`, `v1`, `hybrid` (both), or empty."""
    base = sys + "/fs/cgroup"
    if os.path.exists(base + "/cgroup.controllers"):
        return "v2"
    if os.path.exists(base + "/unified/cgroup.controllers"):
        return "hybrid"
    return "v1" if os.path.isdir(base + "/memory") or os.path.isdir(base + "/systemd") else ""


def memory_limit(sys: str = "/sys", proc: str = "/proc") -> int | None:
    """The least memory that a control group around this process allows, in bytes; None where none does."""
    found = [limit for _group, limit, _version_2 in _limited_groups(sys, proc)]
    return min(found) if found else None


def memory_free(sys: str = "/sys", proc: str = "/proc") -> int | None:
    """What this process and its children could still get, in bytes: what the kernel calls available, and no more than what each control group
    around it leaves beside what is used and could not be given back. None where the kernel does not tell.
    """
    found = []
    for line in _text(proc + "/meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if name == "MemAvailable" and words and words[0].isdigit():
            found.append(int(words[0]) * 1024)
    if not found:
        return None
    for group, limit, version_2 in _limited_groups(sys, proc):
        used = _text(group + ("/memory.current" if version_2 else "/memory.usage_in_bytes")).strip()
        files = ("inactive_file", "active_file") if version_2 else ("total_inactive_file", "total_active_file")
        stat = dict(line.partition(" ")[::2] for line in _text(group + "/memory.stat").splitlines())
        if used.isdigit():
            found.append(
                limit - int(used) + sum(int(stat.get(name, "")) for name in files if stat.get(name, "").isdigit())
            )
    return max(0, min(found))


def _limited_groups(sys: str, proc: str) -> Iterator[tuple[str, int, bool]]:
    """Directory, limit and whether it is of version 2, of each control group around this process that limits memory."""
    for line in _text(proc + "/self/cgroup").splitlines():
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        version_2 = not controllers
        if not version_2 and "memory" not in controllers.split(","):
            continue
        base = sys + ("/fs/cgroup" if version_2 else "/fs/cgroup/memory")
        name = "memory.max" if version_2 else "memory.limit_in_bytes"
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for count in range(len(parts) + 1):
            group = "/".join([base, *parts[:count]])
            told = _text(group + "/" + name).strip()
            if told.isdigit() and 0 < int(told) < _NO_LIMIT:
                yield group, int(told), version_2


def filesystem_of(path: Path, proc: str = "/proc") -> str:
    """Type of the filesystem that a path is on, or would be made on: `ext4`, `nfs4`, `fuse.sshfs`; empty when nobody tells."""
    for candidate in (path, *path.parents):
        try:
            device = os.stat(str(candidate)).st_dev
        except OSError:
            continue
        return _by_device(device, os.path.realpath(str(candidate)), proc)
    return ""


def _by_device(device: int, path: str, proc: str) -> str:
    """The mount with this device whose place is the longest beginning of the path; some filesystems answer with another device than theirs."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    best, kind = (-1, -1), ""
    for line in _text(proc + "/self/mountinfo").splitlines():
        mount, _, rest = line.partition(" - ")
        fields, told = mount.split(), rest.split()
        if len(fields) < 5 or not told:
            continue
        place = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), fields[4])
        if path == place or path.startswith(place.rstrip("/") + "/"):
            rank = (int(fields[2] == wanted), len(place))
            if rank >= best:
                best, kind = rank, told[0]
    return kind[:32]


def port_holders(ports: Iterable[int], proc: str = "/proc") -> list[dict[str, Any]]:
    """Who listens on these TCP ports: `port`, `address`, `user`, and `pid`, `program`, `started_as`, `unit` as far as this
    user may see them. `started_as` is the path that the process was started by."""
    wanted = set(ports)
    found: list[tuple[str, dict[str, Any]]] = []
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in _text(proc + "/net/" + name).splitlines()[1:]:
            fields = line.split()
            if len(fields) < 10 or fields[3] != _LISTEN:
                continue
            address, _, port = fields[1].partition(":")
            if int(port, 16) in wanted:
                one = {"port": int(port, 16), "address": _address(address, family), "user": _user_name(fields[7])}
                found.append((fields[9], one))
    holders = _holders({inode for inode, _ in found}, proc) if found else {}
    return [{**one, **holders.get(inode, {})} for inode, one in found[:256]]


def _user_name(number: str) -> str:
    try:
        return pwd.getpwuid(int(number)).pw_name[:_NAME_MAX_CHARS]
    except (KeyError, ValueError):
        return number[:_NAME_MAX_CHARS]


def _address(text: str, family: int) -> str:
    """The kernel writes words of the machine's byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))


def _holders(inodes: set[str], proc: str) -> dict[str, dict[str, Any]]:
    holders: dict[str, dict[str, Any]] = {}
    for pid in [name for name in _names(proc) if name.isdigit()][:_PROCESSES_MAX]:
        for fd in _names(proc + "/" + pid + "/fd"):
            inode = _link(proc + "/" + pid + "/fd/" + fd)
            if inode.startswith("socket:[") and inode[8:-1] in inodes:
                program = _text(proc + "/" + pid + "/comm").strip()[:_NAME_MAX_CHARS]
                unit = _unit_of(_text(proc + "/" + pid + "/cgroup"))
                started_as = _text(proc + "/" + pid + "/cmdline").partition("\0")[0][:_PATH_MAX_CHARS]
                told = {"pid": int(pid), "program": program, "started_as": started_as, "unit": unit}
                holders.setdefault(inode[8:-1], told)
        if len(holders) == len(inodes):
            break
    return holders


def _unit_of(cgroup: str) -> str:
    """The system's innermost service or scope; empty for a process that systemd did not start, or a user's own."""
    parts = [part for line in cgroup.splitlines() for part in line.split("/")]
    ours = not any(part.startswith("user@") for part in parts)
    units = [part for part in parts if ours and part.endswith((".service", ".scope"))]
    return units[-1][:_NAME_MAX_CHARS] if units else ""


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_FILE_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
