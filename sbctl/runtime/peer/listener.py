"""The peer plane's port on a worker: mutual TLS 1.3, HTTP/1.1, as strict as the public one and far smaller.

A connection belongs to one certificate. When that is revoked its next request is refused, and the connection is cut within a second,
whatever runs on it; a connection that has lived for an hour ends behind its next answer. A peer whose machine or link is gone is noticed
by TCP within seconds, so that no permit waits for it.

One gateway takes three quarters of the connections and of the memory for bodies at most, and all nodes that are no gateways a handful of
connections together, in which they are told that they are none: whoever holds a key of the cluster does not shut out the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, cast

from sbctl.base.errors import EngineError, SbctlError
from sbctl.runtime.gateway.answers import Answer
from sbctl.runtime.gateway.connection import ClientConnection
from sbctl.runtime.gateway.server import App, GatewayLimits, GatewayServer
from sbctl.runtime.peer.framing import FRAME_MAX_BYTES
from sbctl.runtime.peer.identity import ALPN, PlaneIdentity
from sbctl.runtime.peer.signs import INTERIM, SIGN_S
from sbctl.trust.certificates import certificate_facts
from sbctl.trust.peer_documents import Peer, PeerMark

if TYPE_CHECKING:
    from asyncio import Transport

__all__ = ["PEER_LIMITS", "PeerConnection", "PeerListener", "leaf_digest", "notice_loss"]

PEER_LIMITS: Final = GatewayLimits(idle_s=300.0, connections=256, body_bytes=FRAME_MAX_BYTES)
_SHARE: Final = 0.75
"""Of what a listener has, for one certificate."""
_STRANGERS_MAX: Final = 16
_STRANGERS: Final = ""
"""The share of all certificates that name no gateway."""
_GRACE_S: Final = 0.5
"""So long a revoked peer may be told why."""
_AGE_MAX_S: Final = 3600.0
_PROBE_S: Final = 5
_PROBES: Final = 3
_UNACKNOWLEDGED_MS: Final = 20_000


def leaf_digest(transport: asyncio.BaseTransport) -> str | None:
    """Hex SHA-256 of the certificate that the other side showed; None when it showed none or does not speak HTTP/1.1 by ALPN."""
    secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    shown = None if secured is None else secured.getpeercert(binary_form=True)
    if secured is None or shown is None or secured.selected_alpn_protocol() != ALPN:
        return None
    return hashlib.sha256(shown).hexdigest()


def _share_of(transport: asyncio.BaseTransport, certificate_sha256: str) -> str:
    """By what a connection is counted, from what its certificate says."""
    shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    try:
        claims = certificate_facts(ssl.DER_cert_to_PEM_cert(shown)).claims
    except SbctlError:
        return _STRANGERS
    return certificate_sha256 if "gateway" in claims.roles else _STRANGERS


def notice_loss(transport: asyncio.BaseTransport) -> None:
    """Let the kernel find out that the other side is gone: silence is probed, and what nobody acknowledges is given up."""
    with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)


class PeerConnection(ClientConnection):
    """One peer's connection. `peer` is known from its first dispatch on."""

    def __init__(self, server: PeerListener) -> None:
        super().__init__(server)
        self.certificate_sha256 = ""
        self.share: str | None = None
        """By what it is counted; None before its certificate is known."""
        self.peer: Peer | None = None
        self._opened_s = server.loop.time()
        self._cut_s: float | None = None
        self._sign: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        shown = leaf_digest(transport)
        if shown is None:
            cast("Transport", transport).abort()
            return
        self.certificate_sha256 = shown
        self.share = _share_of(transport, shown)
        if not cast("PeerListener", self._server).lets_in(self):
            cast("Transport", transport).abort()
            return
        notice_loss(transport)

    def show_life(self) -> None:
        """Let its gateway know every few seconds that its dispatch is in hand, until the answer begins."""
        if self._head is not None and self._head.minor == 1:
            self._sign = self._loop.call_later(SIGN_S, self._show_again)

    def _show_again(self) -> None:
        if self._transport is not None:
            self._transport.write(INTERIM)
            self.show_life()

    def _end_signs(self) -> None:
        if self._sign is not None:
            self._sign.cancel()

    def begin(self, status: int, lines: bytes) -> None:
        self._end_signs()
        super().begin(status, lines)

    def answer(self, answer: Answer) -> None:
        self._end_signs()
        super().answer(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_signs()
        super().connection_lost(exc)

    def end_behind_answer(self) -> None:
        """The present answer is the last."""
        self._closes = True

    def condemn(self) -> None:
        """Cut it soon, whatever runs on it."""
        self.end_behind_answer()
        if self._cut_s is None:
            self._cut_s = self._loop.time() + _GRACE_S

    def look(self, now_s: float) -> None:
        if self._cut_s is not None and now_s >= self._cut_s:
            self.cut()
            return
        if now_s - self._opened_s >= _AGE_MAX_S:
            self.end_behind_answer()
            self.close_when_idle(now_s)
        super().look(now_s)


class PeerListener(GatewayServer):
    """The peer plane of one worker, on one bound socket."""

    def __init__(
        self,
        app: App,
        identity: PlaneIdentity,
        marks: Callable[[], Mapping[str, PeerMark]],
        limits: GatewayLimits = PEER_LIMITS,
    ) -> None:
        """`marks`: the newest that was seen of each peer."""
        super().__init__(app, limits)
        self._identity = identity
        self._marks = marks
        self._counted: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        """Connections, and bytes of bodies, by share."""
        identity.on_change(self._judge_anew)

    async def listen(self, sock: socket.socket) -> None:
        """Accept peers on an already bound socket."""
        await self.start(sock, tls=self._identity.server_context)

    def _make(self) -> PeerConnection:
        return PeerConnection(self)

    def lets_in(self, connection: PeerConnection) -> bool:
        """Count it with its peer's others; whether there is room for it among them."""
        assert connection.share is not None
        self._counted[connection.share] += 1
        most = _STRANGERS_MAX if connection.share == _STRANGERS else max(1, int(self._connections_max * _SHARE))
        return self._counted[connection.share] <= most

    def closed(self, connection: ClientConnection) -> None:
        super().closed(connection)
        assert isinstance(connection, PeerConnection)
        if connection.share is not None:
            _less(self._counted, connection.share, 1)

    def hold(self, connection: ClientConnection, size: int) -> None:
        assert isinstance(connection, PeerConnection)
        assert connection.share is not None
        if self._held[connection.share] + size > self.limits.bodies_bytes * _SHARE:
            raise EngineError("overloaded", "too many bytes of this gateway's requests", retryable=True)
        super().hold(connection, size)
        self._held[connection.share] += size

    def free(self, connection: ClientConnection, size: int) -> None:
        super().free(connection, size)
        assert isinstance(connection, PeerConnection)
        if size and connection.share is not None:
            _less(self._held, connection.share, size)

    def _judge_anew(self) -> None:
        """The list or the CA is another: who would not be let in any more goes, and so does who never said who it is. Others come anew behind
        their next answer, since the former CA judged them."""
        marks = self._marks()
        for connection in list(self._connections):
            assert isinstance(connection, PeerConnection)
            if connection.peer is None or self._identity.is_refused(connection.peer, marks):
                connection.condemn()
            else:
                connection.end_behind_answer()


def _less(counts: Counter[str], share: str, number: int) -> None:
    """What is nothing any more is forgotten: peers come and go."""
    counts[share] -= number
    if counts[share] <= 0:
        del counts[share]
