"""A disk that loses power: what of a directory tree is left after every call that changes it (ALICE, OSDI'14; docs/threats.md, F13).

The calls run for real. Beside them stands what the disk has for certain: a file's bytes since its last fsync, a directory's names since its own.
Three disks are cut: one keeps nothing else, one has all names of the moment already, with nothing but zeros behind what was never synced, and
one has these names and of what was not synced every other sector.

Files that are not written through `base.fs` are told of by `changed`, `synced` and `directory_synced` (`sqlite_disk` does so for databases).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sbctl.base import fs

__all__ = ["POLICIES", "CutPoint", "PowerCut"]

Policy = Literal["nothing unsynced", "names first", "torn"]
POLICIES: Final[tuple[Policy, ...]] = ("nothing unsynced", "names first", "torn")
_SECTOR_BYTES: Final = 512


@dataclass(frozen=True)
class CutPoint:
    """What is left: path below the root → bytes, None for a directory."""

    call: str
    policy: Policy
    tree: dict[str, bytes | None]
    acknowledged: int = 0
    """How many operations had returned."""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal disks."""
        return tuple(sorted(self.tree.items()))

    def rebuild(self, root: Path) -> None:
        root.mkdir(parents=True)
        for path, data in sorted(self.tree.items()):
            if data is None:
                (root / path).mkdir(exist_ok=True)
            else:
                (root / path).write_bytes(data)


class PowerCut(fs.FileOps):
    """Use it with `fs.use_ops`; `points` has what a cut after each call would leave."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self.points: list[CutPoint] = []
        self.acknowledged = 0

    def begin(self) -> None:
        """What is there now was there long before."""
        for path in (self._root, *self._root.rglob("*")):
            if path.is_dir():
                self.directory_synced(path)
            else:
                self._bytes[path.stat().st_ino] = path.read_bytes()

    def changed(self, path: Path, call: str, *, made: bool = False) -> None:
        """A file was made, written or removed."""
        if made:
            self._bytes.pop(os.lstat(path).st_ino, None)
        self._after(f"{call} {path.name}")

    def synced(self, path: Path) -> None:
        self._bytes[os.lstat(path).st_ino] = path.read_bytes()
        self._after(f"sync {path.name}")

    def directory_synced(self, path: Path) -> None:
        self._names[os.lstat(path).st_ino] = {name: os.lstat(path / name).st_ino for name in os.listdir(path)}

    def _after(self, call: str) -> None:
        if not self._root.exists():
            return
        live = {os.lstat(path).st_ino: path for path in (self._root, *self._root.rglob("*"))}
        for policy in POLICIES:
            tree = dict(self._left(self._root, "", live, policy))
            self.points.append(CutPoint(call, policy, tree, self.acknowledged))

    def _left(
        self, directory: Path, prefix: str, live: dict[int, Path], policy: Policy
    ) -> Iterator[tuple[str, bytes | None]]:
        number, names_first = os.lstat(directory).st_ino, policy != "nothing unsynced"
        names = {name: os.lstat(directory / name).st_ino for name in os.listdir(directory)} if names_first else {}
        for name, inode in (names or self._names.get(number, {})).items():
            path = live.get(inode)
            if path is None:
                # Unlinked since, and that was not synced: the old name leads to what was durable of it.
                if inode in self._bytes:
                    yield prefix + name, self._bytes[inode]
            elif stat.S_ISDIR(os.lstat(path).st_mode):
                yield prefix + name, None
                yield from self._left(path, f"{prefix}{name}/", live, policy)
            elif stat.S_ISREG(os.lstat(path).st_mode):
                yield prefix + name, self._content(inode, path, policy)

    def _content(self, inode: int, path: Path, policy: Policy) -> bytes:
        durable = self._bytes.get(inode)
        if policy == "torn":
            return _torn(durable or b"", path.read_bytes())
        return durable if durable is not None else bytes(path.stat().st_size if policy == "names first" else 0)

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        made = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        fd = super().open(path, flags, mode)
        if made:
            self._bytes.pop(os.fstat(fd).st_ino, None)
            self._after(f"open {path}")
        return fd

    def write(self, fd: int, data: bytes | memoryview) -> int:
        count = super().write(fd, data)
        self._after("write")
        return count

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        count = super().write_at(fd, data, offset)
        self._after("write")
        return count

    def truncate(self, fd: int, length: int) -> None:
        super().truncate(fd, length)
        self._after("truncate")

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)

    def fsync(self, fd: int) -> None:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            here = f"/proc/self/fd/{fd}"
            self._names[status.st_ino] = {name: os.lstat(os.path.join(here, name)).st_ino for name in os.listdir(here)}
        else:
            self._bytes[status.st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()
        self._after("fsync")

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self._after(f"rename {target}")

    def link(self, source: str, target: str) -> None:
        super().link(source, target)
        self._after(f"link {target}")

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self._after(f"unlink {path}")

    def mkdir(self, path: str, mode: int) -> None:
        super().mkdir(path, mode)
        self._names.pop(os.lstat(path).st_ino, None)
        self._after(f"mkdir {path}")


def _torn(durable: bytes, live: bytes) -> bytes:
    """Every other sector of what is new arrived."""
    if durable == live:
        return durable
    old = durable.ljust(len(live), b"\0")
    sectors = range(0, len(live), _SECTOR_BYTES)
    pieces = (live if number % 2 == 0 else old for number in range(len(sectors)))
    return b"".join(piece[at : at + _SECTOR_BYTES] for piece, at in zip(pieces, sectors, strict=True))
