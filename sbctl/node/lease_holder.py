"""The process on a host that holds its lease. Standard library only: it is sent as text, before and after a host has a runtime.

It lives as long as the connection of the run that started it, at most `ttl_s` longer than the last renewal. The kernel's lock on
`<state>/lease.json` is the lease; what stands in the file says whose it is (`sbctl.node.lease_file`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from sbctl.base import fs
from sbctl.base.errors import HostError, LockedError, SbctlError
from sbctl.node.lease_file import LEASE_MAX_BYTES, boot_id, boottime_s, is_fresh, lease_path, parse_lease, shown
from sbctl.node.paths import NodePaths, node_paths

__all__ = ["LeaseHolder", "serve"]

_GRACE_S: Final = 3.0
"""A holder whose connection has just ended, and readers who look, are waited for so long."""
_POLL_S: Final = 0.1
_WATCH_S: Final = 1.0


class LeaseHolder:
    """One lease on this host, held by this process."""

    def __init__(self, paths: NodePaths, *, grace_s: float = _GRACE_S) -> None:
        self.paths = paths
        self.path = lease_path(paths)
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._told: dict[str, Any] = {}
        self._made_directory = False

    def take(self, claim: Mapping[str, Any]) -> dict[str, Any]:
        """Hold the lease. A holder of the same run, or one that fell silent, is ended. Raises LockedError `host.leased`, SbctlError."""
        end_s = time.monotonic() + self._grace_s
        while True:
            fd, holder = self._try_lock(str(claim["run"]))
            if fd is not None:
                break
            if time.monotonic() >= end_s:
                raise _leased(holder)
            time.sleep(_POLL_S)
        self._told = {
            **{name: str(claim[name])[:200] for name in ("owner", "purpose", "lineage", "run")},
            "since": _wall(0.0),
            "ttl_s": float(claim["ttl_s"]),
            "boot_id": boot_id(),
            "pid": os.getpid(),
            "started": _started(os.getpid()),
        }
        self._fd = fd
        try:
            self.renew()
        except OSError:
            self.give_back()
            raise
        return {}

    def _try_lock(self, run: str) -> tuple[int | None, dict[str, Any]]:
        """The locked file, or what its holder says; one that must not go on is ended first."""
        if not self.paths.state.is_dir():
            fs.ensure_directory(self.paths.state, mode=0o755)
            self._made_directory = True
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(fd)
            raise HostError(
                "host.lease_damaged",
                "the lease of this host is no file of its own",
                place=self.path,
                next_step="look who put it there, then remove it",
            )
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told = parse_lease(os.pread(fd, LEASE_MAX_BYTES, 0))
            if told and (told.get("run") == run or not is_fresh(told)):
                _end(told, fd)
            os.close(fd)
            return None, told
        if not _is_file(fd, self.path):  # its last holder removed it while we waited
            os.close(fd)
            return None, {}
        owner = self.paths.state.stat()
        if os.geteuid() == 0 and owner.st_uid != 0:
            os.fchown(fd, owner.st_uid, owner.st_gid)  # the runtime of that user looks whether it is held
        return fd, {}

    def renew(self) -> dict[str, Any]:
        """The operator is alive. Written in place, so that nothing comes back in a directory that the run has removed meanwhile."""
        with self._lock:
            if self._fd is None:
                raise HostError(
                    "host.lease_lost",
                    "the lease on this host ended",
                    retryable=True,
                    next_step="run the command again: it reads the host before it acts",
                )
            self._told["renewed_s"] = boottime_s()
            os.pwrite(self._fd, json.dumps(self._told).encode().ljust(LEASE_MAX_BYTES - 1) + b"\n", 0)
        return {}

    def is_overdue(self) -> bool:
        with self._lock:
            return self._fd is not None and not is_fresh(self._told)

    def give_back(self) -> None:
        """Leave nothing of it. Never raises."""
        with self._lock:
            fd, self._fd = self._fd, None
            if fd is None:
                return
            with contextlib.suppress(OSError):
                if _is_file(fd, self.path):
                    os.unlink(self.path)
            if self._made_directory:
                with contextlib.suppress(OSError):
                    self.paths.state.rmdir()
            os.close(fd)


def _is_file(fd: int, path: str, *, follow: bool = False) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=follow))
    except OSError:
        return False


def _started(pid: int) -> str:
    """When a process was started, in the kernel's ticks; empty when there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read(4096).rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _end(holder: Mapping[str, Any], fd: int) -> None:
    """End a holder that must not go on. The file may be written by the runtime's account, so a process that has not even opened the file,
    or merely has the number of one that had, is left alone."""
    pid = holder.get("pid")
    if isinstance(pid, int) and pid > 1 and pid != os.getpid() and holder.get("started") == _started(pid):
        with contextlib.suppress(OSError):
            opened = [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
            if any(_is_file(fd, path, follow=True) for path in opened):
                os.kill(pid, signal.SIGKILL)


def _wall(in_s: float) -> str:
    now = datetime.now(timezone.utc)  # noqa: UP017 - 3.8
    return (now + timedelta(seconds=in_s)).replace(microsecond=0).isoformat().replace("+00:00", "Z")


def _leased(holder: Mapping[str, Any]) -> LockedError:
    told = shown(dict(holder))
    until = _wall(told["ends_in_s"])
    return LockedError(
        "host.leased",
        f"{told['owner']} is changing this host ({told['purpose']}) since {told['since']}; unless renewed, its lease ends {until}",
        next_step="wait for it to end, or let sbctl wait: --lock-timeout SECONDS",
        retryable=True,
        detail={**told, "until": until},
    )


def _watch(holder: LeaseHolder) -> None:
    while True:
        time.sleep(_WATCH_S)
        if holder.is_overdue():
            holder.give_back()
            os._exit(0)


def serve(marker: str) -> None:
    """Answer `take` and `renew`, a JSON line each, until the input ends; then the lease ends too."""
    holder = LeaseHolder(node_paths(os.getuid(), os.environ))
    threading.Thread(target=_watch, args=(holder,), daemon=True).start()
    try:
        for line in sys.stdin.buffer:
            if not line.endswith(b"\n"):
                return
            document = json.loads(line)
            command = document.pop("command")
            try:
                reply: dict[str, Any] = {"result": holder.take(document) if command == "take" else holder.renew()}
            except SbctlError as error:
                reply = {"error": error.to_wire()}
            except OSError as error:
                reply = {"error": fs.disk_error(error, str(error.filename or holder.path)).to_wire()}
            sys.stdout.write("\n" + marker + json.dumps(reply) + "\n")
            sys.stdout.flush()
    finally:
        holder.give_back()
