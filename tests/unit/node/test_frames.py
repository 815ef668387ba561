"""Frames survive any split of the stream; what is no frame is refused by name and never buffered beyond the bound."""

from __future__ import annotations

import io
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.base.errors import HostError
from sbctl.base.limits import FRAME_MAX_BYTES
from sbctl.node.frames import encode_frame, read_frame, write_frame

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
_MESSAGES = st.lists(st.dictionaries(st.text(max_size=8), _JSON, max_size=5), max_size=4)


class _Pieces:
    """A stream that gives at most `size` bytes at a time."""

    def __init__(self, data: bytes, size: int) -> None:
        self._stream = io.BytesIO(data)
        self._size = size
        self.largest_request = 0

    def read(self, count: int) -> bytes:
        self.largest_request = max(self.largest_request, count)
        return self._stream.read(min(count, self._size))


@settings(deadline=None)
@given(_MESSAGES, st.integers(1, 9))
def test_messages_come_out_as_they_went_in_however_the_stream_is_split(
    messages: list[dict[str, Any]], size: int
) -> None:
    written = io.BytesIO()
    for message in messages:
        write_frame(written.write, message)
    stream = _Pieces(written.getvalue(), size)
    assert [read_frame(stream.read) for _ in messages] == messages
    assert read_frame(stream.read) is None


def _framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\0", "frame.closed"),
        (b"\0\0\0\x05{}", "frame.closed"),
        (b"\0\0\0\0", "frame.too_large"),
        (b"\xff\xff\xff\xff", "frame.too_large"),
        (b"Welcome to Debian\n", "frame.too_large"),
        (_framed(b"[]"), "frame.invalid"),
        (_framed(b"nul"), "frame.invalid"),
        (_framed(b'{"a":1,"a":2}'), "frame.invalid"),
        (_framed(b'{"a":NaN}'), "frame.invalid"),
        (_framed(b'{"a":' + b"[" * 1000), "frame.invalid"),
        (_framed(b"\xff\xfe{}"), "frame.invalid"),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes, code: str) -> None:
    with pytest.raises(HostError) as caught:
        read_frame(io.BytesIO(data).read)
    assert caught.value.code == code


def test_a_frame_is_read_in_small_pieces_so_an_announced_length_reserves_nothing() -> None:
    stream = _Pieces(struct.pack(">I", FRAME_MAX_BYTES) + b"{", 1 << 20)
    with pytest.raises(HostError):
        read_frame(stream.read)
    assert stream.largest_request <= 1 << 16


def test_a_message_that_fits_no_frame_is_refused_before_anything_is_sent() -> None:
    sent: list[bytes] = []
    with pytest.raises(HostError) as caught:
        write_frame(sent.append, {"text": "x" * FRAME_MAX_BYTES})
    assert caught.value.code == "frame.too_large"
    assert sent == []


def test_one_frame_is_one_write() -> None:
    sent: list[bytes] = []
    write_frame(sent.append, {"id": 1})
    assert sent == [encode_frame({"id": 1})]
