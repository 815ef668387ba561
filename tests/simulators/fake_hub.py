"""A model hub with what tests put into it: repositories at commits, large files with digests, small ones without, branches that move.

`requests` keeps each path with the Authorization it came with. A repository in `gated` answers 403 without the token; where
`status` is set, that is the answer to everything.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["FakeHub", "hub"]

_LARGE_BYTES = 1000


@dataclass
class _State:
    files: Mapping[str, bytes]
    facts: dict[str, Any]


@dataclass
class _Repository:
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, _State] = field(default_factory=dict)


class FakeHub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, _Repository] = {}
        self.gated: dict[str, str] = {}
        self.status: int | None = None
        self.requests: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def publish(self, repository: str, files: Mapping[str, bytes], **facts: Any) -> str:
        """A new commit at the head of main; `facts` go into the hub's answer as they are. Returns the commit."""
        kept = self.repositories.setdefault(repository, _Repository())
        commit = hashlib.sha1(f"{repository}{len(kept.commits)}".encode(), usedforsecurity=False).hexdigest()
        kept.commits[commit] = _State(dict(files), facts)
        kept.branches["main"] = commit
        return commit

    def state(self, repository: str, revision: str) -> tuple[str, _State] | None:
        kept = self.repositories.get(repository, _Repository())
        commit = kept.branches.get(revision, revision)
        return (commit, kept.commits[commit]) if commit in kept.commits else None


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_GET(self) -> None:
        authorization = self.headers.get("Authorization", "")
        self.server.requests.append((self.path, authorization))
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        listing = parts[:2] == ["api", "models"]
        parts = parts[2:] if listing else parts
        repository, revision, path = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
        token = self.server.gated.get(repository)
        found = self.server.state(repository, revision)
        if self.server.status is not None:
            self._answer(self.server.status, b"{}")
        elif token is not None and authorization != f"Bearer {token}":
            self._answer(403, b"{}")
        elif found is None or (not listing and path not in found[1].files):
            self._answer(404, b"{}")
        elif listing:
            self._answer(200, json.dumps(_told(*found)).encode())
        else:
            self._answer(200, found[1].files[path])

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Quiet."""


def _told(commit: str, state: _State) -> dict[str, Any]:
    siblings = []
    for path, content in state.files.items():
        one: dict[str, Any] = {"rfilename": path, "size": len(content)}
        if len(content) >= _LARGE_BYTES:
            one["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        siblings.append(one)
    return {"sha": commit, "siblings": siblings, **state.facts}


@contextmanager
def hub() -> Iterator[FakeHub]:
    server = FakeHub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
