"""The one strict reading of a chunked request body: sizes in hexadecimal digits and nothing else, no extensions, no trailers.

Where it ends is known to the byte, so what follows is the next request and never part of this one.
"""

from __future__ import annotations

from typing import Final

from sbctl.base.errors import InputError

__all__ = ["ChunkedBody"]

_SIZE_MAX_DIGITS: Final = 8
_LINE_MAX_BYTES: Final = _SIZE_MAX_DIGITS + 2
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")


class ChunkedBody:
    """Feed it what arrives; `rest` holds what came behind the end once `is_complete`."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._body = bytearray()
        self._left = 0
        """Bytes of the present chunk that have not come."""
        self._line_due = False
        """An empty line comes next: behind a chunk, or behind the last."""
        self._was_last = False
        self.is_complete = False
        self.rest = b""

    def body(self) -> bytes:
        return bytes(self._body)

    def feed(self, data: bytes) -> None:
        """Raises InputError `invalid_request` for broken framing, `request_body_too_large` as soon as that is known."""
        self._buffer += data
        at, end = 0, len(self._buffer)
        while not self.is_complete:
            step = self._chunk(at, end) if self._left else self._empty(at, end) if self._line_due else self._size(at)
            if not step:
                break
            at += step
        if self.is_complete:
            self.rest = bytes(self._buffer[at:])
            self._buffer.clear()
        else:
            del self._buffer[:at]

    # Each returns how many bytes it took; 0 when more must come first

    def _chunk(self, at: int, end: int) -> int:
        taken = min(self._left, end - at)
        self._body += memoryview(self._buffer)[at : at + taken]
        self._left -= taken
        self._line_due = not self._left
        return taken

    def _empty(self, at: int, end: int) -> int:
        if not b"\r\n".startswith(self._buffer[at : at + 2]):
            raise _broken()
        if end - at < 2:
            return 0
        self._line_due, self.is_complete = False, self._was_last
        return 2

    def _size(self, at: int) -> int:
        line = self._buffer[at : at + _LINE_MAX_BYTES]
        digits, found, _ = line.partition(b"\r\n")
        if not _HEX.issuperset(digits if found else line.removesuffix(b"\r")) or (found and not digits):
            raise _broken()
        if not found:
            if len(line) == _LINE_MAX_BYTES:
                raise _broken()
            return 0
        self._left = int(digits, 16)
        self._was_last = self._line_due = not self._left
        if len(self._body) + self._left > self._max_bytes:
            raise InputError("request_body_too_large", f"a body here has at most {self._max_bytes} bytes")
        return len(digits) + 2


def _broken() -> InputError:
    return InputError("invalid_request", "the chunks of the body are malformed")
