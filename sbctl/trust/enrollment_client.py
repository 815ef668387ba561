"""Asking an authority for an identity: who the server is, is known before it sees the token.

    CA certificate, by --ca-cert or from the server itself, unverified ► its key is the one the token pins ► clocks ► a new connection: TLS 1.3,
    chain and server name verified against that CA alone, the peer an authority of its cluster ► only now token and request ► the answer

The first connection carries nothing of ours. No redirect is followed, no proxy used, and every answer is bounded in bytes and in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

from sbctl.base.errors import InputError, RefusedError, SbctlError, UnreachableError
from sbctl.base.limits import (
    ENROLL_ANSWER_MAX_BYTES,
    ENROLL_CONNECT_DEADLINE_S,
    ENROLL_DEADLINE_S,
    HTTP_HEADER_MAX_BYTES,
)
from sbctl.trust.certificates import PEM_MAX_BYTES, certificate_facts, split_chain, verify_leaf
from sbctl.trust.enrollment_messages import (
    CA_PATH,
    ENROLL_PATH,
    RENEW_PATH,
    EnrollmentAnswer,
    EnrollmentRequest,
    parse_answer,
    renewal_body,
)
from sbctl.trust.enrollment_source import EnrollmentSource
from sbctl.trust.identity import IdentityClaims, check_clocks
from sbctl.trust.join_token import JoinToken

__all__ = ["Authenticated", "Server", "request_identity", "request_renewal"]

_SAID_MAX_CHARS: Final = 200
_CHUNK_BYTES: Final = 64 * 1024
_ITS_PORT: Final = "check the port: it is the one that the enrollment server listens on"


@dataclass(frozen=True, slots=True)
class Server:
    """Where the authority is, and the name that its certificate has. `connect_s` and `answer_s` bound each of the two connections."""

    host: str
    port: int
    server_name: str
    connect_s: float = ENROLL_CONNECT_DEADLINE_S
    answer_s: float = ENROLL_DEADLINE_S

    def source(self) -> EnrollmentSource:
        """For the file that a host renews by."""
        return EnrollmentSource(host=self.host, port=self.port, server_name=self.server_name)

    def __str__(self) -> str:
        return f"https://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The answer, the CA that the token pins, PEM, the cluster whose authority answered, and where."""

    answer: EnrollmentAnswer
    ca: str
    cluster_id: str
    server: Server


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    date: datetime | None
    retry_after: str | None
    body: bytes


async def request_renewal(
    server: Server,
    request: str,
    *,
    certificate: Path,
    key: Path,
    ca: str,
    now: Callable[[], datetime],
) -> EnrollmentAnswer:
    """The next identity for the present one, whose files are `certificate` (chain) and `key`; `ca` is what this node trusts, PEM. Nothing is
    shown to a server that is not an authority of that trust. Raises what `request_identity` raises of the connection; RefusedError
    `enroll.renewal_refused`."""
    context = _client_context()
    context.load_verify_locations(cadata=ca)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            "enroll.own_identity",
            f"the node's own identity cannot be shown: {error.strerror or 'certificate and key do not belong together'}",
            place=str(certificate),
            next_step="enroll again with a token made for this host",
        ) from None

    def check_peer(shown: str) -> None:
        _authority_claims(server, shown, ca, now())

    body = renewal_body(request)
    sent = _head(server, RENEW_PATH, len(body)) + body
    reply = await _exchange(server, context, sent, ENROLL_ANSWER_MAX_BYTES, check_peer)
    _check_date(reply, now())
    if reply.status == 403:
        raise RefusedError(
            "enroll.renewal_refused",
            f"the authority gives this host no other identity: {_said(reply.body) or 'no reason was given'}",
            place=str(server),
            next_step="the authority's enrollment-audit.jsonl has the reason; sbctl cluster token create --node-id HOST, then enroll again",
        )
    if reply.status != 200:
        raise _refusal(server, reply)
    return parse_answer(reply.body)


def _head(server: Server, path: str, length: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: {server.server_name}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
    ).encode()


async def request_identity(
    server: Server, token: JoinToken, asked: EnrollmentRequest, *, known_ca: str | None, now: Callable[[], datetime]
) -> Authenticated:
    """Raises UnreachableError `enroll.unreachable`, `enroll.too_slow`, `enroll.no_tls`, `enroll.authority_unavailable`; RefusedError
    `enroll.ca_mismatch`, `enroll.untrusted_server`, `enroll.not_the_authority`, `enroll.redirected`, `enroll.denied`, `enroll.rate_limited`,
    `identity.clock_skew`; InputError `enroll.answer_too_large`, `enroll.bad_answer`, `enroll.request_refused`."""
    ca = _pinned(server, token, known_ca if known_ca is not None else await _fetch_ca(server, now))
    context = _client_context()
    context.load_verify_locations(cadata=ca)
    shown: list[IdentityClaims] = []

    def check_peer(certificate: str) -> None:
        shown.append(_authority_claims(server, certificate, ca, now()))

    body = asked.to_json()
    head = _head(server, ENROLL_PATH, len(body))
    reply = await _exchange(server, context, head + body, ENROLL_ANSWER_MAX_BYTES, check_peer)
    _check_date(reply, now())
    if reply.status != 200:
        raise _refusal(server, reply)
    return Authenticated(parse_answer(reply.body), ca, shown[0].cluster_id, server)


async def _fetch_ca(server: Server, now: Callable[[], datetime]) -> str:
    """What the server says its CA is. Anybody may have said it."""
    context = _client_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    head = f"GET {CA_PATH} HTTP/1.1\r\nHost: {server.server_name}\r\nConnection: close\r\n\r\n"
    reply = await _exchange(server, context, head.encode(), PEM_MAX_BYTES, lambda _certificate: None)
    if reply.status != 200:
        raise _refusal(server, reply)
    _check_date(reply, now())
    return reply.body.decode("utf-8", "replace")


def _pinned(server: Server, token: JoinToken, pem: str) -> str:
    """The one certificate with the key that the token pins."""
    for one in split_chain(pem)[:4]:
        with contextlib.suppress(SbctlError):
            if certificate_facts(one).key_sha256 == token.pin:
                return one
    raise RefusedError(
        "enroll.ca_mismatch",
        "the server's CA is not the one that the token names, so the token was not sent",
        place=str(server),
        next_step="check the address; if the cluster has a new CA since the token was made, make a new token",
    )


def _authority_claims(server: Server, certificate: str, ca: str, now: datetime) -> IdentityClaims:
    """Who answered: every host of the cluster has a certificate for the server name, but only an authority is told tokens."""
    claims = verify_leaf(certificate, ca, server_name=server.server_name, now=now).claims
    if "authority" not in claims.roles:
        raise RefusedError(
            "enroll.not_the_authority",
            f"{claims.node_id} answered, a host of the cluster that is no authority, so the token was not sent",
            place=str(server),
            next_step="find out why that host answers there: nobody but the authority should ask for tokens",
            detail={"alarm": True},
        )
    return claims


def _client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


async def _exchange(
    server: Server, context: ssl.SSLContext, request: bytes, max_bytes: int, check_peer: Callable[[str], None]
) -> _Reply:
    """One connection, one request. `check_peer` gets the server's certificate, PEM, before a byte of the request is sent."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(server.connect_s):
            reader, writer = await asyncio.open_connection(
                server.host, server.port, ssl=context, server_hostname=server.server_name, limit=_CHUNK_BYTES
            )
        check_peer(_certificate_of(writer))
        async with asyncio.timeout(server.answer_s):
            writer.write(request)
            await writer.drain()
            return _parsed(await _read(reader, max_bytes))
    except TimeoutError:
        raise UnreachableError(
            "enroll.too_slow",
            "the server did not answer in time",
            place=str(server),
            next_step="run the command again: the same key is used, so a token that was burnt for it still counts",
            retryable=True,
        ) from None
    except ssl.SSLCertVerificationError as error:
        raise _untrusted(server, error) from None
    except ssl.SSLError as error:
        raise UnreachableError(
            "enroll.no_tls",
            f"no TLS 1.3 connection could be made: {(error.reason or 'handshake failed').lower().replace('_', ' ')}",
            place=str(server),
            next_step=_ITS_PORT,
        ) from None
    except OSError as error:
        raise UnreachableError(
            "enroll.unreachable",
            f"the authority cannot be reached: {error.strerror or 'the connection was closed'}",
            place=str(server),
            next_step="check address, port and firewall, then run the command again",
            retryable=True,
        ) from None
    finally:
        if writer is not None:
            writer.transport.abort()


def _certificate_of(writer: asyncio.StreamWriter) -> str:
    connection: ssl.SSLObject = writer.get_extra_info("ssl_object")
    return ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True) or b"")


async def _read(reader: asyncio.StreamReader, max_bytes: int) -> bytes:
    """To the end of the connection, which the server closes as it was asked to."""
    data = bytearray()
    while chunk := await reader.read(_CHUNK_BYTES):
        data += chunk
        if len(data) > max_bytes + HTTP_HEADER_MAX_BYTES:
            raise InputError(
                "enroll.answer_too_large",
                f"the server's answer has more than the {max_bytes} bytes that are read",
                next_step=_ITS_PORT,
            )
    return bytes(data)


class _Bytes:
    """What `http.client` parses: an answer that is complete and bounded already."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _parsed(data: bytes) -> _Reply:
    response = http.client.HTTPResponse(_Bytes(data))  # type: ignore[arg-type]
    try:
        response.begin()
        body = response.read()
    except (http.client.HTTPException, ValueError, OSError):
        raise InputError(
            "enroll.bad_answer", "the server's answer is not HTTP, or was cut", next_step=_ITS_PORT
        ) from None
    return _Reply(response.status, _date(response.headers.get("Date")), response.headers.get("Retry-After"), body)


def _date(header: str | None) -> datetime | None:
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        moment = parsedate_to_datetime(header or "")
        return moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return None


def _check_date(reply: _Reply, now: datetime) -> None:
    """Raises RefusedError `identity.clock_skew`."""
    if reply.date is not None:
        check_clocks(now, reply.date, whose="the authority's machine says")


def _untrusted(server: Server, error: ssl.SSLCertVerificationError) -> RefusedError:
    why = " ".join((error.verify_message or "the certificate cannot be verified").split())[:_SAID_MAX_CHARS]
    return RefusedError(
        "enroll.untrusted_server",
        f"the server is not the authority that the token names, so the token was not sent: {why}",
        place=str(server),
        next_step="check the address, this machine's clock, and the server name of the cluster (--server-name)",
    )


def _refusal(server: Server, reply: _Reply) -> SbctlError:
    said = _said(reply.body)
    place = str(server)
    if 300 <= reply.status < 400:
        return RefusedError(
            "enroll.redirected",
            "the server sends us elsewhere, and a token goes nowhere else",
            place=place,
            next_step="give the authority's own address",
        )
    if reply.status == 401:
        return RefusedError(
            "enroll.denied",
            f"the authority refuses: {said or 'the token is not valid'}",
            place=place,
            next_step="the authority's enrollment-audit.jsonl has the reason; sbctl cluster token create makes a new token",
        )
    if reply.status == 429:
        return RefusedError(
            "enroll.rate_limited",
            "the authority has too many requests of this address",
            place=place,
            next_step=f"wait {_seconds(reply.retry_after)} s, then run the command again",
            retryable=True,
        )
    if reply.status >= 500:
        return UnreachableError(
            "enroll.authority_unavailable",
            f"the authority cannot issue an identity now (status {reply.status}){f': {said}' if said else ''}",
            place=place,
            next_step="its log has the reason; then run the command again: the same key is used",
            retryable=True,
        )
    if 400 <= reply.status < 500 and reply.status != 404:
        return InputError(
            "enroll.request_refused",
            f"the authority does not take the request: {said or reply.status}",
            place=place,
            next_step="use the same version of sbctl on both sides; the enrollment server's log has the reason",
        )
    return InputError(
        "enroll.bad_answer",
        f"no enrollment server answers there (status {reply.status})",
        place=place,
        next_step=_ITS_PORT,
    )


def _said(body: bytes) -> str:
    """The server's sentence, when it is one."""
    with contextlib.suppress(ValueError, AttributeError, RecursionError):
        said = json.loads(body[:4096]).get("error")
        if isinstance(said, str) and said.isprintable():
            return said[:_SAID_MAX_CHARS]
    return ""


def _seconds(header: str | None) -> int:
    return min(int(header), 3600) if header is not None and header.isdecimal() and len(header) < 6 else 60
