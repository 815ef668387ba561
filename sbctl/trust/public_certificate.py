"""The certificate that callers of the API see: the user's own, from any CA. What it says, and whether it can be served.

    chain   PEM, the server's own certificate first, then what leads to a CA that callers trust
    key     PEM without a passphrase: ECDSA on P-256, P-384 or P-521, RSA from 2048 bits, Ed25519

Nothing here asks who issued it: that is between callers and their CAs. Everything that judges time takes `now`.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from sbctl.base.clock import rfc3339
from sbctl.base.digests import sha256_bytes
from sbctl.base.display import display_safe
from sbctl.base.errors import InputError, SbctlError
from sbctl.base.secret import Secret
from sbctl.trust.pem_reading import certificates_in

if TYPE_CHECKING:
    from cryptography import x509

__all__ = [
    "PUBLIC_CHAIN_MAX_BYTES",
    "PublicCertificate",
    "check_pair",
    "read_public_certificate",
    "split_pair",
]

PUBLIC_CHAIN_MAX_BYTES: Final = 64 * 1024
_CERTIFICATES_MAX: Final = 10
_WARN_BEFORE: Final = timedelta(days=21)
_RSA_BITS_MIN: Final = 2048
_WEAK_HASHES: Final = frozenset({"md5", "sha1"})
_KEY_MARK: Final = b"PRIVATE KEY-----"


@dataclass(frozen=True, slots=True)
class PublicCertificate:
    """What is told of it. `fingerprint` is the SHA-256 of its DER, `key_sha256` that of its public key, both hex."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    """DNS names and IP addresses, as written; a DNS name may begin with `*.`."""
    not_before: datetime
    not_after: datetime
    fingerprint: str
    key_sha256: str
    key_kind: str
    chain: tuple[str, ...] = ()
    """Fingerprints of what stands behind it."""

    def covers(self, hostname: str) -> bool:
        """Whether a client that asks for `hostname` accepts it (RFC 6125: a wildcard stands for one whole first label)."""
        wanted = hostname.lower().rstrip(".")
        try:
            address = ipaddress.ip_address(wanted.strip("[]"))
        except ValueError:
            _, dot, parent = wanted.partition(".")
            given = {name.lower() for name in self.names}
            return wanted in given or bool(dot and "." in parent and f"*.{parent}" in given)
        return any(_same_address(name, str(address)) for name in self.names)

    def time_problem(self, now: datetime) -> SbctlError | None:
        """InputError `tls.expired`, `tls.not_yet_valid`, or None."""
        if now > self.not_after:
            return InputError(
                "tls.expired",
                f"the certificate for {self.subject} expired at {rfc3339(self.not_after)}",
                next_step="renew it with whoever issued it, then run sbctl apply",
            )
        if now < self.not_before:
            return InputError(
                "tls.not_yet_valid",
                f"the certificate for {self.subject} begins at {rfc3339(self.not_before)}, and it is {rfc3339(now)} here",
                next_step="look at the clock of this machine (timedatectl), or wait",
            )
        return None

    def warn_from(self) -> datetime:
        """From when on its end is near: 21 days before, or a third of a shorter life."""
        return self.not_after - min(_WARN_BEFORE, (self.not_after - self.not_before) / 3)

    def ends_soon(self, now: datetime) -> str | None:
        """One sentence when its end is near or past."""
        if now > self.not_after:
            return f"the certificate for {self.subject} expired on {self.not_after.date()}"
        if now < self.warn_from():
            return None
        days = (self.not_after - now) // timedelta(days=1)
        return f"the certificate for {self.subject} ends on {self.not_after.date()}, in {days} days"

    def document(self) -> dict[str, Any]:
        """As plans, states and status documents hold it."""
        return {
            "subject": self.subject,
            "issuer": self.issuer,
            "names": list(self.names),
            "not_before": rfc3339(self.not_before),
            "not_after": rfc3339(self.not_after),
            "fingerprint": self.fingerprint,
            "key_sha256": self.key_sha256,
            "key_kind": self.key_kind,
            "chain": list(self.chain),
        }

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        """The reverse of `document`. Raises KeyError, ValueError, TypeError."""
        return cls(
            subject=str(document["subject"]),
            issuer=str(document["issuer"]),
            names=tuple(map(str, document["names"])),
            not_before=datetime.fromisoformat(document["not_before"]),
            not_after=datetime.fromisoformat(document["not_after"]),
            fingerprint=str(document["fingerprint"]),
            key_sha256=str(document["key_sha256"]),
            key_kind=str(document["key_kind"]),
            chain=tuple(map(str, document["chain"])),
        )


def read_public_certificate(chain: bytes) -> PublicCertificate:
    """What a server with this chain shows; its dates are not judged.

    Raises InputError `tls.certificate_invalid`, `tls.chain_order`, `tls.weak_key`, `tls.weak_signature`, `tls.no_names`, `tls.wrong_purpose`.
    """
    from cryptography import x509

    certificates = _load(chain)
    leaf = certificates[0]
    kind = _key_kind(leaf.public_key())
    for certificate in certificates:
        _check_signature(certificate)
    _check_order(certificates)
    try:
        alternative = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        alternative = x509.SubjectAlternativeName([])
    addresses = [str(address) for address in alternative.get_values_for_type(x509.IPAddress)]
    names = tuple(display_safe(name, max_chars=253) for name in alternative.get_values_for_type(x509.DNSName))
    if not names and not addresses:
        raise InputError(
            "tls.no_names",
            "the certificate has no subject alternative name, and clients read no other",
            next_step="have it issued with the host names of your origins as DNS names",
        )
    _check_purpose(leaf)
    return PublicCertificate(
        subject=_readable(leaf.subject) or (*names, *addresses)[0],
        issuer=_readable(leaf.issuer) or "an unnamed CA",
        names=(*names, *addresses),
        not_before=leaf.not_valid_before_utc,
        not_after=leaf.not_valid_after_utc,
        fingerprint=_fingerprint(leaf),
        key_sha256=_key_digest(leaf.public_key()),
        key_kind=kind,
        chain=tuple(_fingerprint(certificate) for certificate in certificates[1:]),
    )


def check_pair(chain: bytes, key: Secret) -> PublicCertificate:
    """`read_public_certificate`, and the key belongs to it. Raises also InputError `tls.key_invalid`, `tls.key_encrypted`, `tls.key_mismatch`."""
    certificate = read_public_certificate(chain)
    if _key_digest(_load_key(key)) != certificate.key_sha256:
        raise InputError(
            "tls.key_mismatch",
            f"the private key is not the one of the certificate for {certificate.subject}",
            next_step="name the key that the certificate was requested with; certbot keeps it as privkey.pem beside fullchain.pem",
        )
    return certificate


def split_pair(pem: bytes) -> tuple[bytes, Secret]:
    """The certificates and the private key of one PEM text. Raises InputError `tls.certificate_invalid`, `tls.key_invalid`."""
    certificates: list[bytes] = []
    keys: list[bytes] = []
    for block in pem.split(b"-----BEGIN ")[1:]:
        (keys if _KEY_MARK in block.partition(b"\n")[0] else certificates).append(b"-----BEGIN " + block)
    if not certificates:
        raise InputError(
            "tls.certificate_invalid",
            "there is no certificate in PEM form",
            next_step="openssl x509 -in FILE -text shows one that is",
        )
    if len(keys) != 1:
        raise InputError(
            "tls.key_invalid",
            f"there must be one private key, and there are {len(keys)}",
            next_step="give one PEM with the chain and its own key",
        )
    return b"".join(certificates), Secret(keys[0])


def _load(chain: bytes) -> Sequence[x509.Certificate]:
    invalid = InputError(
        "tls.certificate_invalid",
        "this is not a certificate chain in PEM form",
        next_step="name the file with the whole chain, as certbot's fullchain.pem",
    )
    if len(chain) > PUBLIC_CHAIN_MAX_BYTES or _KEY_MARK in chain:
        raise InputError(
            "tls.certificate_invalid",
            "the certificate file has a private key in it"
            if _KEY_MARK in chain
            else "there is more text than any certificate chain has",
            next_step="name a file with the chain alone: certificates are shown and recorded, keys never",
        )
    try:
        certificates = certificates_in(chain)
    except ValueError:
        raise invalid from None
    if not 1 <= len(certificates) <= _CERTIFICATES_MAX:
        raise invalid
    return certificates


def _check_order(certificates: Sequence[x509.Certificate]) -> None:
    from cryptography.exceptions import InvalidSignature

    for below, above in itertools.pairwise(certificates):
        try:
            below.verify_directly_issued_by(above)
        except (ValueError, TypeError, InvalidSignature):
            said = f"{_readable(above.subject) or 'the next certificate'} did not issue {_readable(below.subject) or 'the one before'}"
            raise InputError(
                "tls.chain_order",
                f"the chain is in the wrong order or incomplete: {said}",
                next_step="put the server's certificate first, then each issuer in turn, as certbot's fullchain.pem",
            ) from None


def _check_signature(certificate: x509.Certificate) -> None:
    from cryptography.exceptions import UnsupportedAlgorithm

    if certificate.issuer == certificate.subject:
        return  # Nobody reads the signature of a root.
    try:
        algorithm = certificate.signature_hash_algorithm
    except UnsupportedAlgorithm:
        algorithm = None
    if algorithm is not None and algorithm.name in _WEAK_HASHES:
        raise InputError(
            "tls.weak_signature",
            f"{_readable(certificate.subject) or 'a certificate'} is signed with {algorithm.name.upper()}, which clients refuse",
            next_step="have it issued with SHA-256 or better",
        )


def _check_purpose(leaf: x509.Certificate) -> None:
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        purposes = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    allowed = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE)
    if not any(purpose in allowed for purpose in purposes):
        raise InputError(
            "tls.wrong_purpose",
            "the certificate is not for servers: its extended key usage lacks serverAuth",
            next_step="have one issued for TLS servers",
        )


def _key_kind(key: object) -> str:
    """Raises InputError `tls.weak_key`."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    if isinstance(key, ec.EllipticCurvePublicKey):
        if isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1 | ec.SECP521R1):
            return f"ECDSA P-{key.curve.key_size}"
        kind = f"EC {key.curve.name}"
    elif isinstance(key, rsa.RSAPublicKey):
        if key.key_size >= _RSA_BITS_MIN:
            return f"RSA {key.key_size}"
        kind = f"RSA {key.key_size}"
    elif isinstance(key, ed25519.Ed25519PublicKey):
        return "Ed25519"
    else:
        kind = type(key).__name__.strip("_").removesuffix("PublicKey")
    raise InputError(
        "tls.weak_key",
        f"the certificate's key ({kind}) is too weak or of a kind that clients refuse",
        next_step=f"have one issued for an ECDSA P-256 key, or RSA of {_RSA_BITS_MIN} bits or more",
    )


def _load_key(key: Secret) -> object:
    """Its public half."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        return serialization.load_pem_private_key(key.reveal(), None).public_key()
    except TypeError:
        raise InputError(
            "tls.key_encrypted",
            "the private key has a passphrase, and a server that starts by itself cannot ask for it",
            next_step="take the passphrase off: openssl pkey -in KEY -out NEW",
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(
            "tls.key_invalid",
            "the private key cannot be read: not a private key in PEM form",
            next_step="name the key file that belongs to the certificate, as certbot's privkey.pem",
        ) from None


def _readable(name: x509.Name) -> str:
    from cryptography.x509.oid import NameOID

    for oid in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME):
        found = name.get_attributes_for_oid(oid)
        if found:
            return display_safe(str(found[0].value), max_chars=128)
    return ""


def _same_address(name: str, address: str) -> bool:
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(address)
    except ValueError:
        return False


def _fingerprint(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return sha256_bytes(certificate.public_bytes(Encoding.DER))


def _key_digest(key: object) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public_bytes = getattr(key, "public_bytes")  # noqa: B009 - every kind of public key has it
    return sha256_bytes(public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
