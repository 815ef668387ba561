"""Making what proves an identity: keys, requests, CAs and the certificates below them, ECDSA P-256 only.

    CA      CN `sbproxy cluster <id>`, path length 1, 10 years
    between CN `sbproxy cluster <id> enrollment`, path length 0: of an enrollment server
    leaf    CN = node id; DNS SANs server name and node id; one URI SAN with the claims; EKU server and client; not before 5 minutes ago

Of a certificate signing request only the public key is taken: names, extensions and usages that it asks for are ignored. Serials are 128
random bits. Every leaf passes the verifier of `certificates` before it is given away.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from sbctl.base.errors import InputError, RefusedError
from sbctl.base.secret import Secret
from sbctl.trust.certificates import first_certificate, request_key, verify_leaf
from sbctl.trust.identity import IdentityClaims, claims_uri
from sbctl.trust.node_keys import load_key, p256

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

__all__ = [
    "LEAF_VALIDITY",
    "KeyPair",
    "create_ca",
    "create_request",
    "generate_private_key",
    "issue_intermediate",
    "issue_leaf",
]

LEAF_VALIDITY: Final = timedelta(days=90)
_CA_VALIDITY_DAYS: Final = 3650
_BACKDATE: Final = timedelta(minutes=5)
_CN_MAX_CHARS: Final = 64
_SERIAL_BITS: Final = 128


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, both PEM."""

    certificate: str
    key: Secret


def generate_private_key() -> Secret:
    """A new P-256 key, PKCS#8 PEM."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return _key_pem(ec.generate_private_key(ec.SECP256R1()))


def create_request(key: Secret, node_id: str) -> str:
    """A certificate signing request, PEM. Whoever signs takes nothing of it but the public key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(node_id))
    return builder.sign(load_key(key), hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def create_ca(cluster_id: str, *, now: datetime) -> KeyPair:
    """A self-signed CA for one cluster."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"sbproxy cluster {cluster_id}"[:_CN_MAX_CHARS])
    builder = _builder(name, name, key.public_key(), now, now + timedelta(days=_CA_VALIDITY_DAYS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    certificate = _signed(builder, key, key.public_key())
    return KeyPair(certificate, _key_pem(key))


def issue_intermediate(ca: KeyPair, request: str, name: str, *, now: datetime, validity_days: int) -> str:
    """A CA below `ca` for the public key of `request`, which issues leaves and no further CA.

    Raises InputError `certificate.request_invalid`; RefusedError `certificate.weak_key`, `certificate.ca_expired`, `certificate.no_delegation`
    for a CA that may have none below it.
    """
    from cryptography import x509

    public_key, issuer = request_key(request), first_certificate(ca.certificate)
    _refuse_expired(issuer, now)
    if (issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length or 0) < 1:
        raise RefusedError(
            "certificate.no_delegation",
            "the cluster's CA was made to issue for hosts only, so no enrollment server can issue below it",
            next_step="take it over into one that may: sbctl cluster rotate --ca, then apply three times",
        )
    until = min(now + timedelta(days=validity_days), issuer.not_valid_after_utc)
    builder = _builder(_name(name), issuer.subject, public_key, now, until)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _signed(builder, load_key(ca.key), p256(issuer.public_key()))


def issue_leaf(
    ca: KeyPair, request: str, claims: IdentityClaims, *, now: datetime, validity: timedelta = LEAF_VALIDITY
) -> str:
    """A node's certificate for the public key of `request`, verified by `verify_leaf` before it is returned.

    Raises InputError `certificate.request_invalid`, `certificate.name_too_long`; RefusedError `certificate.weak_key`,
    `certificate.ca_expired`, and whatever the verifier finds.
    """
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    if len(claims.node_id) > _CN_MAX_CHARS:
        raise InputError(
            "certificate.name_too_long",
            f'the name "{claims.node_id}" has more than the {_CN_MAX_CHARS} characters that a certificate holds',
            next_step="give the host a shorter name",
        )
    public_key = request_key(request)
    issuer = first_certificate(ca.certificate)
    _refuse_expired(issuer, now)
    until = min(now + validity, issuer.not_valid_after_utc)
    names = dict.fromkeys((claims.server_name, claims.node_id))
    alternative: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
    alternative.append(x509.UniformResourceIdentifier(claims_uri(claims)))
    builder = _builder(_name(claims.node_id), issuer.subject, public_key, now, until)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(alternative), critical=False)
    leaf = _signed(builder, load_key(ca.key), p256(issuer.public_key()))
    if verify_leaf(leaf, ca.certificate, server_name=claims.server_name, now=now).claims != claims:
        raise RefusedError("certificate.mismatch", "the issued certificate does not say what was granted")
    return leaf


def _refuse_expired(issuer: x509.Certificate, now: datetime) -> None:
    if now > issuer.not_valid_after_utc:
        raise RefusedError(
            "certificate.ca_expired",
            f"the cluster's CA expired at {issuer.not_valid_after_utc.isoformat(timespec='seconds')}",
            next_step="make a new one: sbctl cluster rotate --ca, then sbctl apply",
        )


def _name(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:_CN_MAX_CHARS])])


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: EllipticCurvePublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    from cryptography import x509

    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public_key)
    builder = builder.serial_number(_serial()).not_valid_before(now - _BACKDATE).not_valid_after(until)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)


def _serial() -> int:
    """128 random bits; never 0, which no certificate may have."""
    return secrets.randbits(_SERIAL_BITS) or 1


def _signed(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey, issuer: EllipticCurvePublicKey) -> str:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: EllipticCurvePrivateKey) -> Secret:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return Secret(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
