"""What the peer plane costs: a request that a gateway hands to a worker beside one that it serves itself, and HTTP/1.1 beside HTTP/2.

    .venv/bin/python benchmarks/bench_peer.py [--seconds N]

Gateway and worker are whole daemons in processes of their own, with mutual TLS, signed envelopes, replay fence and admission in place; the mock
engine is the same on both ways. What a dispatch adds to one request at a time is the mark: both ways are asked in turns, and the best of five
rounds counts, since more processes than cores meet the neighbours' more often. CPU is that of both processes together.

HTTP/2 is compared by its framing alone, in memory: the bytes of one dispatch and of an answer's events through the parser that the plane
has (httptools) and through the `h2` library, which is pure Python. It is found in .cache/bench/h2 by itself:

    .venv/bin/uv pip install --target .cache/bench/h2 h2
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import uvloop  # noqa: E402
from httptools import HttpRequestParser, HttpResponseParser  # noqa: E402

from benchmarks.bench_gateway import BENCH, KEY, Measured, Side, engine_program, gateway, load, measure, request, row  # noqa: E402
from sbctl.base.digests import sha256_bytes  # noqa: E402
from sbctl.runtime.peer.envelope import Audience, Errand, sign_dispatch  # noqa: E402
from sbctl.runtime.peer.framing import CONTENT_TYPE, DISPATCH_PATH, frame  # noqa: E402
from sbctl.trust.bundle import ApiKeyEntry, OriginMember  # noqa: E402
from sbctl.trust.certificates import certificate_facts  # noqa: E402
from sbctl.trust.peer_documents import NodeSigner  # noqa: E402
from sbctl.trust.peer_kinds import DISPATCH  # noqa: E402
from tests.simulators.peer_daemon import PeerProcess, write_peer_file  # noqa: E402
from tests.simulators.peer_world import PeerWorld  # noqa: E402
from tests.simulators.runtime_world import Operator, content, member, prepare_node, weights  # noqa: E402

EVENT = b'data: {"choices":[{"index":0,"finish_reason":null,"delta":{"content":" token"}}],"id":"chatcmpl-1","created":0,"model":"public","object":"chat.completion.chunk"}\n\n'  # fmt: skip
EVENTS = 200
ROUNDS = 5


@contextlib.contextmanager
def cluster() -> Iterator[Side]:
    """A gateway without an engine, and a worker with one."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        world, operator = PeerWorld(Path(folder)), Operator()
        keys = {"app": ApiKeyEntry(sha256=sha256_bytes(KEY.encode()), requests_per_minute=100_000_000)}
        origins = {"localhost": OriginMember(models={"public": "q"})}
        nodes: dict[str, PeerProcess] = {}
        kits = {"w-a": world.kit("w-a", "worker"), "gw-a": world.kit("gw-a", "gateway")}
        for name, kit in kits.items():
            (Path(folder) / name).mkdir()
            etc = prepare_node(Path(folder) / name, operator).etc
            write_peer_file(etc, kit, "worker" if name == "w-a" else "gateway")
            nodes[name] = PeerProcess(Path(folder) / name)
            stack.callback(nodes[name].end)
        program = engine_program(Path(folder), "bare")
        served = member(
            weights(Path(folder)),
            program,
            max_concurrency=256,
            max_queue_depth=256,
            context_length=4096,
            queue_timeout_ms=60_000,
        )
        for name, node in nodes.items():
            node.await_healthy(60)
            desired = content({"q": served} if name == "w-a" else {}, origins=origins, api_keys=keys)
            assert "result" in node.apply(operator.bundle(desired, 1), None)
        nodes["w-a"].await_state("q", "ready")
        worker = {
            "node_id": "w-a",
            "address": f"127.0.0.1:{nodes['w-a'].peer_port}",
            "certificate_sha256": certificate_facts(kits["w-a"].files.certificate).fingerprint,
        }
        told = {"member": served.model_dump(mode="json"), "workers": [worker]}
        (nodes["gw-a"].paths.etc / "directory.json").write_text(json.dumps(told), encoding="utf-8")
        port = int(nodes["gw-a"].status()["http_url"].rsplit(":", 1)[1])
        yield Side("through a peer", port, (nodes["gw-a"].status()["pid"], nodes["w-a"].status()["pid"]))


async def one_at_a_time_ms(side: Side) -> float:
    (asker,) = await load(side.port, request(max_tokens=2), connections=1, seconds=1.0)
    return statistics.median(asker.times_s) * 1e3


def cpu_us(work: Callable[[], object], times: int) -> float:
    """CPU of one, the median of five rounds."""
    rounds = []
    for _ in range(5):
        began_s = time.process_time()
        for _ in range(times):
            work()
        rounds.append((time.process_time() - began_s) / times * 1e6)
    return statistics.median(rounds)


def signed_dispatch() -> tuple[bytes, float, float]:
    """The body of a dispatch, and the CPU in microseconds of making it and of judging it."""
    with tempfile.TemporaryDirectory() as folder:
        world = PeerWorld(Path(folder))
        kit = world.kit("gw-a", "gateway")
        signer = NodeSigner(kit.files, kit.key, now=world.now)
        errand = Errand(
            "q", 3, "public", "/v1/chat/completions", "application/json", b"x" * 200, "r" * 32, "standard", "7"
        )

        def sign() -> str:
            return sign_dispatch(
                errand, sha256_bytes(errand.body), Audience("w-a", 1), signer, boot_epoch=1, now_unix_ms=0
            )

        text, verifier = sign(), world.authority.verifier()
        made = cpu_us(sign, 500)
        judged = cpu_us(lambda: verifier.open(text, DISPATCH, now=world.now, marks={}), 300)
        return frame(text.encode(), errand.body), made, judged


class Http1:
    """One exchange as the peer plane frames it: both ends, in memory."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.received = 0
        self.request = HttpRequestParser(self)
        self.response = HttpResponseParser(self)

    def on_body(self, data: bytes) -> None:
        self.received += len(data)

    def __call__(self) -> None:
        head = f"POST {DISPATCH_PATH} HTTP/1.1\r\nHost: w-a\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(self.body)}\r\n\r\n"
        self.request.feed_data(head.encode() + self.body)
        self.response.feed_data(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(EVENTS):
            self.response.feed_data(b"".join((b"%x\r\n" % len(EVENT), EVENT, b"\r\n")))
        self.response.feed_data(b"0\r\n\r\n")


class Http2:
    """The same exchange by `h2`, on one connection that stays open."""

    def __init__(self, body: bytes) -> None:
        connection, config = importlib.import_module("h2.connection"), importlib.import_module("h2.config")
        self.events = importlib.import_module("h2.events")
        self.body = body
        self.client = connection.H2Connection(config.H2Configuration(client_side=True))
        self.server = connection.H2Connection(config.H2Configuration(client_side=False))
        self.client.initiate_connection()
        self.server.initiate_connection()
        self.exchange()

    def exchange(self) -> None:
        """What each has to say to the other, with windows given back as data is taken."""
        for told, teller in ((self.server, self.client), (self.client, self.server)):
            for event in told.receive_data(teller.data_to_send()):
                if isinstance(event, self.events.DataReceived) and event.flow_controlled_length:
                    told.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def __call__(self) -> None:
        stream = self.client.get_next_available_stream_id()
        head = [(":method", "POST"), (":path", DISPATCH_PATH), (":scheme", "https"), (":authority", "w-a")]
        self.client.send_headers(
            stream, [*head, ("content-type", CONTENT_TYPE), ("content-length", str(len(self.body)))]
        )
        self.client.send_data(stream, self.body, end_stream=True)
        self.exchange()
        self.server.send_headers(stream, [(":status", "200"), ("content-type", "text/event-stream")])
        for _ in range(EVENTS):
            self.server.send_data(stream, EVENT)
            self.exchange()
        self.server.end_stream(stream)
        self.exchange()


def framing(make: Callable[[bytes], Any], body: bytes) -> float:
    """CPU in microseconds of one exchange, of both ends together."""
    return cpu_us(make(body), 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    asked = parser.parse_args()
    results: dict[str, Measured] = {}
    rounds: dict[str, list[float]] = {"local": [], "peer": []}
    with gateway("bare") as here, cluster() as there:
        for name, side in (("local", here), ("peer", there)):
            results[name] = uvloop.run(measure(side, asked.seconds, with_streams=True))
        for _ in range(ROUNDS):
            for name, side in (("local", here), ("peer", there)):
                rounds[name].append(uvloop.run(one_at_a_time_ms(side)))
    print("| | requests/s, 16 connections | CPU µs a request | p50 ms | p99 ms | p50 ms, one connection | CPU µs a chunk | tokens/s, 4 streams |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    for name, measured in results.items():
        print(row(name, measured))
    print()
    local, peer = min(rounds["local"]), min(rounds["peer"])
    print(f"p50, one at a time, best of {ROUNDS} rounds: local {local:.3f} ms, peer {peer:.3f} ms")
    print(f"added p50: {peer - local:.3f} ms (mark 2)")
    body, made, judged = signed_dispatch()
    print(f"a signed dispatch: {len(body)} bytes, {made:.0f} µs CPU to make, {judged:.0f} µs to judge")
    sys.path.insert(0, str(BENCH / "h2"))
    one = framing(Http1, body)
    print(
        f"framing of a dispatch and {EVENTS} events, both ends: HTTP/1.1 {one:.0f} µs, {one / EVENTS:.1f} µs an event"
    )
    if importlib.util.find_spec("h2") is None:
        print("the h2 library is not here: left out (see the head of this program)")
        return
    two = framing(Http2, body)
    print(f"the same by h2: {two:.0f} µs, {two / EVENTS:.1f} µs an event: {two / one:.0f} times as much")


if __name__ == "__main__":
    main()
