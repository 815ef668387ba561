"""Log files that rotate by renaming (`x.log`, `x.log.1`, …), read from their end or from where somebody stopped.

A place is `inode:offset:head`, so it stays true when the file gets another name; `head` is a checksum of how the file begins, since the
number of a removed file is soon another's. Lines that were rotated away meanwhile are said to be lost.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["FileTail", "read_behind", "read_end"]

_GENERATIONS: Final = 3
_LINE_MAX_BYTES: Final = 64 * 1024
_HEAD_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class FileTail:
    """Whole lines, oldest first, and the place behind the last of them. `more`: there is more than was asked for."""

    lines: tuple[bytes, ...]
    place: str
    more: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class _Generation:
    path: Path
    inode: int
    size: int


def read_end(path: Path, *, max_bytes: int) -> FileTail:
    """The last lines, at most `max_bytes` of them."""
    generations = _generations(path)
    pieces: list[bytes] = []
    left = max_bytes
    for generation in reversed(generations):
        piece = _read(generation, max(0, generation.size - left), left)
        pieces.insert(0, piece)
        left -= len(piece)
        if left <= 0:
            break
    data = b"".join(pieces)
    if left <= 0:
        # What was cut in the middle is no line.
        data = data.partition(b"\n")[2]
    whole, begun = _split(data)
    newest = generations[-1] if generations else None
    place = "" if newest is None else _place(newest, max(0, newest.size - len(begun)))
    return FileTail(whole, place)


def read_behind(path: Path, place: str, *, max_bytes: int) -> FileTail:
    """Lines behind `place`, at most `max_bytes` of them."""
    generations = _generations(path)
    if not generations:
        return FileTail((), place)
    offset = _offset(place)
    at = next(
        (
            index
            for index, one in enumerate(generations)
            if place and offset <= one.size and _place(one, offset) == place
        ),
        None,
    )
    lost = at is None and bool(place)
    if at is None:
        at, offset = 0, 0
    lines: list[bytes] = []
    left = max_bytes
    for index in range(at, len(generations)):
        generation = generations[index]
        is_newest = index == len(generations) - 1
        start = offset if index == at else 0
        data = _read(generation, start, left)
        whole, begun = _split(data)
        if begun and (not is_newest or len(begun) >= _LINE_MAX_BYTES or (len(data) >= left and not whole)):
            # Nothing is appended to it any more, or it has no end worth waiting for.
            whole, begun = (*whole, begun), b""
        lines.extend(whole)
        end = start + len(data) - len(begun)
        place = _place(generation, end)
        left -= len(data)
        if left <= 0:
            return FileTail(tuple(lines), place, more=end < generation.size or not is_newest, lost=lost)
    return FileTail(tuple(lines), place, lost=lost)


def _generations(path: Path) -> list[_Generation]:
    """Oldest first."""
    return list(_found(path))


def _found(path: Path) -> Iterator[_Generation]:
    for number in range(_GENERATIONS - 1, -1, -1):
        name = path if number == 0 else Path(f"{path}.{number}")
        with contextlib.suppress(OSError):
            status = os.stat(name, follow_symlinks=False)
            yield _Generation(name, status.st_ino, status.st_size)


def _read(generation: _Generation, offset: int, count: int) -> bytes:
    with contextlib.suppress(OSError):
        fd = os.open(generation.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if os.fstat(fd).st_ino == generation.inode:
                file.seek(offset)
                return file.read(max(0, min(count, generation.size - offset)))
    return b""


def _split(data: bytes) -> tuple[tuple[bytes, ...], bytes]:
    *whole, begun = data.split(b"\n")
    return tuple(line for line in whole if line.strip()), begun


def _place(generation: _Generation, offset: int) -> str:
    head = _read(generation, 0, min(offset, _HEAD_BYTES))
    return f"{generation.inode}:{offset}:{zlib.crc32(head):08x}"


def _offset(place: str) -> int:
    offset = place.split(":")[1] if place.count(":") == 2 else ""
    return int(offset) if offset.isdigit() else 0
