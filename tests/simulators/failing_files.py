"""A disk on which the n-th call that changes something fails as a full one does."""

from __future__ import annotations

import errno
import os

from sbctl.base import fs

__all__ = ["FullAt"]


class FullAt(fs.FileOps):
    """Counts from 1; `left` is above 0 afterwards when the call was never reached."""

    def __init__(self, number: int) -> None:
        self.left = number

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        self._count()
        return super().open(path, flags, mode)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._count()
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self._count()
        super().fsync(fd)

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def symlink(self, value: str, path: str) -> None:
        self._count()
        super().symlink(value, path)

    def mkdir(self, path: str, mode: int) -> None:
        self._count()
        super().mkdir(path, mode)
