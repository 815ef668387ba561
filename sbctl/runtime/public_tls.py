"""The live TLS context of a listener: one `ssl.SSLContext` for the listener's whole life, whose certificate is swapped under it.

Every handshake asks which certificate counts now, so a renewal needs no new socket and no restart: connections that are open go on, the next
handshake shows the new one. Independent of who speaks HTTP above it, and of the event loop.

    api = PublicTls("api", SYSTEM_CLOCK)
    api.take(pem)                           # chain and private key in one PEM; refused as a whole, and the former one stays
    api.context                             # for loop.create_server(ssl=…) or loop.start_tls
"""

from __future__ import annotations

import ssl
from typing import Any, Final, Literal

from sbctl.base.clock import Clock, rfc3339
from sbctl.base.errors import InputError, SbctlError
from sbctl.base.secret import Secret
from sbctl.runtime.log import get_log
from sbctl.trust.public_certificate import PublicCertificate, check_pair, split_pair
from sbctl.trust.tls_chain import load_chain

__all__ = ["Plane", "PublicTls"]

Plane = Literal["api", "admin"]

_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2; those of 1.3 are all good."""
_ALPN: Final = ("http/1.1",)


class PublicTls:
    """`certificate` is None while there is none: every handshake is refused then."""

    def __init__(self, plane: Plane, clock: Clock) -> None:
        self.plane: Final = plane
        self._clock = clock
        self._log = get_log("tls")
        self._serving: ssl.SSLContext | None = None
        self._problem: SbctlError | None = None
        self.certificate: PublicCertificate | None = None
        self.context: Final = _bare_context()
        self.context.sni_callback = self._choose

    def take(self, pem: Secret, *, whatever_the_time: bool = False) -> PublicCertificate:
        """Show this chain from the next handshake on. `whatever_the_time`: an expired one too, where there is nothing better.

        Raises InputError `tls.*` and goes on with the former one.
        """
        try:
            chain, key = split_pair(pem.reveal())
            certificate = check_pair(chain, key)
            untimely = certificate.time_problem(self._clock.now())
            if untimely is not None and not whatever_the_time:
                raise untimely
            serving = _loaded(chain, key)
        except SbctlError as error:
            self.tell_problem(error)
            raise
        self._serving, self.certificate, self._problem = serving, certificate, untimely
        self._log.info(
            "certificate taken up",
            plane=self.plane,
            subject=certificate.subject,
            fingerprint=certificate.fingerprint,
            not_after=rfc3339(certificate.not_after),
        )
        return certificate

    def tell_problem(self, error: SbctlError) -> None:
        """Why there is no newer certificate; told by `status` until one is taken."""
        if self._problem is None or self._problem.message != error.message:
            self._log.error("certificate not taken up", plane=self.plane, code=error.code, reason=error.message)
        self._problem = error

    def status(self) -> dict[str, Any]:
        """What the status document says of it."""
        held = self.certificate
        problem = self._problem
        if held is not None and problem is None:
            problem = held.time_problem(self._clock.now())
        return {
            "plane": self.plane,
            "certificate": None if held is None else held.document(),
            "problem": None if problem is None else problem.message,
        }

    def _choose(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _first: ssl.SSLContext
    ) -> int | None:
        """Of every handshake, also of those that name no server."""
        if self._serving is None:
            return int(ssl.ALERT_DESCRIPTION_INTERNAL_ERROR)
        connection.context = self._serving
        return None


def _bare_context() -> ssl.SSLContext:
    """TLS 1.2 with forward secrecy and AEAD, and 1.3; no compression, no renegotiation, HTTP/1.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(list(_ALPN))
    return context


def _loaded(chain: bytes, key: Secret) -> ssl.SSLContext:
    """Raises InputError `tls.unusable`."""
    context = _bare_context()
    try:
        load_chain(context, chain + b"\n" + key.reveal())
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise InputError(
            "tls.unusable",
            f"OpenSSL refuses this certificate or its key: {reason}",
            next_step="have it issued anew, for an ECDSA P-256 key or RSA of 2048 bits or more",
        ) from None
    return context
