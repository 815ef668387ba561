"""Letting a host in by token: the authority's side, without the network.

    secret ► constraints ► the name is free ► burn, bound to key and request ► issue ► remember what was given

One at a time under a lock of its own, so threads and processes may call at once. Everything before *burn* leaves the token as it was; after
it the same request, and only that, is answered again: with what it got, or after a crash with what it would have got. An unknown token, a
wrong secret, a revoked, expired or used one are one refusal; the audit file says which it was.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

from sbctl.base import fs
from sbctl.base.clock import rfc3339
from sbctl.base.digests import canonical_json
from sbctl.base.errors import InputError, LockedError, RefusedError, SbctlError
from sbctl.base.flock import exclusive
from sbctl.base.limits import ENROLL_ANSWER_MAX_BYTES, JOIN_TOKEN_TTL_MAX_S
from sbctl.trust.authority import Authority, Issued
from sbctl.trust.authority_directory import AuthorityFiles, NodeRecord
from sbctl.trust.certificates import CertificateFacts, certificate_facts, request_key_digest
from sbctl.trust.enrollment_messages import EnrollmentAnswer, EnrollmentRequest
from sbctl.trust.join_token import JoinToken
from sbctl.trust.token_store import TokenRow, TokenStore

__all__ = ["AUDIT_FILE", "ENROLLED_VALIDITY", "Enrollment"]

ENROLLED_VALIDITY: Final = timedelta(days=1)
"""A host that enrolled renews by itself, so what is stolen is good for a day."""
AUDIT_FILE: Final = "enrollment-audit.jsonl"
_LOCK_DEADLINE_S: Final = 30.0
_IN_PROCESS = threading.Lock()
"""Before the file's lock, which is polled: threads of one process need not wait for its next turn."""


class Enrollment:
    """Tokens of one authority, and what they are good for."""

    def __init__(self, authority: Authority, files: AuthorityFiles, *, validity: timedelta = ENROLLED_VALIDITY) -> None:
        """Raises RefusedError `authority.no_key` where the keys are not: tokens made there would be unknown to the server."""
        self._files = files
        self.authority = authority
        for name in ("ca-key.pem", "authority-signing.key"):
            self._files.secret(name)
        self._tokens = TokenStore(self._files.path("tokens.db"))
        self._validity = validity

    @classmethod
    def open(cls, directory: Path, *, validity: timedelta = ENROLLED_VALIDITY) -> Enrollment:
        """Of an authority directory with its keys. Raises what `Authority.open` raises, and RefusedError `authority.no_key`."""
        return cls(Authority.open(directory), AuthorityFiles(directory), validity=validity)

    def create_token(
        self, *, roles: Sequence[str], labels: dict[str, str], node_id: str | None, ttl_s: int, now: datetime
    ) -> tuple[JoinToken, TokenRow]:
        """Raises InputError `enroll.bad_constraint`, RefusedError `enroll.authority_role`, `enroll.authority_name`, `enroll.too_many_tokens`."""
        if not 1 <= ttl_s <= JOIN_TOKEN_TTL_MAX_S:
            raise InputError(
                "enroll.bad_constraint", f"a token lives for 1 to {JOIN_TOKEN_TTL_MAX_S} seconds, not {ttl_s}"
            )
        if "authority" in roles:
            raise RefusedError(
                "enroll.authority_role",
                "a token cannot make an authority: whoever holds it could show himself to other hosts as this one",
                next_step="a host with the role authority gets its identity over SSH: its roles in sb.yml, then sbctl apply",
            )
        if node_id == self.authority.settings.node_id:
            raise RefusedError(
                "enroll.authority_name", f"{node_id} is the authority's own name", next_step="name another host"
            )
        token = JoinToken.mint(certificate_facts(self.pinned_ca()).key_sha256)
        with self._files.locked():
            row = self._tokens.add(
                token,
                roles=tuple(sorted(set(roles))),
                labels=labels,
                node_id=node_id,
                now=now,
                not_after=now + timedelta(seconds=ttl_s),
            )
        self._audit(now, "token_created", token_id=row.id, roles=row.roles, labels=row.labels, node_id=node_id)
        return token, row

    def tokens(self) -> tuple[TokenRow, ...]:
        return self._tokens.rows()

    def revoke_token(self, token_id: str, *, now: datetime) -> TokenRow:
        """Raises InputError `enroll.token_unknown`."""
        row = self._tokens.revoke(token_id, now)
        self._audit(now, "token_revoked", token_id=row.id)
        return row

    def pinned_ca(self) -> str:
        """The certificate whose key new tokens pin, PEM."""
        return self._files.pinned_ca()

    def enrolled(self) -> Mapping[str, NodeRecord]:
        """The ledger: what each host was given last."""
        return self._files.nodes()

    def enroll(self, asked: EnrollmentRequest, *, source: str, now: datetime) -> EnrollmentAnswer:
        """What the token's holder gets. `source` is the address it came from, for the audit.

        Raises RefusedError `enrollment_denied` with the reason for logs and metrics in its detail; InputError `invalid_request`;
        SbctlError `authority_unavailable`.
        """
        try:
            key = request_key_digest(asked.request)
        except SbctlError as error:
            raise InputError("invalid_request", error.message) from None
        try:
            token = JoinToken.parse(asked.token)
        except InputError:
            raise _denied("malformed", None) from None
        with self._turn():
            row = self._tokens.authenticate(token.id, token.secret_sha256, now)
            if not isinstance(row, TokenRow):
                if row not in ("unknown", "secret"):
                    self._refuse(now, row, token.id, asked, source)
                raise _denied(row, token.id)
            request = asked.digest(key)
            if row.bound_request is not None and row.bound_request != request:
                self._refuse(now, "consumed", row.id, asked, source)
            self._check_grant(now, row, asked, source)
            public = self._public()
            bound = self._tokens.bind(
                row.id, token.secret_sha256, request=request, key=key, node=asked.grant.node_id, now=now
            )
            if bound is None:
                self._refuse(now, "consumed", row.id, asked, source)
            issued = self._give(now, bound, asked, source)
        return EnrollmentAnswer(certificate=issued.certificate, identity=issued.identity, **public)

    def renew(self, shown: str, request: str, *, source: str, now: datetime) -> EnrollmentAnswer:
        """The next identity of a host that shows its newest one. `shown` is the certificate it proved to hold, PEM.

        The identity before the newest counts for the request that the newest was issued for, and for nothing else: its answer was lost.
        Raises RefusedError `renewal_denied` with the reason in its detail; InputError `invalid_request`; SbctlError `authority_unavailable`.
        """
        try:
            facts, key = certificate_facts(shown), request_key_digest(request)
            claims = facts.claims
        except SbctlError as error:
            raise InputError("invalid_request", error.message) from None
        told: dict[str, Any] = {"node_id": claims.node_id, "source": source, "identity_epoch": claims.identity_epoch}
        with self._turn():
            record = self.authority.node(claims.node_id)
            reason = self._no_renewal(record, facts, key, now)
            if reason is not None:
                self._audit(now, "renewal_refused", reason=reason, **told)
                raise RefusedError("renewal_denied", _SAID[reason], detail={"reason": reason, "node": claims.node_id})
            public = self._public()
            again = record.fingerprint != facts.fingerprint
            issued = self.authority.issued_to(claims.node_id) if again else None
            if issued is None and record.grant is not None:
                issued = self.authority.issue(
                    request, record.grant, now=now, validity=self._validity, least_epoch=claims.identity_epoch
                )
            assert issued is not None
            event = "renewed_again" if again else "renewed"
            self._audit(
                now, event, **{**told, "identity_epoch": issued.identity_epoch, "fingerprint": issued.fingerprint}
            )
        return EnrollmentAnswer(certificate=issued.certificate, identity=issued.identity, **public)

    def _no_renewal(self, record: NodeRecord, facts: CertificateFacts, key: str, now: datetime) -> str | None:
        """Why the holder of this certificate gets no other; None when it does."""
        epoch = facts.claims.identity_epoch
        if record.grant is None or record.certificate is None or facts.claims.node_id in self._files.reserved():
            return "not_enrolled"
        if record.is_shut_out or self._revoked_epoch(facts.claims.node_id) >= epoch:
            return "node_revoked"
        if now > facts.not_after:
            return "expired"
        if record.fingerprint == facts.fingerprint:
            return None
        if (record.identity_epoch, record.key_sha256) == (epoch + 1, key):
            return None
        return "superseded"

    def _revoked_epoch(self, node_id: str) -> int:
        """Up to which the signed list takes the identities of a host away; 0: it has none of it."""
        _, listed = self.authority.revocations()
        return max((entry.identity_epoch for entry in listed.entries if entry.node_id == node_id), default=0)

    def _give(self, now: datetime, row: TokenRow, asked: EnrollmentRequest, source: str) -> Issued:
        """The certificate of a burnt token: the one that it gave before, or the one it gives now."""
        node_id = asked.grant.node_id
        if row.issued is not None:
            before = self.authority.issued_to(node_id)
            if before is None or before.fingerprint != row.issued:
                self._refuse(now, "superseded", row.id, asked, source)
            self._audit(now, "answered_again", token_id=row.id, node_id=node_id, source=source)
            return before
        try:
            issued = self.authority.issue(
                asked.request, asked.grant, now=now, validity=self._validity, least_epoch=self._revoked_epoch(node_id)
            )
        except RefusedError as error:
            if error.code == "identity.revoked":
                self._refuse(now, "node_revoked", row.id, asked, source, said=_SHUT_OUT)
            raise
        self._tokens.issued(row.id, issued.fingerprint)
        self._audit(
            now,
            "enrolled",
            token_id=row.id,
            node_id=node_id,
            source=source,
            identity_epoch=issued.identity_epoch,
            fingerprint=issued.fingerprint,
        )
        return issued

    def _check_grant(self, now: datetime, row: TokenRow, asked: EnrollmentRequest, source: str) -> None:
        """The holder of the secret may know what is wrong with the rest."""
        grant, said = asked.grant, None
        if not set(grant.roles) <= set(row.roles):
            said = "the token does not give these roles"
        elif grant.labels != row.labels:
            said = "the labels are not exactly those of the token"
        elif row.node_id is not None and grant.node_id != row.node_id:
            said = "the token is for a host of another name"
        if said is not None:
            self._refuse(now, "constraints", row.id, asked, source, said=said)
        if grant.node_id in self._files.reserved():
            self._refuse(now, "name_reserved", row.id, asked, source, said=_RESERVED)
        record = self.authority.node(grant.node_id)
        # A token that was made for a name, on purpose, lets the host in again that the list shut out; the authority's own ledger says so itself.
        by_list = self._revoked_epoch(grant.node_id) >= max(record.identity_epoch, 1) and row.node_id is None
        if record.is_shut_out or by_list:
            self._refuse(now, "node_revoked", row.id, asked, source, said=_SHUT_OUT)
        if record.identity_epoch > 0 and row.node_id is None and row.bound_request is None:
            self._refuse(now, "name_taken", row.id, asked, source, said=_NAME_TAKEN)

    def _public(self) -> dict[str, Any]:
        """What goes with every certificate. Read before the token is burnt, so that nothing is lost when it cannot be sent."""
        revocations, _listed = self.authority.revocations()
        if len(revocations) > ENROLL_ANSWER_MAX_BYTES // 2:
            raise SbctlError(
                "authority_unavailable",
                "the revocation list is longer than an answer holds",
                place=str(self._files.directory),
            )
        return {
            "ca": self._files.trusted_ca(),
            "authority_key": self._files.trusted_keys().text(),
            "revocations": revocations,
            "delegation": self._files.delegation(),
        }

    def _refuse(
        self,
        now: datetime,
        reason: str,
        token_id: str,
        asked: EnrollmentRequest,
        source: str,
        *,
        said: str | None = None,
    ) -> NoReturn:
        """For a token whose secret was shown: these rows are few, and each is somebody who has it."""
        self._audit(now, "refused", reason=reason, token_id=token_id, node_id=asked.grant.node_id, source=source)
        raise _denied(reason, token_id, said)

    def _audit(self, now: datetime, event: str, **facts: Any) -> None:
        row = canonical_json({"at": rfc3339(now), "event": event, **facts})
        with _AUDIT_TURN:
            fs.append_line(self._files.path(AUDIT_FILE), row)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        with _IN_PROCESS:
            try:
                with exclusive(self._files.path(".enrollment.lock"), deadline_s=_LOCK_DEADLINE_S):
                    yield
            except LockedError as error:
                raise SbctlError(
                    "authority_unavailable", "the authority is busy", place=error.place, retryable=True
                ) from None


_AUDIT_TURN = threading.Lock()
_SHUT_OUT: Final = (
    "the host's identity was revoked; to let it in again: sbctl cluster rotate HOST where the authority is, "
    "then a token made for that name (sbctl cluster token create --node-id)"
)
_RESERVED: Final = "a host of this name is in the fleet's sb.yml and gets its identity by sbctl apply"
_SAID: Final[Mapping[str, str]] = {
    "not_enrolled": "this host did not enroll here, so it cannot renew here: enroll it with a new token",
    "node_revoked": "the identity was revoked: enroll again with a token made for this host",
    "expired": "the identity expired: enroll again with a token made for this host",
    "superseded": "a newer identity was given to a host of this name, so this one is refused: if that was not this host, revoke both",
}
"""By reason: what the holder of the certificate is told."""
_NAME_TAKEN: Final = (
    "a host of this name has an identity already; a token made for that name replaces it "
    "(sbctl cluster token create --node-id)"
)


def _denied(reason: str, token_id: str | None, said: str | None = None) -> RefusedError:
    return RefusedError(
        "enrollment_denied",
        said or "the token is not valid",
        detail={"reason": reason, "token_id": token_id},
    )
