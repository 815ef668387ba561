"""The signed list of identities that are no longer accepted.

An entry takes away one node's identities up to an epoch; a later epoch, issued on purpose, is accepted again. The list is a DSSE envelope by
the authority's key with a revision that only grows. Expired identities leave the list: they are refused by their dates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from sbctl.base.digests import canonical_json
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.ids import DIGEST_RE
from sbctl.trust.authority_keys import AuthorityKeys
from sbctl.trust.envelope import sign_together
from sbctl.trust.identity import IdentityClaims
from sbctl.trust.keys import SigningKey

__all__ = [
    "REVOCATION_PAYLOAD_TYPE",
    "Revocation",
    "RevocationList",
    "newer_revocations",
    "open_revocations",
    "refuse_revoked",
    "revoked",
    "sign_revocations",
]

REVOCATION_PAYLOAD_TYPE: Final = "application/vnd.sbctl.revocations.v1+json"
_MAX_BYTES: Final = 4 * 1024 * 1024


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, defer_build=True)


class Revocation(_Strict):
    """All identities of `node_id` up to `identity_epoch`; `fingerprint` is of the certificate of that epoch."""

    node_id: str = Field(min_length=1, max_length=128)
    identity_epoch: int = Field(ge=1)
    fingerprint: str = Field(pattern=f"^{DIGEST_RE.pattern}\\z")
    reason: str = Field(max_length=256)
    revoked_at_unix_secs: int
    expires_at_unix_secs: int
    """Of the certificate; after it the entry is dropped."""


class RevocationList(_Strict):
    """Whom nobody believes any more, in one numbered list; a higher revision replaces a lower one."""

    schema_version: Literal[1] = 1
    cluster_id: str
    revision: int = Field(ge=0)
    entries: tuple[Revocation, ...] = Field(default=(), max_length=10_000)


def sign_revocations(listed: RevocationList, keys: Mapping[str, SigningKey]) -> str:
    """The list as `revocations.json` holds it, signed by each of `keys` (key id → key): two while a rollover lasts."""
    return sign_together(REVOCATION_PAYLOAD_TYPE, canonical_json(listed.model_dump(mode="json")), keys)


def open_revocations(envelope_text: str, keys: AuthorityKeys) -> RevocationList:
    """A list signed by the authority. Raises InputError `revocations.invalid`, `envelope.*`; RefusedError `envelope.bad_signature`.

    The last ones are remembered: a node judges each of its peers by one and the same text.
    """
    return _opened(envelope_text, keys)


@lru_cache(maxsize=2)
def _opened(envelope_text: str, keys: AuthorityKeys) -> RevocationList:
    return keys.open_document(
        envelope_text,
        REVOCATION_PAYLOAD_TYPE,
        RevocationList,
        invalid=_invalid,
        max_bytes=_MAX_BYTES,
        max_depth=8,
    )


def _invalid(where: str) -> InputError:
    return InputError(
        "revocations.invalid",
        f"the revocation list is wrong at {where}",
        next_step="the authority that signed it is of another version of sbctl: use the same one there and here",
    )


def newer_revocations(
    held: RevocationList | None, envelope_text: str, keys: AuthorityKeys, *, cluster_id: str
) -> RevocationList | None:
    """The list to hold from now on, wherever the text came from; None when it is the one that is held. A list never becomes older.

    Raises InputError `revocations.invalid`, `envelope.*`; RefusedError `envelope.bad_signature`, `revocations.wrong_cluster`,
    `revocations.stale`, `revocations.conflict`.
    """
    offered = open_revocations(envelope_text, keys)
    if offered.cluster_id != cluster_id:
        raise RefusedError(
            "revocations.wrong_cluster",
            f"the revocation list is of the cluster {offered.cluster_id}, and this is {cluster_id}",
        )
    if held is None or offered.revision > held.revision:
        return offered
    if offered.revision < held.revision:
        raise RefusedError(
            "revocations.stale",
            f"revocation list {offered.revision} comes after {held.revision} was applied",
            next_step="whoever holds the authority's directory of today runs sbctl apply; an older copy of it is in use elsewhere",
        )
    if offered != held:
        raise RefusedError(
            "revocations.conflict",
            f"two revocation lists have the number {offered.revision}",
            next_step="two copies of the authority's directory are in use: keep one, and run sbctl cluster revoke and sbctl apply with it",
            detail={"alarm": True},
        )
    return None


def revoked(listed: RevocationList, entry: Revocation, *, now_unix_secs: int) -> RevocationList:
    """The next list: `entry` in place of an older one of its node, without what expired by now."""
    kept: Iterable[Revocation] = (
        one for one in listed.entries if one.node_id != entry.node_id and one.expires_at_unix_secs > now_unix_secs
    )
    entries = tuple(sorted((*kept, entry), key=lambda one: one.node_id))
    return listed.model_copy(update={"revision": listed.revision + 1, "entries": entries})


def refuse_revoked(listed: RevocationList, claims: IdentityClaims) -> None:
    """Raises RefusedError `identity.revoked`."""
    for entry in listed.entries:
        if entry.node_id == claims.node_id and claims.identity_epoch <= entry.identity_epoch:
            why = f": {entry.reason}" if entry.reason else ""
            raise RefusedError(
                "identity.revoked",
                f"the identity of {claims.node_id} (epoch {claims.identity_epoch}) was revoked{why}",
                next_step=f"let it in again with a new identity: sbctl cluster rotate {claims.node_id}, then sbctl apply",
            )
