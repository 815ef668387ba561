"""What the runtime adds to a cold start: a request for a model that is not loaded, beside the bare engine with the same command line.

    .venv/bin/python benchmarks/cold_start.py [--turns N] [--rest SECONDS]

The real engine (llama.cpp from its wheel) and a small model of the built-in catalog, applied to a temporary directory of this machine. The two
sides take turns, so that other work on the machine meets both alike: the bare engine is started and asked as soon as it answers (looked at
every five milliseconds); the runtime is asked for the model after its memory was freed. Wall milliseconds to the first piece of text: median
and least of N turns. Before and after them the runtime's memory: at rest, with `--rest` after so many seconds of requests too.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.simulators.operator_world import OperatorWorld, new_world, until  # noqa: E402

MARK_MS: Final = 200
MODEL: Final = {
    "model": "smollm2-135m-instruct",
    "variant": "q4_1",
    "pull": "on_boot",
    "warm": False,
    "cold_start": "wait",
}
LOOK_S: Final = 0.005
DEADLINE_S: Final = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument(
        "--rest", type=float, default=0.0, help="seconds of requests, whose end is compared with their beginning"
    )
    asked = parser.parse_args()
    with new_world() as world:
        world.file.write_text(configuration(world))
        world.sbctl("apply", "--yes", save=False, expect=0)
        [daemon] = world.running("main serve")
        print(f"load average {os.getloadavg()[0]:.1f}; runtime at rest: {rss_mb(daemon):.0f} MB RSS (mark 100)")
        first_text_s(runtime_connection(world))
        engine = until(lambda: engine_of(world), "the engine runs")
        argv = engine.cmdline()
        # Not the token by which the runtime knows its own: it would end a stranger that carries it.
        environ = {name: value for name, value in engine.environ().items() if not name.startswith("SBCTL_")}
        bare, through = [], []
        for _ in range(asked.turns):
            evicted(world)
            bare.append(bare_start_s(world, argv, environ))
            through.append(first_text_s(runtime_connection(world)))
        report(bare, through)
        if asked.rest:
            soaked(world, daemon, asked.rest)


def configuration(world: OperatorWorld) -> str:
    host = {"address": "local", "delivery": "push"}
    return json.dumps(
        {
            "fleet": {"name": "cold", "hosts": {"here": host}},
            "proxy": {
                "http_bind_port": world.port,
                "admin": {"enabled": True, "port": world.admin_port},
                "model_host": {"shutdown_deadline_ms": 2000, "deployments": {"chat": MODEL}},
            },
            "origins": {"localhost": {"action": world.serving(chat=["chat"])}},
        }
    )


def rss_mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 1e6


def engine_of(world: OperatorWorld) -> psutil.Process | None:
    for process in world.processes():
        with contextlib.suppress(psutil.Error):  # it may end while it is looked at
            if any(word.endswith(".gguf") for word in process.cmdline()):
                return process
    return None


def evicted(world: OperatorWorld) -> None:
    """The model's memory is free, and its process gone."""
    status, told = world.admin("POST", "/admin/model-host/evict", {"deployment": "chat"})
    if status != 202:
        raise SystemExit(f"evict: {status} {told}")
    until(lambda: engine_of(world) is None, "the engine ends")


def runtime_connection(world: OperatorWorld) -> Callable[[], http.client.HTTPConnection]:
    return lambda: http.client.HTTPConnection("127.0.0.1", world.port, timeout=DEADLINE_S)


def bare_start_s(world: OperatorWorld, argv: list[str], environ: dict[str, str]) -> float:
    """From the start of the engine by itself to the first text."""
    path = Path(world.root) / "bare.sock"
    words = [f"{path}" if word.endswith(".sock") else word for word in argv]
    began_s = time.monotonic()
    with started(words, environ, path) as engine:
        while not path.exists():
            if engine.poll() is not None or time.monotonic() - began_s > DEADLINE_S:
                raise SystemExit(f"the bare engine did not start: {engine.returncode}")
            time.sleep(LOOK_S)

        def connection() -> http.client.HTTPConnection:
            made = http.client.HTTPConnection("engine", timeout=DEADLINE_S)
            made.sock = socket.socket(socket.AF_UNIX)
            made.sock.settimeout(DEADLINE_S)
            made.sock.connect(str(path))
            return made

        first_text_s(connection)
        return time.monotonic() - began_s


@contextmanager
def started(argv: list[str], environ: dict[str, str], path: Path) -> Iterator[subprocess.Popen[bytes]]:
    engine = subprocess.Popen(
        argv, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield engine
    finally:
        engine.kill()
        engine.wait()
        path.unlink(missing_ok=True)


def first_text_s(connection: Callable[[], http.client.HTTPConnection]) -> float:
    """From before the request to its first piece of text; asked again while the engine says that it loads."""
    body = json.dumps(
        {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": True}
    )
    began_s = time.monotonic()
    while time.monotonic() - began_s < DEADLINE_S:
        with contextlib.suppress(ConnectionError, FileNotFoundError, http.client.HTTPException):
            asking = connection()
            try:
                asking.request(
                    "POST", "/v1/chat/completions", body, {"Content-Type": "application/json", "Host": "localhost"}
                )
                answer = asking.getresponse()
                while answer.status == 200 and (line := answer.readline()):
                    if has_text(line):
                        return time.monotonic() - began_s
            finally:
                asking.close()
        time.sleep(LOOK_S)
    raise SystemExit("no text came")


def has_text(line: bytes) -> bool:
    data = line.removeprefix(b"data: ").strip()
    if not data.startswith(b"{"):
        return False
    event: Any = json.loads(data)
    return any(choice.get("delta", {}).get("content") for choice in event.get("choices", ()))


def report(bare: list[float], through: list[float]) -> None:
    print(f"{'to the first text, ms':28}{'median':>8}{'least':>8}")
    for name, times_s in (("bare engine", bare), ("a request to the runtime", through)):
        print(f"{name:28}{1000 * statistics.median(times_s):8.0f}{1000 * min(times_s):8.0f}")
    added_ms = [1000 * (one - other) for one, other in zip(through, bare, strict=True)]
    print(f"{'added, turn by turn':28}{statistics.median(added_ms):8.0f}{min(added_ms):8.0f}   (mark {MARK_MS})")


def soaked(world: OperatorWorld, daemon: psutil.Process, seconds: float) -> None:
    """Requests one after another; the memory after the first fifth of them and at their end."""
    seen: list[float] = []
    count, end_s = 0, time.monotonic() + seconds
    while time.monotonic() < end_s:
        first_text_s(runtime_connection(world))
        count += 1
        seen.append(rss_mb(daemon))
    print(
        f"{count} requests in {seconds:.0f} s: {seen[len(seen) // 5]:.1f} MB RSS after a fifth of them, {seen[-1]:.1f} at the end"
    )


if __name__ == "__main__":
    main()
