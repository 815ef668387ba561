"""A node of its own in a directory: paths, context, and a stand-in for the runtime behind the control socket."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

import pytest

from sbctl.node.paths import PREFIX_VARIABLE, node_paths
from sbctl.runtime.nodeops.context import NodeContext

Answer = Callable[[str, str, Any], tuple[int, list[Any]]]


class FakeRuntime:
    """Answers each request by `answers[(method, path)]`: a status and JSON lines. Records what came."""

    def __init__(self, path: Path) -> None:
        self.requests: list[tuple[str, str, Any]] = []
        self.answers: dict[tuple[str, str], tuple[int, list[Any]]] = {}
        runtime = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                return None

            def address_string(self) -> str:
                return "local"

            def do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = json.loads(body) if body else None
                runtime.requests.append((self.command, self.path, asked))
                status, lines = runtime.answers.get((self.command, self.path), (404, [{}]))
                data = b"".join(
                    line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines
                )
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = do

        class Server(ThreadingMixIn, UnixStreamServer):
            daemon_threads = True

            def get_request(self) -> tuple[socket.socket, Any]:
                request, _ = super().get_request()
                return request, ("local", 0)

        self._server = Server(str(path), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def prefix() -> Iterator[Path]:
    """Short, since a socket lives in it."""
    with tempfile.TemporaryDirectory(prefix="sbn", dir="/tmp") as name:
        path = Path(name)
        for part in ("etc", "state", "cache", "opt"):
            (path / part).mkdir()
        (path / "etc" / "marker.json").write_text('{"lineage": "L", "host": "h"}\n')
        yield path


@pytest.fixture
def context(prefix: Path) -> NodeContext:
    environ = {PREFIX_VARIABLE: str(prefix), "HOME": str(prefix), "PATH": "/nonexistent"}
    return NodeContext(node_paths(os.getuid(), environ), environ, os.getuid())


@pytest.fixture
def runtime(context: NodeContext) -> Iterator[FakeRuntime]:
    fake = FakeRuntime(context.paths.control_socket)
    yield fake
    fake.close()


def install_version(context: NodeContext, version: str = "0.1.0") -> None:
    """What the facts take for an installed runtime."""
    program = context.paths.version(version) / "bin" / "sbctl-runtime"
    program.parent.mkdir(parents=True)
    program.write_text("")
