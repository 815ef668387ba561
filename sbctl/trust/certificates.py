"""X.509 for node identities: ECDSA P-256 only, and a verifier of our own that every issued certificate passes first.

    CA      CN `sbproxy cluster <id>`, path length 1, 10 years
    between CN `sbproxy cluster <id> enrollment`, path length 0: of an enrollment server
    leaf    CN = node id; DNS SANs server name and node id; one URI SAN with the claims; EKU server and client; not before 5 minutes ago

Of a certificate signing request only the public key is taken: names, extensions and usages that it asks for are ignored. Serials are 128
random bits. Everything that judges time takes `now`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.secret import Secret
from sbctl.trust.identity import CLOCK_SKEW_S, IdentityClaims, claims_uri, parse_claims
from sbctl.trust.node_keys import load_key, p256
from sbctl.trust.pem_reading import certificates_in

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

__all__ = [
    "CHAIN_MAX_CERTIFICATES",
    "LEAF_VALIDITY",
    "PEM_MAX_BYTES",
    "CertificateFacts",
    "KeyPair",
    "certificate_facts",
    "create_ca",
    "create_request",
    "generate_private_key",
    "is_fresh",
    "issue_intermediate",
    "issue_leaf",
    "matches",
    "public_key_digest",
    "read_chain",
    "renewal_time",
    "request_key_digest",
    "split_chain",
    "verify_leaf",
]

LEAF_VALIDITY: Final = timedelta(days=90)
PEM_MAX_BYTES: Final = 64 * 1024
CHAIN_MAX_CERTIFICATES: Final = 4
_CA_VALIDITY_DAYS: Final = 3650
_BACKDATE: Final = timedelta(minutes=5)
_CN_MAX_CHARS: Final = 64
_SERIAL_BITS: Final = 128


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, both PEM."""

    certificate: str
    key: Secret


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """What is told of a certificate. `fingerprint` is the SHA-256 of its DER, `key_sha256` that of its public key, both hex."""

    subject: str
    serial: str
    fingerprint: str
    key_sha256: str
    not_before: datetime
    not_after: datetime
    dns_names: tuple[str, ...]
    uris: tuple[str, ...]

    @property
    def claims(self) -> IdentityClaims:
        """Raises InputError `identity.claims_invalid` unless exactly one URI says who the node is, and the DNS names agree."""
        if len(self.uris) != 1:
            raise InputError(
                "identity.claims_invalid",
                f"a node's certificate has one URI that says who it is; this one has {len(self.uris)}",
            )
        claims = parse_claims(self.uris[0])
        missing = [name for name in (claims.server_name, claims.node_id) if name not in self.dns_names]
        if missing or self.subject != claims.node_id:
            wrong = f"its names lack {missing[0]}" if missing else f"its subject is {self.subject!r}"
            raise InputError("identity.claims_invalid", f"the certificate says it is {claims.node_id}, but {wrong}")
        return claims


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

    public_key, issuer = _request_key(request), _load_one(ca.certificate)
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


def _refuse_expired(issuer: x509.Certificate, now: datetime) -> None:
    if now > issuer.not_valid_after_utc:
        raise RefusedError(
            "certificate.ca_expired",
            f"the cluster's CA expired at {issuer.not_valid_after_utc.isoformat(timespec='seconds')}",
            next_step="make a new one: sbctl cluster rotate --ca, then sbctl apply",
        )


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
    public_key = _request_key(request)
    issuer = _load_one(ca.certificate)
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


def verify_leaf(chain: str, ca_bundle: str, *, server_name: str, now: datetime) -> CertificateFacts:
    """The first certificate of `chain` is good now for a server of this name and for a client, by one of the CAs of `ca_bundle`.

    Raises InputError `certificate.invalid`; RefusedError `certificate.weak_key`, `certificate.expired`, `certificate.not_yet_valid`,
    `certificate.untrusted`.
    """
    from cryptography import x509
    from cryptography.x509 import verification

    certificates = list(_load(chain))
    leaf, between = certificates[0], certificates[1:]
    for certificate in certificates:
        p256(certificate.public_key())
    facts = _facts(leaf)
    _check_dates(facts, now)
    moment = max(now, facts.not_before)
    builder = verification.PolicyBuilder().store(verification.Store(list(_load(ca_bundle)))).time(moment)
    try:
        builder.build_server_verifier(x509.DNSName(server_name)).verify(leaf, between)
        builder.build_client_verifier().verify(leaf, between)
    except (verification.VerificationError, x509.UnsupportedGeneralNameType, ValueError) as error:
        why = " ".join(str(error).split())[:200]
        raise RefusedError(
            "certificate.untrusted",
            f"the certificate of {facts.subject} (fingerprint {facts.fingerprint[:16]}) is not one of this cluster: {why}",
            next_step="have it issued by the cluster's authority: sbctl apply",
        ) from None
    return facts


def certificate_facts(pem: str) -> CertificateFacts:
    """What the first certificate of `pem` says; nothing is verified. Raises InputError `certificate.invalid`."""
    return _facts(_load(pem)[0])


def read_chain(pem: str) -> tuple[CertificateFacts, ...]:
    """All certificates of `pem`, in its order. Raises InputError `certificate.invalid`."""
    return tuple(_facts(certificate) for certificate in _load(pem))


def split_chain(pem: str) -> tuple[str, ...]:
    """Each certificate of `pem` as a text of its own."""
    end = "-----END CERTIFICATE-----"
    return tuple(f"{part.strip()}\n{end}\n" for part in pem.split(end) if part.strip())


def request_key_digest(request: str) -> str:
    """SHA-256 of the public key in a request. Raises InputError `certificate.request_invalid`, RefusedError `certificate.weak_key`."""
    return _digest(_request_key(request))


def public_key_digest(key: Secret) -> str:
    """SHA-256 of the public half of a private key. Raises InputError `certificate.key_invalid`, RefusedError `certificate.weak_key`."""
    return _digest(load_key(key).public_key())


def matches(certificate: str, key: Secret) -> bool:
    """Whether the private key belongs to the first certificate of `certificate`."""
    return certificate_facts(certificate).key_sha256 == public_key_digest(key)


def renewal_time(not_before: datetime, not_after: datetime, renew_before_days: int | None) -> datetime:
    """From when on an apply renews: half of the life, or so many days before its end."""
    if renew_before_days is None:
        return not_before + (not_after - not_before) / 2
    return max(not_before, not_after - timedelta(days=renew_before_days))


def is_fresh(certificate: str, now: datetime) -> bool:
    """Whether the first certificate of a chain is before the half of its life."""
    facts = certificate_facts(certificate)
    return facts.not_before <= now <= facts.not_before + (facts.not_after - facts.not_before) / 2


def _check_dates(facts: CertificateFacts, now: datetime) -> None:
    if now > facts.not_after:
        raise RefusedError(
            "certificate.expired",
            f"the certificate of {facts.subject} expired at {facts.not_after.isoformat(timespec='seconds')}; "
            f"this clock says {now.isoformat(timespec='seconds')}",
            next_step="if the clock is right, have a new one issued: sbctl apply",
        )
    if now < facts.not_before - timedelta(seconds=CLOCK_SKEW_S):
        raise RefusedError(
            "certificate.not_yet_valid",
            f"the certificate of {facts.subject} begins at {facts.not_before.isoformat(timespec='seconds')}; "
            f"this clock says {now.isoformat(timespec='seconds')}",
            next_step="set the clocks of both machines (timedatectl set-ntp true)",
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


def _load(pem: str) -> Sequence[x509.Certificate]:
    if len(pem) > PEM_MAX_BYTES * CHAIN_MAX_CERTIFICATES:
        raise InputError("certificate.invalid", "there is more text than any certificate chain has")
    try:
        certificates = certificates_in(pem.encode())
    except ValueError:
        raise InputError(
            "certificate.invalid",
            "this is not a certificate in PEM form",
            next_step="openssl x509 -in FILE -text shows it",
        ) from None
    if len(certificates) > CHAIN_MAX_CERTIFICATES:
        raise InputError(
            "certificate.invalid", f"a chain has at most {CHAIN_MAX_CERTIFICATES} certificates, not {len(certificates)}"
        )
    return certificates


def _load_one(pem: str) -> x509.Certificate:
    return _load(pem)[0]


def _facts(certificate: x509.Certificate) -> CertificateFacts:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import NameOID

    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    try:
        alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        alternative = x509.SubjectAlternativeName([])
    return CertificateFacts(
        subject=str(names[0].value) if len(names) == 1 else "",
        serial=f"{certificate.serial_number:x}",
        fingerprint=sha256_bytes(certificate.public_bytes(Encoding.DER)),
        key_sha256=_digest(certificate.public_key()),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        dns_names=tuple(alternative.get_values_for_type(x509.DNSName)),
        uris=tuple(alternative.get_values_for_type(x509.UniformResourceIdentifier)),
    )


def _request_key(request: str) -> EllipticCurvePublicKey:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    problem = InputError("certificate.request_invalid", "this is not a certificate signing request that can be used")
    if len(request) > PEM_MAX_BYTES:
        raise problem
    try:
        parsed = x509.load_pem_x509_csr(request.encode())
        key = p256(parsed.public_key())
        if not parsed.is_signature_valid:
            raise problem
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion, x509.DuplicateExtension):
        raise problem from None
    return key


def _key_pem(key: EllipticCurvePrivateKey) -> Secret:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return Secret(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _digest(key: object) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public_bytes = getattr(key, "public_bytes")  # noqa: B009 - every kind of public key has it
    return sha256_bytes(public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
