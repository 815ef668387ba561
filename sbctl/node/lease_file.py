"""Who changes this host right now, read from `<state>/lease.json`. Standard library only and Python 3.8: the facts carry this module.

The file is never renamed while it is held: its holder has a kernel lock on it, and writes who it is and when it last heard of its operator
into it in place. What the file says counts only while the lock is held, in the same boot, and for `ttl_s` after the last renewal, measured
by the clock that no one sets and that goes on while the machine sleeps.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from typing import Any

from sbctl.node.paths import NodePaths

__all__ = [
    "LEASE_MAX_BYTES",
    "boot_id",
    "boottime_s",
    "is_fresh",
    "lease_path",
    "may_be_held",
    "parse_lease",
    "read_lease",
    "shown",
]

LEASE_MAX_BYTES = 4096
_UNSEEN_S = 120.0


def lease_path(paths: NodePaths) -> str:
    return str(paths.state / "lease.json")


def boottime_s() -> float:
    """Seconds since the machine was started, sleep included; nobody sets this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Names this boot; empty where the kernel does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def parse_lease(data: bytes) -> dict[str, Any]:
    """What a holder wrote; empty when it makes no sense."""
    try:
        told = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def is_fresh(told: dict[str, Any]) -> bool:
    """Whether the holder heard of its operator within its time to live. What cannot be read is taken for fresh: it was written just now."""
    if not told:
        return True
    try:
        age_s = boottime_s() - float(told["renewed_s"])
        return told["boot_id"] == boot_id() and 0.0 <= age_s <= float(told["ttl_s"])
    except (KeyError, TypeError, ValueError):
        return True


def read_lease(paths: NodePaths) -> dict[str, Any] | None:
    """The lease that is held now, as `NodeSnapshot.lease` has it; None when the host is free, or when we may not look."""
    try:
        fd = os.open(lease_path(paths), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        told = parse_lease(os.pread(fd, LEASE_MAX_BYTES, 0))
    except OSError:
        return None
    finally:
        os.close(fd)
    return shown(told) if is_fresh(told) else None


def may_be_held(paths: NodePaths) -> bool:
    """Whether somebody holds the lease, also for a process that may not look into it: then by when it was renewed last."""
    path = lease_path(paths)
    if os.access(path, os.R_OK):
        return read_lease(paths) is not None
    try:
        return time.time() - os.stat(path).st_mtime < _UNSEEN_S
    except OSError:
        return False


def shown(told: dict[str, Any]) -> dict[str, Any]:
    """The part of a lease that is for readers."""
    left_s = 0.0
    with contextlib.suppress(KeyError, TypeError, ValueError):
        left_s = max(0.0, float(told["ttl_s"]) - (boottime_s() - float(told["renewed_s"])))
    names = ("owner", "purpose", "lineage", "run", "since")
    return {**{name: str(told.get(name) or "unknown")[:200] for name in names}, "ends_in_s": round(left_s, 1)}
