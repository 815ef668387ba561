"""A stretch of a file that stands where a whole file could: one member of a larger file is read in place, never copied out first."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

__all__ = ["ByteSource", "FileSlice", "SliceStatus"]


@dataclass(frozen=True, slots=True)
class SliceStatus:
    """Named like the field of `os.stat_result` that readers of a source ask for."""

    st_size: int


@dataclass(frozen=True, slots=True)
class FileSlice:
    """`size_bytes` bytes of `path` from `offset_bytes`. `stat` and `open` mean what they mean for a Path of just these bytes."""

    path: Path
    offset_bytes: int
    size_bytes: int

    def stat(self) -> SliceStatus:
        return SliceStatus(self.size_bytes)

    def open(self, mode: Literal["rb"] = "rb") -> BinaryIO:
        """A buffered, seekable reader that ends where the stretch ends. Raises OSError."""
        reader = io.BufferedReader(_Stretch(self.path.open(mode, buffering=0), self.offset_bytes, self.size_bytes))
        return cast("BinaryIO", reader)

    def __str__(self) -> str:
        return f"{self.path} (from byte {self.offset_bytes})"


ByteSource = Path | FileSlice
"""What can be sent to a host."""


class _Stretch(io.RawIOBase):
    """Raw reads within a stretch; closing it closes the file."""

    def __init__(self, file: io.FileIO, offset: int, size: int) -> None:
        self._file = file
        self._offset = offset
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]
        left = max(0, self._size - self._at)
        self._file.seek(self._offset + self._at)
        count = self._file.readinto(memoryview(buffer)[:left])
        self._at += count or 0
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("a position before the start")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        self._file.close()
        super().close()
