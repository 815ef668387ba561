"""Who fetches a file now. Numbered claims, since some network filesystems grant a file lock to everybody.

    <target>.claim-<n>     made by link(2): one process gets it, with its content, or sees that somebody has it

The highest number holds. A claim whose process is provably gone is outbid at once by the next number: on a disk of this machine the kernel
lock that its process held says so, elsewhere the process itself when it was one of this system. One that nothing can be said about (another
machine) is outbid when it has not been touched for CLAIM_STALE_S, watched by the waiter's own clock. A claim only avoids a second download:
each holder writes a file of its own name, so two that both believe to hold damage nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from sbctl.base import fs
from sbctl.base.errors import InputError
from sbctl.base.limits import CLAIM_HEARTBEAT_S, CLAIM_STALE_S

__all__ = ["Claim", "Claimant", "Owner", "fate", "is_local", "own_identity"]

_MAX_BYTES: Final = 4096
_LOCAL: Final = frozenset({"btrfs", "ext4", "f2fs", "overlay", "tmpfs", "xfs"})
"""Filesystems of one machine: their locks are the kernel's own, and they reserve space without writing."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, told apart from every other one there is or was. Empty where the system does not say."""

    machine: str
    boot: str
    namespace: str
    pid: int
    started: str

    @classmethod
    def from_json(cls, value: object) -> Owner | None:
        """None for anything that is not one."""
        if not isinstance(value, dict) or set(value) != {"machine", "boot", "namespace", "pid", "started"}:
            return None
        if not isinstance(value["pid"], int) or not all(
            isinstance(text, str) for name, text in value.items() if name != "pid"
        ):
            return None
        return cls(**value)


def _line(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def _started(pid: int) -> str:
    """The start time of a process in ticks since the boot; empty when there is none."""
    stat = _line(f"/proc/{pid}/stat")
    return stat.rpartition(")")[2].split()[19] if stat.count(" ") > 20 else ""


@cache
def _surroundings(_pid: int) -> tuple[str, str, str]:
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return _line("/etc/machine-id"), _line("/proc/sys/kernel/random/boot_id"), namespace


def own_identity() -> Owner:
    """This process."""
    pid = os.getpid()
    return Owner(*_surroundings(pid), pid, _started(pid))


def fate(owner: Owner | None) -> Literal["alive", "gone", "unknown"]:
    """What can be proven about a process from here."""
    here = own_identity()
    if owner is None or not owner.boot or not here.boot:
        return "unknown"
    if owner.boot != here.boot:
        return "gone" if owner.machine and owner.machine == here.machine else "unknown"
    if not owner.namespace or owner.namespace != here.namespace:
        return "unknown"
    return "alive" if owner.started and _started(owner.pid) == owner.started else "gone"


def is_local(directory: Path) -> bool:
    """Whether a directory is known to lie on a disk, or in the memory, of this machine."""
    try:
        device = os.stat(directory).st_dev
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return False
    wanted = f"{os.major(device)}:{os.minor(device)}"
    return any(fields[2] == wanted and fields[fields.index("-") + 1] in _LOCAL for fields in mounts if "-" in fields)


class Claim:
    """Held until `release`; `touch` says that its process goes on."""

    def __init__(self, path: Path, token: str, fd: int, monotonic_s: Callable[[], float]) -> None:
        self.token = token
        self._path = path
        self._fd = fd
        self._monotonic_s = monotonic_s
        self._touched_s = monotonic_s()

    def touch(self) -> None:
        """Cheap to call often. Quiet when the claim was outbid."""
        now_s = self._monotonic_s()
        if now_s - self._touched_s >= CLAIM_HEARTBEAT_S:
            self._touched_s = now_s
            with contextlib.suppress(OSError):
                os.utime(self._fd)

    def release(self) -> None:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._fd), os.lstat(self._path)):
                os.unlink(self._path)
        os.close(self._fd)


class Claimant:
    """One that wants to fetch `target`. `try_claim` again and again; it remembers what it saw of others."""

    def __init__(self, target: Path, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._monotonic_s = monotonic_s
        self._name = re.compile(re.escape(target.name) + r"\.claim-([0-9]{1,15})")
        self._watched: tuple[str, int, float] | None = None

    def try_claim(self) -> Claim | None:
        """None while somebody else fetches. Raises SbctlError `disk.*` when no claim can be made here."""
        held = self._numbers()
        top = held[-1] if held else 0
        judged = self._content(top) if held else None
        if held and not self._may_outbid(top, judged):
            return None
        claim = self._make(top + 1)
        if claim is None:
            return None
        ours = self._numbers()[-1:] == [top + 1] and claim.token.encode() in (self._content(top + 1) or b"")
        if not ours or (held and self._content(top) not in (judged, None)):
            claim.release()
            return None
        for number in held:
            with contextlib.suppress(OSError):
                os.unlink(self._path(number))
        return claim

    def _path(self, number: int) -> Path:
        return self._target.with_name(f"{self._target.name}.claim-{number}")

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self._target.parent)
        except OSError as error:
            raise fs.disk_error(error, self._target.parent) from error
        return sorted(int(match[1]) for name in names if (match := self._name.fullmatch(name)))

    def _content(self, number: int) -> bytes | None:
        path = self._path(number)
        try:
            return b"" if path.is_symlink() else fs.read_bounded(path, max_bytes=_MAX_BYTES)
        except InputError as error:
            return None if error.code == "file.missing" else b""

    def _may_outbid(self, number: int, content: bytes | None) -> bool:
        if content is None:
            return False
        verdict = fate(_owner_of(content))
        if is_local(self._target.parent):
            verdict = "alive" if _is_locked(self._path(number)) else "gone"
        if verdict != "unknown":
            return verdict == "gone"
        try:
            touched = os.lstat(self._path(number)).st_mtime_ns
        except OSError:
            return False
        seen, now_s = (f"{number} {content!r}", touched), self._monotonic_s()
        if self._watched is None or self._watched[:2] != seen:
            self._watched = (*seen, now_s)
        return now_s - self._watched[2] >= CLAIM_STALE_S

    def _make(self, number: int) -> Claim | None:
        """Locked before it has its name, so that nobody sees it without its lock."""
        token, path = secrets.token_hex(8), self._path(number)
        content = json.dumps({"owner": asdict(own_identity()), "token": token}).encode()
        temporary = fs.temporary_path(self._target.parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = -1
        try:
            fd = fs.OPS.open(str(temporary), flags, 0o600)
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fs.OPS.write(fd, content)
            _give_name(temporary, path)
            return Claim(path, token, fd, self._monotonic_s)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            if isinstance(error, FileExistsError):
                return None
            raise fs.disk_error(error, path) from error
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _give_name(temporary: Path, path: Path) -> None:
    """Raises FileExistsError when somebody was first."""
    try:
        fs.OPS.link(str(temporary), str(path))
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "claimed", str(path)) from error
        # Two at this very moment: the later rename wins the name, and each compares the content behind it with its own.
        fs.OPS.rename(str(temporary), str(path))


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _owner_of(content: bytes) -> Owner | None:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return Owner.from_json(value.get("owner")) if isinstance(value, dict) else None
