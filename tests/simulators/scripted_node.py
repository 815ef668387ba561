"""A host in memory behind the `Transport` port: it answers the bootstrap from a dict and the node interface from a function."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbctl.node.frames import encode_frame, read_frame
from sbctl.remote.transport import Progress

__all__ = ["CUT", "STALL", "ScriptedChannel", "ScriptedTransport", "facts_of"]

CUT = b"cut"
"""In place of a message: the connection ends here."""
STALL = b"stall"
"""In place of a message: nothing comes any more."""

Answer = Mapping[str, Any] | bytes
Handler = Callable[[dict[str, Any]], Iterable[Answer]]

HELLO: Mapping[str, Any] = {"hello": {"protocol": 1, "version": "0.1.0", "pid": 4711}}


def facts_of(
    *, current: str | None = None, installed: Sequence[str] = (), pythons: Sequence[str] = ("/usr/bin/python3.11",)
) -> dict[str, Any]:
    return {
        "host": {
            "hostname": "gpu-a",
            "arch": "x86_64",
            "pythons": [{"path": path, "version": "3.11.2"} for path in pythons],
        },
        "marker": None,
        "paths": {"etc": "/etc/sbctl", "state": "/s", "cache": "/c", "opt": "/opt/sbctl", "staging": "/s/staging"},
        "disk": {},
        "runtime": {"installed_versions": list(installed), "current_version": current},
        "environment": {"HOME": "/root", "PATH": "relative:/usr/bin", "XDG_RUNTIME_DIR": "/run/user/0"},
    }


class ScriptedChannel:
    """Says hello, then answers each request by the handler's messages."""

    def __init__(self, handler: Handler, first: Sequence[Answer], status: int | None, stderr: str) -> None:
        self._handler = handler
        self._pending: list[Answer] = list(first)
        self._buffer = b""
        self._status = status
        self._stderr = stderr
        self.requests: list[dict[str, Any]] = []
        self.closed = False
        self.refuses_input = False

    def receive(self, count: int, timeout_s: float) -> bytes:
        while not self._buffer:
            if not self._pending or self._pending[0] is CUT:
                return b""
            if self._pending[0] is STALL:
                raise TimeoutError
            message = self._pending.pop(0)
            self._buffer = message if isinstance(message, bytes) else encode_frame(message)
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def send(self, data: bytes, timeout_s: float) -> None:
        if self.refuses_input:
            raise BrokenPipeError
        request = read_frame(io.BytesIO(data).read)
        assert request is not None
        self.requests.append(request)
        self._pending += self._handler(request)

    def ended(self, timeout_s: float) -> int | None:
        return self._status

    def stderr_tail(self) -> str:
        return self._stderr

    def close(self) -> None:
        self.closed = True


@dataclass
class ScriptedTransport:
    """`bootstrapped` answers by command: a mapping, or an error to raise; a list is used up one by one."""

    handler: Handler = lambda request: [{"id": request["id"], "result": {}}]
    bootstrapped: dict[str, Any] = field(default_factory=dict)
    first: Sequence[Answer] = (HELLO,)
    status: int | None = None
    stderr: str = ""
    missing: bool = False
    asked: list[tuple[str, dict[str, Any], str | None]] = field(default_factory=list)
    opened: list[tuple[list[str], dict[str, str]]] = field(default_factory=list)
    channels: list[ScriptedChannel] = field(default_factory=list)
    uploads: list[tuple[Path, str]] = field(default_factory=list)
    closed: bool = False

    def bootstrap(
        self, command: str, params: Mapping[str, Any], *, python: str | None, deadline_s: float
    ) -> Mapping[str, Any]:
        self.asked.append((command, dict(params), python))
        answer = self.bootstrapped.get(command, {})
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    def open_channel(
        self, argv: Sequence[str], environment: Mapping[str, str], *, deadline_s: float
    ) -> ScriptedChannel:
        if self.missing:
            raise FileNotFoundError(argv[0])
        self.opened.append((list(argv), dict(environment)))
        channel = ScriptedChannel(self.handler, self.first, self.status, self.stderr)
        self.channels.append(channel)
        return channel

    def upload(self, source: Path, target: str, *, deadline_s: float, progress: Progress) -> None:
        self.uploads.append((source, target))
        progress(source.stat().st_size, source.stat().st_size)

    def close(self) -> None:
        self.closed = True
