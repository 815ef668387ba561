"""A CA as users have them, for tests of public certificates: an intermediate under a root, any names, dates and keys, also bad ones."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Issued", "issue", "public_ca", "rsa_key"]

_LIFE = timedelta(days=90)


@dataclass(frozen=True)
class Issued:
    """`chain`: the leaf, then the intermediate."""

    chain: bytes
    key: bytes
    leaf: bytes
    intermediate: bytes

    @property
    def pair(self) -> bytes:
        return self.chain + self.key


@dataclass(frozen=True)
class _Authority:
    name: x509.Name
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def pem_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


@cache
def rsa_key(bits: int) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@cache
def _authority(common_name: str, issuer: str | None) -> _Authority:
    key, name = ec.generate_private_key(ec.SECP256R1()), _name(common_name)
    above = _authority(issuer, None) if issuer is not None else None
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(above.name if above is not None else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=3650))
        .not_valid_after(now + timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(is_ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _Authority(name, key, builder.sign(above.key if above is not None else key, hashes.SHA256()))


def public_ca() -> bytes:
    """The root that clients trust, PEM."""
    return pem_of(_authority("Test Root", None).certificate)


def issue(
    *names: str,
    begins: datetime | None = None,
    ends: datetime | None = None,
    key: Any = None,
    purposes: Sequence[x509.ObjectIdentifier] = (ExtendedKeyUsageOID.SERVER_AUTH,),
    passphrase: bytes | None = None,
) -> Issued:
    """A certificate for these host names and addresses, good for 90 days unless said otherwise."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    above = _authority("Test Intermediate", "Test Root")
    begins = begins or datetime.now(UTC) - timedelta(minutes=5)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(names[0] if names else "nameless"))
        .issuer_name(above.name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends or begins + _LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(above.key.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
    leaf = pem_of(builder.sign(above.key, hashes.SHA256()))
    encryption = (
        serialization.NoEncryption() if passphrase is None else serialization.BestAvailableEncryption(passphrase)
    )
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    intermediate = pem_of(above.certificate)
    return Issued(leaf + intermediate, private, leaf, intermediate)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
