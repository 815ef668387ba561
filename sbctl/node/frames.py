"""Frames of the node interface: 4 bytes big-endian length, then one JSON object in UTF-8 of at most FRAME_MAX_BYTES.

Both sides share this module. It knows no transport: reading asks a function for up to n bytes (b"" at the end of the stream), writing hands
whole frames to a function. Everything read is foreign: bounded before it is buffered, parsed by the strict reader, and refused by a typed error:

    frame.closed      the stream ended inside a frame
    frame.too_large   the announced length is zero or beyond the bound (also: the other side does not speak this protocol)
    frame.invalid     not one strict JSON object
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from sbctl.base import strict_json
from sbctl.base.errors import HostError, InputError
from sbctl.base.limits import FRAME_MAX_BYTES

__all__ = ["ReadSome", "WriteAll", "encode_frame", "read_frame", "write_frame"]

ReadSome = Callable[[int], bytes]
"""Returns 1 to n bytes, or b"" at the end of the stream: `BufferedReader.read1`, `FileIO.read`, a channel's `recv`."""

WriteAll = Callable[[bytes], object]
"""Writes everything it is given or raises."""

_HEADER: Final = struct.Struct(">I")
_NOISE: Final = "see that `ssh HOST true` prints nothing (a banner of the shell does), then run the command again"


def encode_frame(message: Mapping[str, Any]) -> bytes:
    """The bytes of one frame. Raises HostError `frame.too_large` when the message does not fit, ValueError for what is not JSON."""
    body = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
    if len(body) > FRAME_MAX_BYTES:
        raise HostError("frame.too_large", f"a message of {len(body)} bytes does not fit a frame of {FRAME_MAX_BYTES}")
    return _HEADER.pack(len(body)) + body


def write_frame(write: WriteAll, message: Mapping[str, Any]) -> None:
    """Hand one frame to `write` in a single call, so that frames of several threads under one lock never mix."""
    write(encode_frame(message))


def read_frame(read: ReadSome) -> dict[str, Any] | None:
    """The next message; None when the stream ended between two frames. Raises HostError as the module says, and what `read` raises."""
    header = _read_exactly(read, _HEADER.size, at_start=True)
    if header is None:
        return None
    (length,) = _HEADER.unpack(header)
    if not 0 < length <= FRAME_MAX_BYTES:
        raise HostError(
            "frame.too_large", f"a frame announces {length} bytes; 1 to {FRAME_MAX_BYTES} are read", next_step=_NOISE
        )
    body = _read_exactly(read, length, at_start=False)
    assert body is not None
    try:
        message = strict_json.loads(body, max_bytes=FRAME_MAX_BYTES)
    except InputError as error:
        raise HostError("frame.invalid", f"a frame is not strict JSON: {error.message}", next_step=_NOISE) from error
    if not isinstance(message, dict):
        raise HostError("frame.invalid", "a frame is not a JSON object", next_step=_NOISE)
    return message


def _read_exactly(read: ReadSome, count: int, *, at_start: bool) -> bytes | None:
    chunks: list[bytes] = []
    missing = count
    while missing:
        chunk = read(min(missing, 1 << 16))
        if not chunk:
            if at_start and missing == count:
                return None
            raise HostError(
                "frame.closed",
                f"the stream ended {missing} bytes before the end of a frame",
                next_step="run the command again: it reads the host before it acts",
            )
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)
