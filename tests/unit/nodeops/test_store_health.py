"""What the store's server says of itself on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sbctl.runtime.nodeops.store_health import look

_BEGAN, _LATER = "2026-11-30T12:05:00.123456789Z", "2026-11-30T12:05:30.5Z"
_DISABLED = {"status": "unavailable", "error": "JetStream not enabled (10076)"}
_FULL = "JetStream stream 'STORE > KV_sbctl_leases' write error: write …/1.blk: no space left on device"


@contextmanager
def _server(answers: Mapping[str, object]) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers.get(self.path, {})).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("health", "data", "now", "is_whole", "is_stuck"),
    [
        ({"status": "ok"}, {}, _LATER, True, False),
        ({"status": "unavailable", "error": "JetStream is not current with the meta leader"}, {}, _LATER, False, False),
        ({"status": "unavailable", "error": _FULL}, {}, _LATER, False, True),
        (_DISABLED, {"disabled": True}, _LATER, False, True),
        (_DISABLED, {"disabled": True}, _BEGAN, False, False),
        (_DISABLED, {"disabled": True}, "soon", False, False),
    ],
    ids=["well", "behind", "stuck alone", "stuck in a group", "just begun", "tells no time"],
)
def test_a_store_that_writes_no_more_is_told_from_one_that_catches_up(
    health: object, data: object, now: str, is_whole: bool, is_stuck: bool
) -> None:
    told = {"server_name": "h1", "version": "2.15.1", "start": _BEGAN, "now": now}
    with _server({"/varz": told, "/healthz": health, "/jsz": data}) as port:
        found = look(port, others=())
    assert found is not None
    assert (found.is_whole, found.is_stuck) == (is_whole, is_stuck)
