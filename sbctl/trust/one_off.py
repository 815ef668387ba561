"""A TLS server for an hour: a key that never touches a disk and a certificate that is trusted by its digest alone."""

from __future__ import annotations

import secrets
import ssl
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sbctl.trust.tls_chain import load_chain

__all__ = ["OneOffTls", "one_off_tls"]

_VALIDITY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class OneOffTls:
    """`context` serves TLS 1.3; `certificate_sha256` is what the other side compares."""

    context: ssl.SSLContext
    certificate_sha256: str


def one_off_tls(now: datetime) -> OneOffTls:
    """A fresh ECDSA P-256 key and a certificate of no name signed by it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sbctl-relay")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(int.from_bytes(secrets.token_bytes(16), "big") >> 1)
        .not_valid_before(now - _VALIDITY)
        .not_valid_after(now + _VALIDITY)
        .sign(key, hashes.SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate.public_bytes(Encoding.PEM)
    load_chain(context, pem)
    return OneOffTls(context, certificate.fingerprint(hashes.SHA256()).hex())
