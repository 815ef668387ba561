"""What a node shows its peers and judges them by: one identity, taken up as a whole and swapped at once.

Contexts live as long as their plane, so a renewed certificate or CA counts from the next handshake on without a new socket. TLS 1.3 alone,
certificates on both sides, HTTP/1.1 by ALPN, no tickets: a session says nothing of who is at its other end, so none is resumed.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import Final

from sbctl.base.clock import Clock
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.secret import Secret
from sbctl.trust.authority_keys import AuthorityKeys
from sbctl.trust.identity import IdentityClaims
from sbctl.trust.node_identity import NodeIdentityFiles
from sbctl.trust.peer_documents import NodeSigner, PeerVerifier, TrustedMaterial
from sbctl.trust.revocation import RevocationList, open_revocations, refuse_revoked

__all__ = ["ALPN", "PlaneIdentity"]

ALPN: Final = "http/1.1"


class PlaneIdentity:
    """Of one node. `take` comes before any use; `on_change` is told when peers have to be judged anew."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._listed: RevocationList | None = None
        self._serving: ssl.SSLContext | None = None
        self._changed: list[Callable[[], None]] = []
        self.signer: NodeSigner
        self.verifier: PeerVerifier
        self.client_context: ssl.SSLContext
        self.server_context: Final = _context(ssl.PROTOCOL_TLS_SERVER)
        """One for the whole life of a listener."""
        self.server_context.sni_callback = self._choose

    @property
    def node_id(self) -> str:
        return self.signer.node_id

    def take(self, files: NodeIdentityFiles, key: Secret, *, revocations: str | None = None) -> None:
        """Show this identity and judge by its CA, its authority and its list, or by `revocations` where that is a newer list.

        Raises what verifying raises and goes on with what was held.
        """
        signer = NodeSigner(files, key, now=self._clock.now())
        material = TrustedMaterial.of(signer.identity.claims.cluster_id, files)
        listed = _list_of(material)
        if revocations is not None and material.authority_key is not None:
            newer = open_revocations(revocations, AuthorityKeys.parse(material.authority_key))
            if listed is None or newer.revision > listed.revision:
                listed = newer
                material = TrustedMaterial(material.cluster_id, material.ca, material.authority_key, revocations)
        serving = _loaded(ssl.PROTOCOL_TLS_SERVER, files, key)
        asking = _loaded(ssl.PROTOCOL_TLS_CLIENT, files, key)
        self.signer, self.verifier = signer, PeerVerifier(material)
        self._serving, self.client_context, self._listed = serving, asking, listed
        for told in self._changed:
            told()

    def on_change(self, told: Callable[[], None]) -> None:
        """Call it after every `take`."""
        self._changed.append(told)

    def is_revoked(self, claims: IdentityClaims) -> bool:
        """By the list that is held now."""
        if self._listed is None:
            return False
        try:
            refuse_revoked(self._listed, claims)
        except RefusedError:
            return True
        return False

    def _choose(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _first: ssl.SSLContext
    ) -> int | None:
        """Of every handshake, also of those that name no server."""
        if self._serving is None:
            return int(ssl.ALERT_DESCRIPTION_INTERNAL_ERROR)
        connection.context = self._serving
        return None


def _list_of(material: TrustedMaterial) -> RevocationList | None:
    if material.authority_key is None or material.revocations is None:
        return None
    return open_revocations(material.revocations, AuthorityKeys.parse(material.authority_key))


def _context(protocol: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    """A node is known by its certificate's digest, which its signed snapshot names, not by a name of DNS."""
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([ALPN])
    if protocol is ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    return context


def _loaded(protocol: ssl._SSLMethod, files: NodeIdentityFiles, key: Secret) -> ssl.SSLContext:
    """OpenSSL reads keys from files alone: this one has no name and lies in no filesystem. Raises InputError `tls.unusable`."""
    context = _context(protocol)
    fd = os.memfd_create("sbctl-peer", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(files.certificate.encode() + b"\n" + key.reveal())
        context.load_cert_chain(f"/proc/self/fd/{fd}")
        context.load_verify_locations(cadata=files.ca)
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise InputError(
            "tls.unusable",
            f"OpenSSL refuses the node's certificate, key or CA: {reason}",
            next_step="have the identity issued anew: sbctl cluster rotate NODE, then sbctl apply",
        ) from None
    finally:
        os.close(fd)
    return context
