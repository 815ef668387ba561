"""HTTP listeners that cannot be held: what aiohttp does not bound, a thin protocol around each connection does.

- a request's header must be complete 5 s after its first byte (or after the connection was made) and within 16 KiB;
- a peer that does not read its answer is cut after 30 s without progress;
- at most so many connections; a few more are accepted so that health routes still answer, everything else is refused there;
- before it ends it says so: every answer carries `Connection: close`, and a connection is closed only once it was idle for a while.

Bodies are bounded by `read_body`, in bytes and in time.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from aiohttp import web

from sbctl.base.errors import InputError
from sbctl.base.limits import HTTP_HEADER_DEADLINE_S, HTTP_HEADER_MAX_BYTES, HTTP_IDLE_S
from sbctl.runtime.log import get_log
from sbctl.runtime.tls_server import TlsServer

__all__ = [
    "BODY_DEADLINE_S",
    "ENDING",
    "PROBE_ROUTES",
    "Handler",
    "Listener",
    "ListenerLimits",
    "json_headers",
    "read_body",
]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

PROBE_ROUTES: Final = ("/health", "/healthz", "/readyz", "/livez")

BODY_DEADLINE_S: Final = 60.0

ENDING: Final = web.AppKey("ending", asyncio.Event)
"""Of an application that listens: set as soon as it takes nothing new. Answers that have no end of their own end then."""

_IDLE_GRACE_S: Final = 2.0
_POLL_S: Final = 0.05
_BACKLOG: Final = 4096
"""As the socket unit has it: listen(2) on a socket that was handed over sets it anew."""
_RESERVED: Final = 16
_DESCRIPTORS_A_CONNECTION: Final = 2


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Seconds and counts of one listener."""

    header_s: float = HTTP_HEADER_DEADLINE_S
    write_stall_s: float = 30.0
    idle_s: float = HTTP_IDLE_S
    connections: int = 1024


class _Connection(asyncio.Protocol):
    """Passes everything to aiohttp's protocol and watches the clock."""

    def __init__(self, inner: asyncio.Protocol, listener: Listener) -> None:
        self._inner = inner
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle_since_s = asyncio.get_running_loop().time()
        self._stall: asyncio.TimerHandle | None = None
        self._in_request = False
        self._header_bytes = 0
        self._header_tail = b""
        self._header_complete = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is no subclass of asyncio's.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        self._listener.opened(transport, self)
        self._arm()
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._in_request:
            if self._timer is None:
                self._arm()
            self._count_header(data)
            if self._header_bytes > HTTP_HEADER_MAX_BYTES:
                self._cut()
                return
        self._inner.data_received(data)

    def _count_header(self, data: bytes) -> None:
        """Up to its end only: a body may arrive before the request is taken up."""
        if self._header_complete:
            return
        fresh = data if self._header_bytes else data.lstrip(b"\r\n")
        seen = self._header_tail + fresh
        end = seen.find(b"\r\n\r\n")
        self._header_complete = end >= 0
        self._header_bytes += len(fresh) if end < 0 else max(0, end - len(self._header_tail))
        self._header_tail = seen[-3:]

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._stall = asyncio.get_running_loop().call_later(self._listener.limits.write_stall_s, self._cut)
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        if self._stall is not None:
            self._stall.cancel()
        if self._transport is not None:
            self._listener.closed(self._transport)
        self._inner.connection_lost(exc)

    def request_begins(self) -> None:
        """The header is complete."""
        self._in_request = True
        self._header_bytes = 0
        self._header_tail = b""
        self._header_complete = False
        self._disarm()

    def request_ends(self, *, body_read: bool) -> None:
        """A body that was not read may still arrive: it is no header. aiohttp lets it linger, then closes."""
        self._in_request = not body_read
        self._idle_since_s = asyncio.get_running_loop().time()

    def close_when_idle(self, before_s: float) -> None:
        """Close it when no request runs and none has begun to arrive since."""
        if not self._in_request and not self._header_bytes and self._idle_since_s <= before_s and self._transport:
            self._transport.close()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._listener.limits.header_s, self._cut)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _Requests(web.RequestHandler):
    """aiohttp's own, but a request that is not HTTP is answered like any other: nothing of it is repeated, no software is named."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it repeats the request
    ) -> web.StreamResponse:
        log = get_log("http")
        if status < 500:
            log.info("malformed request", reason=type(exc).__name__)
        else:
            log.error("unexpected error", error=repr(exc), at=_where(exc))
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun already")
        code, said = (
            ("invalid_request", "this is not a valid HTTP request") if status < 500 else ("internal", "internal error")
        )
        response = web.json_response(
            {"error": {"message": said, "type": "invalid_request_error", "param": None, "code": code}},
            status=status,
            headers=json_headers({"Server": "sbctl"}),
        )
        response.force_close()
        return response


def _where(error: BaseException | None) -> list[str]:
    """The innermost places of an error, without values."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    return [f"{frame.filename}:{frame.lineno}" for frame in frames[-4:]]


class Listener:
    """One aiohttp application on one bound socket."""

    def __init__(self, app: web.Application, limits: ListenerLimits | None = None) -> None:
        self.limits = limits or ListenerLimits()
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        spare = max(8, (soft - 128) // (2 * _DESCRIPTORS_A_CONNECTION))
        self._connections_max = min(self.limits.connections, spare)
        self._connections: dict[asyncio.BaseTransport, _Connection] = {}
        app.middlewares.insert(0, self._mark_request())
        self._ending = app[ENDING] = asyncio.Event()
        app.on_response_prepare.append(_name_no_software)
        app.on_response_prepare.append(self._say_the_end)
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=1.0,
        )
        self._server: asyncio.Server | TlsServer | None = None

    async def start(self, sock: socket.socket, *, tls: ssl.SSLContext | None = None) -> None:
        """Accept on an already bound socket, TCP (with TLS where `tls` is given) or UNIX."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        factory = self._make
        if sock.family == socket.AF_UNIX:
            self._server = await loop.create_unix_server(factory, sock=sock, backlog=_BACKLOG)
        elif tls is not None:
            secured = self._server = TlsServer(tls, factory, handshake_s=self.limits.header_s)
            secured.start(sock, backlog=_BACKLOG)
        else:
            self._server = await loop.create_server(factory, sock=sock, backlog=_BACKLOG)

    def refuse_new(self) -> None:
        """Accept no further connection; open ones go on. What waits in the backlog of a port that systemd holds, waits for our successor."""
        self._ending.set()
        if self._server is not None:
            self._server.close()

    async def see_off(self, deadline_s: float) -> None:
        """After `refuse_new`: until every connection has been told to close, or was idle for two seconds; `deadline_s` seconds at most.

        Requests that arrive meanwhile are answered: a caller that keeps its connection cannot know that we end before an answer says so.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + deadline_s
        # What was accepted a moment ago is not among the connections yet.
        await asyncio.sleep(_POLL_S)
        while self._connections and loop.time() < end_s:
            for connection in list(self._connections.values()):
                connection.close_when_idle(loop.time() - _IDLE_GRACE_S)
            await asyncio.sleep(_POLL_S)

    async def _say_the_end(self, _request: web.Request, response: web.StreamResponse) -> None:
        if self._ending.is_set():
            response.headers["Connection"] = "close"
            response.force_close()

    async def close(self) -> None:
        """Cut whatever is open."""
        self.refuse_new()
        if isinstance(self._server, TlsServer):
            self._server.abort_handshakes()
        await self._runner.cleanup()

    @property
    def is_bound(self) -> bool:
        return self._server is not None and self._server.is_serving()

    def opened(self, transport: asyncio.Transport, connection: _Connection) -> None:
        self._connections[transport] = connection
        if len(self._connections) > self._connections_max + _RESERVED:
            transport.abort()

    def closed(self, transport: asyncio.Transport) -> None:
        self._connections.pop(transport, None)

    def _make(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        requests = _Requests(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=self.limits.idle_s,
            max_line_size=8190,
            max_field_size=8190,
            max_headers=64,
            auto_decompress=False,
        )
        return _Connection(requests, self)

    def _mark_request(self) -> Any:
        @web.middleware
        async def mark(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = self._connections.get(request.transport) if request.transport is not None else None
            if connection is None:
                return await handler(request)
            connection.request_begins()
            try:
                crowded = len(self._connections) > self._connections_max
                if crowded and request.path not in PROBE_ROUTES:
                    return web.json_response(
                        {"error": {"code": "overloaded", "message": "too many connections", "retryable": True}},
                        status=503,
                        headers={"Retry-After": "1", "Connection": "close"},
                    )
                return await handler(request)
            finally:
                connection.request_ends(body_read=request.content.at_eof())

        return mark


async def _name_no_software(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "sbctl"


async def read_body(request: web.Request, *, max_bytes: int, deadline_s: float = BODY_DEADLINE_S) -> bytes:
    """The whole body. Raises InputError `request_body_too_large` as soon as that is known, `invalid_body` when it does not arrive in time."""
    if (request.content_length or 0) > max_bytes:
        raise InputError("request_body_too_large", f"a body here has at most {max_bytes} bytes")
    parts, total = [], 0
    try:
        async with asyncio.timeout(deadline_s):
            async for part in request.content.iter_any():
                parts.append(part)
                total += len(part)
                if total > max_bytes:
                    raise InputError("request_body_too_large", f"a body here has at most {max_bytes} bytes")
    except TimeoutError:
        raise InputError("invalid_body", f"the body did not arrive within {deadline_s:.0f} s") from None
    except (web.PayloadAccessError, web.RequestPayloadError) as error:
        raise InputError("invalid_body", "the body ended early or is malformed") from error
    return b"".join(parts)


def json_headers(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What every answer of ours carries."""
    return {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(extra or {})}
