"""The `postgres` backend: one table with one row, and an advisory lock that the server frees when the connection of its holder ends.

The row says who holds the lock, for people; the lock decides. A write compares the digest of what it replaces and whether this very session
has the lock, in one statement. Nothing needs a superuser: the role must own the table, or may create it in a schema of its own.
A pooler that shares sessions between clients (PgBouncer in transaction mode) cannot keep a session's lock: connect to the server itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import Jsonb

from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import InputError, LockedError, RefusedError, SbctlError, StateError
from sbctl.base.limits import STATE_DOCUMENT_MAX_BYTES
from sbctl.base.secret import Secret
from sbctl.state.settings import StateSettings, stays_here
from sbctl.state_backends.port import Ticket, lock_lost, locked, unreachable, untrusted

__all__ = ["PostgresBackend"]

_CONNECT_DEADLINE_S: Final = 10
_STATEMENT_DEADLINE: Final = "60s"
_LOGIN_RE: Final = re.compile(r"authentication failed|no password supplied|role .* does not exist|pg_hba\.conf")
_UNTRUSTED_RE: Final = re.compile(
    r"certificate verify failed|server certificate for .* does not match|does not support SSL"
)
_CA_FILE_RE: Final = re.compile(r"root certificate file|could not read root certificate")
_DATABASE_RE: Final = re.compile(r"database .* does not exist")
_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {table} (
  id smallint PRIMARY KEY DEFAULT 1 CHECK (id = 1),
  lineage text, serial bigint, sha256 text, document bytea, holder jsonb,
  written_at timestamptz NOT NULL DEFAULT now())
"""
_CREATORS_KEY: Final = int.from_bytes(hashlib.sha256(b"sbctl creates").digest()[:8], "big", signed=True)
"""One for a whole database: two states may share the schema that both would create."""
_HELD: Final = """
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND database =
  (SELECT oid FROM pg_database WHERE datname = current_database()) AND classid = {high} AND objid = {low}
"""
_STORE: Final = f"""
UPDATE {{table}} SET lineage = %s, serial = %s, sha256 = %s, document = %s, written_at = now()
WHERE id = 1 AND coalesce(sha256, '') = %s AND pg_backend_pid() IN ({_HELD})
"""  # noqa: S608 - a text of this module in another


class PostgresBackend:
    """One session with the server, opened when first needed. Requests may come from two threads."""

    def __init__(self, settings: StateSettings, password: Secret | None) -> None:
        self._settings = settings
        self._password = password
        self._table = sql.Identifier(settings.schema, settings.table)
        name = f"sbctl {settings.schema}.{settings.table}".encode()
        self._key = int.from_bytes(hashlib.sha256(name).digest()[:8], "big", signed=True)
        self._connection: psycopg.Connection[Any] | None = None
        self._ticket: Ticket | None = None
        self._turn = threading.RLock()

    @property
    def place(self) -> str:
        return self._settings.place

    def close(self) -> None:
        with self._turn:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def fetch(self) -> bytes | None:
        with self._session() as session:
            if not self._is_there(session):
                return None
            row = session.execute(self._sql("SELECT octet_length(document) FROM {table}")).fetchone()
            if row is None or row[0] is None:
                return None
            if row[0] > STATE_DOCUMENT_MAX_BYTES:
                raise StateError(
                    "state.too_large",
                    f"the row holds more than {STATE_DOCUMENT_MAX_BYTES} bytes",
                    place=self.place,
                    next_step="check fleet.state.address: a state document is never that long",
                )
            data, sha256 = session.execute(self._sql("SELECT document, sha256 FROM {table}")).fetchone() or (b"", "")
        if sha256_bytes(bytes(data)) != sha256:
            raise StateError(
                "state.document_corrupt",
                "the shared state is not what its checksum says",
                place=self.place,
                next_step="take an older copy from the database's own backups, then: sbctl state push --force FILE",
            )
        return bytes(data)

    def store(self, data: bytes, *, head: Mapping[str, Any], expected_sha256: str) -> None:
        statement = self._sql(_STORE)
        values = (str(head["lineage"]), int(head["serial"]), sha256_bytes(data), data, expected_sha256)
        with self._session() as session:
            if session.execute(statement, values).rowcount == 1:
                return
            if self._holder_pid(session) != session.info.backend_pid:
                raise lock_lost(self.place, self._said_holder(session))
        raise StateError(
            "state.conflict",
            "somebody else wrote the shared state meanwhile",
            place=self.place,
            next_step="run the command again: it reads the state anew, and the hosts before it acts",
        )

    def lock(self, ticket: Ticket) -> None:
        with self._session() as session:
            self._ensure_table(session)
            (mine,) = session.execute("SELECT pg_try_advisory_lock(%s)", (self._key,)).fetchone() or (False,)
            if not mine:
                raise locked(self.place, self._said_holder(session))
            session.execute(self._sql("UPDATE {table} SET holder = %s"), (Jsonb(ticket.to_json()),))
            self._ticket = ticket

    def unlock(self, ticket_id: str) -> None:
        with self._session(ending=True) as session:
            if not self._is_there(session):
                return
            holder, pid = self._said_holder(session), self._holder_pid(session)
            if pid is None:
                return
            if holder is None or holder.id != ticket_id:
                raise LockedError(
                    "state.lock_mismatch",
                    "the shared state is locked under another id"
                    + (f": {holder.id}, {holder.who} ({holder.operation}) since {holder.created}" if holder else ""),
                    place=self.place,
                    next_step="look whether that run is alive, then give its id",
                )
            if pid == session.info.backend_pid:
                session.execute(self._sql("UPDATE {table} SET holder = NULL"))
                session.execute("SELECT pg_advisory_unlock(%s)", (self._key,))
                self._ticket = None
            else:
                session.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))

    # Inside a session

    def _sql(self, text: str) -> sql.Composed:
        unsigned = self._key & (2**64 - 1)
        high, low = sql.Literal(unsigned >> 32), sql.Literal(unsigned & (2**32 - 1))
        return sql.SQL(text).format(table=self._table, high=high, low=low)

    def _is_there(self, session: psycopg.Connection[Any]) -> bool:
        name = self._table.as_string(session)
        return (session.execute("SELECT to_regclass(%s)", (name,)).fetchone() or (None,))[0] is not None

    def _ensure_table(self, session: psycopg.Connection[Any]) -> None:
        """Raises RefusedError `state.denied` with the statements that somebody with the right must run."""
        if not self._is_there(session):
            try:
                self._create(session)
            except psycopg.errors.InsufficientPrivilege:
                raise RefusedError(
                    "state.denied",
                    f"the role may not create {self._settings.schema}.{self._settings.table}",
                    place=self.place,
                    next_step=f"the owner of the database runs: {self._create_schema().as_string(session)} AUTHORIZATION "
                    f"{sql.Identifier(session.info.user).as_string(session)}",
                ) from None
        session.execute(self._sql("INSERT INTO {table} (id) VALUES (1) ON CONFLICT DO NOTHING"))

    def _create_schema(self) -> sql.Composed:
        return sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self._settings.schema))

    def _create(self, session: psycopg.Connection[Any]) -> None:
        """IF NOT EXISTS does not keep two creators apart (each sees the other's row of the catalog): a lock of its own does."""
        with session.transaction():
            session.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATORS_KEY,))
            known = session.execute("SELECT to_regnamespace(quote_ident(%s))", (self._settings.schema,)).fetchone()
            if known is None or known[0] is None:
                session.execute(self._create_schema())
            if not self._is_there(session):
                session.execute(self._sql(_CREATE))

    def _said_holder(self, session: psycopg.Connection[Any]) -> Ticket | None:
        row = session.execute(self._sql("SELECT holder FROM {table}")).fetchone()
        return None if row is None else Ticket.from_json(row[0])

    def _holder_pid(self, session: psycopg.Connection[Any]) -> int | None:
        row = session.execute(self._sql(_HELD)).fetchone()
        return None if row is None else int(row[0])

    @contextlib.contextmanager
    def _session(self, *, ending: bool = False) -> Iterator[psycopg.Connection[Any]]:
        """The one connection. While it holds the lock it is never replaced: a new one would write without the lock."""
        with self._turn:
            try:
                if self._connection is None or (self._connection.closed and (self._ticket is None or ending)):
                    self._connection = self._connect()
                yield self._connection
            except psycopg.OperationalError as error:
                broken = self._connection is not None and self._connection.closed
                if broken and self._ticket is not None and not ending:
                    raise lock_lost(self.place) from None
                raise _translated(error, self.place) from None
            except psycopg.Error as error:
                raise _translated(error, self.place) from None

    def _connect(self) -> psycopg.Connection[Any]:
        told = conninfo_to_dict(self._settings.address)
        host = str(told.get("host") or "")
        options: dict[str, Any] = {
            "connect_timeout": _CONNECT_DEADLINE_S,
            "application_name": "sbctl",
            "keepalives_idle": 15,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        }
        if self._settings.ca_file:
            options.update(sslmode="verify-full", sslrootcert=self._settings.ca_file)
        elif not stays_here(host):
            options.update(sslmode="verify-full", sslrootcert="system")
        if self._settings.username:
            options["user"] = self._settings.username
        if self._password is not None:
            options["password"] = self._password.reveal().decode("utf-8", "surrogateescape")
        session = psycopg.connect(self._settings.address, autocommit=True, **options)
        for setting in ("tcp_keepalives_idle = 30", "tcp_keepalives_interval = 10", "tcp_keepalives_count = 3"):
            session.execute(f"SET {setting}")  # the server frees the lock of a holder that vanished
        session.execute(f"SET statement_timeout = '{_STATEMENT_DEADLINE}'")
        session.execute("SET synchronous_commit = on")
        return session


def _translated(error: psycopg.Error, place: str) -> SbctlError:
    """Only what the server may say is repeated, and never a parameter."""
    code = error.sqlstate or ""
    if code.startswith("28"):
        return _denied(place)
    if code == "42501":
        return RefusedError(
            "state.denied",
            "the role has no right to the table of the state",
            place=place,
            next_step="log in as the role that owns it (fleet.state.username), or have its owner grant SELECT, INSERT and UPDATE",
        )
    if code.startswith("53") or code in ("25006", "57014"):
        return SbctlError(
            "state.server_failed",
            f"the database refused to work ({code})",
            place=place,
            retryable=True,
            next_step="see why in the log of the database, then run the command again",
        )
    if isinstance(error, psycopg.OperationalError) or code.startswith(("08", "57")):
        return _not_connected(str(error), place)
    return StateError(
        "state.server_failed",
        f"the database answered with an error ({code or type(error).__name__})",
        place=place,
        next_step="look at the log of the database",
    )


def _not_connected(said: str, place: str) -> SbctlError:
    """While connecting the library has the server's words and no code."""
    if _LOGIN_RE.search(said):
        return _denied(place)
    if _DATABASE_RE.search(said):
        return InputError(
            "state.no_database",
            "the server has no such database",
            place=place,
            next_step="create it (createdb), owned by the role that sbctl logs in as",
        )
    if match := _UNTRUSTED_RE.search(said):
        return untrusted(place, match[0])
    if _CA_FILE_RE.search(said):
        return InputError(
            "state.ca_file", "fleet.state.ca_file is not a file of PEM certificates", place=place,
            next_step="give the path of the CA's certificate, relative to sb.yml",
        )  # fmt: skip
    return unreachable(place, "no connection to the database, or it broke")


def _denied(place: str) -> RefusedError:
    return RefusedError(
        "state.denied",
        "the database does not let us in",
        place=place,
        next_step="check fleet.state.username and what fleet.state.password refers to",
    )
