"""What a node holds of its identity, and whether all of it is good: the rules for both ways to prove who a node is.

    enrolled     the authority signed an identity document; identity.json and authority-verifying.key are both there. Where an enrollment
                 server signed it, delegation.json holds the authority's word for that server
    manual_pki   a PKI of the user's own: the certificate alone says who the node is; both files are absent

One of the two files alone is an error, never a guess. Pure; takes `now`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from sbctl.base.errors import InputError, RefusedError
from sbctl.base.secret import Secret
from sbctl.trust.authority_keys import AuthorityKeys
from sbctl.trust.certificates import (
    CertificateFacts,
    certificate_facts,
    public_key_digest,
    read_chain,
    split_chain,
    verify_leaf,
)
from sbctl.trust.delegation import check_delegated, check_delegation, open_delegation
from sbctl.trust.identity import IdentityClaims, check_document, moment, open_identity
from sbctl.trust.revocation import open_revocations, refuse_revoked

__all__ = [
    "IDENTITY_FILE_NAMES",
    "Attestation",
    "NodeIdentity",
    "NodeIdentityFiles",
    "attestation_of",
    "verify_certificate",
    "verify_node_identity",
]

Attestation = Literal["enrolled", "manual_pki"]
IDENTITY_FILE_NAMES: Final[Mapping[str, str]] = {
    "certificate": "node.pem",
    "ca": "ca.pem",
    "identity": "identity.json",
    "authority_key": "authority-verifying.key",
    "revocations": "revocations.json",
    "delegation": "delegation.json",
}
"""Field of NodeIdentityFiles → its file in a directory."""


@dataclass(frozen=True, slots=True)
class NodeIdentityFiles:
    """The texts of one identity directory; None for a file that is not there. The private key is not among them."""

    certificate: str
    ca: str
    identity: str | None = None
    authority_key: str | None = None
    revocations: str | None = None
    delegation: str | None = None
    """Only of a host that enrolled at a server of its own keys."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """A verified identity. `ca` are fingerprints in the order of the bundle; `issuer` is the one that issued the certificate."""

    claims: IdentityClaims
    certificate: CertificateFacts
    ca: tuple[str, ...]
    issuer: str
    attestation: Attestation
    revocations: int
    until: datetime
    """The first end of all that it stands on."""


def attestation_of(*, has_document: bool, has_authority_key: bool) -> Attestation:
    """Raises InputError `identity.incomplete` when one of the two stands alone."""
    if has_document != has_authority_key:
        missing = "authority-verifying.key" if has_document else "identity.json"
        raise InputError(
            "identity.incomplete",
            f"{missing} is missing: identity.json and authority-verifying.key go together, and with a PKI of your own both are absent",
            next_step="have the identity installed anew: sbctl cluster rotate NODE, then sbctl apply",
        )
    return "enrolled" if has_document else "manual_pki"


def verify_node_identity(files: NodeIdentityFiles, *, key: Secret, now: datetime) -> NodeIdentity:
    """All of it, in this order: key, which files are there, claims, chain, dates, revocation list, delegation, document, revoked.

    Raises InputError `identity.incomplete`, `identity.claims_invalid`, `certificate.invalid`, `certificate.key_invalid`, `envelope.*`;
    RefusedError `certificate.*`, `identity.*`, `envelope.bad_signature`.
    """
    facts = certificate_facts(files.certificate)
    if public_key_digest(key) != facts.key_sha256:
        raise RefusedError(
            "certificate.key_mismatch",
            f"the private key here does not belong to the certificate of {facts.subject}",
            next_step="certificate and key have to be of one request: sbctl apply issues anew; a host that enrolled enrolls again",
        )
    return verify_certificate(files, now=now)


def verify_certificate(files: NodeIdentityFiles, *, now: datetime) -> NodeIdentity:
    """All but the private key, which may be elsewhere. Raises as `verify_node_identity`."""
    attestation = attestation_of(
        has_document=files.identity is not None, has_authority_key=files.authority_key is not None
    )
    facts = certificate_facts(files.certificate)
    claims = facts.claims
    verify_leaf(files.certificate, files.ca, server_name=claims.server_name, now=now)
    revision = 0
    ends = [one.not_after for one in read_chain(files.certificate)]
    if files.identity is not None and files.authority_key is not None:
        if files.revocations is None:
            raise InputError(
                "identity.incomplete",
                "revocations.json is missing, so a revoked peer would be believed",
                next_step="sbctl apply installs it",
            )
        keys = AuthorityKeys.parse(files.authority_key)
        listed = open_revocations(files.revocations, keys)
        signers = keys
        if files.delegation is not None:
            delegation = open_delegation(files.delegation, keys)
            check_delegation(delegation, listed, now=now)
            check_delegated(delegation, claims, files.certificate)
            signers = AuthorityKeys((delegation.verifying_key,))
            ends.append(moment(delegation.expires_at_unix_secs))
        document = open_identity(files.identity, signers)
        check_document(document, claims, certificate_sha256=facts.fingerprint, now=now)
        refuse_revoked(listed, claims)
        revision = listed.revision
        ends.append(moment(document.expires_at_unix_secs))
    return NodeIdentity(
        claims=claims,
        certificate=facts,
        ca=tuple(one.fingerprint for one in read_chain(files.ca)),
        issuer=_issuer(files, now),
        attestation=attestation,
        revocations=revision,
        until=min(ends),
    )


def _issuer(files: NodeIdentityFiles, now: datetime) -> str:
    """The one CA of the bundle that verifies the certificate alone."""
    claims = certificate_facts(files.certificate).claims
    for ca in split_chain(files.ca):
        try:
            verify_leaf(files.certificate, ca, server_name=claims.server_name, now=now)
        except RefusedError:
            continue
        return certificate_facts(ca).fingerprint
    return ""
