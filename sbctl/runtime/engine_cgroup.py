"""A control group for one engine, where this process may make one: every process of the engine is in it, whatever it forks or forgets.

It tells who belongs to the engine, whether the kernel killed in it for memory, and ends all of it at once. Where it is not allowed (no
delegation, a foreign container) nothing of this exists and the tree is told by session and environment alone (`processes`).

    v2   the runtime's own group in the unified hierarchy: cgroup.kill, memory.events
    v1   the same in the memory controller's hierarchy: memory.oom_control
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["CGROUPS", "EngineCgroup", "effort_of_unit", "make_cgroup", "oom_kills_of_kernel", "open_cgroup"]

CGROUPS: Final = Path("/sys/fs/cgroup")
_PREFIX: Final = "sbctl-engine-"


@dataclass(frozen=True, slots=True)
class EngineCgroup:
    """One group. Every question is answered at once and never raises."""

    path: Path

    def add(self, pid: int) -> bool:
        """False when the kernel refused."""
        try:
            (self.path / "cgroup.procs").write_text(f"{pid}\n", encoding="ascii")
        except OSError:
            return False
        return True

    def pids(self) -> frozenset[int]:
        with contextlib.suppress(OSError, ValueError):
            return frozenset(int(word) for word in (self.path / "cgroup.procs").read_text(encoding="ascii").split())
        return frozenset()

    def limit_memory(self, limit_bytes: int) -> bool:
        """Nothing in it may have more, swap included; beyond it the kernel kills here and nowhere else. False where the group cannot do that."""
        for name, swap, swap_bytes in (
            ("memory.max", "memory.swap.max", 0),
            ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", limit_bytes),
        ):
            if (self.path / name).exists():
                try:
                    (self.path / name).write_text(f"{limit_bytes}\n", encoding="ascii")
                except OSError:
                    return False
                with contextlib.suppress(OSError):
                    if (self.path / swap).exists():
                        (self.path / swap).write_text(f"{swap_bytes}\n", encoding="ascii")
                return True
        return False

    def kill(self) -> None:
        """SIGKILL to all, where the kernel does that in one step."""
        with contextlib.suppress(OSError):
            if (self.path / "cgroup.kill").exists():
                (self.path / "cgroup.kill").write_text("1", encoding="ascii")

    def oom_kills(self) -> int | None:
        """How many of its processes the kernel killed for memory; None where the group does not tell."""
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError):
                for line in (self.path / name).read_text(encoding="ascii").splitlines():
                    key, _, value = line.partition(" ")
                    if key == "oom_kill":
                        return int(value)
        return None

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.rmdir()


def make_cgroup(token: str, *, root: Path = CGROUPS, own: str | None = None) -> EngineCgroup | None:
    """A fresh group for an engine, below this process's own; None where none may be made."""
    for parent in _parents(root, own):
        path = parent / f"{_PREFIX}{token}"
        try:
            path.mkdir()
        except OSError:
            continue
        group = EngineCgroup(path)
        if (path / "cgroup.procs").exists() and os.access(path / "cgroup.procs", os.W_OK):
            return group
        group.remove()
    return None


def open_cgroup(path: str, token: str) -> EngineCgroup | None:
    """The group that a record names, if it is still there and its name is that of the record's engine."""
    group = EngineCgroup(Path(path))
    return group if group.path.name == f"{_PREFIX}{token}" and group.path.is_dir() else None


def effort_of_unit(unit: str, *, root: Path = CGROUPS) -> int | None:
    """A number that grows while a systemd unit computes or fills memory, read from its control group; None where there is none to be seen."""
    total = None
    for hierarchy in ("", "unified", "cpuacct", "cpu,cpuacct", "memory"):
        group = root / hierarchy / "system.slice" / unit
        for name, per_step in (
            ("cpu.stat", 10_000),
            ("cpuacct.usage", 10_000_000),
            ("memory.current", 1 << 20),
            ("memory.usage_in_bytes", 1 << 20),
        ):
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = (group / name).read_text(encoding="ascii")
                value = int(text.split()[1 if name == "cpu.stat" else 0])
                total = (total or 0) + value // per_step
    return total


def oom_kills_of_kernel() -> int | None:
    """How many processes of the whole machine the kernel killed for memory since boot; None when it does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return None


def _parents(root: Path, own: str | None) -> list[Path]:
    """Where this process's group is, the hierarchy that knows of memory first."""
    with contextlib.suppress(OSError):
        text = Path("/proc/self/cgroup").read_text(encoding="utf-8") if own is None else own
        groups = dict(line.split(":", 2)[1:] for line in text.splitlines() if line.count(":") >= 2)
        listed = []
        if "memory" in groups:
            listed.append(root / "memory" / groups["memory"].lstrip("/"))
        if "" in groups:
            unified = root if (root / "cgroup.controllers").exists() else root / "unified"
            listed.append(unified / groups[""].lstrip("/"))
        return listed
    return []
