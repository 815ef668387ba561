"""The one reading of a request's head. Whatever two readers could take for two different requests is refused, and the connection ends.

The C parser reads first (it refuses bare line feeds, folded fields, spaces before a colon, control characters, lengths that contradict
each other); what it lets pass for the sake of old clients is refused here: another form of target than a path, several fields where one
decides, codings other than chunked. `Upgrade` is not followed: the request is answered as what it is.
"""

from __future__ import annotations

import re
from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from sbctl.base.errors import InputError
from sbctl.runtime.routes import Caller

__all__ = ["FIELD_MAX_BYTES", "RequestHead", "read_head"]

FIELD_MAX_BYTES: Final = 8190
_FIELDS_MAX: Final = 64
_LENGTH_MAX_DIGITS: Final = 15
_TARGET: Final = re.compile(rb"/[!\"$-~]*+")
"""A path and a query: visible characters, no fragment."""
_RARE: Final = frozenset({b"transfer-encoding", b"expect"})
_SINGLE: Final = frozenset(
    {
        b"authorization",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"origin",
        b"transfer-encoding",
    }
)
"""Fields that decide something: one of each at most."""


class RequestHead:
    """A head that was read whole. `fields` has lower-case names; of a field that decides nothing the last one stands."""

    __slots__ = (
        "caller",
        "content_length",
        "expects_continue",
        "fields",
        "is_chunked",
        "keep_alive",
        "method",
        "minor",
        "path",
    )

    def __init__(
        self, method: str, path: str, fields: dict[bytes, bytes], *, minor: int, keep_alive: bool, length: int | None
    ) -> None:
        self.method = method
        self.path = path
        """Without the query; exactly as it came, nothing decoded."""
        self.fields = fields
        self.minor = minor
        """Of HTTP/1.x: 0 or 1."""
        self.keep_alive = keep_alive
        self.content_length = length
        """None when there is no such field."""
        self.is_chunked = b"transfer-encoding" in fields
        self.expects_continue = b"expect" in fields
        self.caller: Caller | None = None
        """Who asks, once that is known."""

    @property
    def has_body(self) -> bool:
        return self.is_chunked or bool(self.content_length)

    def text(self, name: bytes) -> str | None:
        """A field's value; None when it is not there."""
        value = self.fields.get(name)
        return None if value is None else value.decode("latin-1")


class _Reader:
    """What the parser calls."""

    __slots__ = ("count", "fields", "is_complete", "repeated", "target")

    def __init__(self) -> None:
        self.target = b""
        self.fields: dict[bytes, bytes] = {}
        self.count = 0
        self.repeated: bytes | None = None
        self.is_complete = False

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in self.fields and name in _SINGLE:
            self.repeated = name
        self.fields[name] = value
        self.count += 1

    def on_headers_complete(self) -> None:
        self.is_complete = True


def _refuse(why: str) -> InputError:
    return InputError("invalid_request", why)


def read_head(data: bytes) -> RequestHead:
    """Of bytes that end with the head's empty line and hold no other. Raises InputError `invalid_request`; nothing of it is repeated."""
    reader = _Reader()
    parser = HttpRequestParser(reader)
    try:
        parser.feed_data(data)
    except HttpParserUpgrade:
        pass
    except HttpParserError:
        raise _refuse("this is not a valid HTTP request") from None
    if not reader.is_complete:
        raise _refuse("this is not a valid HTTP request")
    fields = reader.fields
    version = parser.get_http_version()
    if version not in ("1.1", "1.0"):
        raise _refuse("HTTP/1.1 is spoken here")
    if reader.repeated is not None or reader.count > _FIELDS_MAX or (b"host" not in fields and version == "1.1"):
        raise _refuse("a field of the head is missing or repeated, or there are too many")
    if len(data) > FIELD_MAX_BYTES and max(map(len, data.split(b"\r\n"))) > FIELD_MAX_BYTES:
        raise _refuse("a line of the head is too long")
    target = reader.target
    if _TARGET.fullmatch(target) is None:
        raise _refuse("the target of a request is a path")
    if not _RARE.isdisjoint(fields):
        _check_rare(fields, version)
    return RequestHead(
        parser.get_method().decode("ascii"),
        target.partition(b"?")[0].decode("ascii"),
        fields,
        minor=int(version[2]),
        keep_alive=_keeps(fields.get(b"connection", b""), version),
        length=_length(fields.get(b"content-length")),
    )


def _check_rare(fields: dict[bytes, bytes], version: str) -> None:
    if version == "1.0" and b"transfer-encoding" in fields:
        raise _refuse("HTTP/1.0 has no chunked bodies")
    if fields.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
        raise _refuse("chunked is the only coding of a body here")
    if fields.get(b"expect", b"100-continue").lower() != b"100-continue":
        raise _refuse("100-continue is the only thing to expect")


def _keeps(connection: bytes, version: str) -> bool:
    if not connection:
        return version == "1.1"
    words = {word.strip() for word in connection.lower().split(b",")}
    return b"close" not in words and (version == "1.1" or b"keep-alive" in words)


def _length(value: bytes | None) -> int | None:
    if value is None:
        return None
    if not value.isdigit() or len(value) > _LENGTH_MAX_DIGITS:
        raise _refuse("the length of the body is a number")
    return int(value)
