"""An OpenAI-compatible API of somebody else, on loopback: what it answers is programmed by key, what it was asked is kept.

with ExternalApi() as api:
    api.answers["Bearer sk-1"] = Answer(429, headers={"Retry-After": "30"})
    …
    api.asked[-1].body["model"]
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

__all__ = ["Answer", "Asked", "ExternalApi", "completion", "events"]


@dataclass(frozen=True)
class Answer:
    """`body` None: what the request asks for, well done. `cut`: the connection ends before the answer does."""

    status: int = 200
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False


@dataclass(frozen=True)
class Asked:
    path: str
    headers: Mapping[str, str]
    body: Any


def completion(model: str, text: str = "from outside") -> bytes:
    return json.dumps(
        {
            "id": "x",
            "object": "chat.completion",
            "model": model,
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"},
            ],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        }
    ).encode()


def events(model: str, *, ends: bool = True) -> bytes:
    rows: list[Any] = [
        {"object": "chat.completion.chunk", "model": model, "choices": [{"index": 0, "delta": {"content": text}}]}
        for text in ("from ", "outside")
    ]
    rows.append({"model": model, "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
    lines = [f"data: {json.dumps(row)}\n\n" for row in rows]
    return "".join([*lines, "data: [DONE]\n\n"] if ends else lines[:1]).encode()


class _QuietServer(ThreadingHTTPServer):
    def handle_error(self, *args: Any) -> None:
        """A caller that leaves, or does not trust us, is what tests are about."""


class ExternalApi:
    """A context manager. `certificate`: PEM file of chain and key, for https."""

    def __init__(self, certificate: str | None = None) -> None:
        self.answers: dict[str | None, Answer] = {}
        """By the Authorization header; what is not listed is answered well."""
        self.asked: list[Asked] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None: ...

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                api.asked.append(Asked(self.path, dict(self.headers), body))
                api._answer(self, body)

        self._server = _QuietServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def base_url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}/v1"

    def _answer(self, handler: BaseHTTPRequestHandler, body: Any) -> None:
        answer = self.answers.get(handler.headers.get("Authorization"), Answer())
        streams = bool(body.get("stream"))
        content = answer.body
        if content is None:
            content = events(body["model"]) if streams else completion(body["model"])
        kind = "text/event-stream" if streams else "application/json"
        headers = {"Content-Type": kind, "Content-Length": str(len(content) + answer.cut), **answer.headers}
        with contextlib.suppress(OSError):
            handler.send_response(answer.status)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(content)
            handler.close_connection = answer.cut

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
