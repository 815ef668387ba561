"""How a node shows itself to the store's servers and knows them: by the identity that it holds now, TLS 1.3 alone, and each server by its name."""

from __future__ import annotations

import ssl

from sbctl.runtime.identity_files import IdentityFiles
from sbctl.runtime.identity_tls import load_identity

__all__ = ["store_context"]


def store_context(identity: IdentityFiles) -> ssl.SSLContext:
    """Made for each connection, so that a renewed identity counts from the next one on; the name is checked by whoever connects.

    Raises InputError `file.*`, `tls.unusable`, RefusedError `identity.permissions`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    load_identity(context, identity.read(), identity.key())
    return context
