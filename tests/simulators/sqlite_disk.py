"""What SQLite does to the disk, told to a `PowerCut`: a shim around the system's VFS, for connections that are opened while it stands.

Writes, truncations, syncs and removals run for real and are told afterwards. The VFS syncs a directory by opening it first, which is how
that is seen. Works where Python's sqlite3 uses the system's shared library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.simulators.power_cut import PowerCut

__all__ = ["is_possible", "told_to"]

_Pointer = ctypes.c_void_p
_METHODS: Final = (
    "close", "read", "write", "truncate", "sync", "file_size", "lock", "unlock", "check_reserved", "control", "sector_size",
    "characteristics", "shm_map", "shm_lock", "shm_barrier", "shm_unmap", "fetch", "unfetch",
)  # fmt: skip
_VFS_CALLS: Final = (
    "open", "delete", "access", "full_path", "dl_open", "dl_error", "dl_sym", "dl_close", "random", "sleep", "time", "last_error",
    "time64", "set_system_call", "get_system_call", "next_system_call",
)  # fmt: skip


class _Methods(ctypes.Structure):
    _fields_ = [("version", ctypes.c_int), *((name, _Pointer) for name in _METHODS)]


class _File(ctypes.Structure):
    _fields_ = [("methods", ctypes.POINTER(_Methods))]


class _Vfs(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_int), ("file_bytes", ctypes.c_int), ("path_max", ctypes.c_int), ("next", _Pointer), ("name", ctypes.c_char_p),
        ("data", _Pointer), *((name, _Pointer) for name in _VFS_CALLS),
    ]  # fmt: skip


# SQLite keeps the name that it opens by: it must be its own pointer.
_OPEN = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, _Pointer, _Pointer, ctypes.c_int, _Pointer)
_DELETE = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, ctypes.c_char_p, ctypes.c_int)
_WRITE = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, _Pointer, ctypes.c_int, ctypes.c_int64)
_TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, ctypes.c_int64)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, ctypes.c_int)
_DIRECTORY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int))
_SET_CALL = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, ctypes.c_char_p, _Pointer)
_GET_CALL = ctypes.CFUNCTYPE(_Pointer, _Pointer, ctypes.c_char_p)
_SIGNATURES: Final[dict[str, Any]] = {"write": _WRITE, "truncate": _TRUNCATE, "sync": _SYNC}


def _library() -> Any:
    """The one that Python's module uses; None where it brings its own."""
    with contextlib.suppress(OSError):
        library = ctypes.CDLL("libsqlite3.so.0", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        library.sqlite3_libversion.restype = ctypes.c_char_p
        if library.sqlite3_libversion().decode() == sqlite3.sqlite_version:
            library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
            return library
    return None


def is_possible() -> bool:
    return _library() is not None


class _Shim:
    """One at a time in a process; what it made stays in memory, since a connection may outlive it."""

    kept: Final[list[Any]] = []

    def __init__(self, disk: PowerCut) -> None:
        self._disk: PowerCut | None = disk
        self._vfs = _library().sqlite3_vfs_find(None)[0]
        self._paths: dict[int, Path] = {}
        self._patched: dict[int, _Methods] = {}
        self._plain: dict[str, Callable[..., int]] = {}
        self._directory: Path | None = None
        self._before = {name: getattr(self._vfs, name) for name in ("open", "delete")}
        vfs = ctypes.addressof(self._vfs)
        self._set_call = lambda what: _SET_CALL(self._vfs.set_system_call)(vfs, b"openDirectory", what)
        self._opener = _GET_CALL(self._vfs.get_system_call)(vfs, b"openDirectory")
        calls = [_OPEN(self._open), _DELETE(self._delete), _DIRECTORY(self._open_directory)]
        self._vfs.open, self._vfs.delete = (ctypes.cast(call, _Pointer).value for call in calls[:2])
        self._set_call(ctypes.cast(calls[2], _Pointer))
        _Shim.kept.append((self, calls))

    def undo(self) -> None:
        for name, value in self._before.items():
            setattr(self._vfs, name, value)
        self._set_call(None)
        self._disk = None

    def _open(self, vfs: int, name: int | None, file: int, flags: int, out: int) -> int:
        path = None if name is None else Path(os.fsdecode(ctypes.string_at(name)))
        made = path is not None and not path.exists()
        code = _OPEN(self._before["open"])(vfs, name, file, flags, out)
        if code == 0 and path is not None:
            self._paths[file] = path
            self._patch(_File.from_address(file))
            if made and self._disk is not None:
                self._disk.changed(path, "make", made=True)
        return int(code)

    def _patch(self, file: _File) -> None:
        address = ctypes.addressof(file.methods.contents)
        if address not in self._patched:
            copy = _Methods()
            ctypes.memmove(ctypes.byref(copy), address, ctypes.sizeof(_Methods))
            for name, signature in _SIGNATURES.items():
                plain = signature(getattr(copy, name))
                call = signature(getattr(self, f"_{name}")(plain))
                setattr(copy, name, ctypes.cast(call, _Pointer).value)
                _Shim.kept.append((plain, call))
            self._patched[address] = self._patched[ctypes.addressof(copy)] = copy
        file.methods = ctypes.pointer(self._patched[address])

    def _write(self, plain: Any) -> Callable[..., int]:
        def write(file: int, data: int, count: int, offset: int) -> int:
            code = plain(file, data, count, offset)
            return self._told(file, "write", code)

        return write

    def _truncate(self, plain: Any) -> Callable[..., int]:
        def truncate(file: int, length: int) -> int:
            return self._told(file, "truncate", plain(file, length))

        return truncate

    def _told(self, file: int, call: str, code: int) -> int:
        if code == 0 and self._disk is not None:
            self._disk.changed(self._paths[file], call)
        return int(code)

    def _sync(self, plain: Any) -> Callable[..., int]:
        def sync(file: int, flags: int) -> int:
            self._directory = None
            code = plain(file, flags)
            if code == 0 and self._disk is not None:
                if self._directory is not None:
                    self._disk.directory_synced(self._directory)
                self._disk.synced(self._paths[file])
            return int(code)

        return sync

    def _delete(self, vfs: int, name: bytes, sync_directory: int) -> int:
        self._directory = None
        code = _DELETE(self._before["delete"])(vfs, name, sync_directory)
        if code == 0 and self._disk is not None:
            path = Path(os.fsdecode(name))
            self._disk.changed(path, "remove")
            if self._directory is not None:
                self._disk.directory_synced(path.parent)
                self._disk.changed(path, "removed for good")
        return int(code)

    def _open_directory(self, name: bytes, out: Any) -> int:
        code = _DIRECTORY(self._opener)(name, out)
        if code == 0:
            self._directory = Path(os.fsdecode(name)).parent
        return int(code)


@contextlib.contextmanager
def told_to(disk: PowerCut) -> Iterator[None]:
    """For connections that are opened in the block, to their end or the block's."""
    shim = _Shim(disk)
    try:
        yield
    finally:
        shim.undo()
