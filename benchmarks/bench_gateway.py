"""What the gateway costs: beside nginx, which is the limit, and beside the LiteLLM proxy, which is the peer; one mock engine, one run.

A bare proxy in Python (`bare_proxy.py`) stands between them: it checks, admits and counts nothing. All that is done twice: before a mock
engine whose HTTP costs what an HTTP library takes, as an engine's does, and before one that costs nothing at all, where the numbers are
those of the ways alone.

    .venv/bin/python benchmarks/bench_gateway.py [--engine library|bare] [--seconds N] [--nginx PATH] [--litellm PATH]

The gateway runs in the whole daemon, as it is delivered: key, admission, limits and metrics in place, admin and control listeners open.
nginx (one worker, kept connections to the engine, no log) is the one on PATH or --nginx; without root it can be unpacked:

    apt-get download nginx && dpkg -x nginx_*.deb .cache/bench/nginx        # found there by itself

LiteLLM needs an environment of its own (two minutes, 600 MB), found there by itself:

    .venv/bin/uv venv .cache/bench/litellm && .venv/bin/uv pip install --python .cache/bench/litellm/bin/python 'litellm[proxy]'

What is not there is left out, with a sentence. Requests a second depend on what else the machine does; CPU of a process for each request
or chunk depends on it much less, so both are shown. Everything is on loopback and ends by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402
import uvloop  # noqa: E402

from sbctl.base.digests import sha256_bytes  # noqa: E402
from sbctl.trust.bundle import ApiKeyEntry, OriginMember  # noqa: E402
from tests.simulators.runtime_world import Operator, content, member, prepare_node, running, weights  # noqa: E402

BENCH = ROOT / ".cache" / "bench"
ENGINES = {
    "library": ROOT / "benchmarks" / "mock_engine_library.py",
    "bare": ROOT / "benchmarks" / "mock_engine.py",
}
BARE = ROOT / "benchmarks" / "bare_proxy.py"
KEY = "sk-bench"
CONNECTIONS = 16


@dataclass(frozen=True)
class Side:
    """One way to the engine: where it listens, and the processes that are it."""

    name: str
    port: int
    pids: tuple[int, ...]
    socket: str = ""
    """Where a second process of an engine listens; the gateway asks its own that way too."""

    def cpu_s(self) -> float:
        total = 0.0
        for pid in self.pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = psutil.Process(pid).cpu_times()
                total += times.user + times.system
        return total


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def request(**body: Any) -> bytes:
    document = {"model": "public", "messages": [{"role": "user", "content": "What is the capital of France?"}], **body}
    data = json.dumps(document).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {KEY}\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class Asker(asyncio.Protocol):
    """One connection that asks again as soon as it has its answer, until told to stop."""

    def __init__(self, ask: bytes) -> None:
        self.ask = ask
        self.times_s: list[float] = []
        self.chunks = 0
        self.ended = asyncio.get_running_loop().create_future()
        self.stopping = False
        self.once = False
        self.buffer = b""
        self.bad = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        self.began_s = time.perf_counter()
        self.transport.write(self.ask)

    def data_received(self, data: bytes) -> None:
        self.chunks += data.count(b'"delta"')
        self.buffer = (self.buffer + data) if not self.once else (self.buffer + data)[-4096:]
        if not self.is_complete():
            return
        if not self.buffer.startswith(b"HTTP/1.1 200") and not self.once:
            self.bad += 1
        self.times_s.append(time.perf_counter() - self.began_s)
        self.buffer = b""
        if self.stopping or self.once:
            self.transport.close()
        else:
            self.send()

    def is_complete(self) -> bool:
        end = self.buffer.find(b"\r\n\r\n")
        at = self.buffer[: max(end, 0)].lower().find(b"content-length: ")
        if end < 0 or self.once or at < 0:
            return self.buffer.endswith(b"0\r\n\r\n")
        return len(self.buffer) >= end + 4 + int(self.buffer[at + 16 : self.buffer.find(b"\r\n", at)])

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def load(port: int, ask: bytes, *, connections: int, seconds: float) -> list[Asker]:
    """Closed loop for so long."""
    loop = asyncio.get_running_loop()
    askers = [(await loop.create_connection(lambda: Asker(ask), "127.0.0.1", port))[1] for _ in range(connections)]
    await asyncio.sleep(seconds)
    for asker in askers:
        asker.stopping = True
    await asyncio.wait([asker.ended for asker in askers], timeout=20)
    return askers


async def streams(port: int, ask: bytes, count: int) -> tuple[int, float]:
    """So many streams at once, each once: chunks and seconds."""
    loop = asyncio.get_running_loop()
    began_s = time.perf_counter()

    def make() -> Asker:
        asker = Asker(ask)
        asker.once = True
        return asker

    askers = [(await loop.create_connection(make, "127.0.0.1", port))[1] for _ in range(count)]
    await asyncio.wait([asker.ended for asker in askers], timeout=120)
    return sum(asker.chunks for asker in askers), time.perf_counter() - began_s


@contextlib.contextmanager
def process(argv: list[str], **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more
    )
    try:
        yield child
    finally:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)
        child.kill()
        child.wait()


def await_port(port: int, seconds: float = 30) -> bool:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        time.sleep(0.1)
    return False


@contextlib.contextmanager
def direct(engine: str) -> Iterator[Side]:
    port = free_port()
    start = [sys.executable, str(ENGINES[engine]), "--host"]
    with contextlib.ExitStack() as stack:
        path = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "engine.sock")
        child = stack.enter_context(process([*start, "127.0.0.1", "--port", str(port)]))
        stack.enter_context(process([*start, path]))
        await_port(port)
        yield Side("engine itself", port, (child.pid,), path)


NGINX = """
{user} worker_processes 1; daemon off; pid {folder}/pid; error_log /dev/null;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; keepalive_requests 10000000;
  upstream engine {{ server unix:{engine}; keepalive 256; keepalive_requests 10000000; }}
  server {{ listen 127.0.0.1:{port}; location / {{
    proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }} }}
}}
"""


@contextlib.contextmanager
def nginx(program: str, engine: str) -> Iterator[Side]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "nginx.conf"
        # Its worker would be nobody, who may not open the engine's socket.
        user = "user root;" if os.geteuid() == 0 else ""
        config.write_text(NGINX.format(folder=folder, engine=engine, port=port, user=user))
        with process([program, "-p", folder, "-c", str(config), "-e", "/dev/null"]) as child:
            await_port(port)
            workers = [worker.pid for worker in psutil.Process(child.pid).children()]
            yield Side("nginx", port, (child.pid, *workers))


@contextlib.contextmanager
def bare_proxy(engine: int) -> Iterator[Side]:
    port = free_port()
    with process([sys.executable, str(BARE), str(port), str(engine)]) as child:
        await_port(port)
        yield Side("bare proxy in Python", port, (child.pid,))


@contextlib.contextmanager
def litellm(program: str, engine: int) -> Iterator[Side | None]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        model = {"model": "openai/q", "api_base": f"http://127.0.0.1:{engine}/v1", "api_key": "x"}
        config.write_text(json.dumps({"model_list": [{"model_name": "public", "litellm_params": model}]}))
        env = {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "NO_PROXY": "*",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        }
        argv = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        with process(argv, env=env, cwd=folder) as child:
            if not await_port(port, 120):
                yield None
                return
            pids = [child.pid, *(worker.pid for worker in psutil.Process(child.pid).children(recursive=True))]
            yield Side("LiteLLM proxy", port, tuple(pids))


def engine_program(folder: Path, engine: str) -> Path:
    """One that a runtime can start as its llama-server."""
    program = folder / "llama-server"
    start = f"runpy.run_path({str(ENGINES[engine])!r}, run_name='__main__')"
    program.write_text(f"#!{sys.executable}\nimport runpy\n{start}\n")
    program.chmod(0o755)
    return program


@contextlib.contextmanager
def gateway(engine: str) -> Iterator[Side]:
    with tempfile.TemporaryDirectory() as folder:
        node = Path(folder)
        program = engine_program(node, engine)
        operator = Operator()
        prepare_node(node, operator, admin_enabled=True)
        keys = {"app": ApiKeyEntry(sha256=sha256_bytes(KEY.encode()), requests_per_minute=100_000_000)}
        served = member(
            weights(node),
            program,
            max_concurrency=256,
            max_queue_depth=256,
            context_length=4096,
            queue_timeout_ms=60_000,
        )
        desired = content({"q": served}, origins={"localhost": OriginMember(models={"public": "q"})}, api_keys=keys)
        with running(node) as runtime:
            applied = runtime.apply(operator.bundle(desired, 1), None)
            assert "result" in applied, applied
            runtime.await_state("q", "ready")
            status = runtime.status()
            yield Side("sbctl gateway", int(status["http_url"].rsplit(":", 1)[1]), (status["pid"],))


@dataclass
class Measured:
    """Of one side."""

    requests_s: float
    cpu_us: float
    p50_ms: float
    p99_ms: float
    one_p50_ms: float
    chunk_us: float | None = None
    tokens_s: float | None = None


async def measure(side: Side, seconds: float, *, with_streams: bool) -> Measured:
    await load(side.port, request(max_tokens=2), connections=2, seconds=0.3)
    before_s, began_s = side.cpu_s(), time.perf_counter()
    askers = await load(side.port, request(max_tokens=2), connections=CONNECTIONS, seconds=seconds)
    took_s, used_s = time.perf_counter() - began_s, side.cpu_s() - before_s
    times = sorted(each for asker in askers for each in asker.times_s)
    bad = sum(asker.bad for asker in askers)
    assert not bad, f"{side.name}: {bad} answers were not 200"
    one = await load(side.port, request(max_tokens=2), connections=1, seconds=min(2.0, seconds))
    measured = Measured(
        len(times) / took_s,
        used_s / len(times) * 1e6,
        statistics.median(times) * 1e3,
        times[int(len(times) * 0.99)] * 1e3,
        statistics.median(one[0].times_s) * 1e3,
    )
    if with_streams:
        before_s = side.cpu_s()
        chunks, _ = await streams(side.port, request(stream=True, max_tokens=150, seed=20), 100)
        measured.chunk_us = (side.cpu_s() - before_s) / max(1, chunks) * 1e6
        chunks, took_s = await streams(side.port, request(stream=True, max_tokens=600, seed=5), 4)
        measured.tokens_s = chunks / took_s
    return measured


def find(named: str | None, *places: str) -> str | None:
    candidates = [named] if named else [*places]
    return next((found for each in candidates if (found := shutil.which(each))), None)


def row(name: str, measured: Measured) -> str:
    chunk = "" if measured.chunk_us is None else f"{measured.chunk_us:.0f}"
    tokens = "" if measured.tokens_s is None else f"{measured.tokens_s:.0f}"
    return (
        f"| {name} | {measured.requests_s:,.0f} | {measured.cpu_us:.0f} | {measured.p50_ms:.2f} | {measured.p99_ms:.2f} |"
        f" {measured.one_p50_ms:.3f} | {chunk} | {tokens} |"
    )


def measure_all(engine: str, asked: argparse.Namespace) -> None:
    results: dict[str, Measured] = {}
    with contextlib.ExitStack() as stack:
        itself = stack.enter_context(direct(engine))
        results["direct"] = uvloop.run(measure(itself, asked.seconds, with_streams=True))
        if program := find(asked.nginx, "nginx", str(BENCH / "nginx/usr/sbin/nginx")):
            with nginx(program, itself.socket) as side:
                results["nginx"] = uvloop.run(measure(side, asked.seconds, with_streams=True))
        else:
            print("nginx is not here: left out (see the head of this program)")
        with bare_proxy(itself.port) as side:
            results["bare proxy"] = uvloop.run(measure(side, asked.seconds, with_streams=True))
        with gateway(engine) as side:
            results["sbctl"] = uvloop.run(measure(side, asked.seconds, with_streams=True))
        if program := find(asked.litellm, str(BENCH / "litellm/bin/litellm")):
            with litellm(program, itself.port) as peer:
                if peer is None:
                    print("the LiteLLM proxy did not start within two minutes: left out")
                else:
                    results["litellm"] = uvloop.run(measure(peer, asked.seconds, with_streams=False))
        else:
            print("the LiteLLM proxy is not here: left out (see the head of this program)")
    report(engine, results)


def report(engine: str, results: dict[str, Measured]) -> None:
    costs = {"library": "an engine behind an HTTP library", "bare": "an engine that costs nothing"}
    print(f"\n## Before {costs[engine]}\n")
    print("| | requests/s, 16 connections | CPU µs a request | p50 ms | p99 ms | p50 ms, one connection | CPU µs a chunk | tokens/s, 4 streams |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    for name, measured in results.items():
        print(row(name, measured))
    ours, bare = results["sbctl"], results["direct"]
    print()
    if "nginx" in results:
        print(f"of nginx's requests/s: {ours.requests_s / results['nginx'].requests_s:.2f} (mark 0.5)")
    if "litellm" in results:
        print(f"of LiteLLM's requests/s: {ours.requests_s / results['litellm'].requests_s:.0f} (mark 80)")
    print(f"added p50: {ours.one_p50_ms - bare.one_p50_ms:.3f} ms (mark 0.3)")
    print(f"CPU for a chunk: {ours.chunk_us:.0f} µs (mark 60)")
    if ours.tokens_s is not None and bare.tokens_s is not None:
        print(f"of the engine's own tokens/s at 4 streams: {ours.tokens_s / bare.tokens_s:.3f} (mark 0.99)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=list(ENGINES), action="append", help="both, where it is left out")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--nginx")
    parser.add_argument("--litellm")
    asked = parser.parse_args()
    for engine in asked.engine or ENGINES:
        measure_all(engine, asked)


if __name__ == "__main__":
    main()
