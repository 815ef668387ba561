"""What an enrollment server may do: the authority's word for a CA and a signing key that live on another machine.

    authority ─► intermediate CA (X.509, path length 0) ─► leaf of a host that enrolled
              └► delegation.json (DSSE) ─► verifying key ─► identity.json of that host

Both keys are made on the server's host and never leave it; the authority's own keys never get there. Whatever came by a delegation is no
authority, ends with it, and is taken away with it: a revocation entry of the name `enrollment/<host>` up to its epoch.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from sbctl.base.digests import canonical_json
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.ids import DIGEST_RE
from sbctl.trust.authority_keys import AuthorityKeys
from sbctl.trust.certificates import read_chain
from sbctl.trust.envelope import sign_envelope
from sbctl.trust.identity import CLOCK_SKEW_S, IdentityClaims
from sbctl.trust.keys import SigningKey
from sbctl.trust.revocation import RevocationList

__all__ = [
    "DELEGATION_PAYLOAD_TYPE",
    "Delegation",
    "check_delegated",
    "check_delegation",
    "delegation_name",
    "open_delegation",
    "sign_delegation",
]

DELEGATION_PAYLOAD_TYPE: Final = "application/vnd.sbctl.delegation.v1+json"
_MAX_BYTES: Final = 16 * 1024


class Delegation(BaseModel):
    """`ca_sha256` is the fingerprint of the intermediate CA, `node_id` the host that the server runs on."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, defer_build=True)

    schema_version: Literal[1] = 1
    cluster_id: str = Field(min_length=1, max_length=128)
    node_id: str = Field(min_length=1, max_length=128)
    epoch: int = Field(ge=1)
    verifying_key: str = Field(max_length=64)
    ca_sha256: str = Field(pattern=f"^{DIGEST_RE.pattern}\\z")
    issued_at_unix_secs: int
    expires_at_unix_secs: int


def delegation_name(node_id: str) -> str:
    """Under which a delegation is revoked; no host can have this name."""
    return f"enrollment/{node_id}"


def sign_delegation(delegation: Delegation, key: SigningKey, keyid: str) -> str:
    """As `delegation.json` holds it."""
    return sign_envelope(DELEGATION_PAYLOAD_TYPE, canonical_json(delegation.model_dump(mode="json")), key, keyid)


def open_delegation(envelope_text: str, keys: AuthorityKeys) -> Delegation:
    """Raises InputError `delegation.invalid`, `envelope.*`; RefusedError `envelope.bad_signature`, `envelope.wrong_type`."""
    return keys.open_document(
        envelope_text,
        DELEGATION_PAYLOAD_TYPE,
        Delegation,
        invalid=_invalid,
        max_bytes=_MAX_BYTES,
        max_depth=4,
    )


def _invalid(where: str) -> InputError:
    return InputError(
        "delegation.invalid",
        f"the delegation is wrong at {where}",
        next_step="the authority that signed it is of another version of sbctl: use the same one there and here",
    )


def check_delegation(delegation: Delegation, revocations: RevocationList | None, *, now: datetime) -> None:
    """It holds now, and was not taken away. Raises RefusedError `delegation.expired`, `delegation.revoked`."""
    until = datetime.fromtimestamp(delegation.expires_at_unix_secs, UTC)
    begin = datetime.fromtimestamp(delegation.issued_at_unix_secs, UTC)
    skew = timedelta(seconds=CLOCK_SKEW_S)
    if not begin - skew <= now <= until + skew:
        raise RefusedError(
            "delegation.expired",
            f"the enrollment server on {delegation.node_id} may issue from {begin.isoformat()} to {until.isoformat()}; "
            f"this clock says {now.isoformat(timespec='seconds')}",
            next_step="if the clock is right, sbctl apply renews what it may do",
        )
    name = delegation_name(delegation.node_id)
    entries = () if revocations is None else revocations.entries
    if any(entry.node_id == name and delegation.epoch <= entry.identity_epoch for entry in entries):
        raise RefusedError(
            "delegation.revoked",
            f"what the enrollment server on {delegation.node_id} issued was taken away (delegation {delegation.epoch})",
            next_step="enroll again with a new token of the server that is there now",
        )


def check_delegated(delegation: Delegation, claims: IdentityClaims, certificate: str) -> None:
    """A certificate chain that came by this delegation: through its CA, of its cluster, and no authority. Raises RefusedError
    `identity.beyond_delegation`, `identity.mismatch`."""
    if "authority" in claims.roles:
        raise RefusedError(
            "identity.beyond_delegation",
            f"{claims.node_id} shows the role authority, and an enrollment server gave it: only the cluster's own authority may",
            next_step=f"the host {delegation.node_id} may be taken over: sbctl cluster revoke {delegation.node_id}, then sbctl apply",
            detail={"alarm": True},
        )
    between = [one.fingerprint for one in read_chain(certificate)[1:]]
    if between != [delegation.ca_sha256] or claims.cluster_id != delegation.cluster_id:
        raise RefusedError(
            "identity.mismatch",
            f"the certificate of {claims.node_id} is not one of the enrollment server on {delegation.node_id}",
            next_step="enroll again with a new token",
        )
