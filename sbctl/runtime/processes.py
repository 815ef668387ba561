"""Which processes are ours, told from /proc so that a reused pid is never taken for an engine and never signalled.

An engine's tree is every live process in the session that its first process leads, and every one whose environment carries the engine's
token: a grandchild may leave the session, it cannot lose the environment it was started with. A pid is compared together with its
start time (field 22 of /proc/<pid>/stat) and signalled through a pidfd, so nothing can slip in between look and signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = [
    "TOKEN_VARIABLE",
    "ProcessIdentity",
    "ProcessMemory",
    "boot_id",
    "effort_of",
    "memory_of",
    "own_identity",
    "process_identity",
    "signal_process",
    "tree_of",
]

TOKEN_VARIABLE: Final = "SBCTL_ENGINE_TOKEN"  # noqa: S105 - the name of a variable; the token names an engine, it opens nothing

_ENVIRON_MAX_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of one boot. `start_ticks` is its start in clock ticks since boot."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """What processes have of the host's memory, in bytes. `held` is theirs alone; pages of files, which the kernel takes back, are not in it.
    `peak` is the most that they had resident, those pages included.
    """

    held: int
    peak: int


@dataclass(frozen=True, slots=True)
class _Stat:
    identity: ProcessIdentity
    state: str
    session: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command name may hold spaces and parentheses; the fields start behind the last one.
    fields = text[text.rfind(")") + 2 :].split()
    if len(fields) < 20:
        return None
    return _Stat(ProcessIdentity(pid, int(fields[19])), fields[0], int(fields[3]))


def process_identity(pid: int) -> ProcessIdentity | None:
    """None when no live process has this pid; a zombie does not live."""
    found = _stat(pid)
    return None if found is None or found.state in "ZX" else found.identity


def own_identity() -> ProcessIdentity:
    found = _stat(os.getpid())
    return found.identity if found is not None else ProcessIdentity(os.getpid(), 0)


def boot_id() -> str:
    """The kernel's id of this boot; empty where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _has_token(pid: int, token: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return token in file.read(_ENVIRON_MAX_BYTES).split(b"\0")
    except OSError:
        return False


def tree_of(leader: ProcessIdentity, token: str) -> tuple[ProcessIdentity, ...]:
    """Every live process of an engine, in no order; empty when its tree is gone.

    A session id counts only together with the leader's identity or with the token, since it is a number that may be reused.
    """
    wanted = f"{TOKEN_VARIABLE}={token}".encode()
    leads = process_identity(leader.pid) == leader
    members = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        found = _stat(int(name))
        if found is None or found.state in "ZX" or found.identity.pid == os.getpid():
            continue
        in_session = leads and found.session == leader.pid
        if found.identity == leader or in_session or _has_token(found.identity.pid, wanted):
            members.append(found.identity)
    return tuple(members)


def effort_of(pids: Iterable[int]) -> int | None:
    """Clock ticks computed and blocks of 1 MiB read by these processes so far; None when none of them can be looked at."""
    total = None
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            fields = text[text.rfind(")") + 2 :].split()
            total = (total or 0) + int(fields[11]) + int(fields[12])
            for line in Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines():
                name, _, value = line.partition(": ")
                if name in ("rchar", "read_bytes"):
                    total += int(value) >> 20
    return total


def memory_of(pids: Iterable[int], proc: Path = Path("/proc")) -> ProcessMemory | None:
    """Of all of them together; None when none of them can be looked at."""
    held = peak = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = (proc / str(pid) / "status").read_text(encoding="utf-8", errors="replace").splitlines()
            told = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
            sizes = {name: int(words[0]) * 1024 for name, words in told.items() if words and words[0].isdigit()}
            held += sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0)
            peak += sizes.get("VmHWM", 0)
    return ProcessMemory(held, peak) if peak else None


def signal_process(target: ProcessIdentity, number: signal.Signals) -> bool:
    """Signal exactly this process; False when it is gone (or its pid belongs to another by now)."""
    try:
        fd = os.pidfd_open(target.pid)
    except OSError:
        return False
    try:
        if process_identity(target.pid) != target:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, number)
            return True
        return False
    finally:
        os.close(fd)
