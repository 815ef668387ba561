"""An engine program with faults on order: takes llama-server's flags, answers its routes, misbehaves as `--behave` says.

    load-s=SECONDS         loads that long: 503 until then          exit=CODE             prints a reason and exits while loading
    ignore-term            survives SIGTERM                         grandchild            leaves a child in a session of its own
    flood                  prints one endless line while it runs    ctx=N                 reports N tokens of context
    tokens=N, token-s=S    N stream chunks, S seconds apart         die-after=N           kills itself after N chunks
    stall                  accepts a request and never answers      journal=FILE          appends start, done, cancelled for each request
    refuse                 answers 400 to every completion

Standard library only; importing it starts nothing.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

PROGRAM = str(Path(__file__).resolve())


class _Settings:
    def __init__(self, argv: list[str]) -> None:
        self.behave: dict[str, str] = {}
        self.flags: dict[str, str] = {}
        position = 0
        while position < len(argv):
            flag = argv[position]
            value = argv[position + 1] if position + 1 < len(argv) and not argv[position + 1].startswith("--") else None
            position += 1 if value is None else 2
            if flag == "--behave":
                name, _, text = str(value).partition("=")
                self.behave[name] = text
            else:
                self.flags[flag] = value or ""
        self.loaded_at_s = time.monotonic() + float(self.behave.get("load-s", "0"))
        self.tokens = 0

    def note(self, what: str) -> None:
        if "journal" in self.behave:
            with open(self.behave["journal"], "a", encoding="utf-8") as journal:
                journal.write(what + "\n")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    settings: _Settings

    def log_message(self, *_arguments: Any) -> None: ...

    def address_string(self) -> str:
        return "local"

    def _json(self, status: int, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        settings = self.settings
        if self.path == "/health":
            loaded = time.monotonic() >= settings.loaded_at_s
            self._json(200 if loaded else 503, {"status": "ok" if loaded else "loading"})
        elif self.path == "/props":
            slots = int(settings.flags.get("--parallel", "1"))
            context = int(settings.behave.get("ctx", int(settings.flags.get("--ctx-size", "4096")) // slots))
            self._json(200, {"default_generation_settings": {"n_ctx": context}, "total_slots": slots})
        elif self.path == "/metrics":
            data = f"llamacpp:tokens_predicted_total {settings.tokens}\n".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        else:
            self._json(404, {"error": {"code": 404, "message": "not here"}})

    def do_POST(self) -> None:
        settings = self.settings
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        settings.note("start " + json.dumps(body, sort_keys=True))
        if "refuse" in settings.behave:
            self._json(400, {"error": {"code": 400, "message": "the request exceeds the context", "type": "invalid"}})
            return
        try:
            if "stall" in settings.behave and body.get("max_tokens") != 1:
                self._stall()
            elif body.get("stream"):
                self._stream(body)
            else:
                self._unary(body)
            settings.note("done")
        except OSError:
            settings.note("cancelled")
            self.close_connection = True

    def _stall(self) -> None:
        self.connection.settimeout(0.05)
        while True:
            try:
                if not self.connection.recv(1):
                    raise ConnectionResetError
            except TimeoutError:
                continue

    def _unary(self, body: dict[str, Any]) -> None:
        chat = "chat" in self.path
        text = "Paris."
        choice = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        self.settings.tokens += 1
        answer = {
            "id": "x",
            "object": "chat.completion" if chat else "text_completion",
            "model": body["model"],
            "choices": [{"index": 0, "finish_reason": "stop", **choice}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            "__verbose": {"model_path": self.settings.flags.get("--model", "")},
        }
        self._json(200, answer)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _stream(self, body: dict[str, Any]) -> None:
        settings = self.settings
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for index in range(int(settings.behave.get("tokens", "4"))):
            delta = {"content": f"t{index} "}
            event = {"id": "x", "object": "chat.completion.chunk", "model": body["model"], "choices": [{"index": 0, "delta": delta}]}
            self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")
            settings.tokens += 1
            if index + 1 == int(settings.behave.get("die-after", "-1")):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(float(settings.behave.get("token-s", "0")))
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")


class _TcpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def _flood() -> None:
    while True:
        os.write(2, b"x" * 65536)


def main(argv: list[str]) -> int:
    """Serve until a signal."""
    settings = _Settings(argv)
    if "--help" in argv:
        print("--model --host --port --ctx-size --parallel --threads --alias")  # noqa: T201
        return 0
    if "exit" in settings.behave:
        sys.stderr.write("loading\nerror: tensor data is not within the file bounds\n")
        return int(settings.behave["exit"])
    if "ignore-term" in settings.behave:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "grandchild" in settings.behave:
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
    if "flood" in settings.behave:
        threading.Thread(target=_flood, daemon=True).start()
    handler = type("Handler", (_Handler,), {"settings": settings})
    host = settings.flags["--host"]
    server: socketserver.BaseServer
    if host.startswith("/"):
        server = _UnixServer(host, handler)
    else:
        server = _TcpServer((host, int(settings.flags["--port"])), handler)
    if isinstance(server, _TcpServer):
        server.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sys.stderr.write("listening\n")
    sys.stderr.flush()
    server.serve_forever(poll_interval=0.1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
