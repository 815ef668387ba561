#!/usr/bin/env python3
"""A stand-in for llama-server: the same flags, routes and shapes, no model, and every way an engine can misbehave.

Standard library only, and an executable: copy it to a directory as `llama-server`. It refuses flags that llama-server does not have.
What it does wrong is read from FAKE_LLAMA_CONTROL or `<program>.control.json`, at start and again at each request:

    exit_at_once: 3             exit before anything else           slow_load_s: 2.5        /health answers 503 so long
    never_ready: true           503 for ever                        health_status: 500      what /health answers once loaded
    token_delay_s: 0.01         between two tokens                  tokens: 64              of an answer that asks for no number
    die_after_tokens: 5         the process ends in mid-stream      hang_after_tokens: 5    the stream stops without an end
    hang_requests: true         no answer at all                    ignore_sigterm: true
    fork_child: true            a grandchild that outlives it       stderr_bytes: 1000000   one line so long
    crash_after_s: 1.0          exit 9 so long after loading        other_port: true        listens where nobody expects it
    exit_code_on_term: 3        instead of 0                        help_file: "/…/help.txt"  what --help prints
    version: "0.6.0 (build 1)"  what --version says                 props: {"total_slots": 4}  what /props says otherwise
    escape: true                a grandchild in a session of its own without our environment, which ignores SIGTERM
    memory_mib: 200             so much memory held                 child_memory_mib: 100     by the grandchild
    leak_mib_per_s: 500         ever more memory once loaded
    oom: true                   SIGKILL to itself once loaded       slot_stays_busy: true     after its client has left
    print_after_tokens: [3, "CUDA error"]  and no token any more    health_delay_s: 1.0       before /health answers
    error_status: 503           instead of an answer                header_delay_s: 0.25      before an answer begins
    cut_after_tokens: 1         the connection closes in the stream garbage_sse: true         bytes that are no events
    endless: true               tokens until the client leaves      no_metrics: true          /metrics is not there
    names_itself: true          its process id in each answer      loads_until_told: true    503 of who is started meanwhile

GET /__control says what happened: active, completions, cancelled, tokens.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

SWITCHES = {
    "--kv-unified", "--no-kv-unified", "--no-context-shift", "--context-shift", "--offline", "--no-ui", "--ui", "--warmup",
    "--no-warmup", "--embeddings", "--rerank", "--metrics", "--slots", "--no-slots", "--jinja", "--no-jinja", "--cont-batching", "--props", "--version", "--help",
}  # fmt: skip
VALUED = {
    "--model", "--alias", "--host", "--port", "--ctx-size", "--parallel", "--threads", "--threads-batch", "--threads-http",
    "--batch-size", "--ubatch-size", "--n-gpu-layers", "--flash-attn", "--seed", "--load-mode", "--fit", "--cache-ram", "--ctx-checkpoints", "--timeout",
    "--cache-type-k", "--cache-type-v", "--lora-scaled", "--pooling",
}  # fmt: skip
SHORT = {"-m": "--model", "-a": "--alias", "-c": "--ctx-size", "-np": "--parallel", "-t": "--threads", "-ngl": "--n-gpu-layers",
         "-b": "--batch-size", "-ub": "--ubatch-size", "-fa": "--flash-attn"}  # fmt: skip
BUILD = "9905"


def control() -> dict[str, Any]:
    path = os.environ.get("FAKE_LLAMA_CONTROL") or os.path.abspath(sys.argv[0]) + ".control.json"
    try:
        with open(path, encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return {}


def itself() -> dict[str, str]:
    return {"system_fingerprint": f"fake-{os.getpid()}"} if control().get("names_itself") else {}


def parse(argv: list[str]) -> dict[str, str]:
    """Raises SystemExit as llama-server does: exit 1 and the argument."""
    given: dict[str, str] = {}
    rest = list(argv)
    while rest:
        flag = SHORT.get(rest[0], rest[0])
        rest.pop(0)
        if flag in SWITCHES:
            given[flag] = ""
        elif flag in VALUED and rest:
            given[flag] = rest.pop(0)
        else:
            sys.stderr.write(f"error: invalid argument: {flag}\n")
            raise SystemExit(1)
    return given


class Engine:
    """What the routes share."""

    def __init__(self, given: dict[str, str]) -> None:
        self.given = given
        self.alias = given.get("--alias") or os.path.basename(given["--model"])
        self.slots = int(given.get("--parallel", "4"))
        self.context = int(given.get("--ctx-size", "4096")) // self.slots
        self.free = threading.BoundedSemaphore(self.slots)
        self.lock = threading.Lock()
        self.busy = 0
        self.lingering = 0
        self.completions = 0
        self.cancelled = 0
        self.deferred = 0
        self.tokens_total = 0
        self.prompt_total = 0
        self.loaded_at = time.monotonic() + float(control().get("slow_load_s", 0))
        self.held = bool(control().get("loads_until_told"))

    def ready(self) -> bool:
        told = control()
        self.held = self.held and bool(told.get("loads_until_told"))
        return not self.held and not told.get("never_ready") and time.monotonic() >= self.loaded_at


class Handler(BaseHTTPRequestHandler):
    engine: Engine
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        return None

    def address_string(self) -> str:
        return "local"

    def answer(self, status: int, body: Any, content_type: str = "application/json") -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status: int, kind: str, message: str, **more: Any) -> None:
        self.answer(status, {"error": {"code": status, "message": message, "type": kind, **more}})

    def do_GET(self) -> None:
        engine, path = self.engine, self.path.partition("?")[0]
        if path == "/__control":
            told = {"active": engine.busy, "completions": engine.completions, "cancelled": engine.cancelled}
            self.answer(200, {**told, "tokens": engine.tokens_total})
        elif not engine.ready():
            self.refuse(503, "unavailable_error", "Loading model")
        elif path in ("/health", "/v1/health"):
            time.sleep(float(control().get("health_delay_s", 0)))
            status = int(control().get("health_status", 200))
            if status == 200:
                self.answer(200, {"status": "ok"})
            else:
                self.refuse(status, "server_error", "unwell")
        elif path == "/v1/models":
            model = {"id": engine.alias, "object": "model", "owned_by": "llamacpp", "meta": {"n_ctx": engine.context}}
            self.answer(
                200, {"object": "list", "data": [model], "models": [{"name": engine.alias, "model": engine.alias}]}
            )
        elif path == "/props":
            settings = {"n_ctx": engine.context}
            self.answer(
                200,
                {
                    "default_generation_settings": settings,
                    "total_slots": engine.slots,
                    "model_alias": engine.alias,
                    "model_path": engine.given["--model"],
                    **dict(control().get("props", {})),
                },
            )
        elif path == "/slots" and "--no-slots" not in engine.given:
            self.answer(
                200,
                [
                    {"id": n, "n_ctx": engine.context, "is_processing": n < engine.busy + engine.lingering}
                    for n in range(engine.slots)
                ],
            )
        elif path == "/metrics" and "--metrics" in engine.given and not control().get("no_metrics"):
            rows = {
                "prompt_tokens_total": engine.prompt_total,
                "tokens_predicted_total": engine.tokens_total,
                "requests_processing": engine.busy,
                "requests_deferred": engine.deferred,
            }
            self.answer(
                200, "".join(f"llamacpp:{name} {value}\n" for name, value in rows.items()), "text/plain; version=0.0.4"
            )
        else:
            self.refuse(404, "not_found_error", "File Not Found")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        if not self.engine.ready():
            self.refuse(503, "unavailable_error", "Loading model")
            return
        try:
            asked = json.loads(body)
            assert isinstance(asked, dict)
        except (ValueError, AssertionError):
            self.refuse(400, "invalid_request_error", "the body is not a JSON object")
            return
        mode = control()
        if mode.get("hang_requests"):
            threading.Event().wait()
        time.sleep(float(mode.get("header_delay_s", 0)))
        if mode.get("error_status"):
            self.refuse(int(mode["error_status"]), "server_error", "told to fail")
            return
        if path == "/v1/chat/completions":
            prompt = " ".join(str(message.get("content")) for message in asked.get("messages", []))
            self.complete(asked, prompt, chat=True)
        elif path in ("/v1/completions", "/completion"):
            self.complete(asked, str(asked.get("prompt", "")), chat=False)
        elif path == "/v1/embeddings" and "--embeddings" in self.engine.given:
            vector = {"object": "embedding", "index": 0, "embedding": [0.5, 0.5]}
            self.answer(
                200, {"object": "list", "model": self.engine.alias, "data": [vector], "usage": {"prompt_tokens": 1}}
            )
        elif path == "/v1/rerank" and "--rerank" in self.engine.given:
            scores = [{"index": n, "relevance_score": 1.0 - n / 10} for n, _ in enumerate(asked.get("documents", []))]
            self.answer(200, {"object": "list", "model": self.engine.alias, "results": scores})
        else:
            self.refuse(404, "not_found_error", "File Not Found")

    def complete(self, asked: dict[str, Any], prompt: str, *, chat: bool) -> None:
        engine = self.engine
        prompt_tokens = len(prompt.split())
        if prompt_tokens > engine.context:
            self.refuse(400, "exceed_context_size_error", "the request exceeds the available context size",
                        n_prompt_tokens=prompt_tokens, n_ctx=engine.context)  # fmt: skip
            return
        with engine.lock:
            engine.deferred += 1
        engine.free.acquire()
        with engine.lock:
            engine.deferred -= 1
            engine.busy += 1
            engine.prompt_total += prompt_tokens
        try:
            limit = asked.get("max_tokens") or asked.get("max_completion_tokens") or asked.get("n_predict")
            count = int(limit if limit and limit > 0 else control().get("tokens", 16))
            count = 10**9 if control().get("endless") and asked.get("stream") else count
            words = [f"{word} " for word in (f"echo {prompt}".split() or ["echo"])]
            tokens = (words[number % len(words)] for number in range(count))
            usage = {"prompt_tokens": prompt_tokens, "completion_tokens": count, "total_tokens": prompt_tokens + count}
            if asked.get("stream"):
                self.stream(asked, tokens, usage, chat=chat)
            elif all(self.produce(number) for number in range(min(count, 10**6))):
                self.unary(asked, "".join(tokens), usage, chat=chat)
            engine.completions += 1
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
            engine.cancelled += 1
            engine.lingering += bool(control().get("slot_stays_busy"))
        finally:
            with engine.lock:
                engine.busy -= 1
            engine.free.release()

    def produce(self, number: int) -> bool:
        """One token; False when the client has gone."""
        mode = control()
        if number == mode.get("die_after_tokens"):
            os._exit(9)
        if number == mode.get("hang_after_tokens"):
            threading.Event().wait()
        if number == (mode.get("print_after_tokens") or [None])[0]:
            print(mode["print_after_tokens"][1], file=sys.stderr, flush=True)
            threading.Event().wait()
        if number == mode.get("cut_after_tokens"):
            self.connection.shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError
        time.sleep(float(mode.get("token_delay_s", 0)))
        if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(1, socket.MSG_PEEK):
            self.close_connection = True
            raise ConnectionResetError
        with self.engine.lock:
            self.engine.tokens_total += 1
        return True

    def unary(self, asked: dict[str, Any], text: str, usage: dict[str, int], *, chat: bool) -> None:
        choice = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        kind = "chat.completion" if chat else "text_completion"
        self.answer(200, {"id": "chatcmpl-fake", "object": kind, "created": 0, "model": asked.get("model", self.engine.alias), **itself(),
                          "choices": [{"index": 0, "finish_reason": "length", **choice}], "usage": usage})  # fmt: skip

    def stream(self, asked: dict[str, Any], tokens: Iterator[str], usage: dict[str, int], *, chat: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        head = {"id": "chatcmpl-fake", "created": 0, "model": asked.get("model", self.engine.alias), **itself(),
                "object": "chat.completion.chunk" if chat else "text_completion"}  # fmt: skip
        if control().get("garbage_sse"):
            self.wfile.write(b'1f\r\n\xff\xfe{not an event\x00 data: {"half\r\nzz')
            raise ConnectionResetError
        for number, token in enumerate(tokens):
            if not self.produce(number):
                return
            delta = {"delta": {"content": token}} if chat else {"text": token}
            self.event({**head, "choices": [{"index": 0, "finish_reason": None, **delta}]})
        end = {"delta": {}} if chat else {"text": ""}
        self.event({**head, "choices": [{"index": 0, "finish_reason": "length", **end}]})
        if (asked.get("stream_options") or {}).get("include_usage"):
            self.event({**head, "choices": [], "usage": usage})
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, data: Any) -> None:
        line = f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.flush()


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128

    def get_request(self) -> tuple[socket.socket, Any]:
        request, _ = super().get_request()
        return request, ("local", 0)


class TcpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128


def leak(mib_per_s: float) -> None:
    """For ever; what was leaked stays touched."""
    held = []
    while True:
        held.append(b"x" * (4 << 20))
        time.sleep(4 / mib_per_s)


def main(argv: list[str]) -> None:
    given = parse(argv)
    if "--version" in given:
        said = control().get("version", f"{BUILD} (024c46ae4)")
        sys.stderr.write(f"version: {said}\nbuilt with nothing for Linux x86_64\n")
        return
    mode = control()
    if "--help" in given:
        if mode.get("help_file"):
            with open(mode["help_file"], encoding="utf-8") as file:
                print(file.read())
        else:
            print("\n".join(sorted(SWITCHES | VALUED)))
        return
    if "exit_at_once" in mode:
        sys.stderr.write("error: told to exit\n")
        raise SystemExit(int(mode["exit_at_once"]))
    if not os.path.isfile(given.get("--model", "")):
        sys.stderr.write(f"error: failed to open {given.get('--model')}\n")
        raise SystemExit(1)
    left = int(mode.get("stderr_bytes", 0))
    while left > 0:
        left -= os.write(2, b"x" * min(left, 1 << 20))
    if mode.get("stderr_bytes"):
        os.write(2, b"\n")
    if mode.get("fork_child"):
        subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, start_new_session=bool(mode.get("fork_session")))
    if mode.get("escape"):
        child = "import signal,time;signal.signal(15,signal.SIG_IGN);held=bytearray({}<<20);time.sleep(1000)"
        code = child.format(int(mode.get("child_memory_mib", 0)))
        null = subprocess.DEVNULL
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=null, stdout=null, stderr=null, env={}, start_new_session=True
        )
    held = bytearray(int(mode.get("memory_mib", 0)) << 20)

    def terminate(_number: int, _frame: Any) -> None:
        if not control().get("ignore_sigterm"):
            os._exit(int(control().get("exit_code_on_term", 0)))

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, terminate)
    Handler.engine = Engine(given)
    if mode.get("crash_after_s"):
        threading.Timer(float(mode["crash_after_s"]), os._exit, (9,)).start()
    if mode.get("leak_mib_per_s"):
        threading.Thread(target=leak, args=(float(mode["leak_mib_per_s"]),), daemon=True).start()
    if mode.get("oom"):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    host = given.get("--host", "127.0.0.1")
    server: socketserver.BaseServer
    if host.startswith("/"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(host)
        server = UnixServer(host, Handler)
    else:
        port = int(given.get("--port", "8080"))
        server = TcpServer((host, 0 if mode.get("other_port") else port), Handler)
    print(f"main: server is listening on {host}", flush=True)
    server.serve_forever(poll_interval=0.05)
    del held


if __name__ == "__main__":
    main(sys.argv[1:])
