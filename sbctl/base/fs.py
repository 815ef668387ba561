"""Durable files. The one module that renames, fsyncs and removes; everything durable goes through `write_atomic`.

Protocol of a durable write (ALICE, OSDI'14): a temporary name in the same directory, created O_EXCL|O_NOFOLLOW|O_CLOEXEC, write,
fsync, close, rename, fsync the directory. An error before the rename leaves the old content and no temporary file. A failed fsync of
the directory is `DurabilityUnknownError`: the new content may be visible, so the caller reads before it acts. A failed fsync is never retried.

What root makes in a directory that belongs to another account is given to that account, which has to work with it.

`OPS` is the port to the system (`file_ops`): fault tests replace it and fail the n-th call.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from sbctl.base.errors import DurabilityUnknownError, InputError, SbctlError
from sbctl.base.file_ops import FileOps, disk_error

__all__ = [
    "FileOps",
    "append_line",
    "copy_stream",
    "disk_error",
    "ensure_directory",
    "free_bytes",
    "fsync_directory",
    "give_to_owner",
    "install_file",
    "link_or_copy",
    "publish_directory",
    "read_bounded",
    "remove_file",
    "remove_tree",
    "replace_directory",
    "replace_symlink",
    "sweep_temporaries",
    "temporary_path",
    "use_ops",
    "write_atomic",
]

_TEMP_PREFIX: Final = ".sbctl-tmp-"
_ASIDE: Final = "look what it is and move it away, then run the command again"

OPS: FileOps = FileOps()


@contextlib.contextmanager
def use_ops(ops: FileOps) -> Iterator[None]:
    """Replace the port to the system for the duration of a test."""
    global OPS  # noqa: PLW0603 - the one switch for fault tests
    previous, OPS = OPS, ops
    try:
        yield
    finally:
        OPS = previous


def fsync_directory(path: Path) -> None:
    """Make names in `path` durable. Raises DurabilityUnknownError, since the names may already be visible."""
    try:
        fd = OPS.open(str(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            OPS.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise DurabilityUnknownError(
            "disk.durability_unknown",
            f"a new name may not survive a power cut: {error.strerror}",
            place=str(path),
            next_step="check the disk, then run the command again: it reads before it acts",
        ) from error


def give_to_owner(fd: int, directory: Path | str) -> None:
    """As root: hand what was just made in `directory` to the account that owns the directory. Nothing for anybody else. Raises OSError."""
    if os.geteuid() == 0:
        owner = os.stat(directory)
        if owner.st_uid != 0:
            os.fchown(fd, owner.st_uid, owner.st_gid)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[OPS.write(fd, view) :]


def temporary_path(directory: Path) -> Path:
    """A fresh name in `directory` that `sweep_temporaries` removes when a crash leaves it."""
    return directory / f"{_TEMP_PREFIX}{secrets.token_hex(8)}"


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace or create `path` durably with exactly `data` and `mode`.

    After an SbctlError the old content stands; after DurabilityUnknownError read the file. A target that exists and is
    not a regular file is refused.
    """
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise SbctlError(
                "disk.not_a_file", "something that is no regular file stands here", place=str(path), next_step=_ASIDE
            )
    except FileNotFoundError:
        pass
    except OSError as error:
        raise disk_error(error, path) from error
    temporary = str(path.parent / f"{_TEMP_PREFIX}{secrets.token_hex(8)}")
    try:
        fd = OPS.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            _write_all(fd, data)
            give_to_owner(fd, path.parent)
            OPS.chmod(fd, mode)
            OPS.fsync(fd)
        finally:
            os.close(fd)
        OPS.rename(temporary, str(path))
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise disk_error(error, path) from error
    fsync_directory(path.parent)


def append_line(path: Path, line: bytes, *, mode: int = 0o600) -> None:
    """Add one line, durably, to a file that only grows; `line` has no line break. What a crash cut off before stays a line of its own.

    After an SbctlError part of the line may be there. Writers of one file take turns.
    """
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = OPS.open(str(path), flags, mode)
        try:
            size = os.fstat(fd).st_size
            cut = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            _write_all(fd, (b"\n" if cut else b"") + line + b"\n")
            OPS.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise disk_error(error, path) from error
    if size == 0:
        fsync_directory(path.parent)


def install_file(source: Path, target: Path, *, mode: int) -> None:
    """Move a finished file to its durable name on the same filesystem: chmod, fsync, rename, fsync of the directory."""
    try:
        fd = OPS.open(str(source), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            OPS.chmod(fd, mode)
            OPS.fsync(fd)
        finally:
            os.close(fd)
        OPS.rename(str(source), str(target))
    except OSError as error:
        raise disk_error(error, target) from error
    fsync_directory(target.parent)


def ensure_directory(path: Path, *, mode: int = 0o700) -> None:
    """Create `path` and missing parents durably, with this mode whatever the process masks. An existing directory keeps its own; anything else
    there is refused."""
    if path.is_dir():
        return
    if path.parent != path:
        ensure_directory(path.parent, mode=mode if mode != 0o700 else 0o755)
    try:
        OPS.mkdir(str(path), mode)
    except FileExistsError as error:
        if not path.is_dir():
            raise SbctlError(
                "disk.not_a_directory", "something that is no directory stands here", place=str(path), next_step=_ASIDE
            ) from error
        return
    except OSError as error:
        raise disk_error(error, path) from error
    if mode != 0o700 or os.geteuid() == 0:
        _settle_directory(path, mode)
    fsync_directory(path.parent)


def _settle_directory(path: Path, mode: int) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if mode & ~os.fstat(fd).st_mode:
                OPS.chmod(fd, mode)
            if os.geteuid() == 0:
                give_to_owner(fd, path.parent)
        finally:
            os.close(fd)
    except OSError as error:
        raise disk_error(error, path) from error


def open_regular(path: Path, *, right_path: str = "check the path") -> int:
    """A descriptor to read a regular file by, never a FIFO, device or directory. `right_path`: what to do where another file was meant.

    Raises InputError `file.missing`, `file.not_regular`, `file.unreadable`.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise InputError("file.missing", "there is no such file", place=str(path), next_step=right_path) from error
    except OSError as error:
        raise InputError(
            "file.unreadable",
            f"the file cannot be opened: {error.strerror}",
            place=str(path),
            next_step="see whether this user may read the file, and every directory above it",
        ) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InputError("file.not_regular", "this is not a regular file", place=str(path), next_step=right_path)
    return fd


def read_bounded(path: Path, *, max_bytes: int) -> bytes:
    """The whole regular file, never more than `max_bytes`, never a FIFO, device or directory.

    Raises InputError `file.missing`, `file.not_regular`, `file.too_large`, `file.unreadable`.
    """
    fd = open_regular(path)
    try:
        chunks, total = [], 0
        while chunk := os.read(fd, min(1 << 20, max_bytes + 1 - total)):
            chunks.append(chunk)
            total += len(chunk)
            if total > max_bytes:
                raise InputError(
                    "file.too_large", f"the file is larger than the {max_bytes} bytes that are read", place=str(path)
                )
        return b"".join(chunks)
    except OSError as error:
        raise InputError("file.unreadable", f"the file cannot be read: {error.strerror}", place=str(path)) from error
    finally:
        os.close(fd)


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link where the filesystem allows one and the file is ours, else a copy with fsync. The target must not exist.

    A link to somebody else's file is not made: its owner could change the bytes after they were checked.
    """
    try:
        OPS.link(str(source), str(target))
        if os.lstat(target).st_uid == os.geteuid():
            return
        OPS.unlink(str(target))
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK):
            raise disk_error(error, target) from error
    try:
        reader = source.open("rb")
    except OSError as error:
        raise disk_error(error, target) from error
    with reader:
        copy_stream(reader, target)


def copy_stream(reader: BinaryIO, target: Path) -> None:
    """What is left of `reader` as the new file `target`, read-only for everybody, with fsync. The target must not exist; it does not after an SbctlError."""
    try:
        fd = OPS.open(str(target), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444)
        try:
            while chunk := reader.read(1 << 20):
                _write_all(fd, chunk)
            OPS.chmod(fd, 0o444)
            OPS.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(target)
        raise disk_error(error, target) from error


def replace_symlink(path: Path, value: str) -> None:
    """Point the symbolic link `path` at `value` atomically and durably."""
    temporary = str(path.parent / f"{_TEMP_PREFIX}{secrets.token_hex(8)}")
    try:
        OPS.symlink(value, temporary)
        OPS.rename(temporary, str(path))
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise disk_error(error, path) from error
    fsync_directory(path.parent)


def publish_directory(staged: Path, target: Path) -> None:
    """Give the finished directory `staged` its durable name on the same filesystem. Raises SbctlError `disk.exists` when the name is taken."""
    if os.path.lexists(target):
        raise SbctlError("disk.exists", "something stands here already and is not overwritten", place=str(target))
    fsync_directory(staged)
    try:
        OPS.rename(str(staged), str(target))
    except OSError as error:
        raise disk_error(error, target) from error
    fsync_directory(target.parent)


def replace_directory(staged: Path, target: Path) -> None:
    """Give the finished directory `staged` its durable name on the same filesystem; what stood there is removed afterwards.

    A crash leaves the old directory, the new one, or for a moment neither, never a mixture.
    """
    try:
        if (doomed := _set_aside(target)) == target:
            shutil.rmtree(target)
        OPS.rename(str(staged), str(target))
    except OSError as error:
        raise disk_error(error, target) from error
    fsync_directory(target.parent)
    if doomed is not None and doomed != target:
        shutil.rmtree(doomed, ignore_errors=True)


def _set_aside(path: Path) -> Path | None:
    """Under a temporary name, or in its place: an overlay renames no directory of the image below it. None: nothing stands there."""
    doomed = path.parent / f"{_TEMP_PREFIX}{secrets.token_hex(8)}"
    try:
        OPS.rename(str(path), str(doomed))
        return doomed
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EXDEV:
            return path
        raise


def remove_file(path: Path) -> bool:
    """Unlink durably; False when it was not there."""
    try:
        OPS.unlink(str(path))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise disk_error(error, path) from error
    fsync_directory(path.parent)
    return True


def remove_tree(path: Path) -> bool:
    """Remove a directory tree: renamed out of the way first, so that a crash leaves nothing half there under its name."""
    try:
        doomed = _set_aside(path)
    except OSError as error:
        raise disk_error(error, path) from error
    if doomed is None:
        return False
    fsync_directory(path.parent)
    for root, directories, _files in os.walk(doomed):
        for directory in (os.path.join(root, name) for name in directories):
            if not os.path.islink(directory):
                with contextlib.suppress(OSError):
                    os.chmod(directory, 0o700)
    shutil.rmtree(doomed, ignore_errors=True)
    if doomed.exists():
        raise SbctlError(
            "disk.failed",
            "the directory could not be removed whole",
            place=str(doomed),
            next_step="see whether something writes or is mounted in it, and remove it by hand",
        )
    return True


def sweep_temporaries(directory: Path, *, older_than_s: float, now_s: float) -> int:
    """Remove what a crash left under our temporary names, if older than an hour or so. Returns how many."""
    count = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(directory):
            age_s = now_s - entry.stat(follow_symlinks=False).st_mtime
            if entry.name.startswith(_TEMP_PREFIX) and age_s > older_than_s:
                shutil.rmtree(entry.path, ignore_errors=True)  # leaves what is no directory
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
                count += 1
    return count


def free_bytes(path: Path) -> int | None:
    """Bytes an ordinary user may still write below `path` or its nearest existing parent; None when unknown."""
    for candidate in (path, *path.parents):
        with contextlib.suppress(OSError):
            status = os.statvfs(candidate)
            return status.f_bavail * status.f_frsize
    return None
