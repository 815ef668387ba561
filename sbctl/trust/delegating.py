"""The authority's side of a delegation: what an enrollment server is given for two public keys of its own, and how that is taken away."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sbctl.trust.authority_directory import KEY_ID, EnrollmentRecord
from sbctl.trust.certificate_making import KeyPair, issue_intermediate
from sbctl.trust.certificates import certificate_facts, is_fresh, request_key_digest
from sbctl.trust.delegation import Delegation, delegation_name, sign_delegation
from sbctl.trust.keys import SigningKey
from sbctl.trust.revocation import Revocation

__all__ = ["Asked", "delegated", "entry_of_server", "is_the_same"]


@dataclass(frozen=True, slots=True)
class Asked:
    """`request` holds the public key of the server's CA; `issuer` is the fingerprint of the CA above it."""

    node_id: str
    request: str
    verifying_key: str
    issuer: str
    validity_days: int


def is_the_same(before: EnrollmentRecord, asked: Asked, now: datetime) -> bool:
    """What was given before is what is asked for, is fresh, and was not taken away."""
    if before.epoch <= before.revoked_epoch or not is_fresh(before.certificate, now):
        return False
    wanted = (asked.node_id, request_key_digest(asked.request), asked.verifying_key, asked.issuer)
    return (before.node_id, before.key_sha256, before.verifying_key, before.issuer) == wanted


def delegated(
    asked: Asked, before: EnrollmentRecord | None, *, cluster_id: str, ca: KeyPair, signer: SigningKey, now: datetime
) -> EnrollmentRecord:
    """The next delegation. Raises what `issue_intermediate` raises."""
    name = f"sbproxy cluster {cluster_id} enrollment"
    certificate = issue_intermediate(ca, asked.request, name, now=now, validity_days=asked.validity_days)
    facts = certificate_facts(certificate)
    epoch = (0 if before is None else before.epoch) + 1
    delegation = Delegation(
        cluster_id=cluster_id,
        node_id=asked.node_id,
        epoch=epoch,
        verifying_key=asked.verifying_key,
        ca_sha256=facts.fingerprint,
        issued_at_unix_secs=int(now.timestamp()),
        expires_at_unix_secs=int(facts.not_after.timestamp()),
    )
    return EnrollmentRecord(
        node_id=asked.node_id,
        epoch=epoch,
        certificate=certificate,
        fingerprint=facts.fingerprint,
        key_sha256=facts.key_sha256,
        verifying_key=asked.verifying_key,
        issuer=asked.issuer,
        delegation=sign_delegation(delegation, signer, KEY_ID),
        revoked_epoch=0 if before is None else before.revoked_epoch,
    )


def entry_of_server(server: EnrollmentRecord, entry: Revocation) -> Revocation:
    """What takes away all that an enrollment server issued, beside the entry of its host."""
    return entry.model_copy(
        update={
            "node_id": delegation_name(server.node_id),
            "identity_epoch": server.epoch,
            "fingerprint": server.fingerprint,
            "expires_at_unix_secs": int(certificate_facts(server.certificate).not_after.timestamp()),
        }
    )
