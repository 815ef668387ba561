"""An authority, its enrollment server in this process, and servers on loopback that pretend to be it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.runtime.binding import bind_tcp
from sbctl.runtime.enrollment_server import EnrollmentMetrics, EnrollmentServer, server_tls
from sbctl.runtime.listeners import Listener, ListenerLimits
from sbctl.trust.authority import Authority
from sbctl.trust.certificate_making import KeyPair, create_request, generate_private_key
from sbctl.trust.enrollment import Enrollment
from sbctl.trust.enrollment_client import Authenticated, Server, request_identity
from sbctl.trust.enrollment_messages import EnrollmentRequest
from sbctl.trust.identity import Grant
from sbctl.trust.join_token import JoinToken

__all__ = ["Impostor", "ask", "asking", "authority_in", "http", "now", "serving", "token_of"]

SERVER_NAME = "mesh"


def now() -> datetime:
    """TLS judges by the machine's clock, so these tests do."""
    return datetime.now(UTC)


def authority_in(directory: Path, *, cluster_id: str = "prod") -> Enrollment:
    grant = Grant(node_id="authority", roles=("gateway", "authority"))
    Authority.create(directory, cluster_id=cluster_id, grant=grant, server_name=SERVER_NAME, now=now())
    return Enrollment.open(directory)


def token_of(
    enrollment: Enrollment, *, node_id: str | None = None, ttl_s: int = 900, at: datetime | None = None
) -> JoinToken:
    made = enrollment.create_token(
        roles=["worker"], labels={"zone": "a"}, node_id=node_id, ttl_s=ttl_s, now=at or now()
    )
    return made[0]


def ask(
    token: JoinToken | str,
    *,
    node_id: str = "gpu-a",
    roles: tuple[str, ...] = ("worker",),
    zone: str | None = "a",
    request: str | None = None,
) -> EnrollmentRequest:
    """What a host sends; with a key of its own unless `request` is given."""
    text = token if isinstance(token, str) else token.text().reveal().decode()
    labels = {} if zone is None else {"zone": zone}
    csr = request or create_request(generate_private_key(), node_id)
    grant = Grant.model_validate({"node_id": node_id, "roles": roles, "labels": labels})
    return EnrollmentRequest(text, grant, csr)


@contextlib.asynccontextmanager
async def serving(enrollment: Enrollment, *, metrics: EnrollmentMetrics | None = None) -> AsyncIterator[int]:
    """The port of the real server's application, with TLS."""
    server = EnrollmentServer(enrollment, SYSTEM_CLOCK, metrics or EnrollmentMetrics())
    listener = Listener(server.app(), ListenerLimits(header_s=60.0))
    sock = bind_tcp("127.0.0.1", 0)
    await listener.start(sock, tls=server_tls(enrollment.authority))
    try:
        yield int(sock.getsockname()[1])
    finally:
        await listener.close()
        server.close()


async def asking(
    port: int, token: JoinToken, asked: EnrollmentRequest, *, known_ca: str | None = None, answer_s: float = 60.0
) -> Authenticated:
    server = Server("127.0.0.1", port, SERVER_NAME, connect_s=60.0, answer_s=answer_s)
    return await request_identity(server, token, asked, known_ca=known_ca, now=now)


@dataclass
class Impostor:
    """Says for each connection what `answers` holds next, and remembers every byte that it was told. Without an identity it is no TLS server."""

    answers: list[bytes]
    identity: KeyPair | None = None
    directory: Path | None = None
    stall: bool = False
    heard: bytearray = field(default_factory=bytearray)
    port: int = 0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Impostor]:
        context = None
        if self.identity is not None and self.directory is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            certificate, key = self.directory / "impostor.pem", self.directory / "impostor-key.pem"
            certificate.write_text(self.identity.certificate)
            key.write_bytes(self.identity.key.reveal())
            context.load_cert_chain(certificate, key)
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=context)
        self.port = int(server.sockets[0].getsockname()[1])
        try:
            yield self
        finally:
            server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            self.heard += await reader.read(4096)
            if self.stall:
                await reader.read()
            writer.write(self.answers.pop(0) if self.answers else b"")
            await writer.drain()
        writer.close()


def http(status: str, body: bytes, *headers: str, content_type: str = "application/json") -> bytes:
    head = [
        f"HTTP/1.1 {status}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    ]
    return ("\r\n".join(head) + "\r\n\r\n").encode() + body
