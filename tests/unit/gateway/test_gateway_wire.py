"""What a head and a chunked body are read as, held against the C parser; and whatever is damaged is refused, never an exception."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, cast

import pytest
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from hypothesis import given
from hypothesis import strategies as st

from sbctl.base.errors import InputError
from sbctl.runtime.gateway.chunked import ChunkedBody
from sbctl.runtime.gateway.head import RequestHead, read_head
from sbctl.runtime.gateway.server import GatewayServer

CORPUS = Path(__file__).resolve().parents[2] / "fuzz" / "corpus" / "http"


def _head(*rows: str, line: str = "POST /v1/chat/completions HTTP/1.1", host: str = "Host: x") -> bytes:
    return "\r\n".join([line, *([host] if host else []), *rows, "", ""]).encode("latin-1")


def test_a_head_is_what_it_says() -> None:
    head = read_head(_head("Content-Length: 12", "X-A: 1", "x-a: 2", "Connection: keep-alive"))
    assert (head.method, head.path, head.content_length, head.keep_alive, head.minor) == (
        "POST", "/v1/chat/completions", 12, True, 1,
    )  # fmt: skip
    assert head.fields[b"x-a"] == b"2"
    assert not read_head(_head("Connection: close")).keep_alive
    assert not read_head(_head(line="GET / HTTP/1.0", host="")).keep_alive
    assert read_head(_head(line="GET /livez?x=/v1/models HTTP/1.1")).path == "/livez"
    assert read_head(_head("Transfer-Encoding: Chunked", "Expect: 100-continue")).expects_continue


def test_an_upgrade_is_not_followed() -> None:
    head = read_head(
        _head("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA", "Content-Length: 2")
    )
    assert (head.method, head.content_length) == ("POST", 2)


REFUSED: list[tuple[str, bytes]] = [
    ("both lengths", _head("Content-Length: 5", "Transfer-Encoding: chunked")),
    ("one length twice", _head("Content-Length: 5", "Content-Length: 5")),
    ("list of lengths", _head("Content-Length: 5, 5")),
    ("signed length", _head("Content-Length: +5")),
    ("length with a space in it", _head("Content-Length: 5 5")),
    ("endless length", _head("Content-Length: " + "9" * 16)),
    ("unknown coding", _head("Transfer-Encoding: gzip, chunked")),
    ("coding twice", _head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked")),
    ("coding in quotes", _head('Transfer-Encoding: "chunked"')),
    ("coding in HTTP/1.0", _head("Transfer-Encoding: chunked", line="POST / HTTP/1.0")),
    ("no host", _head(host="")),
    ("two hosts", _head("Host: y")),
    ("two keys", _head("Authorization: Bearer a", "Authorization: Bearer b")),
    ("two types", _head("Content-Type: application/json", "Content-Type: text/plain")),
    ("two origins", _head("Origin: a", "Origin: b")),
    ("another expectation", _head("Expect: 200-ok")),
    ("folded field", _head("X-A: b", " c")),
    ("space before the colon", _head("X-A : b")),
    ("no name", _head(": b")),
    ("no colon", _head("X-A")),
    ("NUL", _head("X-A: a\0b")),
    ("bare carriage return", _head("X-A: a\rb")),
    ("bare line feeds", _head("X-A: b").replace(b"\r\n", b"\n") + b"\r\n\r\n"),
    ("one bare line feed", b"GET / HTTP/1.1\r\nHost: x\nX-A: b\r\n\r\n"),
    ("absolute target", _head(line="GET http://x/v1/models HTTP/1.1")),
    ("asterisk", _head(line="OPTIONS * HTTP/1.1")),
    ("connect", _head(line="CONNECT x:80 HTTP/1.1")),
    ("fragment", _head(line="GET /livez#x HTTP/1.1")),
    ("eight-bit target", _head(line="GET /\xe9 HTTP/1.1")),
    ("HTTP/2", _head(line="GET / HTTP/2.0")),
    ("HTTP/0.9", b"GET /\r\n\r\n"),
    ("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\n"),
    ("unknown method", _head(line="BREW / HTTP/1.1")),
    ("small method", _head(line="get / HTTP/1.1")),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
    ("too many fields", _head(*[f"X-{n}: y" for n in range(70)])),
    ("a long line", _head("X-A: " + "a" * 9000)),
    ("two requests", _head() + _head()),
    ("nothing", b"\r\n\r\n"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data"), REFUSED, ids=[name for name, _ in REFUSED])
def test_G8_what_two_readers_could_read_twice_is_refused(name: str, data: bytes) -> None:
    with pytest.raises(InputError) as caught:
        read_head(data)
    assert caught.value.code == "invalid_request", name


def _never_raises(data: bytes) -> None:
    try:
        head = read_head(data)
    except InputError as error:
        assert error.code == "invalid_request"
        return
    assert head.path.startswith("/")
    assert head.path.isascii()
    assert not (head.is_chunked and head.content_length is not None)
    assert (
        head.method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"}
        or head.method.isalpha()
        or "-" in head.method
    )


@pytest.mark.parametrize("name", sorted(path.name for path in CORPUS.glob("head_*")))
def test_the_kept_heads(name: str) -> None:
    _never_raises((CORPUS / name).read_bytes())


_PIECES = st.sampled_from(
    [b"GET ", b"POST ", b"/v1/models", b"http://x/", b" HTTP/1.1", b" HTTP/1.0", b"\r\n", b"\n", b"\r", b"Host: x", b"Content-Length: ", b"5",
     b"Transfer-Encoding: ", b"chunked", b", ", b":", b" ", b"\t", b"\0", b"\x0b", b"Expect: 100-continue", b"Upgrade: h2c", b"Connection: ",
     b"close", b"\xff", b"X"]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=30).map(b"".join))
def test_G8_no_head_is_anything_but_read_or_refused(data: bytes) -> None:
    _never_raises(data)
    _never_raises(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + data + b"\r\n\r\n")


class _Told:
    def __init__(self) -> None:
        self.body = b""
        self.ended = 0

    def on_body(self, data: bytes) -> None:
        if not self.ended:
            self.body += data

    def on_message_complete(self) -> None:
        self.ended += 1


def _by_the_c_parser(data: bytes) -> bytes | None:
    told = _Told()
    parser = HttpRequestParser(told)
    parser.feed_data(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    try:
        parser.feed_data(data)
    except (HttpParserError, HttpParserUpgrade):
        pass
    return told.body if told.ended else None


def _by_us(data: bytes, *cuts: int) -> tuple[bytes, bytes] | None:
    """Body and what follows; None when it is broken or not complete."""
    body = ChunkedBody(max_bytes=1000)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    rest = b""
    try:
        for start, end in itertools.pairwise(edges):
            if body.is_complete:
                rest += data[start:end]
            else:
                body.feed(data[start:end])
    except InputError:
        return None
    return (body.body(), body.rest + rest) if body.is_complete else None


_CHUNKS = st.lists(
    st.sampled_from([b"5\r\n", b"hello", b"\r\n", b"0\r\n", b"0\r\n\r\n", b"a", b"A\r\n", b"0123456789", b";x=y", b"-1", b"+5\r\n", b" 5\r\n", b"0x5\r\n", b"00000005\r\n", b"000000005\r\n", b"\n", b"\r", b"X: y\r\n", b"GET / HTTP/1.1\r\n\r\n"]),
    max_size=10,
).map(b"".join)  # fmt: skip


@given(_CHUNKS, st.lists(st.integers(0, 60), max_size=4))
def test_G7_a_chunked_body_is_what_the_c_parser_reads_or_refused(data: bytes, cuts: list[int]) -> None:
    ours = _by_us(data)
    assert _by_us(data, *cuts) == ours, "however it is cut"
    if ours is not None:
        assert _by_the_c_parser(data) == ours[0]
        assert data.endswith(ours[1])


@pytest.mark.parametrize("name", sorted(path.name for path in CORPUS.glob("chunked_*")))
def test_the_kept_bodies(name: str) -> None:
    data = (CORPUS / name).read_bytes()
    ours = _by_us(data)
    assert ours is None or _by_the_c_parser(data) == ours[0]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"5\r\nhello\r\n0\r\n\r\nGET", (b"hello", b"GET")),
        (b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n", (b"abc", b"")),
        (b"5;x=y\r\nhello\r\n0\r\n\r\n", None),
        (b"5\r\nhello\r\n0\r\nX: y\r\n\r\n", None),
        (b"5\nhello\n0\n\n", None),
        (b"5\r\nhelloX\r\n0\r\n\r\n", None),
        (b"fffffffff\r\n", None),
        (b"\r\n", None),
    ],
)
def test_G7_chunks(data: bytes, expected: tuple[bytes, bytes] | None) -> None:
    assert _by_us(data) == expected


def test_G7_a_chunk_beyond_the_cap_is_known_by_its_size() -> None:
    with pytest.raises(InputError) as caught:
        ChunkedBody(max_bytes=10).feed(b"b\r\n")
    assert caught.value.code == "request_body_too_large"


def test_a_head_has_no_way_to_an_engine() -> None:
    """What goes on is written by `upstream.request_head`: nothing there takes a field of the caller's."""
    assert "fields" in RequestHead.__slots__
    from sbctl.runtime.gateway.upstream import request_head

    written = request_head("POST", "/v1/embeddings", 3, "application/json", "r1")
    assert written.count(b"\r\n") == 6
    assert read_head(written).path == "/v1/embeddings"


async def test_a_server_that_never_began_has_nobody_to_see_off() -> None:
    server = GatewayServer(cast("Any", None))
    server.refuse_new()
    await server.see_off(30.0)
    await server.close()
