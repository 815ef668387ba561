"""Reading and judging certificates of node identities: ECDSA P-256 only, and a verifier of our own.

Nothing is verified but by `verify_leaf`; all else tells what a text says. Everything that judges time takes `now`. What makes certificates is
in `certificate_making`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.secret import Secret
from sbctl.trust.identity import CLOCK_SKEW_S, IdentityClaims, parse_claims
from sbctl.trust.node_keys import load_key, p256
from sbctl.trust.pem_reading import certificates_in

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

__all__ = [
    "CHAIN_MAX_CERTIFICATES",
    "PEM_MAX_BYTES",
    "CertificateFacts",
    "certificate_facts",
    "first_certificate",
    "is_fresh",
    "matches",
    "public_key_digest",
    "read_chain",
    "renewal_time",
    "request_key",
    "request_key_digest",
    "split_chain",
    "verify_leaf",
]

PEM_MAX_BYTES: Final = 64 * 1024
CHAIN_MAX_CERTIFICATES: Final = 4


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
                next_step="have it issued anew with that one URI, urn:sbproxy:identity:v1:…, and no other",
            )
        claims = parse_claims(self.uris[0])
        missing = [name for name in (claims.server_name, claims.node_id) if name not in self.dns_names]
        if missing or self.subject != claims.node_id:
            wrong = f"its names lack {missing[0]}" if missing else f"its subject is {self.subject!r}"
            raise InputError("identity.claims_invalid", f"the certificate says it is {claims.node_id}, but {wrong}")
        return claims


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
    return _digest(request_key(request))


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


def _load(pem: str) -> Sequence[x509.Certificate]:
    if len(pem) > PEM_MAX_BYTES * CHAIN_MAX_CERTIFICATES:
        raise InputError(
            "certificate.invalid",
            "there is more text than any certificate chain has",
            next_step="give the chain of one certificate, PEM",
        )
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
            "certificate.invalid",
            f"a chain has at most {CHAIN_MAX_CERTIFICATES} certificates, not {len(certificates)}",
            next_step="give the certificate and those between it and its CA alone",
        )
    return certificates


def first_certificate(pem: str) -> x509.Certificate:
    """Of `pem`. Raises InputError `certificate.invalid`."""
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


def request_key(request: str) -> EllipticCurvePublicKey:
    """What a request asks a certificate for. Raises InputError `certificate.request_invalid`, RefusedError `certificate.weak_key`."""
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


def _digest(key: object) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public_bytes = getattr(key, "public_bytes")  # noqa: B009 - every kind of public key has it
    return sha256_bytes(public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
