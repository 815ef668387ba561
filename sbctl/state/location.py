"""Where a state lives, and whether that place can hold one.

.sbctl/            0700, beside sb.yml
├── state.db       SQLite, WAL (`-wal` and `-shm` beside it while in use)
├── fence.json     lineage, highest serial, highest change: what state.db must at least contain
├── remote.json    what this checkout last knew of the shared state, where there is one
├── backup.json    the document of the last finished run, to push when state.db is damaged
├── errored.json   what could not be written to the shared state
└── lock           flock; never renamed, never removed
"""

from __future__ import annotations

import ctypes
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbctl.base import fs
from sbctl.base.errors import RefusedError, SbctlError

__all__ = [
    "StatePaths",
    "filesystem_type",
    "is_there",
    "prepare_directory",
    "refuse_network_filesystem",
    "regular_file_size",
]

# Magic numbers of statfs(2) and linux/magic.h. FUSE is here because most of its filesystems lock on one machine only.
NETWORK_FILESYSTEMS: Final = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB2",
    0xFF534D42: "CIFS",
    0x65735546: "FUSE",
    0x01021997: "9P",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x73757245: "Coda",
    0x786F4256: "VirtualBox shared folder",
}


@dataclass(frozen=True, slots=True)
class StatePaths:
    """Names inside one state directory."""

    directory: Path

    @property
    def database(self) -> Path:
        return self.directory / "state.db"

    @property
    def write_ahead_log(self) -> Path:
        return self.directory / "state.db-wal"

    @property
    def shared_memory(self) -> Path:
        return self.directory / "state.db-shm"

    @property
    def fence(self) -> Path:
        return self.directory / "fence.json"

    @property
    def backup(self) -> Path:
        return self.directory / "backup.json"

    @property
    def seen(self) -> Path:
        return self.directory / "remote.json"

    @property
    def errored(self) -> Path:
        return self.directory / "errored.json"

    @property
    def lock(self) -> Path:
        return self.directory / "lock"


def filesystem_type(path: Path) -> int:
    """`f_type` of statfs(2) for an existing path; 0 when the system does not say."""
    buffer = ctypes.create_string_buffer(512)
    library = ctypes.CDLL(None, use_errno=True)
    if library.statfs(os.fsencode(path), buffer) != 0:
        return 0
    return int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], "little") & 0xFFFFFFFF


def refuse_network_filesystem(directory: Path) -> None:
    """Raises RefusedError `state.network_filesystem` where neither flock nor SQLite's log can be trusted."""
    nearest = next((path for path in (directory, *directory.absolute().parents) if path.exists()), Path("/"))
    name = NETWORK_FILESYSTEMS.get(filesystem_type(nearest))
    if name is not None:
        raise RefusedError(
            "state.network_filesystem",
            f"the state would live on a network filesystem ({name}), where its lock and its log cannot be trusted",
            place=str(directory),
            next_step="keep sb.yml and its state on a local disk",
        )


def prepare_directory(directory: Path) -> None:
    """Create the state directory, or tighten one that others may read. Raises SbctlError."""
    fs.ensure_directory(directory, mode=0o700)
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise fs.disk_error(error, directory) from error
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) & 0o077:
            fs.OPS.chmod(fd, 0o700)
    except OSError as error:
        raise fs.disk_error(error, directory) from error
    finally:
        os.close(fd)


def is_there(path: Path) -> bool:
    """Whether anything has this name, a dangling link included. Raises SbctlError when that cannot be told."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise fs.disk_error(error, path) from error
    return True


def regular_file_size(path: Path) -> int | None:
    """Bytes of a regular file, None when nothing is there. Raises SbctlError for anything else under that name."""
    if not is_there(path):
        return None
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise SbctlError(
            "disk.not_a_file",
            "something that is not a regular file stands here",
            place=str(path),
            next_step="look who placed it and remove it",
        )
    return status.st_size
