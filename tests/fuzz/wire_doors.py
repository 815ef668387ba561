"""Doors that are knocked at over a connection: node messages, control socket, admin API, gateway, engines, external providers, the launcher."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import itertools
import json
import os
import random
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast, get_args
from unittest import mock

import aiohttp

from sbctl.artifacts.hub import _repository
from sbctl.base import strict_json
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import SbctlError
from sbctl.base.limits import MIB
from sbctl.base.secret import Secret
from sbctl.catalog.loader import builtin_catalog
from sbctl.node.frames import encode_frame, read_frame
from sbctl.node.lease_file import is_fresh, parse_lease, shown
from sbctl.node.messages import PARAMS, Method
from sbctl.node.paths import node_paths
from sbctl.remote.bootstrap import read_answer
from sbctl.runtime.admin_deployments import asked_deployments
from sbctl.runtime.control import control_app
from sbctl.runtime.drain import Drain
from sbctl.runtime.external.keys import ProviderKeys, with_provider_keys
from sbctl.runtime.external.providers import Question, _relayed
from sbctl.runtime.gateway.answers import Answer
from sbctl.runtime.gateway.asked import read_asked
from sbctl.runtime.gateway.chunked import ChunkedBody
from sbctl.runtime.gateway.form import read_form
from sbctl.runtime.gateway.head import read_head
from sbctl.runtime.gateway.relay import BytesRelay, DocumentRelay, Relay, StreamRelay, WholeRelay
from sbctl.runtime.gateway.surface import Kind
from sbctl.runtime.gateway.upstream import EngineConnection
from sbctl.runtime.identity import with_identity
from sbctl.runtime.jobs import Jobs
from sbctl.runtime.launcher import protocol
from sbctl.runtime.launcher.spec import read_spec
from sbctl.runtime.listeners import Listener
from sbctl.runtime.nodeops import stdio
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.public_tls_service import with_certificate
from sbctl.trust.enrollment_messages import parse_answer, parse_renewal, parse_request
from sbctl.trust.enrollment_source import EnrollmentSource
from sbctl.trust.join_token import JoinToken
from tests.attacks.test_http_attacks import BASIC, Target
from tests.fuzz.door import Door, Knock
from tests.fuzz.file_doors import envelope_seeds, pure
from tests.simulators.engine_world import facts
from tests.simulators.runtime_world import member
from tests.simulators.unit_world import binary_request, make_place, short_directory, wheel_request

__all__ = ["WIRE_DOORS"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_ANSWER_S: Final = 30.0


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


# The node interface


@contextmanager
def node_door(folder: Path) -> Iterator[Knock]:
    """Every message has exactly one answer, and none of them is a defect. What would be done is not done here."""
    context = NodeContext(node_paths(os.getuid(), {"SBCTL_NODE_PREFIX": str(folder)}), {}, os.getuid())

    def knock(data: bytes) -> None:
        message = strict_json.loads(data, max_bytes=MIB)
        if not isinstance(message, dict):
            return
        written: list[bytes] = []
        stdio.Dispatcher(context, written.append).answer(message)
        (answer,) = [read_frame(io.BytesIO(frame).read) for frame in written]
        assert answer is not None
        assert answer.get("error", {}).get("code") != "node.internal", answer

    with mock.patch.object(stdio, "_handler", return_value=lambda _context, _params: {}):
        yield knock


def node_seeds() -> list[bytes]:
    """One of each method, its required fields filled."""
    made = []
    for method in Method:
        model = PARAMS.get(method)
        schema = {} if model is None else model.model_json_schema()
        params = {name: _sample(schema, field) for name, field in schema.get("properties", {}).items()}
        made.append(json.dumps({"id": 1, "method": method, "params": params, "secrets": {"x": "eA=="}}).encode())
    return made


def _sample(schema: Mapping[str, Any], field: Mapping[str, Any], depth: int = 0) -> Any:
    if "$ref" in field:
        field = schema["$defs"][field["$ref"].rpartition("/")[2]]
    if "default" in field:
        return field["default"]
    for name in ("anyOf", "oneOf"):
        if name in field:
            return _sample(schema, field[name][0], depth)
    if "const" in field or "enum" in field:
        return field.get("const", field.get("enum", [None])[0])
    match field.get("type"):
        case "object":
            inner = field.get("properties", {})
            return {} if depth > 4 else {name: _sample(schema, each, depth + 1) for name, each in inner.items()}
        case "array":
            return [] if depth > 4 or "items" not in field else [_sample(schema, field["items"], depth + 1)]
        case "integer" | "number":
            return max(1, field.get("minimum", 1))
        case "boolean":
            return True
    pattern = str(field.get("pattern", ""))
    return "a" * 64 if "64" in pattern else "provider_key_" + "a" * 16 if "provider_key" in pattern else "name"


def frame_seeds() -> list[bytes]:
    return [encode_frame({"id": 1, "method": "snapshot"}), encode_frame({"id": 1, "progress": {"done": 1}}) * 2]


def knock_frames(data: bytes) -> None:
    stream = io.BytesIO(data)
    while read_frame(stream.read) is not None:
        pass


def knock_bootstrap(data: bytes) -> None:
    read_answer(cast("Any", SimpleNamespace(stdout=b"MARK" + data, stderr=b"", code=0)), "MARK", place="h")


def knock_lease(data: bytes) -> None:
    told = parse_lease(data)
    is_fresh(told)
    shown(told)


LEASE: Final = json.dumps(
    {
        "owner": "ops@ci",
        "purpose": "apply",
        "since": "2026-11-29T12:00:00Z",
        "expires_boottime_s": 5.0,
        "boot_id": "x",
        "pid": 7,
    }
).encode()


# Servers of ours, over HTTP


def _post(
    address: Callable[[], http.client.HTTPConnection], method: str, path: str, data: bytes, headers: Mapping[str, str]
) -> int:
    connection = address()
    try:
        connection.request(method, path, data, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    assert answer.status < 500 or b"no_ready_replica" in body, (method, path, answer.status, body[:500])
    if answer.headers.get_content_type() == "application/x-ndjson":
        last = json.loads(body.splitlines()[-1])
        assert last.get("error", {}).get("code") != "runtime.internal", last
    return answer.status


@contextmanager
def admin_door(folder: Path) -> Iterator[Knock]:
    """Every route that takes a body gets it, by the real listener."""
    loop, target = Loop(), Target(folder)
    loop.run(target.start())
    ways = [
        ("PUT", "/admin/model-host/deployments"),
        ("POST", "/admin/model-host/load"),
        ("POST", "/admin/model-host/deployments/q/load"),
        ("POST", "/admin/login"),
        ("POST", "/admin/reload"),
    ]

    def knock(data: bytes) -> None:
        for method, path in ways:
            headers = {} if path == "/admin/login" else {"Authorization": BASIC}
            _post(
                lambda: http.client.HTTPConnection("127.0.0.1", target.admin_port, timeout=_ANSWER_S),
                method,
                path,
                data,
                headers,
            )
        with contextlib.suppress(SbctlError):
            document = strict_json.loads(data, max_bytes=MIB)
            if isinstance(document, dict):
                one = member(facts(), "/engine")
                asked_deployments(document, stored={"q": one}, offered={"r": one}, catalog=builtin_catalog())

    try:
        yield knock
    finally:
        loop.run(target.stop())
        loop.end()


def admin_seeds() -> list[bytes]:
    deployment = {
        "model": "smollm2-135m-instruct",
        "variant": "q4_1",
        "replicas": 1,
        "cold_start": "wait",
        "extra_args": [],
    }
    return [
        json.dumps(
            {"expected_revision": 1, "deployments": {"chat": deployment, "q": {**deployment, "engine": "auto"}}}
        ).encode(),
        json.dumps({"deployment": "q"}).encode(),
        json.dumps({"username": "admin", "password": "x"}).encode(),
        b"{}",
    ]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("runtime", timeout=_ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@contextmanager
def control_door(folder: Path) -> Iterator[Knock]:
    loop, target = Loop(), Target(folder)
    loop.run(target.start())
    name = "provider_key_" + "a" * 16
    keys = ProviderKeys([name], lambda _name: Secret(b"x"))
    with short_directory() as place:
        path = place / "c.sock"

        async def start() -> Listener:
            app = control_app(
                target.reconciler,
                Jobs(target.store, SYSTEM_CLOCK),
                lambda: {"healthy": True},
                Drain(target.paths),
                target.store.audit,
            )
            listener = Listener(
                with_provider_keys(with_certificate(with_identity(app, None), cast("Any", _Certificate())), keys)
            )
            bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            bound.bind(str(path))
            await listener.start(bound)
            return listener

        listener = loop.run(start())

        def knock(data: bytes) -> None:
            for way in ("bundle", "deployments/q/stop", "deployments/q/reset", "identity", "tls", "provider-keys"):
                _post(lambda: _UnixConnection(path), "POST", f"/control/v1/{way}", data, {})

        try:
            yield knock
        finally:
            loop.run(listener.close())
            loop.run(target.stop())
            loop.end()


class _Certificate:
    """Takes no certificate, as a runtime does that gets a bad one."""

    def take(self, pair: Secret) -> None:
        from sbctl.trust.public_certificate import check_pair, split_pair

        check_pair(*split_pair(pair.reveal()))

    def status(self) -> dict[str, Any]:
        return {}


def control_seeds() -> list[bytes]:
    envelope = envelope_seeds()[0].decode()
    return [
        json.dumps({"envelope": envelope, "expected_revision": 3}).encode(),
        json.dumps({"by": "ops", "drain_s": 0.01}).encode(),
        json.dumps({"pem": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"}).encode(),
        json.dumps({"keys": {"provider_key_" + "a" * 16: "sk"}}).encode(),
    ]


# The gateway


@contextmanager
def gateway_door(folder: Path) -> Iterator[Knock]:
    """Bytes on a connection, in pieces: whatever comes, answers are whole and none is a defect, and the next caller is served."""
    loop, target = Loop(), Target(folder)
    loop.run(target.start())
    source = random.Random(7)

    def knock(data: bytes) -> None:
        with socket.create_connection(("127.0.0.1", target.data_port), timeout=_ANSWER_S) as caller:
            cut = source.randint(0, len(data))
            with contextlib.suppress(OSError):
                caller.sendall(data[:cut])
                caller.sendall(data[cut:])
                caller.shutdown(socket.SHUT_WR)
            answer = b""
            with contextlib.suppress(ConnectionError):
                while piece := caller.recv(65536):
                    answer += piece
        assert not answer or answer.startswith(b"HTTP/1.1 "), answer[:200]
        assert b"HTTP/1.1 500" not in answer, answer[:500]

    try:
        yield knock
        with socket.create_connection(("127.0.0.1", target.data_port), timeout=_ANSWER_S) as caller:
            caller.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert caller.recv(65536).startswith(b"HTTP/1.1 200")
    finally:
        loop.run(target.stop())
        loop.end()


def gateway_seeds() -> list[bytes]:
    body = b'{"model": "public", "messages": [{"role": "user", "content": "Hi"}]}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return [
        head + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\nGET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
        head + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    ]


def knock_request(data: bytes) -> None:
    read_head(data)


def knock_chunks(data: bytes) -> None:
    whole = ChunkedBody(max_bytes=4096)
    whole.feed(data)
    single = ChunkedBody(max_bytes=4096)
    for at in range(len(data)):
        if not single.is_complete:
            single.feed(data[at : at + 1])
    assert (whole.is_complete, whole.body()) == (single.is_complete, single.body())


def knock_body(data: bytes) -> None:
    """All that is asked of a body on its way; each kind of request reads it its own way."""
    for kind in KINDS:
        with contextlib.suppress(SbctlError):
            asked = read_asked(data, kind)
            _ = (asked.model, asked.wants_stream, asked.wants_usage, asked.prompt_chars, asked.prompts())
            for sent in (asked.for_engine(model="q", context_length=512), asked.for_provider(model="big")):
                assert json.loads(sent)["model"] in ("q", "big")
            asked.check_bounds(512, asked.prompt_chars)


def body_seeds() -> list[bytes]:
    chat = {
        "model": "m",
        "messages": [
            {"role": "developer", "content": "x"},
            {"role": "user", "content": [{"type": "text", "text": "y"}]},
        ],
        "max_tokens": 3,
        "temperature": 0.5,
        "stop": ["a"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "response_format": {"type": "json_object"},
        "logit_bias": {"1": 2},
    }
    others: tuple[dict[str, Any], ...] = (
        {"input": ["a", "b"], "dimensions": 3},
        {"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1},
        {"prompt": "p", "max_tokens": 2, "echo": True},
        {"input": [{"role": "user", "content": "x"}], "instructions": "y", "max_output_tokens": 3},
    )
    return [json.dumps({"model": "m", **each}).encode() for each in (chat, *others)]


def knock_form(data: bytes) -> None:
    for kind in KINDS:
        with contextlib.suppress(SbctlError):
            read_form(data, 'multipart/form-data; boundary="XX"', kind).for_engine(model="q")


FORM: Final = (
    b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--XX\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
    b"Content-Type: audio/wav\r\n\r\nRIFF\r\n--XX--\r\n"
)


# What engines and providers answer


class _Client:
    """A caller that keeps what it gets and checks that it comes in order."""

    def __init__(self) -> None:
        self.begun = self.ended = False
        self.sent = b""

    def answer(self, answer: Answer) -> None:
        assert not self.begun
        self.begun = self.ended = True
        self.sent += answer.body

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        assert not self.begun
        self.begun = True

    def write(self, data: bytes) -> None:
        assert self.begun
        assert not self.ended
        self.sent += data

    def finish(self, *, broken: bool = False, told: bool = True) -> None:
        assert self.begun
        self.ended = True

    def feed_from(self, source: object) -> None: ...


class _Wire:
    def __getattr__(self, _name: str) -> Callable[..., Any]:
        return lambda *_args, **_more: 0


class _Pool:
    def keep(self, connection: EngineConnection) -> None: ...

    def forget(self, connection: EngineConnection) -> None: ...


def relays(client: Any) -> list[Relay]:
    plain: dict[str, Any] = {"lines": b"", "progressed": lambda: None, "request_id": "r"}
    return [
        StreamRelay(client, **plain, model="public", keeps_usage=False),
        WholeRelay(client, **plain, model="public"),
        DocumentRelay(client, **plain, model="public"),
        BytesRelay(client, **plain),
    ]


async def _judged(relay: Relay, client: _Client) -> None:
    assert relay.ending.is_over, "an answer that is over leaves nobody waiting"
    error = relay.ending.error
    assert error is None or isinstance(error, SbctlError), error
    assert client.begun == (error is None)
    assert not (
        isinstance(relay, StreamRelay) and relay.problem is not None and b"data: [DONE]" in client.sent.splitlines()
    )


@contextmanager
def engine_door(_folder: Path) -> Iterator[Knock]:
    source = random.Random(7)
    loop = asyncio.new_event_loop()

    async def all_ways(data: bytes) -> None:
        for number in range(4):
            client = _Client()
            relay = relays(client)[number]
            connection = EngineConnection(cast("Any", _Pool()))
            connection.connection_made(cast("Any", _Wire()))
            connection.send(b"", b"", relay)
            edges = sorted({0, len(data), *(source.randint(0, len(data)) for _ in range(3))})
            for start, end in itertools.pairwise(edges):
                if connection.is_open:
                    connection.data_received(data[start:end])
            connection.connection_lost(None)
            await _judged(relay, client)

    try:
        yield lambda data: loop.run_until_complete(all_ways(data))
    finally:
        loop.close()


_EVENT: Final = b'data: {"model": "q", "choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": null}]}\n\n'
_CALL: Final = b'data: {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": "{"}}]}}]}\n\n'
_USAGE: Final = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}, "timings": {"x": 1}}\n\n'
_STREAM: Final = _EVENT + _CALL + _USAGE + b"data: [DONE]\n\n"
_DOCUMENT: Final = b'{"model": "q", "object": "list", "data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 1, "total_tokens": 1}}'
_REFUSAL: Final = b'{"error": {"code": 400, "message": "too long", "type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 8}}'


def engine_seeds() -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    return [
        head
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (_EVENT, _USAGE, b"data: [DONE]\n\n"))
        + b"0\r\n\r\n",
        head + b"Content-Length: %d\r\n\r\n" % len(_STREAM) + _STREAM,
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_DOCUMENT) + _DOCUMENT,
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(_REFUSAL) + _REFUSAL,
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nRIFF",
    ]


class _Answer:
    """As aiohttp gives it; only the body is somebody's."""

    def __init__(self, status: int, kind: str, body: bytes) -> None:
        self.status, self.content_type, self.headers = status, kind, {"Content-Type": kind}
        self._body = body
        self.content = self

    async def iter_any(self) -> Any:
        for at in range(0, len(self._body), 37):
            yield self._body[at : at + 37]


@contextmanager
def provider_door(_folder: Path) -> Iterator[Knock]:
    loop = asyncio.new_event_loop()

    async def all_ways(data: bytes) -> None:
        for status, kind, number in (
            (200, "text/event-stream", 0),
            (200, "application/json", 2),
            (400, "application/json", 2),
            (200, "audio/x", 3),
        ):
            client = _Client()
            made: list[Relay] = []

            def make(number: int = number, client: _Client = client, made: list[Relay] = made) -> Relay:
                made.append(relays(client)[number])
                return made[0]

            question = Question("/x", b"", "application/json", "r", cast("Any", client), make)
            answer = cast("aiohttp.ClientResponse", _Answer(status, kind, data))
            with contextlib.suppress(SbctlError):
                await _relayed(answer, question, is_refusal=status == 400)
            await _judged(made[0], client)

    try:
        yield lambda data: loop.run_until_complete(all_ways(data))
    finally:
        loop.close()


def provider_seeds() -> list[bytes]:
    return [_STREAM, _DOCUMENT, _REFUSAL, _EVENT * 3]


# Others


_ROOT: Final = b"/the/root"
"""Stands for the directory that a door has for itself."""


@contextmanager
def launcher_door(_folder: Path) -> Iterator[Knock]:
    with short_directory() as root:
        place = make_place(root)

        def knock(data: bytes) -> None:
            document = protocol.unpack(data.replace(_ROOT, str(place.root).encode()))
            read_spec(document, place.site, sockets=place.sockets, owner=os.geteuid())

        yield knock


def launcher_seeds() -> list[bytes]:
    with short_directory() as root:
        place = make_place(root)
        made = [json.dumps(make(place), default=str).encode() for make in (wheel_request, binary_request)]
        return [data.replace(str(place.root).encode(), _ROOT) for data in made]


HUB: Final = json.dumps(
    {
        "sha": "a" * 40,
        "siblings": [
            {"rfilename": "m.gguf", "size": 7, "lfs": {"sha256": "b" * 64, "size": 7}},
            {"rfilename": "README.md", "size": 3},
        ],
        "cardData": {"license": "apache-2.0", "license_name": "x"},
        "tags": ["license:mit"],
        "gated": False,
        "gguf": {"architecture": "llama", "context_length": 512, "total": 1000},
        "pipeline_tag": "text-generation",
    }
).encode()


@contextmanager
def hub_door(_folder: Path) -> Iterator[Knock]:
    yield lambda data: _repository("Org/Repo", strict_json.loads(data, max_bytes=MIB))


def enrollment_seeds() -> list[bytes]:
    token = "sbj1." + "A" * 43 + "." + "0" * 16 + "." + "A" * 43
    return [
        json.dumps(
            {"token": token, "node_id": "a", "roles": ["worker"], "labels": {"a": "b"}, "csr_pem": "x"}
        ).encode(),
        json.dumps(
            {
                "certificate_pem": "x",
                "ca_pem": "y",
                "identity": {"document": {"authority_key_id": "k"}, "signature": "AA=="},
                "authority_verifying_key": "ed25519:x",
                "revocations": "{}",
            }
        ).encode(),
        json.dumps({"csr_pem": "x"}).encode(),
        token.encode(),
    ]


def knock_enrollment(data: bytes) -> None:
    for parse in (
        parse_request,
        parse_answer,
        parse_renewal,
        EnrollmentSource.parse,
        lambda raw: JoinToken.parse(raw.decode("utf-8", "replace")),
    ):
        with contextlib.suppress(SbctlError):
            parse(data)


WIRE_DOORS: Final = (
    Door("node frames", pure(knock_frames), ("corpus/node_frames/*",), frame_seeds, rounds=1000),
    Door("node messages", node_door, ("corpus/node_messages/*",), node_seeds, rounds=600),
    Door(
        "bootstrap answer",
        pure(knock_bootstrap),
        ("corpus/bootstrap/*",),
        lambda: [b'{"result": {"a": 1}}', b'{"error": {"code": "x.y", "message": "m"}}'],
    ),
    Door("host lease", pure(knock_lease), ("corpus/lease/*",), lambda: [LEASE]),
    Door("admin bodies", admin_door, ("corpus/admin/*",), admin_seeds, rounds=60),
    Door("control socket", control_door, ("corpus/control/*",), control_seeds, rounds=60),
    Door("request head", pure(knock_request), ("corpus/http/head_*",), gateway_seeds, rounds=1000),
    Door(
        "request chunks",
        pure(knock_chunks),
        ("corpus/http/chunked_*",),
        lambda: [b"5\r\nhello\r\n0\r\n\r\n"],
        rounds=1000,
    ),
    Door("request body", pure(knock_body), ("corpus/request_body/*",), body_seeds, rounds=400),
    Door("request form", pure(knock_form), ("corpus/form/*",), lambda: [FORM]),
    Door("gateway connection", gateway_door, ("corpus/http/*", "corpus/gateway/*"), gateway_seeds, rounds=100),
    Door("engine answer", engine_door, ("corpus/engine_answer/*",), engine_seeds, rounds=400),
    Door("external provider answer", provider_door, ("corpus/provider_answer/*",), provider_seeds, rounds=400),
    Door("launcher request", launcher_door, ("corpus/launcher/*",), launcher_seeds, rounds=400),
    Door(
        "hub answer",
        hub_door,
        ("corpus/hub/*",),
        lambda: [HUB],
        refusals=(SbctlError, ValueError, KeyError, TypeError, AttributeError),
    ),
    Door("enrollment", pure(knock_enrollment), ("corpus/enrollment/*",), enrollment_seeds),
)
