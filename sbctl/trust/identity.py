"""Who a node is: the claims in its certificate, the signed identity document beside it, and the fences that never go back.

Field names as in SBproxy's cluster identity. Claims stand in the certificate as one URI, `urn:sbproxy:identity:v1:<base64url of canonical
JSON>`, so a certificate says by itself whose it is and of which identity epoch. The identity document is a DSSE envelope (Ed25519, the
authority's key) over canonical JSON; it names the certificate by digest.

An epoch belongs to one certificate: a higher one replaces, a lower one is a rollback, the same one with another certificate is a forgery.
Everything here is pure and takes `now`.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from sbctl.base import strict_json
from sbctl.base.digests import canonical_json
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.ids import is_id
from sbctl.base.schema_faults import first_fault
from sbctl.node.cluster_documents import ClusterRole
from sbctl.trust.authority_keys import AuthorityKeys
from sbctl.trust.envelope import open_envelope, sign_envelope
from sbctl.trust.keys import SigningKey

__all__ = [
    "CLOCK_SKEW_S",
    "IDENTITY_PAYLOAD_TYPE",
    "ClusterRole",
    "Grant",
    "HighWater",
    "IdentityClaims",
    "IdentityDocument",
    "admit",
    "check_clocks",
    "check_document",
    "claims_uri",
    "document_of",
    "is_server_name",
    "moment",
    "open_identity",
    "parse_claims",
    "sign_identity",
]

IDENTITY_PAYLOAD_TYPE: Final = "application/vnd.sbctl.identity.v1+json"
CLOCK_SKEW_S: Final = 300
_URN: Final = "urn:sbproxy:identity:v1:"
_SERVER_NAME_RE: Final = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)
_CLAIMS_MAX_BYTES: Final = 48 * 1024
_DOCUMENT_MAX_BYTES: Final = 64 * 1024


def _check_id(text: str) -> str:
    if not is_id(text):
        raise ValueError("not an id: 1 to 128 of A-Z a-z 0-9 . _ -")
    return text


def _check_roles(roles: tuple[ClusterRole, ...]) -> tuple[ClusterRole, ...]:
    if len(set(roles)) != len(roles):
        raise ValueError("a role is named twice")
    return tuple(sorted(roles))


def _check_labels(labels: dict[str, str]) -> dict[str, str]:
    for key, value in labels.items():
        plain = key.isascii() and all(char.isalnum() or char in "._/-" for char in key)
        if not plain or not 0 < len(key) <= 128 or not 0 < len(value) <= 256 or not value.isprintable():
            raise ValueError("a label is 1 to 128 of A-Z a-z 0-9 . _ / - with a printable value of 1 to 256")
    return labels


def is_server_name(text: str) -> bool:
    """A name that TLS can check: labels of A-Z a-z 0-9 - with dots between them."""
    return len(text) <= 253 and _SERVER_NAME_RE.fullmatch(text) is not None


def _check_server_name(text: str) -> str:
    if not is_server_name(text):
        raise ValueError("not a domain name")
    return text


_Id = Annotated[str, AfterValidator(_check_id)]
_ServerName = Annotated[str, AfterValidator(_check_server_name)]
_Roles = Annotated[tuple[ClusterRole, ...], Field(min_length=1, max_length=3), AfterValidator(_check_roles)]
_Labels = Annotated[dict[str, str], Field(max_length=64), AfterValidator(_check_labels)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, defer_build=True)


class Grant(_Strict):
    """What an authority lets one node be: by sb.yml for hosts under SSH, by a token for hosts that enroll."""

    node_id: _Id
    roles: _Roles
    labels: _Labels = Field(default_factory=dict)


class IdentityClaims(_Strict):
    """What the URI in a certificate says."""

    schema_version: Literal[1] = 1
    cluster_id: _Id
    node_id: _Id
    roles: _Roles
    labels: _Labels = Field(default_factory=dict)
    server_name: _ServerName
    identity_epoch: int = Field(ge=1)


class IdentityDocument(_Strict):
    """What the authority signs about a node. `certificate_sha256` is base64url of the SHA-256 of the certificate's DER, without padding."""

    schema_version: Literal[1] = 1
    cluster_id: _Id
    node_id: _Id
    roles: _Roles
    labels: _Labels = Field(default_factory=dict)
    server_name: _ServerName
    certificate_sha256: str = Field(pattern=r"^[A-Za-z0-9_-]{43}\z")
    identity_epoch: int = Field(ge=1)
    issued_at_unix_secs: int
    expires_at_unix_secs: int
    authority_key_id: str = Field(min_length=1, max_length=128)


@dataclass(frozen=True, slots=True)
class HighWater:
    """The newest that was seen of one peer; kept across restarts by whoever talks to it."""

    identity_epoch: int
    certificate_sha256: str
    boot_epoch: int = 0


_Model = TypeVar("_Model", bound=_Strict)


def _parsed(model: type[_Model], data: bytes, code: str, what: str, max_bytes: int) -> _Model:
    """Raises InputError `json.*` or `code`."""
    document = strict_json.loads(data, max_bytes=max_bytes, max_depth=8)
    try:
        return model.model_validate_json(json.dumps(document))
    except ValidationError as error:
        where, why = first_fault(error)
        raise InputError(code, f"{what} cannot be accepted at {where}: {why}") from None


def claims_uri(claims: IdentityClaims) -> str:
    """The URI under which a certificate carries these claims."""
    body = canonical_json(claims.model_dump(mode="json"))
    return _URN + base64.urlsafe_b64encode(body).decode().rstrip("=")


def parse_claims(uri: str) -> IdentityClaims:
    """Raises InputError `identity.claims_invalid` or `json.*`: another URI, base64 that is not canonical, unknown or wrong fields."""
    text = uri.removeprefix(_URN)
    if text == uri:
        raise InputError("identity.claims_invalid", f"the certificate's URI is not a node identity ({_URN}…)")
    try:
        body = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InputError("identity.claims_invalid", "the node identity in the certificate is not base64url") from None
    if base64.urlsafe_b64encode(body).decode().rstrip("=") != text:
        raise InputError("identity.claims_invalid", "the node identity in the certificate is not canonical base64url")
    return _parsed(
        IdentityClaims, body, "identity.claims_invalid", "the node identity in the certificate", _CLAIMS_MAX_BYTES
    )


def document_of(
    claims: IdentityClaims, *, certificate_sha256: str, issued_at: datetime, expires_at: datetime, authority_key_id: str
) -> IdentityDocument:
    """The document that goes with a certificate; `certificate_sha256` in hex."""
    digest = base64.urlsafe_b64encode(bytes.fromhex(certificate_sha256)).decode().rstrip("=")
    return IdentityDocument(
        **claims.model_dump(),
        certificate_sha256=digest,
        issued_at_unix_secs=int(issued_at.timestamp()),
        expires_at_unix_secs=int(expires_at.timestamp()),
        authority_key_id=authority_key_id,
    )


def sign_identity(document: IdentityDocument, key: SigningKey) -> str:
    """The signed document, as `identity.json` holds it."""
    payload = canonical_json(document.model_dump(mode="json"))
    return sign_envelope(IDENTITY_PAYLOAD_TYPE, payload, key, document.authority_key_id)


def open_identity(envelope_text: str, keys: AuthorityKeys) -> IdentityDocument:
    """A document that one of these keys signed. Raises InputError `identity.invalid`, `envelope.*`, `json.*`; RefusedError
    `envelope.bad_signature`, `envelope.wrong_type`."""
    opened = open_envelope(envelope_text, IDENTITY_PAYLOAD_TYPE, keys.signers(), max_bytes=_DOCUMENT_MAX_BYTES)
    return _parsed(IdentityDocument, opened.payload, "identity.invalid", "the identity document", _DOCUMENT_MAX_BYTES)


def check_document(
    document: IdentityDocument, claims: IdentityClaims, *, certificate_sha256: str, now: datetime
) -> None:
    """Document and certificate belong together, and the document holds now, give or take the allowed clock difference.

    Raises RefusedError `identity.mismatch`, `identity.expired`, `identity.clock_skew`.
    """
    expected = document_of(
        claims,
        certificate_sha256=certificate_sha256,
        issued_at=moment(document.issued_at_unix_secs),
        expires_at=moment(document.expires_at_unix_secs),
        authority_key_id=document.authority_key_id,
    )
    if document != expected:
        wrong = next(name for name, value in expected if getattr(document, name) != value)
        raise RefusedError(
            "identity.mismatch",
            f"identity document and certificate differ in {wrong}",
            next_step="have the identity issued anew: sbctl cluster rotate NODE, then sbctl apply",
        )
    issued, expires = moment(document.issued_at_unix_secs), moment(document.expires_at_unix_secs)
    if now < issued - timedelta(seconds=CLOCK_SKEW_S):
        raise _clock_skew(now, issued, "the identity was issued at")
    if now > expires + timedelta(seconds=CLOCK_SKEW_S):
        raise RefusedError(
            "identity.expired",
            f"the identity of {document.node_id} expired at {_text(expires)}; this clock says {_text(now)}",
            next_step="if the clock is right, sbctl apply issues a new one",
        )


def check_clocks(here: datetime, there: datetime, *, whose: str = "the operator's machine says") -> None:
    """Raises RefusedError `identity.clock_skew` when the two clocks differ by more than CLOCK_SKEW_S."""
    if abs((here - there).total_seconds()) > CLOCK_SKEW_S:
        raise _clock_skew(here, there, whose)


def admit(seen: HighWater | None, shown: HighWater) -> HighWater:
    """The high-water mark after a peer showed itself. Raises RefusedError when that is behind or beside what was seen before:
    `identity.epoch_rollback`, `identity.epoch_conflict` (somebody else holds a certificate of this epoch), `identity.boot_rollback`."""
    if seen is None or shown.identity_epoch > seen.identity_epoch:
        return shown
    if shown.identity_epoch < seen.identity_epoch:
        raise RefusedError(
            "identity.epoch_rollback",
            f"an identity of epoch {shown.identity_epoch} is shown after epoch {seen.identity_epoch} was seen",
            next_step="an old certificate is in use: have a new one issued (sbctl cluster rotate NODE, then sbctl apply)",
        )
    if shown.certificate_sha256 != seen.certificate_sha256:
        raise RefusedError(
            "identity.epoch_conflict",
            f"two certificates claim identity epoch {shown.identity_epoch}: "
            f"{seen.certificate_sha256[:16]} was seen, {shown.certificate_sha256[:16]} is shown",
            next_step="one of them is forged or comes from a copy of the authority: revoke the node and rotate it",
            detail={"alarm": True},
        )
    if shown.boot_epoch < seen.boot_epoch:
        raise RefusedError(
            "identity.boot_rollback",
            f"boot epoch {shown.boot_epoch} is shown after {seen.boot_epoch} was seen",
            next_step="a copy of the node's state is in use: stop it",
        )
    return shown


def _clock_skew(here: datetime, there: datetime, whose: str) -> RefusedError:
    return RefusedError(
        "identity.clock_skew",
        f"{whose} {_text(there)}, and this machine's clock says {_text(here)}: "
        f"more than {CLOCK_SKEW_S} s apart, so no date of a certificate can be judged",
        next_step="set the clocks of both machines (timedatectl set-ntp true), then run the command again",
    )


def moment(unix_secs: int) -> datetime:
    """Any number is a moment; what no calendar holds is the nearest that one does."""
    lowest, highest = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    if unix_secs <= lowest.timestamp():
        return lowest
    return highest if unix_secs >= highest.timestamp() - 1 else datetime.fromtimestamp(unix_secs, UTC)


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
