"""The gateway's listener: how many connections there are, how long each may take for what, and how they end.

A few connections beyond the cap are accepted so that health routes still answer; everything else is refused there. Before it ends it says
so: every answer carries `Connection: close`, and a connection is closed only once it was idle for a while.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from dataclasses import dataclass
from typing import Final, Protocol

from sbctl.base.errors import EngineError, SbctlError
from sbctl.base.limits import DATA_BODIES_MAX_BYTES, DATA_BODY_MAX_BYTES, HTTP_HEADER_DEADLINE_S, HTTP_IDLE_S
from sbctl.runtime.gateway.answers import Answer
from sbctl.runtime.gateway.connection import ClientConnection
from sbctl.runtime.gateway.head import RequestHead
from sbctl.runtime.gateway.ports import Work
from sbctl.runtime.gateway.surface import PROBE_PATHS
from sbctl.runtime.tls_server import TlsServer

__all__ = ["App", "GatewayLimits", "GatewayServer"]

_LOOK_S: Final = 0.25
_IDLE_GRACE_S: Final = 2.0
_POLL_S: Final = 0.05
_BACKLOG: Final = 4096
"""As the socket unit has it: listen(2) on a socket that was handed over sets it anew."""
_RESERVED: Final = 16
_DESCRIPTORS_A_CONNECTION: Final = 2


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Seconds and counts of one listener."""

    header_s: float = HTTP_HEADER_DEADLINE_S
    body_s: float = 60.0
    write_stall_s: float = 30.0
    """So long a caller may read nothing of what waits for it."""
    idle_s: float = HTTP_IDLE_S
    connections: int = 1024
    body_bytes: int = DATA_BODY_MAX_BYTES
    """Of one request."""
    bodies_bytes: int = DATA_BODIES_MAX_BYTES
    """Of all request bodies that are being received or worked on."""


class App(Protocol):
    """What answers."""

    def check(self, head: RequestHead) -> None:
        """Before the body is read. Raises SbctlError for what is refused by its head alone."""
        ...

    def serve(self, head: RequestHead, body: bytes, caller: ClientConnection) -> Work | None:
        """Answer it, whatever happens. What is not answered yet when this returns is cancelled when the caller is gone."""
        ...

    def refusal(self, error: SbctlError, head: RequestHead | None) -> Answer:
        """The answer to a request that is not taken up; `head` None: it could not be read."""
        ...


class GatewayServer:
    """One application on one bound socket."""

    def __init__(self, app: App, limits: GatewayLimits | None = None) -> None:
        self.app = app
        self.limits = limits or GatewayLimits()
        self.is_ending = False
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        spare = max(8, (soft - 128) // (2 * _DESCRIPTORS_A_CONNECTION))
        self._connections_max = min(self.limits.connections, spare)
        self._connections: set[ClientConnection] = set()
        self._held_bytes = 0
        self._server: asyncio.Server | TlsServer | None = None
        self._looking: asyncio.TimerHandle | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    async def start(self, sock: socket.socket, *, tls: ssl.SSLContext | None = None) -> None:
        """Accept on an already bound socket, with TLS where `tls` is given."""
        self._loop = asyncio.get_running_loop()
        if tls is None:
            self._server = await self._loop.create_server(self._make, sock=sock, backlog=_BACKLOG)
        else:
            secured = self._server = TlsServer(tls, self._make, handshake_s=self.limits.header_s)
            secured.start(sock, backlog=_BACKLOG)
        self._look()

    def _make(self) -> ClientConnection:
        return ClientConnection(self)

    @property
    def is_bound(self) -> bool:
        return self._server is not None and self._server.is_serving()

    def refuse_new(self) -> None:
        """Accept no further connection; open ones go on. What waits in the backlog of a port that systemd holds, waits for our successor."""
        self.is_ending = True
        if self._server is not None:
            self._server.close()

    async def see_off(self, deadline_s: float) -> None:
        """After `refuse_new`: until every connection has been told to close, or was idle for two seconds; `deadline_s` seconds at most.

        Requests that arrive meanwhile are answered: a caller that keeps its connection cannot know that we end before an answer says so.
        """
        if self._server is None:
            return
        end_s = self._loop.time() + deadline_s
        # What was accepted a moment ago is not among the connections yet.
        await asyncio.sleep(_POLL_S)
        while self._connections and self._loop.time() < end_s:
            for connection in list(self._connections):
                connection.close_when_idle(self._loop.time() - _IDLE_GRACE_S)
            await asyncio.sleep(_POLL_S)

    async def close(self) -> None:
        """Cut whatever is open."""
        self.refuse_new()
        if self._looking is not None:
            self._looking.cancel()
        if isinstance(self._server, TlsServer):
            self._server.abort_handshakes()
        for connection in list(self._connections):
            connection.cut()
        await asyncio.sleep(0)

    # For connections

    def opened(self, connection: ClientConnection) -> bool:
        """Whether there is room for it at all."""
        self._connections.add(connection)
        return len(self._connections) <= self._connections_max + _RESERVED

    def closed(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)

    def check_room(self, head: RequestHead) -> None:
        """Raises EngineError `overloaded` beyond the cap, except for health routes."""
        if len(self._connections) > self._connections_max and head.path not in PROBE_PATHS:
            raise EngineError("overloaded", "too many connections", retryable=True)

    def hold(self, connection: ClientConnection, size: int) -> None:  # noqa: ARG002 - a listener that knows its callers counts by them
        """Bytes of a body arrived on a connection. Raises EngineError `overloaded` when all bodies together are too much; `free` what was held."""
        if self._held_bytes + size > self.limits.bodies_bytes:
            raise EngineError("overloaded", "too many bytes of requests", retryable=True)
        self._held_bytes += size

    def free(self, connection: ClientConnection, size: int) -> None:  # noqa: ARG002
        self._held_bytes -= size

    def _look(self) -> None:
        now_s = self._loop.time()
        for connection in list(self._connections):
            connection.look(now_s)
        self._looking = self._loop.call_later(min(_LOOK_S, self.limits.header_s / 2), self._look)
