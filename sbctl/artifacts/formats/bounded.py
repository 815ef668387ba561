"""Reading a header that nobody vouches for: every length is checked against what is left before anything is read or made.

A `HeaderBytes` counts what it read. More than `max_bytes` is refused, skipping costs nothing, and no call reads beyond the file.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import BinaryIO, Final

from sbctl.base.errors import ArtifactError

__all__ = ["DamagedHeaderError", "HeaderBytes"]

_CHUNK_BYTES: Final = 256 * 1024


class DamagedHeaderError(ArtifactError):
    """A header that says something impossible: `artifact.header_damaged`, with the offset at which it does."""

    def __init__(self, sentence: str, *, place: str, offset: int) -> None:
        super().__init__(
            "artifact.header_damaged",
            f"{sentence}, at byte {offset}",
            place=place,
            next_step="the file is damaged or made to harm; get it from its source again, or choose another model",
            detail={"offset": offset},
        )


class HeaderBytes:
    """The beginning of one file, read forwards. `size` is that of the whole file, `position` where the next byte comes from."""

    def __init__(self, file: BinaryIO, place: str, *, max_bytes: int) -> None:
        self._file = file
        self._window = b""
        self._window_start = 0
        self._left = max_bytes
        self._max_bytes = max_bytes
        self.place = place
        self.size = os.fstat(file.fileno()).st_size if _is_real(file) else file.seek(0, io.SEEK_END)
        self.position = 0

    @classmethod
    def open(cls, path: Path, *, max_bytes: int) -> HeaderBytes:
        """Of a regular file; the caller ends it by `close`. Raises OSError."""
        return cls(path.open("rb", buffering=0), str(path), max_bytes=max_bytes)

    def close(self) -> None:
        self._file.close()

    @property
    def remaining(self) -> int:
        """Bytes of the file behind the position."""
        return self.size - self.position

    def take(self, count: int) -> bytes:
        """The next `count` bytes. Raises DamagedHeaderError when the file, or what may be read of it, ends before."""
        if count > self.remaining:
            raise self.damaged(f"{count} bytes are announced and {self.remaining} are left in the file")
        start = self.position - self._window_start
        if not 0 <= start <= len(self._window) - count:
            self._fill(count)
            start = 0
        self.position += count
        return self._window[start : start + count]

    def skip(self, count: int) -> None:
        """Go on behind `count` bytes without reading them. Raises DamagedHeaderError when the file has fewer."""
        if count > self.remaining:
            raise self.damaged(f"{count} bytes are announced and {self.remaining} are left in the file")
        self.position += count

    def damaged(self, sentence: str) -> DamagedHeaderError:
        return DamagedHeaderError(sentence, place=self.place, offset=self.position)

    def _fill(self, count: int) -> None:
        wanted = min(max(count, _CHUNK_BYTES), self.remaining)
        if wanted > self._left:
            wanted = count
        if wanted > self._left:
            raise self.damaged(f"the header is longer than {self._max_bytes} bytes")
        self._file.seek(self.position)
        data = bytearray()
        while len(data) < wanted:
            part = self._file.read(wanted - len(data))
            if not part:
                raise self.damaged("the file became shorter while it was read")
            data += part
        self._left -= wanted
        self._window, self._window_start = bytes(data), self.position


def _is_real(file: BinaryIO) -> bool:
    try:
        file.fileno()
    except OSError:
        return False
    return True
