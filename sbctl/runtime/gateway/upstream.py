"""Kept connections to one engine: HTTP/1.1 over its UNIX socket or loopback port, no proxy, no redirect, bounded heads.

An idle connection is kept for less time than engines keep theirs (5 s), and never more than were busy at once: an engine has a thread for
each slot and a few besides. Closing a connection is how a request is cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from sbctl.engines.model import EngineAddress
from sbctl.runtime.loop_time import LoopTime

__all__ = ["ENGINE_ERRORS", "AnswerSink", "EngineConnection", "EnginePool", "Pool", "request_head"]

ENGINE_ERRORS: Final = (OSError, TimeoutError)
"""What opening a connection to an engine that is dying raises."""

_IDLE_S: Final = 4.0
_CONNECT_S: Final = 5.0
_LEAVE_S: Final = 1.0
_BARE_MAX_BYTES: Final = 64 * 1024
"""Heads, trailers and chunk lines that an answer may have without a byte of its body."""
_WRITTEN_AT_ONCE_MAX_BYTES: Final = 64 * 1024
_WRITE_HIGH_BYTES: Final = 256 * 1024


class AnswerSink(Protocol):
    """Takes one answer, in this order: head, any number of data, then exactly one of end and broke."""

    def head(self, status: int, fields: dict[bytes, bytes]) -> None: ...

    def data(self, data: bytes) -> None: ...

    def end(self) -> None: ...

    def broke(self, why: str) -> None:
        """The connection ended, or spoke no HTTP, before the answer was complete. `head` may not have been called."""
        ...


class _Nobody:
    """Takes the rest of an answer that was complete for its caller."""

    def head(self, status: int, fields: dict[bytes, bytes]) -> None: ...

    def data(self, data: bytes) -> None: ...

    def end(self) -> None: ...

    def broke(self, why: str) -> None: ...


def request_head(method: str, path: str, length: int, content_type: str, request_id: str) -> bytes:
    """A whole head as engines get it."""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: engine\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n"
        f"X-Request-Id: {request_id}\r\n\r\n"
    ).encode("latin-1")


class EngineConnection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._sink: AnswerSink | None = None
        self._fields: dict[bytes, bytes] = {}
        self._bare_bytes = 0
        """Since the question, or the last piece of a body: heads, trailers, and what stands between chunks."""
        self._head_seen = False
        self._received: list[bytes] = []
        """Pieces of the body in the bytes that are being read."""
        self._is_complete = False
        self._keeps = True
        self._is_paused = False
        self.is_open = False
        self.is_reused = False
        """It answered a request before, so it may have been closed under this one."""
        self.idle_since_s = 0.0

    # For whoever asks

    def send(self, head: bytes, body: bytes, sink: AnswerSink) -> None:
        """Ask; `sink` gets the answer. One request at a time."""
        assert self._sink is None
        self._sink = sink
        self._bare_bytes = 0
        if self._transport is None or not self.is_open:
            self._break("the engine closed the connection")
        elif len(body) < _WRITTEN_AT_ONCE_MAX_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def let_go(self, sink: AnswerSink, *, is_satisfied: bool) -> None:
        """`sink` listens no more. Its answer may be complete and the connection at work for another by now: then nothing happens.

        Else: `is_satisfied`: what is missing is the end alone, so the connection is kept when that comes within a second; if not, it is cut,
        and what runs on it is cancelled.
        """
        if self._sink is not sink or self._is_complete:
            return
        if not is_satisfied:
            self._drop()
            return
        self.resume()
        self._sink = _Nobody()
        asyncio.get_running_loop().call_later(_LEAVE_S, self._drop_for, self._sink)

    def _drop_for(self, nobody: AnswerSink) -> None:
        if self._sink is nobody:
            self._drop()

    def _drop(self) -> None:
        """Cut it. The sink hears nothing more."""
        self._sink = None
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close an idle one."""
        self._drop()

    def cut(self) -> None:
        """Cut it: what runs on it breaks."""
        self._break("the engine was stopped")

    def pause(self) -> None:
        """Read no more until `resume`: who takes the answer is slower than the engine."""
        if self._transport is not None and self.is_open and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and self.is_open and self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    # Of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is no subclass of asyncio's.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._sink is None:
            # Nothing was asked: it is not known any more what belongs to what.
            self._drop()
            return
        self._bare_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._break("the engine spoke no HTTP")
            return
        if self._received:
            self._bare_bytes = 0
            body = self._received[0] if len(self._received) == 1 else b"".join(self._received)
            self._received.clear()
            self._sink.data(body)
        if self._is_complete:
            self._complete()
        if self._bare_bytes > _BARE_MAX_BYTES and self._sink is not None:
            self._break("the engine's head has no end")

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._pool.forget(self)
        if self._sink is None:
            return
        if exc is None and self._head_seen and not self._is_framed:
            self._complete()
        else:
            self._break("the engine closed the connection")

    # Of the parser

    def on_message_begin(self) -> None:
        self._fields = {}
        if self._is_complete:
            # More than one answer to one request: it is not known any more what belongs to what.
            self._keeps = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self._sink is not None and not self._is_complete:
            self._head_seen = True
            self._keeps = self._parser.should_keep_alive()
            self._sink.head(status, self._fields)

    def on_body(self, data: bytes) -> None:
        # What follows a head that announced none (a status below 200) belongs to no answer.
        if self._head_seen:
            self._received.append(data)

    def on_message_complete(self) -> None:
        self._is_complete |= self._head_seen

    @property
    def _is_framed(self) -> bool:
        return b"content-length" in self._fields or b"transfer-encoding" in self._fields

    def _complete(self) -> None:
        sink, self._sink = self._sink, None
        self._head_seen = self._is_complete = False
        self.resume()
        if self.is_open and self._keeps and self._transport is not None and not self._transport.get_write_buffer_size():
            self.is_reused = True
            self._pool.keep(self)
        elif self.is_open:
            self._drop()
        if sink is not None:
            sink.end()

    def _break(self, why: str) -> None:
        sink = self._sink
        self._drop()
        if sink is not None:
            sink.broke(why)


class Pool:
    """Connections that are kept to one place; what is used last is taken first. `idle_s`: so long one may be idle."""

    def __init__(self, *, idle_s: float) -> None:
        self._idle_s = idle_s
        self._now_s = LoopTime()
        self._idle: deque[EngineConnection] = deque()
        self._open: set[EngineConnection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    async def _connect(self) -> EngineConnection:
        """A new one, made by `_make`. Raises what `ENGINE_ERRORS` lists."""
        raise NotImplementedError

    def kept(self) -> EngineConnection | None:
        """One that is open; None where one has to be made."""
        while self._idle:
            kept = self._idle.pop()
            if kept.is_open:
                return kept
        return None

    async def connection(self, *, fresh: bool = False) -> EngineConnection:
        """A kept one, or a new one; `fresh`: a new one. Raises what `ENGINE_ERRORS` lists."""
        kept = None if fresh else self.kept()
        if kept is not None:
            return kept
        if self._closed:
            raise ConnectionError("the engine is not wanted any more")
        async with asyncio.timeout(_CONNECT_S):
            made = await self._connect()
        self._open.add(made)
        return made

    def keep(self, connection: EngineConnection) -> None:
        """It is free for the next request."""
        if self._closed:
            connection.close()
            return
        connection.idle_since_s = self._now_s()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._idle_s / 4, self._close_idle)

    def forget(self, connection: EngineConnection) -> None:
        self._open.discard(connection)

    def retire(self) -> None:
        """Close what is idle; what runs goes on, and its connection is kept no more."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        while self._idle:
            self._idle.popleft().close()

    def close(self) -> None:
        """Cut all connections; what runs on them breaks."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._open):
            connection.cut()
        self._idle.clear()

    def _make(self) -> EngineConnection:
        return EngineConnection(self)

    def _close_idle(self) -> None:
        """The longest idle first; what is used last is taken first, so a pool shrinks to what it needs."""
        loop = asyncio.get_running_loop()
        before_s = loop.time() - self._idle_s * 3 / 4
        while self._idle and (not self._idle[0].is_open or self._idle[0].idle_since_s <= before_s):
            self._idle.popleft().close()
        self._sweep = loop.call_later(self._idle_s / 4, self._close_idle) if self._idle else None


class EnginePool(Pool):
    """The connections to one engine."""

    def __init__(self, address: EngineAddress) -> None:
        super().__init__(idle_s=_IDLE_S)
        self._address = address

    async def _connect(self) -> EngineConnection:
        loop = asyncio.get_running_loop()
        if self._address.unix_path is not None:
            _, made = await loop.create_unix_connection(self._make, str(self._address.unix_path))
        else:
            _, made = await loop.create_connection(self._make, "127.0.0.1", self._address.port or 0)
        return made
