"""The authority's join tokens: one SQLite file that holds hashes, and one statement that burns a token.

    made ─► bound to the first request that shows the secret ─► issued
      └──► revoked, or past `not_after`: refused

A token that is bound serves the very same request again (the answer may have been lost) and no other. Every call opens the file, does one
transaction, and is durable when it returns; threads and processes may call at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from sbctl.base import fs
from sbctl.base.errors import InputError, RefusedError, StateError
from sbctl.base.limits import JOIN_TOKENS_MAX
from sbctl.trust.join_token import JoinToken

__all__ = ["Denial", "TokenRow", "TokenStore"]

Denial = Literal["unknown", "secret", "revoked", "expired", "consumed"]

_SCHEMA_VERSION: Final = 1
_BUSY_S: Final = 30.0
_KEPT: Final = timedelta(days=7)
"""So long a token that can no longer be used stays in lists; the audit file keeps it for good."""
_NO_HASH: Final = hashlib.sha256(b"").hexdigest()
_ONE: Final = """
SELECT id, roles, labels, node_id, created_at, not_after, revoked_at, bound_request, consumed_at, node, issued, secret_sha256
FROM token WHERE id = ?
"""
_ALL: Final = """
SELECT id, roles, labels, node_id, created_at, not_after, revoked_at, bound_request, consumed_at, node, issued, secret_sha256
FROM token ORDER BY created_at, id
"""
_SCHEMA: Final = """
CREATE TABLE token (
    id TEXT PRIMARY KEY, secret_sha256 TEXT NOT NULL, roles TEXT NOT NULL, labels TEXT NOT NULL, node_id TEXT,
    created_at INTEGER NOT NULL, not_after INTEGER NOT NULL, revoked_at INTEGER,
    bound_key TEXT, bound_request TEXT, consumed_at INTEGER, node TEXT, issued TEXT
) STRICT
"""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """What is known of a token: nothing that opens anything. `node_id` is the only name it may be used for, if any; `node` who used it;
    `issued` the fingerprint of the certificate it gave."""

    id: str
    roles: tuple[str, ...]
    labels: dict[str, str]
    node_id: str | None
    created_at: datetime
    not_after: datetime
    revoked_at: datetime | None
    bound_request: str | None
    consumed_at: datetime | None
    node: str | None
    issued: str | None

    def state(self, now: datetime) -> str:
        """`used`, `revoked`, `expired` or `open`."""
        if self.consumed_at is not None:
            return "used"
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if now >= self.not_after else "open"


class TokenStore:
    """The tokens in `path`, which is made, 0600, when the first one is. Every method raises StateError `enroll.store_damaged`,
    `enroll.store_newer`, RefusedError `authority.permissions`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(
        self,
        token: JoinToken,
        *,
        roles: tuple[str, ...],
        labels: dict[str, str],
        node_id: str | None,
        now: datetime,
        not_after: datetime,
    ) -> TokenRow:
        """The caller holds the authority's lock: two who make the file at once would lose one. Raises RefusedError `enroll.too_many_tokens`."""
        with self._transaction(create=True) as run:
            run.execute("DELETE FROM token WHERE not_after < ?", (_unix(now - _KEPT),))
            (count,) = run.execute("SELECT count(*) FROM token").fetchone()
            if count >= JOIN_TOKENS_MAX:
                raise RefusedError(
                    "enroll.too_many_tokens",
                    f"there are {count} join tokens, and {JOIN_TOKENS_MAX} is the most",
                    place=str(self._path),
                    next_step="tokens leave the list a week after they expired; make those you need with a shorter life",
                )
            run.execute(
                "INSERT INTO token (id, secret_sha256, roles, labels, node_id, created_at, not_after) VALUES (?,?,?,?,?,?,?)",
                (
                    token.id,
                    token.secret_sha256,
                    json.dumps(list(roles)),
                    json.dumps(labels, sort_keys=True),
                    node_id,
                    _unix(now),
                    _unix(not_after),
                ),
            )
            return _row(run.execute(_ONE, (token.id,)).fetchone())

    def rows(self) -> tuple[TokenRow, ...]:
        """All of them, oldest first."""
        if not os.path.lexists(self._path):
            return ()
        with self._transaction() as run:
            found = run.execute(_ALL).fetchall()
        return tuple(_row(each) for each in found)

    def revoke(self, token_id: str, now: datetime) -> TokenRow:
        """Raises InputError `enroll.token_unknown`."""
        found = None
        if os.path.lexists(self._path):
            with self._transaction() as run:
                run.execute(
                    "UPDATE token SET revoked_at = coalesce(revoked_at, ?) WHERE id = ?", (_unix(now), token_id)
                )
                found = run.execute(_ONE, (token_id,)).fetchone()
        if found is None:
            raise InputError(
                "enroll.token_unknown",
                f"there is no join token {token_id[:32]!r}",
                place=str(self._path),
                next_step="sbctl cluster token list shows the ids",
            )
        return _row(found)

    def authenticate(self, token_id: str, secret_sha256: str, now: datetime) -> TokenRow | Denial:
        """The token whose secret was shown, or why not. An id that nobody made costs the same comparison as a wrong secret."""
        found, expected = None, _NO_HASH
        if os.path.lexists(self._path):
            with self._transaction() as run:
                found = run.execute(_ONE, (token_id,)).fetchone()
        if found is not None:
            expected = found[-1]
        same = hmac.compare_digest(expected, secret_sha256)
        if found is None:
            return "unknown"
        if not same:
            return "secret"
        row = _row(found)
        if row.revoked_at is not None:
            return "revoked"
        return row if now < row.not_after else "expired"

    def bind(
        self, token_id: str, secret_sha256: str, *, request: str, key: str, node: str, now: datetime
    ) -> TokenRow | None:
        """Burn the token for this request; None when another one has it, or it was revoked or ran out meanwhile. `request` is a digest of
        all that was asked for, `key` that of the public key."""
        moment = _unix(now)
        with self._transaction() as run:
            done = run.execute(
                "UPDATE token SET bound_request = ?, bound_key = ?, node = ?, consumed_at = coalesce(consumed_at, ?)"
                " WHERE id = ? AND secret_sha256 = ? AND not_after > ? AND revoked_at IS NULL"
                " AND (bound_request IS NULL OR bound_request = ?)",
                (request, key, node, moment, token_id, secret_sha256, moment, request),
            )
            if done.rowcount != 1:
                return None
            return _row(run.execute(_ONE, (token_id,)).fetchone())

    def issued(self, token_id: str, fingerprint: str) -> None:
        """What the token gave: it gives nothing else."""
        with self._transaction() as run:
            run.execute("UPDATE token SET issued = ? WHERE id = ?", (fingerprint, token_id))

    @contextlib.contextmanager
    def _transaction(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        self._check(create=create)
        try:
            connection = sqlite3.connect(self._path, isolation_level=None, timeout=_BUSY_S)
            try:
                connection.execute("PRAGMA synchronous=FULL")
                connection.execute("BEGIN IMMEDIATE")
                self._prepare(connection)
                yield connection
                connection.execute("COMMIT")
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise StateError(
                "enroll.store_damaged",
                f"the join tokens cannot be read or written: {error}",
                place=str(self._path),
                next_step="remove the file if it is damaged: every open token is void then, identities stay as they are",
            ) from error

    def _prepare(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.execute(_SCHEMA)
            connection.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")
        elif version != _SCHEMA_VERSION:
            raise StateError(
                "enroll.store_newer",
                f"the join tokens have form {version}, and this sbctl knows form {_SCHEMA_VERSION}",
                place=str(self._path),
                next_step="use the sbctl that made them, or a newer one",
            )

    def _check(self, *, create: bool) -> None:
        try:
            status = os.lstat(self._path)
        except FileNotFoundError:
            if create:
                fs.write_atomic(self._path, b"")
            return
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
            raise RefusedError(
                "authority.permissions",
                f"the join tokens must be a regular file of yours with mode 0600; it has mode {stat.S_IMODE(status.st_mode):04o}, "
                f"owner {status.st_uid}",
                place=str(self._path),
                next_step=f"look who could have written it, then: chmod 600 {self._path}",
            )


def _unix(moment: datetime) -> int:
    return int(moment.timestamp())


def _moment(unix_secs: int | None) -> datetime | None:
    return None if unix_secs is None else datetime.fromtimestamp(unix_secs, UTC)


def _row(found: tuple[object, ...]) -> TokenRow:
    token_id, roles, labels, node_id, created, not_after, revoked, bound_request, consumed, node, issued, _hash = found
    return TokenRow(
        id=str(token_id),
        roles=tuple(json.loads(str(roles))),
        labels=json.loads(str(labels)),
        node_id=_text(node_id),
        created_at=datetime.fromtimestamp(int(str(created)), UTC),
        not_after=datetime.fromtimestamp(int(str(not_after)), UTC),
        revoked_at=_moment(_number(revoked)),
        bound_request=_text(bound_request),
        consumed_at=_moment(_number(consumed)),
        node=_text(node),
        issued=_text(issued),
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _number(value: object) -> int | None:
    return None if value is None else int(str(value))
