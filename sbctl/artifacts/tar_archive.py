"""Unpack a gzipped tar into a fresh directory, by our own policy: regular files, directories, and links to a neighbour.

One leading directory is left out. A name is a plain relative path below it, once; nothing is absolute, climbs, or passes through a link. A link
names a file of its own directory that the archive has. Modes become 0755 or 0644, owners ours. Files, bytes and headers are capped while they
are read, whatever the archive claims; what it holds beside these kinds refuses the whole of it.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from pathlib import Path
from typing import Final

from sbctl.artifacts.member_path import is_safe_member
from sbctl.base.display import display_safe
from sbctl.base.errors import ArtifactError
from sbctl.base.fs import disk_error

__all__ = ["unpack_tar"]

_MAX_MEMBERS: Final = 100_000
_PIECE_MAX_BYTES: Final = 1 << 20


class _Bounded:
    """The unpacked stream, forward only: no more bytes than were allowed, no header that wants to be held in memory whole."""

    def __init__(self, stream: gzip.GzipFile, archive: Path, max_bytes: int) -> None:
        self._stream = stream
        self._archive = archive
        self._left = max_bytes
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _PIECE_MAX_BYTES:
            raise _refused(self._archive, "a header of it is too long")
        data = self._stream.read(size)
        self._left -= len(data)
        self._position += len(data)
        if self._left < 0:
            raise _refused(self._archive, "it unpacks to more than is expected")
        return data

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, _whence: int = 0) -> int:
        while self._position < position and self.read(min(_PIECE_MAX_BYTES, position - self._position)):
            pass
        if self._position != position:
            raise _refused(self._archive, "it ends too early")
        return position


def unpack_tar(archive: Path, target: Path, *, max_bytes: int) -> int:
    """Fill `target`, an empty directory of ours; returns how many files. Raises ArtifactError `artifact.archive_refused`, SbctlError `disk.*`."""
    try:
        with gzip.open(archive, "rb") as plain:
            bounded = _Bounded(plain, archive, max_bytes)
            with tarfile.open(fileobj=bounded, mode="r:", errorlevel=2) as opened:  # type: ignore[call-overload]
                return _Unpacking(archive, target).all_of(opened)
    except (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError, gzip.BadGzipFile) as error:
        raise _refused(archive, "it is damaged or no gzipped tar") from error
    except OSError as error:
        raise disk_error(error, target) from error


class _Unpacking:
    def __init__(self, archive: Path, target: Path) -> None:
        self._archive = archive
        self._target = target
        self._files: set[str] = set()
        self._links: dict[str, str] = {}
        self._top: str | None = None

    def all_of(self, opened: tarfile.TarFile) -> int:
        for count, member in enumerate(opened):
            if count >= _MAX_MEMBERS:
                raise _refused(self._archive, f"it has more than {_MAX_MEMBERS} members")
            self._take(opened, member)
        for name, aim in self._links.items():
            if aim not in self._files and aim not in self._links:
                raise _refused(self._archive, f"the link {display_safe(name)} leads to nothing in it")
        for name in self._links:
            self._require_end(name)
        for name, aim in self._links.items():
            os.symlink(Path(aim).name, self._target / name)
        return len(self._files)

    def _take(self, opened: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = self._name(member)
        if name == "" and member.isdir():
            return
        if not is_safe_member(name):
            raise _refused(self._archive, f"{display_safe(member.name, max_chars=200)} is not a plain relative path")
        if member.isdir():
            self._directory(name)
        elif name in self._files or name in self._links:
            raise _refused(self._archive, f"it has {display_safe(name)} twice")
        elif member.isreg():
            self._directory(str(Path(name).parent))
            self._file(opened, member, name)
        elif member.issym() and "/" not in member.linkname and member.linkname not in ("", ".", ".."):
            self._directory(str(Path(name).parent))
            self._links[name] = str(Path(name).parent / member.linkname)
        else:
            raise _refused(self._archive, f"{display_safe(name)} is neither a file nor a link to a neighbour")

    def _name(self, member: tarfile.TarInfo) -> str:
        """Below the one directory that the archive starts with."""
        plain = member.name.removeprefix("./").rstrip("/")
        top, _, rest = plain.partition("/")
        if self._top is None:
            self._top = top
        if top in ("", ".", "..") or top != self._top or (not rest and not member.isdir()):
            raise _refused(self._archive, "not everything in it stands below one directory")
        return rest

    def _directory(self, name: str) -> None:
        if name in self._files or name in self._links:
            raise _refused(self._archive, f"{display_safe(name)} is a file and a directory")
        parent = self._target / name
        if any(str(above) in self._links or str(above) in self._files for above in Path(name).parents):
            raise _refused(self._archive, f"{display_safe(name)} passes through a file or a link")
        parent.mkdir(mode=0o755, parents=True, exist_ok=True)

    def _file(self, opened: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> None:
        reader = opened.extractfile(member)
        if reader is None:
            raise _refused(self._archive, f"{display_safe(name)} cannot be read")
        mode = 0o755 if member.mode & 0o111 else 0o644
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self._target / name, flags, mode), "wb") as file:
            while chunk := reader.read(_PIECE_MAX_BYTES):
                file.write(chunk)
            os.fchmod(file.fileno(), mode)
        self._files.add(name)

    def _require_end(self, name: str) -> None:
        seen = {name}
        while (name := self._links.get(name, "")) != "":
            if name in seen:
                raise _refused(self._archive, f"the link {display_safe(name)} leads to itself")
            seen.add(name)


def _refused(archive: Path, why: str) -> ArtifactError:
    return ArtifactError(
        "artifact.archive_refused",
        f"the archive is not unpacked: {why}",
        place=str(archive),
        next_step="use another build (engines.llama_cpp.version), or launch: wheel",
    )
