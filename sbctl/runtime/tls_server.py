"""Accepting TLS connections that cannot be held: at most so many handshakes at once, each with a deadline.

`asyncio.Server` with `ssl=` counts nobody before the handshake is done. Here the protocol above is told of a connection only when it can be
used, and when too many are at it the one that is at it for longest is cut: a handshake takes milliseconds, so those who open connections
and say nothing push out each other, and nobody else. asyncio and uvloop alike.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Final

from sbctl.runtime.log import get_log

__all__ = ["HANDSHAKES_MAX", "TlsServer"]

HANDSHAKES_MAX: Final = 256
_ACCEPTS_A_TURN: Final = 64
_CLOSE_S: Final = 5.0
_PAUSE_S: Final = 1.0
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class TlsServer:
    """`make` gives the protocol of one connection. As `asyncio.Server`: `close` accepts no more, and open connections go on."""

    def __init__(
        self,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.Protocol],
        *,
        handshake_s: float,
        at_once: int = HANDSHAKES_MAX,
    ) -> None:
        self._context = context
        self._make = make
        self._handshake_s = handshake_s
        self._at_once = at_once
        self._shaking: dict[asyncio.Task[None], None] = {}
        """Oldest first."""
        self._socket: socket.socket | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._log = get_log("tls")

    def is_serving(self) -> bool:
        return self._socket is not None

    def start(self, sock: socket.socket, *, backlog: int) -> None:
        """Accept on a bound socket, which is this server's from now on."""
        sock.setblocking(False)
        sock.listen(backlog)
        self._socket = sock
        asyncio.get_running_loop().add_reader(sock.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more. Handshakes that have begun may end."""
        sock, self._socket = self._socket, None
        if self._pause is not None:
            self._pause.cancel()
        if sock is not None:
            asyncio.get_running_loop().remove_reader(sock.fileno())
            sock.close()

    def abort_handshakes(self) -> None:
        for task in list(self._shaking):
            task.cancel()

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            if self._socket is None:
                return
            try:
                connection, _address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._rest(error)
                return
            if len(self._shaking) >= self._at_once:
                oldest = next(iter(self._shaking))
                del self._shaking[oldest]
                oldest.cancel()
            connection.setblocking(False)
            task = asyncio.get_running_loop().create_task(self._shake(connection))
            self._shaking[task] = None
            task.add_done_callback(lambda done: self._shaking.pop(done, None))

    def _rest(self, error: OSError) -> None:
        """No descriptor or no memory: the waiting caller stays in the backlog for a second, instead of waking us without end."""
        self._log.error("cannot accept", reason=error.strerror)
        loop = asyncio.get_running_loop()
        sock = self._socket
        assert sock is not None
        loop.remove_reader(sock.fileno())
        self._pause = loop.call_later(_PAUSE_S, lambda: loop.add_reader(sock.fileno(), self._accept))

    async def _shake(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=_CLOSE_S,
            )
        except (OSError, ssl.SSLError, TimeoutError):
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise
