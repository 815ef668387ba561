"""A worker that is out of hand against the gateway that asks it (docs/threats.md, sections E, F and G): whatever it answers, callers get an answer of
somebody else or a refusal, and the gateway loses neither memory nor time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest

from sbctl.base.errors import EngineError, SbctlError
from sbctl.base.limits import MIB
from sbctl.runtime.gateway.events import EventStream
from sbctl.runtime.gateway.relay import WholeRelay
from sbctl.runtime.gateway.upstream import EngineConnection
from sbctl.runtime.peer.candidates import Serving, endpoint_of, select
from sbctl.runtime.peer.choice import Candidate
from tests.simulators.peer_snapshots import node, replica
from tests.simulators.peer_world import DONE, STREAM, Caller, PeerWorld, event

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CPU_S_MAX = 5.0
"""For what takes a few hundredths of a second where it is done once, and minutes where it is done over for each byte."""


@contextlib.asynccontextmanager
async def hostile(cluster: PeerWorld, *parts: bytes) -> AsyncIterator[Candidate]:
    """A worker of the cluster that answers every dispatch with these bytes, part by part; as candidate."""
    worker = await cluster.worker("w-0")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                for part in parts:
                    writer.write(part)
                    await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=worker.identity.server_context)
    async with server:
        yield worker.candidate(address=f"127.0.0.1:{server.sockets[0].getsockname()[1]}")


@pytest.mark.parametrize(
    "parts",
    [
        [b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"] * 4000,
        [b"HTTP/1.1 100 Continue\r\n\r\n"] * 8000,
        [b"HTTP/1.1 102 Processing\r\n\r\n"] * 8000,
        [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\n", *[b"x-a: " + b"b" * 1000 + b"\r\n"] * 100],
        [b"HTTP/1.1 200 OK\r\nx: ", *[b"b" * 1000] * 100],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"],
        [HEAD + b"zz\r\n"],
        [HEAD + b"5;" + b"x" * 100, *[b"x" * 1000] * 100],
        [HEAD + b"0\r\n", *[b"x-a: " + b"b" * 1000 + b"\r\n"] * 100],
        [HEAD + b"0\r\nx: ", *[b"b" * 1000] * 100],
        [HEAD + b"0\r\n\r\n"],
        [b"HTTP/1.1 204 No Content\r\n\r\n"],
        [b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"],
        [b"HTTP/1.1 503 X\r\nx-sbproxy-error-code: a\x1b[31m\r\nContent-Length: 0\r\n\r\n"],
        [b"HTTP/1.1 429 X\r\nRetry-After: 99999999999999\r\nContent-Length: 0\r\n\r\n"],
        [b"\x16\x03\x01" * 100],
        [STREAM + b"6\r\ndata: ", *[b"400\r\n" + b"x" * 1024 + b"\r\n"] * 5000],
    ],
)
async def test_G8_whatever_a_worker_answers_somebody_else_does(cluster: PeerWorld, parts: list[bytes]) -> None:
    gateway, good = cluster.gateway(), await cluster.worker("w-1")
    async with hostile(cluster, *parts) as candidate:
        caller = await gateway.ask(candidate, good.candidate())
    assert (caller.status, caller.broke) == (200, False)
    assert caller.body.count(b'"model":"public"') == 2
    assert caller.body.endswith(b"data: [DONE]\n\n")
    assert len(good.engine.bodies) == 1


async def test_G8_an_answer_behind_an_answer_is_nobody_s(cluster: PeerWorld) -> None:
    """A worker that answers twice has its connection cut: the second answer never belongs to the next caller."""
    gateway = cluster.gateway()
    twice = STREAM + event("mine") + DONE + STREAM + event("yours") + DONE
    async with hostile(cluster, twice) as candidate:
        first = await gateway.ask(candidate)
        second = await gateway.ask(candidate)
    for caller in (first, second):
        assert b"mine" in caller.body
        assert b"yours" not in caller.body


async def test_G20_an_error_that_a_worker_makes_up_reaches_nobody_in_its_own_words(cluster: PeerWorld) -> None:
    gateway = cluster.gateway()
    words = b"look at https://evil.example/\\u001b[31m and 10.0.0.7:9443"
    refusal = b'{"error":{"message":"' + words + b'"}}'
    for status, code in ((404, b"no_such"), (401, b"invalid_envelope"), (500, b"internal"), (400, b"made_up")):
        answer = b"HTTP/1.1 %d X\r\nx-sbproxy-error-code: %b\r\nContent-Length: %d\r\n\r\n%b"
        async with hostile(cluster, answer % (status, code, len(refusal), refusal)) as candidate:
            with pytest.raises(SbctlError) as caught:
                await gateway.ask(candidate)
        assert "evil" not in str(caught.value)
        assert "10.0.0.7" not in str(caught.value)


# --- addresses that nodes say of themselves

ADDRESSES = [
    "w-a:port", "w-a:0", "w-a:65536", "w-a:99999999999999999999", "w-a:-1", "w-a:+1", "w-a:٣", "w-a", ":9443", "w..a:9443", ".w:9443",
    f"{'a' * 64}:9443", "[::1:9443", "::1]:9443", "[zz]:9443", "[....]:9443", "w a:9443", "w\0a:9443", "user@w:9443", "http://w:9443",
    "w\r\nX: y:9443", "[::1]", "\x1b[2J:9443", "ẃ:9443",
]  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
async def test_F5_an_address_that_is_none_leaves_out_its_own_node_alone(cluster: PeerWorld, address: str) -> None:
    shown = node("w-0", replica(deployment="q"), address=address)
    found = select([shown, node("w-1", replica(deployment="q"))], "q", serving=Serving((3,)), here="gw")
    assert [candidate.node_id for candidate in found.candidates] == ["w-1"]
    assert found.excluded == {"endpoint": 1}
    good, gateway = await cluster.worker("w-1"), cluster.gateway()
    forged = Candidate("w-0", 3, "ready", address=address, certificate_sha256="0" * 64)
    assert (await gateway.ask(forged, good.candidate())).status == 200


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("w-a:9443", ("w-a", 9443)),
        ("gpu_a.internal.:1", ("gpu_a.internal.", 1)),
        ("10.0.0.2:65535", ("10.0.0.2", 65535)),
        ("[fd00::2]:9443", ("fd00::2", 9443)),
    ],
)
def test_an_address_that_is_one(address: str, expected: tuple[str, int]) -> None:
    assert endpoint_of(address) == expected


# --- work and memory


class Sink:
    def __init__(self) -> None:
        self.broken = ""

    def head(self, status: int, fields: dict[bytes, bytes]) -> None: ...

    def data(self, data: bytes) -> None: ...

    def end(self) -> None: ...

    def broke(self, why: str) -> None:
        self.broken = why


class Quiet:
    """A transport, and a pool, that do nothing."""

    def __getattr__(self, _name: str) -> Callable[..., int]:
        return lambda *_args, **_more: 0


def lines_of_trailers() -> Iterator[bytes]:
    for number in range(1_000_000):
        yield b"x-%d: %s\r\n" % (number, b"y" * 200)


def one_trailer() -> Iterator[bytes]:
    yield b"x: "
    while True:
        yield b"y" * 200


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"0\r\n", lines_of_trailers()),
        (b"0\r\n", one_trailer()),
        (b"5\r\nhello\r\n0\r\n", one_trailer()),
        (b"5;", one_trailer()),
    ],
)
async def test_G8_what_is_no_body_ends_soon(begin: bytes, more: Iterator[bytes]) -> None:
    sink, connection = Sink(), EngineConnection(cast("Any", Quiet()))
    connection.connection_made(cast("Any", Quiet()))
    connection.send(b"", b"", sink)
    connection.data_received(HEAD + begin)
    taken = 0
    for data in more:
        if not connection.is_open or taken > MIB:
            break
        connection.data_received(data)
        taken += len(data)
    assert sink.broken
    assert taken < 128 * 1024


async def test_G5_a_line_that_comes_byte_by_byte_costs_no_more_than_one_that_comes_at_once() -> None:
    began_s = time.process_time()
    events, relay = EventStream("public"), WholeRelay(Caller(), b"", lambda: None, request_id="r", model="m")
    relay.head(200, {})
    long = b'data: {"choices":[],"x":"' + b"response.[DONE]" * 100_000
    assert events.feed(long) == b""
    relay.data(long * 8)
    for _ in range(20_000):
        assert events.feed(b"y") == b""
        relay.data(b"response. [DONE] ")
    assert events.feed(b'"}\n').startswith(b"data: {")
    relay.data(b'"}\n')
    assert not relay.ending.is_over
    assert time.process_time() - began_s < CPU_S_MAX


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "end",
    [
        b"data: [DONE]\n\n",
        b"data:[DONE]\r\n",
        b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n',
    ],
)
async def test_the_end_of_an_answer_is_seen_however_it_was_cut(pieces: int, end: bytes) -> None:
    caller = Caller()
    relay = WholeRelay(caller, b"", lambda: None, request_id="r", model="m")
    relay.head(200, {})
    said = b'data: {"choices":[{"index":0,"delta":{"content":"[DONE] response.completed\\n"}}]}\n\n' * 3 + end
    for start in range(0, len(said), pieces):
        assert not relay.ending.is_over or start >= len(said) - 2
        relay.data(said[start : start + pieces])
    assert relay.ending.is_over
    assert caller.status == 200


async def test_an_event_without_an_end_is_given_up() -> None:
    events = EventStream("public")
    assert events.feed(b"x" * 4 * MIB) == b""
    with pytest.raises(EngineError, match="without end"):
        events.feed(b"x")
