"""What a node shows its peers in TLS, and where it stands for who they are: contexts that live as long as their plane.

A renewed certificate or another CA counts from the next handshake on, without a new socket. TLS 1.3 alone, certificates on both sides,
HTTP/1.1 by ALPN, no tickets: a session says nothing of who is at its other end, so none is resumed.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from sbctl.base.errors import EngineError, RefusedError, SbctlError
from sbctl.base.secret import Secret
from sbctl.runtime.identity_tls import load_identity
from sbctl.runtime.log import get_log
from sbctl.trust.node_identity import NodeIdentityFiles
from sbctl.trust.peer_documents import NodeSigner, Peer, PeerMark, PeerVerifier

__all__ = ["ALPN", "PlaneIdentity", "PlaneTrust"]

ALPN: Final = "http/1.1"


class PlaneTrust(Protocol):
    """By what peers are judged, and in whose name this node speaks: `sbctl.runtime.cluster.held_trust`."""

    files: NodeIdentityFiles
    verifier: PeerVerifier
    signer: NodeSigner | None

    def key(self) -> Secret: ...

    def check(self, peer: Peer, marks: Mapping[str, PeerMark]) -> None:
        """A peer that proved itself once. Raises RefusedError `identity.*`."""
        ...

    def on_change(self, listener: Callable[[], None]) -> None: ...


class PlaneIdentity:
    """Of one node."""

    def __init__(self, trust: PlaneTrust) -> None:
        """Raises InputError `tls.unusable`, and what reading the key raises."""
        self._trust = trust
        self._changed: list[Callable[[], None]] = []
        self._log = get_log("peer")
        self._serving = _loaded(ssl.PROTOCOL_TLS_SERVER, trust.files, trust.key())
        self.client_context = _loaded(ssl.PROTOCOL_TLS_CLIENT, trust.files, trust.key())
        self.server_context: Final = _context(ssl.PROTOCOL_TLS_SERVER)
        """One for the whole life of a listener."""
        self.server_context.sni_callback = self._choose
        trust.on_change(self._renew)

    @property
    def verifier(self) -> PeerVerifier:
        return self._trust.verifier

    @property
    def signer(self) -> NodeSigner:
        """Raises EngineError `identity_unusable` while this node cannot speak in its cluster."""
        signer = self._trust.signer
        if signer is None:
            raise EngineError("identity_unusable", "this node's own identity does not count now", retryable=True)
        return signer

    def on_change(self, told: Callable[[], None]) -> None:
        """Call it when certificate, CA or revocation list are others."""
        self._changed.append(told)

    def is_refused(self, peer: Peer, marks: Mapping[str, PeerMark]) -> bool:
        """Whether a peer that was let in once would not be any more."""
        try:
            self._trust.check(peer, marks)
        except RefusedError:
            return True
        return False

    def _renew(self) -> None:
        try:
            key = self._trust.key()
            serving = _loaded(ssl.PROTOCOL_TLS_SERVER, self._trust.files, key)
            asking = _loaded(ssl.PROTOCOL_TLS_CLIENT, self._trust.files, key)
            self._serving, self.client_context = serving, asking
        except SbctlError as error:
            self._log.error("connections go on under the former certificate", code=error.code, reason=error.message)
        for told in self._changed:
            told()

    def _choose(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _first: ssl.SSLContext
    ) -> int | None:
        """Of every handshake, also of those that name no server."""
        connection.context = self._serving
        return None


def _context(protocol: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    """A node is known by its certificate's digest, which its signed snapshot names, not by a name of DNS."""
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([ALPN])
    if protocol is ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    return context


def _loaded(protocol: ssl._SSLMethod, files: NodeIdentityFiles, key: Secret) -> ssl.SSLContext:
    """Raises InputError `tls.unusable`."""
    context = _context(protocol)
    load_identity(context, files, key)
    return context
