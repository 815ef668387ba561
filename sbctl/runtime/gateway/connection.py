"""One caller's connection: requests in, one at a time, answers out.

    idle ─► head ─► body ─► busy ─► idle …          any ─► leaving ─► closed

What arrives while a request is busy waits, up to a bound; beyond it the connection ends behind the present answer. A caller that does not
read makes the engine wait, not our memory grow. Deadlines are looked at by the server, a few times a second, for all connections at once.
"""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, Final, cast

from sbctl.base.errors import InputError, SbctlError
from sbctl.base.limits import HTTP_HEADER_MAX_BYTES
from sbctl.runtime.gateway.answers import Answer, head_bytes
from sbctl.runtime.gateway.chunked import ChunkedBody
from sbctl.runtime.gateway.head import RequestHead, read_head
from sbctl.runtime.gateway.ports import Source, Work

if TYPE_CHECKING:
    from sbctl.runtime.gateway.server import GatewayServer

__all__ = ["ClientConnection", "Phase"]

_WAITING_MAX_BYTES: Final = 64 * 1024
_LEAVE_S: Final = 2.0
_WRITE_HIGH_BYTES: Final = 64 * 1024
_WRITE_LOW_BYTES: Final = 16 * 1024
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Phase(enum.Enum):
    """What the connection is doing."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    BUSY = "busy"
    LEAVING = "leaving"


class ClientConnection(asyncio.Protocol):
    """See the module. As `ports.Client` it takes the answer to the request that is busy."""

    def __init__(self, server: GatewayServer) -> None:
        self._server = server
        self._loop = server.loop
        self._transport: asyncio.Transport | None = None
        self.phase = Phase.HEAD
        """New connections have a head's time, idle ones a longer one."""
        self.deadline_s: float | None = None
        """Loop time when the present phase has taken too long."""
        self.idle_since_s = self._loop.time()
        self._buffer = b""
        self._overflowed = False
        self._head: RequestHead | None = None
        self._body: ChunkedBody | None = None
        self._plain = bytearray()
        """What has come of a body of known length."""
        self._left = 0
        self._held_bytes = 0
        self._work: Work | None = None
        self._begun = b""
        """A head that goes out with the first bytes."""
        self._unread = False
        self._chunks = False
        self._closes = False
        self._source: Source | None = None
        self._paused = False
        self._stalled_bytes = 0
        self._stall_s: float | None = None

    # Of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is no subclass of asyncio's.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES, low=_WRITE_LOW_BYTES)
        self.deadline_s = self._loop.time() + self._server.limits.header_s
        if not self._server.opened(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - whatever it was, the caller is gone
        self._server.closed(self)
        self._server.free(self, self._held_bytes)
        self._held_bytes = 0
        self._transport = None
        self.phase = Phase.LEAVING
        self._source = None
        if self._work is not None:
            self._work.cancel()

    def data_received(self, data: bytes) -> None:
        if self.phase is Phase.BODY:
            self._take_body(data)
        elif self.phase is Phase.BUSY:
            if len(self._buffer) + len(data) > _WAITING_MAX_BYTES:
                self._overflowed = True
                self._buffer = b""
            elif not self._overflowed:
                self._buffer += data
        elif self._is_behind and len(self._buffer) + len(data) > _WAITING_MAX_BYTES:
            self._leave(self._loop.time())
        elif self.phase is not Phase.LEAVING:
            self._buffer = self._buffer + data if self._buffer else data
            self._next()

    @property
    def _is_behind(self) -> bool:
        """No request is busy, and what has arrived is not taken up yet: it came faster than answers go out."""
        return bool(self._buffer) and (self.phase is Phase.IDLE or (self.phase is Phase.HEAD and self._paused))

    def pause_writing(self) -> None:
        self._paused = True
        self._watch_progress()
        if self._source is not None:
            self._source.pause()

    def resume_writing(self) -> None:
        self._paused = False
        self._stall_s = None
        if self._source is not None:
            self._source.resume()
        if self.phase is Phase.HEAD or self.phase is Phase.IDLE:
            self._next()

    # Requests

    def _next(self) -> None:
        """Take up the next request, when its head is complete and the last answer is out."""
        if self._paused or not self._buffer or self.phase not in (Phase.IDLE, Phase.HEAD):
            return
        if self.phase is Phase.IDLE:
            self.phase = Phase.HEAD
            self.deadline_s = self._loop.time() + self._server.limits.header_s
        if self._buffer.startswith(b"\r\n"):
            # Old clients send a line break behind a body.
            self._buffer = self._buffer[2:]
        end = self._buffer.find(b"\r\n\r\n", 0, HTTP_HEADER_MAX_BYTES + 4)
        self._head = None
        if end < 0:
            if len(self._buffer) > HTTP_HEADER_MAX_BYTES:
                self._refuse(InputError("invalid_request", "the head of the request is too long"))
            return
        data, self._buffer = self._buffer[: end + 4], self._buffer[end + 4 :]
        try:
            head = read_head(data)
        except SbctlError as error:
            self._refuse(error)
            return
        self._head = head
        self._closes = not head.keep_alive
        try:
            self._server.check_room(head)
            self._server.app.check(head)
            if (head.content_length or 0) > self._server.limits.body_bytes:
                most = self._server.limits.body_bytes
                raise InputError("request_body_too_large", f"a body here has at most {most} bytes")
        except SbctlError as error:
            self._skip_body(head)
            self._refuse(error, closes=self._unread)
            return
        self._await_body(head)

    def _skip_body(self, head: RequestHead) -> None:
        """A refused request's body is skipped when all of it is here; else nobody reads it, and the connection ends."""
        length = 0 if head.content_length is None else head.content_length
        self._unread = head.is_chunked or length > len(self._buffer)
        if not self._unread:
            self._buffer = self._buffer[length:]

    def _await_body(self, head: RequestHead) -> None:
        if not head.has_body:
            self._start(b"")
            return
        waiting, self._buffer = self._buffer, b""
        if head.content_length is not None and len(waiting) >= head.content_length:
            self._buffer = waiting[head.content_length :]
            self._start(waiting[: head.content_length])
            return
        self.phase = Phase.BODY
        self.deadline_s = self._loop.time() + self._server.limits.body_s
        self._body = ChunkedBody(max_bytes=self._server.limits.body_bytes) if head.is_chunked else None
        self._left = head.content_length or 0
        if head.expects_continue and not waiting and self._transport is not None:
            self._transport.write(_CONTINUE)
        if waiting:
            self._take_body(waiting)

    def _take_body(self, data: bytes) -> None:
        try:
            self._server.hold(self, len(data))
            self._held_bytes += len(data)
            if self._body is not None:
                self._body.feed(data)
                if self._body.is_complete:
                    self._buffer = self._body.rest
                    self._start(self._body.body())
                return
        except SbctlError as error:
            self._unread = True
            self._refuse(error)
            return
        part = data[: self._left]
        self._plain += part
        self._left -= len(part)
        if not self._left:
            self._buffer = data[len(part) :]
            self._start(bytes(self._plain))

    def _start(self, body: bytes) -> None:
        assert self._head is not None
        self._plain.clear()
        self._body = None
        self.phase = Phase.BUSY
        self.deadline_s = None
        work = self._server.app.serve(self._head, body, self)
        if self.phase is Phase.BUSY:
            self._work = work

    def _refuse(self, error: SbctlError, *, closes: bool = True) -> None:
        """Answer a request that is not taken up."""
        self._closes |= closes
        self.phase = Phase.BUSY
        self.answer(self._server.app.refusal(error, self._head))

    # As ports.Client

    def answer(self, answer: Answer) -> None:
        if self._transport is None:
            return
        closing = self._is_last()
        old = self._head is not None and self._head.minor == 0
        head = head_bytes(answer.status, answer.lines, closing=closing, length=len(answer.body), chunked=False, old=old)
        bodiless = self._head is not None and self._head.method == "HEAD"
        self._transport.write(head if bodiless else head + answer.body)
        self._over(closing=closing)

    def begin(self, status: int, lines: bytes) -> None:
        self._chunks = self._head is not None and self._head.minor == 1
        self._closes = self._is_last() or not self._chunks
        self._begun = head_bytes(status, lines, closing=self._closes, length=None, chunked=self._chunks, old=False)

    def write(self, data: bytes) -> None:
        if self._transport is None or not data:
            return
        head, self._begun = self._begun, b""
        if self._chunks:
            self._transport.write(b"".join((head, b"%x\r\n" % len(data), data, b"\r\n")))
        else:
            self._transport.write(head + data)

    def finish(self, *, broken: bool = False, told: bool = True) -> None:
        if self._transport is None:
            return
        rest = self._begun + (b"0\r\n\r\n" if self._chunks and told else b"")
        if rest:
            self._transport.write(rest)
        self._over(closing=self._closes or broken)

    def feed_from(self, source: Source | None) -> None:
        self._source = source
        if source is not None and self._paused:
            source.pause()

    def _is_last(self) -> bool:
        return self._closes or self._overflowed or self._server.is_ending

    def _over(self, *, closing: bool) -> None:
        """The answer is written."""
        self._work = self._source = None
        self._begun = b""
        self._plain.clear()
        self._body = None
        self._server.free(self, self._held_bytes)
        self._held_bytes = 0
        now_s = self._loop.time()
        if closing:
            self._leave(now_s)
            return
        self.phase = Phase.IDLE
        self.idle_since_s = now_s
        self.deadline_s = now_s + self._server.limits.idle_s
        if self._buffer:
            self._loop.call_soon(self._next)

    # Ends

    def close_when_idle(self, before_s: float) -> None:
        """Close it when no request runs and none has begun to arrive since."""
        quiet = self.phase is Phase.IDLE or (self.phase is Phase.HEAD and not self._buffer)
        if quiet and self.idle_since_s <= before_s and self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def look(self, now_s: float) -> None:
        """Whether a deadline has passed."""
        if self._stall_s is not None and now_s >= self._stall_s:
            if self._unsent() >= self._stalled_bytes:
                self.cut()
                return
            self._watch_progress()
        if self.deadline_s is None or now_s < self.deadline_s:
            return
        if self.phase is Phase.IDLE and self._transport is not None:
            self._transport.close()
        elif self.phase is Phase.BODY:
            self._unread = True
            self._refuse(
                InputError("invalid_body", f"the body did not arrive within {self._server.limits.body_s:.0f} s")
            )
        elif self.phase is Phase.LEAVING and 0 < self._unsent() < self._stalled_bytes:
            self._stalled_bytes = self._unsent()
            self.deadline_s = now_s + self._server.limits.write_stall_s
        else:
            self.cut()

    def _unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _watch_progress(self) -> None:
        self._stalled_bytes = self._unsent()
        self._stall_s = self._loop.time() + self._server.limits.write_stall_s

    def _leave(self, now_s: float) -> None:
        """What the caller still sends is read and dropped for a while: closing with unread bytes would take the answer back."""
        self.phase = Phase.LEAVING
        self._buffer = b""
        self._stalled_bytes = self._unsent() + 1
        self.deadline_s = now_s + (self._server.limits.write_stall_s if self._unsent() else _LEAVE_S)
        assert self._transport is not None
        if self._unread and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()
