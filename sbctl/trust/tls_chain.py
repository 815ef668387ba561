"""A certificate chain and its key in a context of OpenSSL, which reads keys from files alone: this one has no name and lies in no filesystem."""

from __future__ import annotations

import os
import ssl

__all__ = ["load_chain"]


def load_chain(context: ssl.SSLContext, pem: bytes) -> None:
    """Show this chain; its private key stands in the same PEM. Raises ssl.SSLError, OSError or ValueError for what OpenSSL refuses."""
    fd = os.memfd_create("sbctl-tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
