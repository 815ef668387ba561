"""A standalone Python as one archive: what it may hold, what it says of itself, how it is unpacked.

The layout is python-build-standalone's `install_only`: a tar.gz whose members all stand below `python/`, with `python/bin/python3.X`. Both
sides read it by this one policy: the operator's before a plan, the host's before a byte is unpacked. Standard library only and Python 3.8,
since the bootstrap carries this module to hosts that have nothing newer.

    members    regular files, directories, and symbolic links that stay below `python/`; each name once, nothing below a file or a link
    bounds     bytes and members in all, and the size of a header, whatever the archive claims
    modes      0755 and 0644, files of whoever unpacks: no owner, no set-id bit and no time of the archive is taken over
"""

from __future__ import annotations

import gzip
import os
import re
import struct
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Callable, Optional  # noqa: UP035 - 3.8

from sbctl.base.errors import InputError

__all__ = ["PythonArchive", "inspect_python", "unpack_python"]

_TOP = "python"
_PROGRAM = re.compile(r"python/bin/python3\.([0-9]{1,2})")
_PATCH_LEVEL = re.compile(rb'#define\s+PY_VERSION\s+"([0-9]+\.[0-9]+\.[0-9]+[A-Za-z0-9+]*)"')
_OLDEST_MINOR = 11
_MAX_BYTES = 1 << 30
_MAX_MEMBERS = 50_000
_HEADER_BYTES = 1 << 20
_PIECE_BYTES = 1 << 18
_HEAD_BYTES = 1 << 16
_MACHINES = {62: "x86_64", 183: "aarch64"}
_LOAD_INTERPRETER = 3
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class PythonArchive:
    """What an archive holds: `program` is relative to the unpacked tree, `libc` is glibc, musl or empty for a static build."""

    minor: str
    version: str
    """`3.12.7` where the archive tells, else `minor`."""
    arch: str
    libc: str
    program: str


def inspect_python(opened: BinaryIO, place: str) -> PythonArchive:
    """Read the whole archive and judge every member. Raises InputError `python.archive_refused`, `python.unsupported`."""
    return _read(opened, place, None)


def unpack_python(opened: BinaryIO, place: str, target: Path) -> PythonArchive:
    """Write what stands below `python/` into the existing, empty `target`. Raises as `inspect_python`, and OSError."""
    return _read(opened, place, target)


class _Forward:
    """The unpacked bytes, read once from start to end and never more than the bound; `tarfile` asks for nothing else."""

    def __init__(self, opened: BinaryIO, place: str) -> None:
        self._stream = gzip.GzipFile(fileobj=opened, mode="rb")
        self._place = place
        self._at = 0

    def tell(self) -> int:
        return self._at

    def seek(self, position: int) -> int:
        if position < self._at or position > _MAX_BYTES:
            raise _refused(self._place, "its headers lead out of it")
        while self._at < position:
            if not self._more(min(_PIECE_BYTES, position - self._at)):
                break
        return self._at

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _HEADER_BYTES:
            raise _refused(self._place, "one of its headers is too long")
        pieces = []
        while size:
            piece = self._more(size)
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _more(self, size: int) -> bytes:
        piece = self._stream.read(size)
        self._at += len(piece)
        if self._at > _MAX_BYTES:
            raise _refused(self._place, "it unpacks to more than 1 GiB")
        return piece


class _Contents:
    """What was seen so far, and what it says of the interpreter."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.kinds = {_TOP: "directory"}
        self.programs: dict[str, bytes] = {}
        self.patch_levels: dict[str, str] = {}

    def admit(self, member: tarfile.TarInfo) -> str:
        """The member's name, once the policy holds. Raises InputError `python.archive_refused`."""
        name = member.name
        parts = name.split("/")
        if len(self.kinds) >= _MAX_MEMBERS:
            raise _refused(self.place, f"it has more than {_MAX_MEMBERS} members")
        if len(name) > 512 or not name.isprintable() or "\\" in name or any(part in ("", ".", "..") for part in parts):
            raise _refused(self.place, f"{_shown(name)} is not a plain relative path")
        if parts[0] != _TOP:
            raise _refused(
                self.place, f"{_shown(name)} does not stand below python/: this is not an install_only build"
            )
        kind = "directory" if member.isdir() else "link" if member.issym() else "file" if member.isreg() else ""
        if not kind or getattr(member, "sparse", None):
            raise _refused(self.place, f"{_shown(name)} is neither a file nor a directory nor a symbolic link")
        if name in self.kinds and not (kind == self.kinds[name] == "directory"):
            raise _refused(self.place, f"it has {_shown(name)} twice")
        for depth in range(1, len(parts)):
            above = "/".join(parts[:depth])
            if self.kinds.setdefault(above, "directory") != "directory":
                raise _refused(self.place, f"{_shown(name)} stands below what is no directory")
        if kind == "link":
            self._admit_link(name, member.linkname)
        self.kinds[name] = kind
        return name

    def _admit_link(self, name: str, target: str) -> None:
        parts = target.split("/")
        ups = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
        inside = ups < len(parts) and ups <= name.count("/") - 1
        if (
            not inside
            or len(target) > 512
            or not target.isprintable()
            or any(part in ("", ".", "..") for part in parts[ups:])
        ):
            raise _refused(self.place, f"the link {_shown(name)} leads to {_shown(target)}, out of the archive")

    def facts(self) -> PythonArchive:
        """Raises InputError `python.archive_refused`, `python.unsupported`."""
        if len(self.programs) != 1:
            found = ", ".join(sorted(self.programs)) or "none"
            raise _refused(self.place, f"it must hold one program python/bin/python3.X (found: {found})")
        ((program, head),) = self.programs.items()
        match = _PROGRAM.fullmatch(program)
        assert match is not None
        minor = "3." + match.group(1)
        if int(match.group(1)) < _OLDEST_MINOR:
            raise _unsupported(self.place, f"it holds Python {minor}, and the runtime needs 3.{_OLDEST_MINOR} or newer")
        if self.kinds.get(f"{_TOP}/lib/python{minor}/os.py") != "file":
            raise _refused(self.place, f"it has no standard library below python/lib/python{minor}")
        arch, libc = _built_for(head, self.place)
        return PythonArchive(
            minor=minor,
            version=self.patch_levels.get(minor, minor),
            arch=arch,
            libc=libc,
            program=program[len(_TOP) + 1 :],
        )


def _read(opened: BinaryIO, place: str, target: Optional[Path]) -> PythonArchive:  # noqa: UP045 - 3.8
    head = opened.read(4)
    opened.seek(0)
    if head.startswith(_ZSTD):
        raise _refused(place, "it is packed with zstd, which is not read: take the .tar.gz of the same build")
    if not head.startswith(_GZIP):
        raise _refused(place, "it is not a .tar.gz")
    contents = _Contents(place)
    stream: Any = _Forward(opened, place)
    try:
        with tarfile.open(fileobj=stream, mode="r:", errorlevel=2) as archive:
            while True:
                member = archive.next()
                if member is None:
                    break
                archive.members = []  # type: ignore[attr-defined]  # nothing of a long list is kept
                _take(stream, member, contents, target)
        stream.seek(_MAX_BYTES)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeError, ValueError, OverflowError) as error:
        raise _refused(place, "it is damaged") from error
    return contents.facts()


def _take(stream: _Forward, member: tarfile.TarInfo, contents: _Contents, target: Optional[Path]) -> None:  # noqa: UP045
    name = contents.admit(member)
    kind = contents.kinds[name]
    path = None if target is None else target.joinpath(*name.split("/")[1:])
    if path is not None and path != target:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if kind == "file":
        _take_file(stream, member, name, contents, path)
    elif path is not None and kind == "link":
        os.symlink(member.linkname, str(path))
    elif path is not None:
        path.mkdir(mode=0o755, parents=True, exist_ok=True)


def _take_file(
    stream: _Forward,
    member: tarfile.TarInfo,
    name: str,
    contents: _Contents,
    path: Optional[Path],  # noqa: UP045
) -> None:
    head = bytearray()
    _check_start(stream, member, contents.place)
    left = member.size

    def pieces(write: Callable[[bytes], Any]) -> None:
        nonlocal left
        while left:
            piece = stream.read(min(_PIECE_BYTES, left))
            if not piece:
                raise _refused(contents.place, f"it ends within {_shown(name)}")
            left -= len(piece)
            head.extend(piece[: _HEAD_BYTES - len(head)])
            write(piece)

    if path is None:
        pieces(len)
    else:
        mode = 0o755 if member.mode & 0o111 else 0o644
        fd = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "wb") as file:
            pieces(file.write)
            os.fchmod(file.fileno(), mode)
    if _PROGRAM.fullmatch(name):
        contents.programs[name] = bytes(head)
    match = re.fullmatch(r"python/include/python(3\.[0-9]+)/patchlevel\.h", name)
    version = _PATCH_LEVEL.search(bytes(head)) if match else None
    if match and version:
        contents.patch_levels[match.group(1)] = version.group(1).decode("ascii")


def _check_start(stream: _Forward, member: tarfile.TarInfo, place: str) -> None:
    if member.offset_data < stream.tell() or member.size < 0:
        raise _refused(place, "its headers lead out of it")
    stream.seek(member.offset_data)


def _built_for(head: bytes, place: str) -> tuple[str, str]:
    """Machine and C library that a 64-bit little-endian ELF program names. Raises InputError."""
    if head[:6] != b"\x7fELF\x02\x01" or len(head) < 64:
        raise _unsupported(place, "its interpreter is not a 64-bit Linux program")
    machine = struct.unpack_from("<H", head, 18)[0]
    arch = _MACHINES.get(machine)
    if arch is None:
        raise _unsupported(
            place, f"its interpreter is built for another machine (ELF {machine}) than x86_64 or aarch64"
        )
    table, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
    for index in range(count):
        at = table + index * size
        if size < 56 or at + 56 > len(head):
            break
        kind, _flags, offset, _virtual, _physical, length = struct.unpack_from("<IIQQQQ", head, at)
        if kind == _LOAD_INTERPRETER:
            return arch, "musl" if b"musl" in head[offset : offset + length] else "glibc"
    return arch, ""


def _shown(name: str) -> str:
    shown = "".join(character if character.isprintable() else "?" for character in name[:120])
    return f'"{shown}"'


def _refused(place: str, why: str) -> InputError:
    return InputError(
        "python.archive_refused",
        f"this archive is not taken as a standalone Python: {why}",
        place=place,
        next_step="take an install_only .tar.gz of python-build-standalone for Linux, as it was published",
    )


def _unsupported(place: str, why: str) -> InputError:
    return InputError(
        "python.unsupported",
        f"this standalone Python cannot be used: {why}",
        place=place,
        next_step="take an install_only .tar.gz for Linux on x86_64 or aarch64, Python 3.11 or newer",
    )
