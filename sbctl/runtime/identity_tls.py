"""A node's certificate, key and CA in a context of OpenSSL."""

from __future__ import annotations

import ssl

from sbctl.base.errors import InputError
from sbctl.base.secret import Secret
from sbctl.trust.node_identity import NodeIdentityFiles
from sbctl.trust.tls_chain import load_chain

__all__ = ["load_identity"]


def load_identity(context: ssl.SSLContext, files: NodeIdentityFiles, key: Secret) -> None:
    """Show this identity, and believe its CA. Raises InputError `tls.unusable`."""
    try:
        load_chain(context, files.certificate.encode() + b"\n" + key.reveal())
        context.load_verify_locations(cadata=files.ca)
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise InputError(
            "tls.unusable",
            f"OpenSSL refuses the node's certificate, key or CA: {reason}",
            next_step="have the identity issued anew: sbctl cluster rotate NODE, then sbctl apply",
        ) from None
