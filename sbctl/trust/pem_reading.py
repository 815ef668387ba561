"""Certificates out of PEM text that anybody may have written: read as a whole, or not at all.

The library looks at most parts of a certificate only when it is asked for them, and says so in a dozen ways; here every part is looked at
once, and there is one way to fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509

__all__ = ["certificates_in"]


def certificates_in(pem: bytes) -> Sequence[x509.Certificate]:
    """At least one, in their order. Raises ValueError for text that holds none, or one that cannot be read to its end."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        certificates = x509.load_pem_x509_certificates(pem)
        for certificate in certificates:
            _ = certificate.extensions, certificate.subject, certificate.issuer, certificate.public_key()
            _ = certificate.not_valid_before_utc, certificate.not_valid_after_utc
            if certificate.serial_number <= 0:
                raise ValueError("a serial number that no certificate may have")
    except (
        x509.InvalidVersion,
        x509.DuplicateExtension,
        x509.UnsupportedGeneralNameType,
        UnsupportedAlgorithm,
    ) as error:
        raise ValueError(str(error)) from error
    return certificates
