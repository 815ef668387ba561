"""Identities of a PKI of the user's own: what is checked of a host's files before a plan relies on them.

    certificate   CN and DNS SAN = the host, DNS SAN = the server name, one URI SAN with the claims, ECDSA P-256; what stands above it, if anything
    CA            one to four certificates, PEM
    key           of the certificate; where it is on the host already it is checked there

There is neither identity document nor authority key: the certificate alone says who the host is. Of two certificates of a host the one with
the higher identity epoch counts; the PKI has to raise it with every certificate. Pure; takes `now`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sbctl.base.errors import InputError, RefusedError
from sbctl.base.secret import Secret
from sbctl.trust.certificates import public_key_digest
from sbctl.trust.node_identity import NodeIdentityFiles, verify_certificate

__all__ = ["OwnIdentity", "agree", "read_own"]

_NEVER: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class OwnIdentity:
    """What the files of one host say. `key` is the reference that names the private key."""

    cluster_id: str
    server_name: str
    identity_epoch: int
    fingerprint: str
    key_sha256: str
    ca: tuple[str, ...]
    issuer: str
    not_before: datetime
    not_after: datetime
    key: str

    @classmethod
    def unread(cls, server_name: str | None, key: str) -> OwnIdentity:
        """Stands for files that nobody read: what two sb.yml say of identities can be compared without them."""
        return cls("", server_name or "", 0, "", "", (), "", datetime.min.replace(tzinfo=UTC), _NEVER, key)


def read_own(
    certificate: str,
    ca: str,
    *,
    host: str,
    roles: frozenset[str],
    labels: Mapping[str, str],
    key: tuple[str, Secret | None],
    now: datetime,
) -> OwnIdentity:
    """The identity of `host`, verified. `key`: its reference, and what that holds where it can be read here.

    Raises InputError `certificate.invalid`, `identity.claims_invalid`, `identity.own_mismatch`; RefusedError `certificate.*`.
    """
    found = verify_certificate(NodeIdentityFiles(certificate, ca), now=now)
    claims, reference, secret = found.claims, *key
    wanted = {"node_id": host, "roles": tuple(sorted(roles)), "labels": dict(labels)}
    shown = {"node_id": claims.node_id, "roles": claims.roles, "labels": dict(claims.labels)}
    for name, value in wanted.items():
        if shown[name] != value:
            raise InputError(
                "identity.own_mismatch",
                f"the certificate says {name} {_said(shown[name])}, and sb.yml says {_said(value)} of {host}",
                next_step="have your PKI issue it for what sb.yml says, with the next identity_epoch, or change sb.yml",
            )
    if secret is not None and public_key_digest(secret) != found.certificate.key_sha256:
        raise RefusedError(
            "certificate.key_mismatch",
            f"the private key of {host} does not belong to its certificate",
            next_step=f"look at {reference}: certificate and key have to be of one request",
        )
    return OwnIdentity(
        cluster_id=claims.cluster_id,
        server_name=claims.server_name,
        identity_epoch=claims.identity_epoch,
        fingerprint=found.certificate.fingerprint,
        key_sha256=found.certificate.key_sha256,
        ca=found.ca,
        issuer=found.issuer,
        not_before=found.certificate.not_before,
        not_after=found.certificate.not_after,
        key=reference,
    )


def agree(identities: Mapping[str, OwnIdentity], server_name: str | None) -> None:
    """All are of one cluster and one server name, and no two hosts have one key. Raises InputError `identity.own_mismatch`,
    `identity.server_name`."""
    keys: dict[str, str] = {}
    first: tuple[str, OwnIdentity] | None = None
    for host, identity in sorted(identities.items()):
        if server_name not in (None, identity.server_name):
            raise InputError(
                "identity.server_name",
                f'fleet.identity.server_name is "{server_name}", and the certificate of {host} is for "{identity.server_name}"',
                next_step="leave the field out, or write what your PKI issues for",
            )
        other = keys.setdefault(identity.key_sha256, host)
        if other != host:
            raise InputError(
                "identity.own_mismatch",
                f"{other} and {host} have one and the same key, so one can show itself as the other",
                next_step="have a key and a certificate made for each host",
            )
        first = first or (host, identity)
        for name in ("cluster_id", "server_name"):
            one, two = getattr(first[1], name), getattr(identity, name)
            if one != two:
                raise InputError(
                    "identity.own_mismatch",
                    f"{first[0]} and {host} differ in {name}: {one} and {two}",
                    next_step="all hosts of a fleet are of one cluster and answer to one server name",
                )


def _said(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={text}" for key, text in sorted(value.items())) or "none"
    return ", ".join(value) if isinstance(value, tuple) else str(value)
