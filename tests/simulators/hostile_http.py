"""An HTTP server on loopback that does what servers do at their worst: cuts, stalls, lies about length and range, redirects anywhere.

async with HostileServer() as server:
    server.serve("/weights", data, etag='"a"', cuts=[1000])
    server.reply("/moved", Reply(302, {"Location": "https://elsewhere.example/"}))
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

__all__ = ["HostileServer", "Reply", "Request"]


@dataclass(frozen=True)
class Request:
    """What came in; header names in lower case."""

    path: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Reply:
    """What goes out. `length` is announced whatever the body is; None announces nothing and ends by closing."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    announce: int | None = -1
    stall: bool = False
    drip: Callable[[Callable[[bytes], Awaitable[None]]], Awaitable[None]] | None = None
    """Sends more behind the body, in its own time."""


Handler = Callable[[Request], Reply]


class HostileServer:
    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._handlers: dict[str, Handler] = {}
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]

    def handle(self, path: str, handler: Handler) -> None:
        self._handlers[path] = handler

    def reply(self, path: str, *replies: Reply) -> None:
        """One after another; the last for ever."""
        queue = list(replies)
        self._handlers[path] = lambda _request: queue.pop(0) if len(queue) > 1 else queue[0]

    def serve(
        self, path: str, data: bytes, *, etag: str = "", ranges: bool = True, cuts: list[int] | None = None
    ) -> None:
        """A file; each entry of `cuts` ends one answer after so many bytes."""
        left = list(cuts or [])

        def handler(request: Request) -> Reply:
            headers = {"ETag": etag} if etag else {}
            match = re.fullmatch(r"bytes=([0-9]+)-", request.headers.get("range", ""))
            start, status = 0, 200
            matches = request.headers.get("if-range", etag) == etag
            if match and ranges and matches:
                start, status = int(match[1]), 206
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            body = data[start:]
            cut = left.pop(0) if left else len(body)
            return Reply(status, headers, body[:cut], announce=len(body))

        self._handlers[path] = handler

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        path = head[0].split(" ")[1]
        pairs = (line.partition(":") for line in head[1:] if line)
        request = Request(path, {name.strip().lower(): value.strip() for name, _, value in pairs})
        self.requests.append(request)
        handler = self._handlers.get(path, lambda _request: Reply(404))
        reply = handler(request)
        headers = {"Connection": "close", **reply.headers}
        if reply.announce is not None:
            headers["Content-Length"] = str(len(reply.body) if reply.announce < 0 else reply.announce)
        lines = [f"HTTP/1.1 {reply.status} Answer", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + reply.body)
        await writer.drain()
        if reply.drip is not None:

            async def send(data: bytes) -> None:
                writer.write(data)
                await writer.drain()

            await reply.drip(send)
        if reply.stall:
            await asyncio.Event().wait()
