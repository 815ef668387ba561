"""Node identity keys: ECDSA P-256 and nothing else. Reading them, and signatures by them: SHA-256, DER."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sbctl.base.errors import InputError, RefusedError
from sbctl.base.secret import Secret
from sbctl.trust.pem_reading import certificates_in

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

__all__ = ["load_key", "node_signs", "node_verifies", "p256"]


def p256(key: object) -> EllipticCurvePublicKey:
    """The public key, if it is one that node identities use. Raises RefusedError `certificate.weak_key`."""
    from cryptography.hazmat.primitives.asymmetric import ec

    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    kind = f"EC {key.curve.name}" if isinstance(key, ec.EllipticCurvePublicKey) else type(key).__name__.strip("_")
    raise RefusedError(
        "certificate.weak_key",
        f"node identities use ECDSA P-256 keys, and this is a key of another kind ({kind})",
        next_step="make the request with a P-256 key",
    )


def load_key(pem: Secret) -> EllipticCurvePrivateKey:
    """Raises InputError `certificate.key_invalid`; RefusedError `certificate.weak_key`."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_pem_private_key(pem.reveal(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(
            "certificate.key_invalid",
            "the private key cannot be read: not an open PKCS#8 PEM",
            next_step="openssl pkey -in KEY -out NEW writes it so",
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise RefusedError(
            "certificate.weak_key",
            "node identities use ECDSA P-256 keys, and this is another kind",
            next_step="make the request with a P-256 key",
        )
    p256(key.public_key())
    return key


def node_signs(pem: Secret) -> Callable[[bytes], bytes]:
    """What signs messages with this private key. Raises as `load_key`."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key, algorithm = load_key(pem), ec.ECDSA(hashes.SHA256())
    return lambda message: key.sign(message, algorithm)


def node_verifies(certificate: str) -> Callable[[bytes, bytes], bool]:
    """What tests signatures (signature, message to verdict) with the key of the first certificate of a PEM.

    Raises InputError `certificate.invalid`; RefusedError `certificate.weak_key`.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = p256(certificates_in(certificate.encode())[0].public_key())
    except ValueError:
        raise InputError("certificate.invalid", "this is not a certificate in PEM form") from None
    algorithm = ec.ECDSA(hashes.SHA256())

    def genuine(signature: bytes, message: bytes) -> bool:
        try:
            key.verify(signature, message, algorithm)
        except InvalidSignature:
            return False
        return True

    return genuine
