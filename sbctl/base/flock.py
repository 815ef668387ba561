"""Kernel file locks: released by the kernel when the holder dies, never inherited by children, never renamed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sbctl.base.errors import LockedError
from sbctl.base.fs import disk_error, give_to_owner

__all__ = ["FileLock", "exclusive", "held"]

_POLL_S = 0.1


class FileLock:
    """An exclusive or shared `flock` on a file of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def try_acquire(self, *, shared: bool = False) -> bool:
        """True when the lock is now ours; False when somebody else holds it. Raises SbctlError when the file cannot be opened."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            if os.geteuid() == 0 and os.fstat(fd).st_uid == 0:
                give_to_owner(fd, self.path.parent)
        except OSError as error:
            raise disk_error(error, self.path) from error
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        return True

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


@contextlib.contextmanager
def held(path: Path, *, shared: bool = False) -> Iterator[bool]:
    """Try the lock for the length of the block; yields whether it was got."""
    lock = FileLock(path)
    got = lock.try_acquire(shared=shared)
    try:
        yield got
    finally:
        lock.release()


@contextlib.contextmanager
def exclusive(path: Path, *, deadline_s: float, check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock for the length of the block; another holder is waited for, with `check` called meanwhile.

    Raises LockedError `host.locked` after `deadline_s` seconds, and what `check` raises.
    """
    lock = FileLock(path)
    end_s = time.monotonic() + deadline_s
    while not lock.try_acquire():
        check()
        if time.monotonic() >= end_s:
            raise LockedError(
                "host.locked",
                "another command is at work on this host and does not end",
                place=str(path),
                next_step="wait for it, then run the command again",
                retryable=True,
            )
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        lock.release()
