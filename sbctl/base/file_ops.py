"""The system calls behind durable files, as a port, and what a reader is told when one fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from sbctl.base.errors import SbctlError

__all__ = ["FileOps", "disk_error"]


class FileOps:
    """System calls that can fail. One method a call, so that a test can count and break them."""

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        return os.open(path, flags, mode)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        return os.write(fd, data)

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(path, mode)

    def symlink(self, value: str, path: str) -> None:
        os.symlink(value, path)

    def chmod(self, fd: int, mode: int) -> None:
        os.fchmod(fd, mode)


_DISK_CODES: Final = {
    errno.ENOSPC: ("disk.full", "the disk is full", "free space on this filesystem, then run the command again"),
    errno.EDQUOT: (
        "disk.quota",
        "the disk quota is used up",
        "raise the quota or free space, then run the command again",
    ),
    errno.EROFS: ("disk.read_only", "the filesystem is read-only", "remount it writable or choose another directory"),
    errno.EIO: (
        "disk.io_error",
        "the disk reported an I/O error",
        "check the disk (dmesg, smartctl) before running again",
    ),
    errno.EACCES: (
        "disk.permission",
        "permission was denied",
        "run as the owner of this path, or choose another directory",
    ),
    errno.EPERM: (
        "disk.permission",
        "permission was denied",
        "run as the owner of this path, or choose another directory",
    ),
    errno.ELOOP: (
        "disk.symlink_refused",
        "a symbolic link stands where a file of ours belongs",
        "look who placed it and remove it",
    ),
    errno.ENOENT: ("disk.missing", "the path does not exist", None),
}


def disk_error(error: OSError, path: Path | str) -> SbctlError:
    """The error for the reader behind an OSError on a durable path."""
    code, sentence, step = _DISK_CODES.get(
        error.errno or 0, ("disk.failed", f"the system said: {error.strerror or error}", None)
    )
    return SbctlError(
        code, sentence, place=str(path), next_step=step, retryable=error.errno in (errno.ENOSPC, errno.EDQUOT)
    )
