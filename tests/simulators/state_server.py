"""A server of the protocol that Terraform's `http` backend uses, with the faults of real ones.

One document and one lock a path. Documents need `?ID=` of the lock while it is held; with `gitlab=True` the lock lives under `PATH/lock`
(POST and DELETE), and a document must be JSON whose `serial` is greater than the stored one. `faults` are struck one a request, first match
first: `500`, `429`, `cut` (half an answer), `lost` (done, but the connection breaks before the answer), `stale` (the document before the
last), `redirect`, `401`.

As a program (`python -m tests.simulators.state_server`) it prints its port and serves until it is stopped.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

__all__ = ["Place", "StateServer", "serving"]


@dataclass
class Place:
    """What stands at one path."""

    documents: list[bytes] = field(default_factory=list)
    holder: dict[str, Any] | None = None

    @property
    def document(self) -> bytes | None:
        return self.documents[-1] if self.documents else None

    @property
    def json(self) -> dict[str, Any]:
        assert self.document is not None
        loaded: dict[str, Any] = json.loads(self.document)
        return loaded


class StateServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *, gitlab: bool = False, user: str = "", password: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.gitlab = gitlab
        self.credentials = base64.b64encode(f"{user}:{password}".encode()).decode() if user else ""
        self.places: dict[str, Place] = {}
        self.faults: list[tuple[str, str]] = []
        self.asked: list[str] = []
        self.turn = threading.Lock()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def url(self, path: str = "/state") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def place(self, path: str = "/state") -> Place:
        return self.places.setdefault(path, Place())

    def fail(self, *faults: tuple[str, str]) -> None:
        """Strike the next requests of these methods."""
        self.faults.extend(faults)

    def fault(self, method: str) -> str:
        for index, (wanted, kind) in enumerate(self.faults):
            if wanted in (method, "*"):
                del self.faults[index]
                return kind
        return ""


class _Handler(BaseHTTPRequestHandler):
    server: StateServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def _any(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        location = ""
        with self.server.turn:
            self.server.asked.append(self.command)
            kind = self.server.fault(self.command)
            status, answer = 0, b""
            if kind in ("500", "429", "401", "412"):
                status = int(kind)
            elif kind == "redirect":
                status, location = 302, "http://127.0.0.1:1/"
            elif self.server.credentials and self.headers.get("authorization") != f"Basic {self.server.credentials}":
                status = 401
            else:
                status, answer = self._work(parts.path, parse_qs(parts.query).get("ID", [""])[0], body, kind)
        if kind == "lost":
            self.close_connection = True
            self.connection.close()
        else:
            self._answer(status, answer, cut=kind == "cut", location=location)

    do_GET = do_POST = do_PUT = do_DELETE = do_LOCK = do_UNLOCK = _any

    def _work(self, path: str, lock_id: str, body: bytes, kind: str) -> tuple[int, bytes]:
        on_lock = self.server.gitlab and path.endswith("/lock")
        place = self.server.place(path.removesuffix("/lock") if on_lock else path)
        method = self.command
        if method == "LOCK" or (on_lock and method == "POST"):
            return self._lock(place, body)
        if method == "UNLOCK" or (on_lock and method == "DELETE"):
            return self._unlock(place, body)
        if method == "GET":
            documents = place.documents[:-1] if kind == "stale" and len(place.documents) > 1 else place.documents
            return (200, documents[-1]) if documents else (404, b"")
        if place.holder is not None and place.holder["ID"] != lock_id:
            return 423, json.dumps(place.holder).encode()
        if method == "DELETE":
            place.documents.clear()
            return 200, b""
        told = self.headers.get("content-md5")
        if told and base64.b64decode(told) != hashlib.md5(body).digest():
            return 400, b""
        if self.server.gitlab and not self._grows(place, body):
            return 400, b'{"message":"serial"}'
        place.documents.append(body)
        return 200, b""

    @staticmethod
    def _grows(place: Place, body: bytes) -> bool:
        serial = json.loads(body).get("serial")
        return isinstance(serial, int) and (place.document is None or serial > place.json["serial"])

    @staticmethod
    def _lock(place: Place, body: bytes) -> tuple[int, bytes]:
        if place.holder is not None:
            return 423, json.dumps(place.holder).encode()
        place.holder = json.loads(body)
        return 200, b""

    @staticmethod
    def _unlock(place: Place, body: bytes) -> tuple[int, bytes]:
        if place.holder is None:
            return 200, b""
        if json.loads(body or b"{}").get("ID") != place.holder["ID"]:
            return 409, json.dumps(place.holder).encode()
        place.holder = None
        return 200, b""

    def _answer(self, status: int, body: bytes, *, cut: bool = False, location: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if body:
            self.send_header("Content-MD5", base64.b64encode(hashlib.md5(body).digest()).decode())
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.close_connection = True


@contextmanager
def serving(**options: Any) -> Iterator[StateServer]:
    """A server of this process, on a free port of loopback."""
    server = StateServer(**options)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def main() -> None:
    server = StateServer()
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
