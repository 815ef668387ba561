"""Letting a host in by token: the authority's side, without the network.

    secret ► constraints ► the name is free ► burn, bound to key and request ► issue ► remember what was given

One at a time under a lock of its own, so threads and processes may call at once. Everything before *burn* leaves the token as it was; after
it the same request, and only that, is answered again: with what it got, or after a crash with what it would have got. An unknown token, a
wrong secret, a revoked, expired or used one are one refusal; the audit file says which it was.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
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
from sbctl.trust.authority_directory import AuthorityFiles
from sbctl.trust.certificates import LEAF_VALIDITY_DAYS, certificate_facts, request_key_digest
from sbctl.trust.enrollment_messages import EnrollmentAnswer, EnrollmentRequest
from sbctl.trust.join_token import JoinToken
from sbctl.trust.token_store import TokenRow, TokenStore

__all__ = ["AUDIT_FILE", "Enrollment"]

AUDIT_FILE: Final = "enrollment-audit.jsonl"
_LOCK_DEADLINE_S: Final = 30.0
_IN_PROCESS = threading.Lock()
"""Before the file's lock, which is polled: threads of one process need not wait for its next turn."""


class Enrollment:
    """Tokens of one authority, and what they are good for."""

    def __init__(self, directory: Path, *, validity_days: int = LEAF_VALIDITY_DAYS) -> None:
        """Raises what `Authority.open` raises; RefusedError `authority.no_key` where the keys are not: tokens made there would be unknown to
        the server."""
        self._files = AuthorityFiles(directory)
        self.authority = Authority.open(directory)
        for name in ("ca-key.pem", "authority-signing.key"):
            self._files.secret(name)
        self._tokens = TokenStore(self._files.path("tokens.db"))
        self._validity_days = validity_days

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
        return self._files.text("ca.pem")

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
            issued = self.authority.issue(asked.request, asked.grant, now=now, validity_days=self._validity_days)
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
        record = self.authority.node(grant.node_id)
        if record.is_shut_out:
            self._refuse(now, "node_revoked", row.id, asked, source, said=_SHUT_OUT)
        if record.identity_epoch > 0 and row.node_id is None and row.bound_request is None:
            self._refuse(now, "name_taken", row.id, asked, source, said=_NAME_TAKEN)

    def _public(self) -> dict[str, str]:
        """What goes with every certificate. Read before the token is burnt, so that nothing is lost when it cannot be sent."""
        names = ("ca.pem", "ca-next.pem")
        ca = "".join(self._files.text(name) for name in names if self._files.has(name))
        revocations, _listed = self.authority.revocations()
        if len(revocations) > ENROLL_ANSWER_MAX_BYTES // 2:
            raise SbctlError(
                "authority_unavailable",
                "the revocation list is longer than an answer holds",
                place=str(self._files.directory),
            )
        return {"ca": ca, "authority_key": self.authority.verifying_key, "revocations": revocations}

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
_SHUT_OUT: Final = "the host's identity was revoked: sbctl cluster rotate HOST on the authority lets it in again"
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
