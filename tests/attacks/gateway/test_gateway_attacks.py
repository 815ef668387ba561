"""Abuse of the gateway, byte by byte, with engines that can be told what to do: both ends of each connection are played here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from sbctl.engines.model import EngineAddress
from sbctl.node.paths import node_paths
from sbctl.runtime.admission import Gate
from sbctl.runtime.binding import bind_tcp
from sbctl.runtime.drain import Drain
from sbctl.runtime.engine_client import EngineClient
from sbctl.runtime.gateway.gateway import Gateway
from sbctl.runtime.gateway.ports import Outcome
from sbctl.runtime.gateway.server import GatewayLimits, GatewayServer
from sbctl.runtime.generation import Lease
from sbctl.runtime.key_limits import KeyLimits
from sbctl.runtime.routes import RouteTable
from sbctl.trust.bundle import OriginMember
from tests.simulators.engine_world import facts
from tests.simulators.runtime_world import member

LIMITS = GatewayLimits(header_s=5, body_s=0.4, write_stall_s=1.0, idle_s=5, bodies_bytes=3 * 1024 * 1024)
PATIENCE_S = 30.0

Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]
"""What an engine does with one request: its connection and the request's body."""


class Engine:
    """A server on a loopback port that does with each request what `play` says."""

    def __init__(self) -> None:
        self.play: Play = whole_stream
        self.connections = 0
        self.bodies: list[bytes] = []
        self.gone = 0

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.client = EngineClient(EngineAddress(port=self.server.sockets[0].getsockname()[1]))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.bodies.append(await reader.readexactly(length))
                await self.play(reader, writer, self.bodies[-1])
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone += 1
        finally:
            writer.close()

    async def stop(self) -> None:
        await self.client.close()
        self.server.close()


def event(text: str) -> bytes:
    line = json.dumps(
        {"model": "q", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}]}
    )
    return chunk(f"data: {line}\n\n".encode())


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = chunk(b"data: [DONE]\n\n")


async def whole_stream(_reader: Any, writer: asyncio.StreamWriter, _body: bytes) -> None:
    writer.write(STREAM + event("Hel") + event("lo") + DONE + b"0\r\n\r\n")


class Replica:
    """A ready one, with nothing behind its engine's address."""

    is_ready = True
    crash_looping = False
    stopped_by = None

    def __init__(self, client: EngineClient, number: int) -> None:
        self.client = client
        self.number = number

    def progressed(self) -> None: ...


class World:
    """One deployment `q` with the engines given, under the public name `public`."""

    def __init__(self, folder: Path, engines: list[Engine], mode: str = "chat") -> None:
        self.engines = engines
        served = member(facts(), "/engine", max_concurrency=4, max_queue_depth=4)
        self.member = served.model_copy(update={"mode": mode})
        self.replicas = [Replica(engine.client, number) for number, engine in enumerate(engines)]
        self.gate = Gate(max_active=4, max_queued=4, queue_timeout_ms=10_000)
        self.gate.open()
        self.outcomes: list[Outcome] = []
        self.deployment = "q"
        self.ready_replicas = len(engines)
        self.generations: Any = {"q": self}
        self.routes = RouteTable({"ai": OriginMember(models={"public": "q"})}, self.generations)
        self.gateway = Gateway(
            cast("Any", self),
            self,
            KeyLimits(),
            Drain(node_paths(0, {"SBCTL_NODE_PREFIX": str(folder)})),
            cast("Any", None),
            bound_to_loopback=True,
        )
        self.server = GatewayServer(self.gateway, LIMITS)

    async def admit(self, priority: Any, *, avoid: Any = ()) -> Lease:
        """As Generation does, without a life of engines behind it."""
        replica = min(self.replicas, key=lambda each: (each in avoid, each.number))
        return Lease(cast("Any", replica), await self.gate.acquire(priority))

    def admit_now(self, avoid: Any = ()) -> Lease | None:
        replica = min(self.replicas, key=lambda each: (each in avoid, each.number))
        permit = self.gate.acquire_now()
        return None if permit is None else Lease(cast("Any", replica), permit)

    def rejected(self, deployment: str, priority: str, reason: str) -> None: ...

    def fell_back(self, deployment: str, provider: str, reason: str) -> None: ...

    def finished(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    async def start(self) -> None:
        sock = bind_tcp("127.0.0.1", 0)
        self.port = sock.getsockname()[1]
        await self.server.start(sock)

    async def stop(self) -> None:
        await self.server.close()
        for engine in self.engines:
            await engine.stop()

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
            try:
                yield reader, writer
            finally:
                writer.close()

    async def ask(self, data: bytes) -> bytes:
        """Everything until the connection ends."""
        async with self.connected() as (reader, writer):
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                return await reader.read()
            return b""

    def waiting_bytes(self) -> int:
        """What was received of requests that nobody has taken up."""
        return sum(len(connection._buffer) for connection in self.server._connections)

    def is_unread(self) -> bool:
        """A caller leaves so much of its answers that nothing more is written."""
        return any(connection._paused for connection in self.server._connections)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.01)


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[World]]]:
    made: list[World] = []

    async def start(engines: int = 1, mode: str = "chat") -> World:
        players = [Engine() for _ in range(engines)]
        for player in players:
            await player.start()
        world = World(tmp_path, players, mode)
        await world.start()
        made.append(world)
        return world

    yield start
    for world in made:
        await world.stop()


def post(path: str = "/v1/chat/completions", *rows: str, close: bool = True, **body: Any) -> bytes:
    document = body or {"model": "public", "messages": [{"role": "user", "content": "Hi"}]}
    data = json.dumps(document).encode()
    head = [
        f"POST {path} HTTP/1.1",
        "Host: ai",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        *rows,
    ]
    if close:
        head.append("Connection: close")
    return "\r\n".join([*head, "", ""]).encode() + data


CHAT = {"model": "public", "messages": [{"role": "user", "content": "Hi"}]}


def body_of(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


async def test_a_whole_answer_and_a_stream_carry_the_public_name(make: Any) -> None:
    world = await make()
    whole = body_of(await world.ask(post()))
    assert (whole["model"], whole["choices"][0]["message"]["content"]) == ("public", "Hello")
    stream = await world.ask(post(**CHAT, stream=True))
    assert stream.count(b'"model":"public"') + stream.count(b'"model": "public"') == 2
    assert stream.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert b"x-sbproxy-logical-model: public" in stream
    assert [json.loads(body)["stream"] for body in world.engines[0].bodies] == [True, True]
    assert world.engines[0].connections == 1, "the engine's connection is kept"
    assert [outcome.status for outcome in world.outcomes] == [200, 200]


async def test_no_event_is_held_back(make: Any) -> None:
    world = await make()
    steps: asyncio.Queue[bytes] = asyncio.Queue()

    async def play(_reader: Any, writer: asyncio.StreamWriter, _body: bytes) -> None:
        writer.write(STREAM)
        while (data := await steps.get()) != b"":
            writer.write(data)
            await writer.drain()

    world.engines[0].play = play
    async with world.connected() as (reader, writer):
        writer.write(post(**CHAT, stream=True))
        for text in ("one", "two", "three"):
            steps.put_nowait(event(text))
            assert text.encode() in await reader.readuntil(b"\n\n\r\n")
        steps.put_nowait(DONE + b"0\r\n\r\n")
        steps.put_nowait(b"")
        assert (await reader.read()).endswith(b"0\r\n\r\n")


async def test_G19_22_26_a_caller_that_leaves_ends_its_request_at_the_engine_at_once(make: Any) -> None:
    world = await make()
    left = asyncio.Event()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _body: bytes) -> None:
        writer.write(STREAM + event("a"))
        await writer.drain()
        assert await reader.read() == b""
        left.set()
        raise ConnectionError

    world.engines[0].play = play
    async with world.connected() as (reader, writer):
        writer.write(post(**CHAT, stream=True))
        await reader.readuntil(b"\n\n\r\n")
        assert world.gate.active == 1
        writer.close()
        await left.wait()
    await world.until(lambda: world.gate.active == 0 and bool(world.outcomes))
    assert world.outcomes[0].status == 499


async def test_a_caller_that_leaves_the_queue_frees_its_place(make: Any) -> None:
    world = await make()
    held = [await world.gate.acquire("standard") for _ in range(4)]
    async with world.connected() as (_reader, writer):
        writer.write(post())
        await world.until(lambda: world.gate.queued == 1)
    await world.until(lambda: world.gate.queued == 0)
    assert world.gate.active == len(held)
    for permit in held:
        permit.release()
    assert world.gate.active == 0


@pytest.mark.parametrize("how", ["closes", "breaks", "garbage", "error", "endless line"])
async def test_G20_a_stream_that_breaks_ends_without_done_and_is_not_replayed(make: Any, how: str) -> None:
    world = await make(2)

    async def play(_reader: Any, writer: asyncio.StreamWriter, _body: bytes) -> None:
        writer.write(STREAM + event("seen"))
        await writer.drain()
        await asyncio.sleep(0.05)
        if how == "garbage":
            writer.write(b"zz\r\n")
        elif how == "error":
            writer.write(chunk(b'data: {"error":{"code":500,"message":"/var/lib exploded"}}\n\n'))
        elif how == "closes":
            writer.write(b"0\r\n\r\n")
        elif how == "endless line":
            writer.write(b"500000\r\ndata: {" + b"x" * 0x4FFFF0)
        else:
            raise ConnectionError

    world.engines[0].play = play
    answer = await world.ask(post(close=False, **CHAT, stream=True))
    assert b"seen" in answer
    assert b"[DONE]" not in answer
    assert b'"code":"upstream_failed"' in answer
    assert b"/var/lib" not in answer
    assert world.engines[1].bodies == []
    assert world.outcomes[0].broke


@pytest.mark.parametrize("how", ["closes", "500", "503", "no HTTP", "head only", "error first"])
@pytest.mark.parametrize("stream", [True, False])
async def test_before_the_first_byte_another_replica_answers(make: Any, how: str, stream: bool) -> None:
    world = await make(2)

    async def play(_reader: Any, writer: asyncio.StreamWriter, _body: bytes) -> None:
        if how in ("500", "503"):
            writer.write(f"HTTP/1.1 {how} X\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            return
        if how == "no HTTP":
            writer.write(b"SSH-2.0-x\r\n")
        if how == "head only":
            writer.write(STREAM)
        if how == "error first":
            writer.write(STREAM + chunk(b'data: {"error":{"code":500}}\n\n') + b"0\r\n\r\n")
        await writer.drain()
        raise ConnectionError

    world.engines[0].play = play
    answer = await world.ask(post(**CHAT, stream=stream))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"lo" in answer
    assert len(world.engines[1].bodies) == 1
    assert len(world.engines[0].bodies) == 1, "a fresh connection that fails is not tried again"


async def test_with_no_other_replica_the_failure_is_an_error_of_ours(make: Any) -> None:
    world = await make()
    world.engines[0].server.close()
    answer = await world.ask(post())
    assert answer.startswith(b"HTTP/1.1 502")
    assert body_of(answer)["error"]["code"] == "upstream_failed"


async def test_fault_13_a_kept_connection_that_the_engine_closed_meanwhile_is_not_an_error(make: Any) -> None:
    world = await make()
    closing = asyncio.Event()

    async def once(_reader: Any, writer: asyncio.StreamWriter, _body: bytes) -> None:
        await whole_stream(_reader, writer, _body)
        await writer.drain()
        world.engines[0].play = close_under_it

    async def close_under_it(_reader: Any, _writer: asyncio.StreamWriter, _body: bytes) -> None:
        world.engines[0].play = whole_stream
        closing.set()
        raise ConnectionError

    world.engines[0].play = once
    assert (await world.ask(post())).startswith(b"HTTP/1.1 200")
    assert (await world.ask(post())).startswith(b"HTTP/1.1 200")
    assert closing.is_set()
    assert world.engines[0].connections == 2


async def test_fault_53_the_first_token_may_take_longer_than_any_deadline_of_the_listener(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbctl.runtime.gateway.upstream._IDLE_S", 0.1)
    world = await make()
    world.server.limits = replace(LIMITS, body_s=0.1, write_stall_s=0.1, idle_s=0.1)

    async def late(reader: Any, writer: asyncio.StreamWriter, body: bytes) -> None:
        await asyncio.sleep(0.8)
        await whole_stream(reader, writer, body)

    world.engines[0].play = late
    answer = await world.ask(post(**CHAT, stream=True))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"[DONE]" in answer
    assert len(world.engines[0].bodies) == 1, "it was asked once"


async def test_G5_a_slow_reader_makes_the_engine_wait_and_is_cut(make: Any) -> None:
    world = await make()
    sent = 0

    async def play(_reader: Any, writer: asyncio.StreamWriter, _body: bytes) -> None:
        nonlocal sent
        writer.write(STREAM)
        while True:
            data = event("x" * 60_000)
            writer.write(data)
            await writer.drain()
            sent += len(data)

    world.engines[0].play = play
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port, limit=1024)
        writer.write(post(**CHAT, stream=True))
        await world.until(lambda: bool(world.outcomes))
        writer.close()
        del reader
    assert world.outcomes[0].status == 499
    assert sent < 64 * 1024 * 1024, "kernel buffers and two of ours, not the whole stream"
    assert world.gate.active == 0


async def test_G5_a_body_that_does_not_come_is_not_waited_for(make: Any) -> None:
    world = await make()
    answer = await world.ask(post()[:-5])
    assert answer.startswith(b"HTTP/1.1 400")
    assert body_of(answer)["error"]["code"] == "invalid_body"


async def test_G7_all_bodies_together_are_bounded(make: Any) -> None:
    world = await make()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: ai\r\nContent-Type: application/json\r\nContent-Length: 9000000\r\n\r\n"
    answer = await world.ask(head + b" " * 4_000_000)
    assert answer.startswith(b"HTTP/1.1 503")
    assert body_of(answer)["error"]["code"] == "overloaded"
    assert (await world.ask(post())).startswith(b"HTTP/1.1 200"), "what was held is free again"


async def test_requests_behind_each_other_are_answered_in_order_and_within_bounds(make: Any) -> None:
    world = await make()
    probe = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = await world.ask(probe * 300 + post())
    assert answer.count(b'{"status":"ok"}') == 300
    assert answer.endswith(b"}")
    assert b"Hello" in answer.rpartition(b"\r\n\r\n")[2]
    flood = await world.ask(post(close=False) + probe * 20_000)
    assert flood.startswith(b"HTTP/1.1 200")
    assert flood.count(b"HTTP/1.1 ") < 5_000, "beyond the bound the connection ends behind the present answer"


@pytest.mark.parametrize("unread", [False, True], ids=["faster than answers go out", "and reads none of them"])
async def test_G7_a_caller_that_asks_ever_more_is_not_kept_in_memory(make: Any, unread: bool) -> None:
    world = await make()

    async def play(_reader: Any, writer: asyncio.StreamWriter, _body: bytes) -> None:
        writer.write(STREAM + event("x" * 60_000) * 100 + DONE + b"0\r\n\r\n")

    world.engines[0].play = play
    loop = asyncio.get_running_loop()
    most = 0
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        async with asyncio.timeout(PATIENCE_S):
            await loop.sock_connect(sock, ("127.0.0.1", world.port))
            if unread:
                await loop.sock_sendall(sock, post(close=False))
                await world.until(world.is_unread)
            with contextlib.suppress(ConnectionError):
                for _ in range(200):
                    await loop.sock_sendall(sock, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 2000)
                    most = max(most, world.waiting_bytes())
                pytest.fail("the caller was never shut out")
    assert most <= 256 * 1024, "what one read brings"


async def test_expect_gets_its_100_only_when_the_head_is_accepted(make: Any) -> None:
    world = await make()
    data = post("/v1/chat/completions", "Expect: 100-continue")
    head, _, body = data.partition(b"\r\n\r\n")
    async with world.connected() as (reader, writer):
        writer.write(head + b"\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
    refused = await world.ask(head.replace(b"application/json", b"text/plain") + b"\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 415")


async def test_a_refused_request_with_its_body_leaves_the_connection_usable(make: Any) -> None:
    world = await make()
    wrong = post(close=False).replace(b"application/json", b"application/xml1")
    answer = await world.ask(wrong + post())
    assert answer.startswith(b"HTTP/1.1 415")
    assert b"HTTP/1.1 200" in answer


async def test_an_old_client_gets_a_stream_that_ends_with_the_connection(make: Any) -> None:
    world = await make()
    data = post(**CHAT, stream=True).replace(b"HTTP/1.1", b"HTTP/1.0")
    answer = await world.ask(data)
    assert b"chunked" not in answer
    assert answer.endswith(b"data: [DONE]\n\n")


async def test_embeddings_go_on_as_one_document_and_a_model_answers_only_what_it_is_for(make: Any) -> None:
    world = await make(1, "embedding")
    document = b'{"object":"list","model":"q","data":[{"embedding":[0.5],"index":0}],"usage":{"prompt_tokens":2,"total_tokens":2}}'

    async def play(_reader: Any, writer: asyncio.StreamWriter, _body: bytes) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(document)
            + document
        )

    world.engines[0].play = play
    answer = await world.ask(post("/v1/embeddings", model="public", input="Hi"))
    assert answer.partition(b"\r\n\r\n")[2] == document.replace(b'"q"', b'"public"')
    assert json.loads(world.engines[0].bodies[0]) == {"model": "q", "input": "Hi"}
    assert world.outcomes[0].usage is not None
    refused = await world.ask(post())
    assert (refused[:12], body_of(refused)["error"]["code"]) == (b"HTTP/1.1 400", "modality_mismatch")
    models = await world.ask(b"GET /v1/models/public HTTP/1.1\r\nHost: ai\r\nConnection: close\r\n\r\n")
    assert body_of(models)["capabilities"] == ["embeddings"]
    missing = await world.ask(b"GET /v1/models/other HTTP/1.1\r\nHost: ai\r\nConnection: close\r\n\r\n")
    assert missing.startswith(b"HTTP/1.1 404")


async def test_speech_and_transcriptions_are_relayed_as_bytes(make: Any) -> None:
    async def play(_reader: Any, writer: asyncio.StreamWriter, _body: bytes) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: audio/wav\r\nTransfer-Encoding: chunked\r\n\r\n"
            + chunk(b"RIFF")
            + chunk(b"\0\1")
            + b"0\r\n\r\n"
        )

    world = await make(1, "text_to_speech")
    world.engines[0].play = play
    answer = await world.ask(post("/v1/audio/speech", model="public", input="Hi", voice="a"))
    assert b"Content-Type: audio/wav" in answer
    assert b"RIFF" in answer
    world = await make(1, "speech_to_text")
    world.engines[0].play = play
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x.wav"\r\n\r\nRIFF\r\n--b--\r\n'
    head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: ai\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: {len(form)}\r\nConnection: close\r\n\r\n"
    assert b"RIFF" in await world.ask(head.encode() + form)
    assert b'name="model"\r\n\r\nq\r\n' in world.engines[0].bodies[0]


async def test_images_come_back_as_one_document(make: Any) -> None:
    document = b'{"created": 1, "data": [{"b64_json": "iVBORw0KGgo="}]}'

    async def play(_reader: Any, writer: asyncio.StreamWriter, body: bytes) -> None:
        assert json.loads(body) == {"model": "q", "prompt": "a cat", "n": 1}
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(document) + document)

    world = await make(1, "image")
    world.engines[0].play = play
    answer = await world.ask(post("/v1/images/generations", model="public", prompt="a cat", n=1))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"b64_json": "iVBORw0KGgo="' in answer
    world = await make(1, "chat")
    assert b"modality_mismatch" in await world.ask(post("/v1/images/generations", model="public", prompt="a cat"))


async def test_37_the_engine_counts_a_prompt_that_may_be_too_long_before_it_queues(make: Any) -> None:
    world = await make()
    held = [await world.gate.acquire("standard") for _ in range(4)]
    tokens = 0

    async def play(_reader: Any, writer: asyncio.StreamWriter, body: bytes) -> None:
        assert "content" in json.loads(body)
        document = json.dumps({"tokens": [1] * tokens}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(document) + document)

    world.engines[0].play = play
    long = {"model": "public", "messages": [{"role": "user", "content": "word " * 600}]}
    tokens = 513
    refused = await world.ask(post(**long))
    assert body_of(refused)["error"]["code"] == "context_length_exceeded"
    tokens = 512
    async with world.connected() as (_reader, writer):
        writer.write(post(**long))
        await world.until(lambda: world.gate.queued == 1)
    for permit in held:
        permit.release()


async def test_the_end_is_said_and_idle_connections_are_closed_last(make: Any) -> None:
    world = await make()
    async with world.connected() as (reader, writer):
        writer.write(post(close=False))
        await reader.readuntil(b"\r\n\r\n")
        world.server.refuse_new()
        writer.write(post(close=False))
        rest = await reader.read()
        assert b"Connection: close" in rest
        await world.server.see_off(PATIENCE_S)


async def test_sound_that_breaks_off_is_not_taken_for_whole(make: Any) -> None:
    async def play(_reader: Any, writer: asyncio.StreamWriter, _body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: audio/wav\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + chunk(b"RIFF"))
        await writer.drain()
        writer.close()

    world = await make(1, "text_to_speech")
    world.engines[0].play = play
    answer = await world.ask(post("/v1/audio/speech", model="public", input="Hi", voice="a"))
    assert answer.endswith(chunk(b"RIFF"))
