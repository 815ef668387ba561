"""The rules by which a bundle or a change of signers is accepted. Pure: bytes, what the node holds and one fixed `now` in; a verdict out.

A bundle is checked in this order, and the first failure is the answer:

1. size, envelope, payload type, signature by a key of the node's own trust set (key ids never decide)
2. strict JSON, schema (unknown and duplicate fields refused)
3. lineage, scope
4. content digest equals the content
5. key epoch: exactly that of the trust set
6. fence `(key_epoch, revision)`: lower is stale; equal with another digest is a conflict; equal with the same digest is a repeat
7. times, for a first acceptance only: not issued in the future beyond CLOCK_SKEW_LEEWAY_S, not expired, and where an expiry is stated,
   not more than BUNDLE_LIFETIME_MAX after its issue

A host's bundle and a cluster's (`sbctl.trust.cluster_bundle`) are judged by the same steps; each has a payload type of its own.

A higher key epoch is the only way to a lower revision, and only a signer of the old set can raise it (fast-forward recovery, TUF 5.3.11).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

from pydantic import ValidationError

from sbctl.base import strict_json
from sbctl.base.digests import fingerprint
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.limits import BUNDLE_MAX_BYTES, CLOCK_SKEW_LEEWAY_S
from sbctl.base.schema_faults import first_fault
from sbctl.trust.bundle import BUNDLE_PAYLOAD_TYPE, TRUST_PAYLOAD_TYPE, BundlePayload, TrustSet, content_digest
from sbctl.trust.envelope import open_envelope, unverified_payload
from sbctl.trust.keys import parse_public_key

__all__ = [
    "BUNDLE_LIFETIME_MAX",
    "Fence",
    "VerifiedBundle",
    "judge",
    "parse_bundle",
    "parse_payload",
    "parse_trust",
    "trust_digest",
    "verify_bundle",
    "verify_trust",
]

BUNDLE_LIFETIME_MAX: Final = timedelta(days=7)

Payload = TypeVar("Payload", bound=BundlePayload)


@dataclass(frozen=True, slots=True)
class Fence:
    """The newest bundle a node ever accepted. Kept across restarts and across `bundle.clear`."""

    key_epoch: int
    revision: int
    content_digest: str


@dataclass(frozen=True, slots=True)
class VerifiedBundle:
    """An accepted bundle. `repeat`: it is the one the fence stands at."""

    payload: BundlePayload
    signer: str
    repeat: bool

    @property
    def fence(self) -> Fence:
        return Fence(self.payload.key_epoch, self.payload.revision, self.payload.content_digest)


def trust_digest(trust: TrustSet) -> str:
    """64 hex characters; names the set in snapshots and plans."""
    return fingerprint(trust.model_dump(mode="json"))


def _first_problem(error: ValidationError) -> str:
    return ": ".join(first_fault(error))


def parse_bundle(payload: bytes) -> BundlePayload:
    """Of a host. Strict JSON and schema. Raises InputError `bundle.invalid`, `bundle.too_new`."""
    return parse_payload(payload, BundlePayload)


def parse_payload(payload: bytes, model: type[Payload]) -> Payload:
    """As `parse_bundle`, for a bundle of this kind."""
    document = strict_json.loads(payload, max_bytes=BUNDLE_MAX_BYTES)
    version = document.get("schema_version") if isinstance(document, dict) else None
    if isinstance(version, int) and not isinstance(version, bool) and version > 1:
        raise InputError(
            "bundle.too_new",
            f"the bundle has schema version {version}; this runtime knows 1",
            next_step="upgrade the runtime",
        )
    try:
        return model.model_validate_json(json.dumps(document))
    except ValidationError as error:
        raise InputError(
            "bundle.invalid",
            f"the bundle does not match its schema: {_first_problem(error)}",
            next_step="make it with the version of sbctl that runs on the host",
        ) from None


def parse_trust(payload: bytes) -> TrustSet:
    """Strict JSON, schema, and every key usable. Raises InputError `trust.invalid`, `key.invalid`, `key.weak`."""
    document = strict_json.loads(payload, max_bytes=BUNDLE_MAX_BYTES)
    try:
        trust = TrustSet.model_validate_json(json.dumps(document))
    except ValidationError as error:
        raise InputError(
            "trust.invalid", f"the signer set does not match its schema: {_first_problem(error)}"
        ) from None
    for text in trust.signers.values():
        parse_public_key(text)
    return trust


def _moment(text: str, field: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError("bundle.invalid", f"{field} is not a time") from None
    if moment.tzinfo is None:
        raise InputError("bundle.invalid", f"{field} has no time zone")
    return moment


def _check_fence(payload: BundlePayload, fence: Fence | None) -> bool:
    """Whether it repeats the fence; raises when it is behind or beside it."""
    if fence is None or payload.key_epoch > fence.key_epoch:
        return False
    if payload.key_epoch < fence.key_epoch or payload.revision < fence.revision:
        raise RefusedError(
            "bundle.stale_revision",
            f"revision {payload.revision} (key epoch {payload.key_epoch}) is behind revision {fence.revision} "
            f"(key epoch {fence.key_epoch}), which was accepted before",
            next_step="plan again from the newest state; an older desired state comes back by `sbctl rollback`",
            detail={"revision": payload.revision, "accepted_revision": fence.revision},
        )
    if payload.revision > fence.revision:
        return False
    if payload.content_digest != fence.content_digest:
        raise RefusedError(
            "bundle.revision_conflict",
            f"revision {payload.revision} was accepted before with other content",
            next_step="two operators worked from different states: plan again from the newest one",
            detail={"revision": payload.revision},
        )
    return True


def _check_times(payload: BundlePayload, now: datetime) -> None:
    issued = _moment(payload.issued_at, "issued_at")
    if issued > now + timedelta(seconds=CLOCK_SKEW_LEEWAY_S):
        raise RefusedError(
            "bundle.issued_in_future",
            f"the bundle was issued at {payload.issued_at}, this host's clock says {now.isoformat(timespec='seconds')}",
            next_step="set the clocks of the operator's machine and of the host (NTP)",
        )
    if payload.expires_at is not None:
        expires = _moment(payload.expires_at, "expires_at")
        if expires + timedelta(seconds=CLOCK_SKEW_LEEWAY_S) < now:
            raise RefusedError("bundle.expired", f"the bundle expired at {payload.expires_at}", next_step="apply again")
        if expires - issued > BUNDLE_LIFETIME_MAX + timedelta(seconds=CLOCK_SKEW_LEEWAY_S):
            raise RefusedError(
                "bundle.lifetime",
                f"the bundle would be new from {payload.issued_at} to {payload.expires_at}; at most {BUNDLE_LIFETIME_MAX.days} days are accepted",
                next_step="leave the expiry out, or apply again with a shorter one",
            )


def verify_bundle(
    envelope_text: str, *, trust: TrustSet, scope: str, fence: Fence | None, now: datetime
) -> VerifiedBundle:
    """Accept or refuse by the rules of this module.

    Raises InputError `envelope.*`, `json.*`, `bundle.invalid`; RefusedError `envelope.wrong_type`, `envelope.bad_signature`,
    `bundle.wrong_lineage`, `bundle.wrong_scope`, `bundle.wrong_digest`, `bundle.key_epoch`, `bundle.stale_revision`,
    `bundle.revision_conflict`, `bundle.issued_in_future`, `bundle.expired`, `bundle.lifetime`.
    """
    opened = open_envelope(envelope_text, BUNDLE_PAYLOAD_TYPE, trust.signers, max_bytes=BUNDLE_MAX_BYTES)
    payload = parse_bundle(opened.payload)
    return VerifiedBundle(payload, opened.signer, judge(payload, trust=trust, scope=scope, fence=fence, now=now))


def judge(payload: BundlePayload, *, trust: TrustSet, scope: str, fence: Fence | None, now: datetime) -> bool:
    """Steps 3 to 7, for a payload whose signature was checked. True: it is the one that the fence stands at. Raises as `verify_bundle`."""
    if payload.lineage != trust.lineage:
        raise RefusedError(
            "bundle.wrong_lineage",
            "the bundle belongs to another fleet",
            detail={"lineage": payload.lineage},
            next_step="send it to a host of its own fleet",
        )
    if payload.scope != scope:
        raise RefusedError(
            "bundle.wrong_scope",
            f'the bundle is for "{payload.scope}", this is "{scope}"',
            next_step="send it where it belongs",
        )
    if content_digest(payload.content) != payload.content_digest:
        raise RefusedError(
            "bundle.wrong_digest",
            "the bundle's content does not have the digest it states",
            next_step="make it anew: sbctl apply, or sbctl bundle export",
        )
    if payload.key_epoch != trust.key_epoch:
        raise RefusedError(
            "bundle.key_epoch",
            f"the bundle is of key epoch {payload.key_epoch}, this host is at {trust.key_epoch}",
            next_step="apply again: the signer set travels before the bundle",
        )
    repeat = _check_fence(payload, fence)
    if not repeat:
        _check_times(payload, now)
    return repeat


def verify_trust(envelope_text: str, *, current: TrustSet | None, lineage: str) -> TrustSet:
    """The signer set to hold from now on: the first one over the operator's SSH login, any later one by a member of the current.

    The first must be signed by one of its own members. A repeat of the current set is returned as it is.
    Raises InputError `envelope.*`, `trust.invalid`; RefusedError `envelope.bad_signature`, `trust.wrong_lineage`, `trust.stale_epoch`.
    """
    signers = current.signers if current is not None else _claimed_signers(envelope_text)
    opened = open_envelope(envelope_text, TRUST_PAYLOAD_TYPE, signers, max_bytes=BUNDLE_MAX_BYTES)
    proposed = parse_trust(opened.payload)
    if proposed.lineage != lineage or (current is not None and current.lineage != lineage):
        raise RefusedError(
            "trust.wrong_lineage",
            "the signer set belongs to another fleet",
            next_step="apply with the state of the fleet that owns the host",
        )
    if current is None or proposed == current:
        return proposed
    if proposed.key_epoch <= current.key_epoch:
        raise RefusedError(
            "trust.stale_epoch",
            f"a changed signer set needs a key epoch above {current.key_epoch}; this one has {proposed.key_epoch}",
            next_step="plan again from the newest state",
        )
    return proposed


def _claimed_signers(envelope_text: str) -> dict[str, str]:
    """The members that a first set lists: its signature must come from one of them."""
    _type, payload, _keyids = unverified_payload(envelope_text, max_bytes=BUNDLE_MAX_BYTES)
    return dict(parse_trust(payload).signers)
