"""A download that is not finished: `<target>.part` with the bytes and `<target>.resume.json` with what they are of.

Rules: opened O_NOFOLLOW, a regular file of ours with one name; locked while one process writes it; kept after a failure only when it can
be continued (same digest, size and validator). The length of the file is how far it got. Bytes that a power cut damaged are found by the
digest, which covers the whole file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, Final

from sbctl.base import fs
from sbctl.base.errors import ArtifactError, InputError, SbctlError

__all__ = ["Partial", "require_space"]

_READ_BYTES: Final = 1 << 20
_RESUME_MAX_BYTES: Final = 64 * 1024
_SPACE_MARGIN_BYTES: Final = 16 * 1024 * 1024


def require_space(directory: Path, need_bytes: int) -> None:
    """Raises ArtifactError `disk.full`, with both figures, when `directory` cannot take `need_bytes` and a margin."""
    free = fs.free_bytes(directory)
    if free is not None and free < need_bytes + _SPACE_MARGIN_BYTES:
        raise ArtifactError(
            "disk.full",
            f"{need_bytes} bytes are needed here and {free} are free",
            place=str(directory),
            next_step="free space on this filesystem or choose another cache directory, then run again",
            detail={"need_bytes": need_bytes, "free_bytes": free},
        )


class Partial:
    """One unfinished file; a context manager that holds its lock. `try_open` says False while another process writes it."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(target.name + ".part")
        self.resume_path = target.with_name(target.name + ".resume.json")
        self.size_bytes = 0
        self.digest = hashlib.sha256()
        self._fd: int | None = None
        self._record: dict[str, Any] = {}

    def try_open(self) -> bool:
        """Open and lock. False: somebody else holds it, or has just finished it. Raises SbctlError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            fd = fs.OPS.open(str(self.path), flags, 0o600)
        except OSError as error:
            raise fs.disk_error(error, self.path) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status, named = os.fstat(fd), os.lstat(self.path)
        except (BlockingIOError, FileNotFoundError):
            os.close(fd)
            return False
        if (status.st_dev, status.st_ino) != (named.st_dev, named.st_ino):
            os.close(fd)
            return False
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid != os.geteuid():
            os.close(fd)
            raise SbctlError(
                "disk.symlink_refused",
                "something else stands where an unfinished download of ours belongs",
                place=str(self.path),
                next_step="look who placed it and remove it",
            )
        self._fd = fd
        self.size_bytes = status.st_size
        self._record = self._read_record()
        return True

    def _read_record(self) -> dict[str, Any]:
        try:
            value = json.loads(fs.read_bounded(self.resume_path, max_bytes=_RESUME_MAX_BYTES))
        except (InputError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def resume_point(self, sha256: str, total_bytes: int | None, place: str) -> tuple[int, str]:
        """Bytes that may stay and the server's validator for them; (0, "") when it starts anew. Hashes what stays."""
        record = self._record
        etag = record.get("etag")
        fits = (
            record.get("sha256") == sha256
            and record.get("place") == place
            and record.get("total_bytes") == total_bytes
            and total_bytes is not None
            and isinstance(etag, str)
            and 0 < self.size_bytes < total_bytes
        )
        if not fits or self._fd is None:
            return 0, ""
        self.digest = hashlib.sha256()
        os.lseek(self._fd, 0, os.SEEK_SET)
        while chunk := os.read(self._fd, _READ_BYTES):
            self.digest.update(chunk)
        return self.size_bytes, str(etag)

    def restart(self, *, sha256: str, total_bytes: int | None, place: str, etag: str) -> None:
        """Begin from the first byte; remembers what the bytes will be of."""
        assert self._fd is not None
        try:
            os.ftruncate(self._fd, 0)
            os.lseek(self._fd, 0, os.SEEK_SET)
        except OSError as error:
            raise fs.disk_error(error, self.path) from error
        self.size_bytes = 0
        self.digest = hashlib.sha256()
        self._record = {"sha256": sha256, "total_bytes": total_bytes, "place": place, "etag": etag}
        fs.write_atomic(self.resume_path, json.dumps(self._record, sort_keys=True).encode())

    def write(self, data: bytes) -> None:
        """Append. Raises SbctlError `disk.full` and its like; such an error is final."""
        assert self._fd is not None
        view = memoryview(data)
        try:
            while view:
                written = fs.OPS.write(self._fd, view)
                self.digest.update(view[:written])
                self.size_bytes += written
                view = view[written:]
        except OSError as error:
            raise fs.disk_error(error, self.path) from error

    @property
    def can_resume(self) -> bool:
        """Whether what is there may be continued later."""
        return bool(self._record.get("total_bytes")) and self.size_bytes > 0

    def finish(self) -> None:
        """Make the bytes durable under the target's name. The caller has checked the digest."""
        fs.install_file(self.path, self.target, mode=0o600)
        with contextlib.suppress(SbctlError):
            fs.remove_file(self.resume_path)

    def discard_content(self) -> None:
        """Forget the bytes and keep the lock; the next attempt starts anew."""
        self._record = {}
        with contextlib.suppress(SbctlError):
            fs.remove_file(self.resume_path)

    def discard(self) -> None:
        """Remove what cannot be used. Quiet when the disk refuses: the digest guards."""
        for path in (self.path, self.resume_path):
            with contextlib.suppress(SbctlError):
                fs.remove_file(path)

    def close(self) -> None:
        """Release the lock."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
