"""Sealed rows: each has its own digest, and the head seals how many there are and what their digests sum to.

The sum (modulo 2^256) does not depend on order and changes by one subtraction and one addition, so a write costs the same in a large
state as in a small one, and a row that vanished, came twice or was swapped is noticed by whoever reads the table.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from sbctl.state import refusals
from sbctl.state.codec import encode
from sbctl.state.location import StatePaths

__all__ = ["TABLES", "Head", "Rows", "Seal", "Table", "insert_head", "read_head", "read_verified"]

Table = Literal["resources", "signers", "revisions", "intents", "journal", "runs", "desired", "snapshots"]
TABLES: Final[tuple[Table, ...]] = (
    "resources", "signers", "revisions", "intents", "journal", "runs", "desired", "snapshots",
)  # fmt: skip
Key = str | int

# The names are the literals above; a statement is never built from data.
_SELECT: Final = {table: f"SELECT body, digest FROM {table} WHERE key = ?" for table in TABLES}  # noqa: S608
_SCAN: Final = {table: f"SELECT key, body, digest FROM {table} ORDER BY key" for table in TABLES}  # noqa: S608
_NEXT_KEY: Final = {table: f"SELECT min(key) FROM {table} WHERE key > ?" for table in TABLES}  # noqa: S608
_PUT: Final = {table: f"INSERT OR REPLACE INTO {table} (key, body, digest) VALUES (?, ?, ?)" for table in TABLES}  # noqa: S608
_DROP: Final = {table: f"DELETE FROM {table} WHERE key = ?" for table in TABLES}  # noqa: S608

_MODULUS: Final = 1 << 256


@dataclass(frozen=True, slots=True)
class Seal:
    """How many rows a table has and the sum of their digests."""

    count: int = 0
    total: int = 0

    def plus(self, digest: bytes) -> Seal:
        return Seal(self.count + 1, (self.total + int.from_bytes(digest, "big")) % _MODULUS)

    def minus(self, digest: bytes) -> Seal:
        return Seal(self.count - 1, (self.total - int.from_bytes(digest, "big")) % _MODULUS)


@dataclass(frozen=True, slots=True)
class Head:
    """What there is one of in a state. `changes` grows by one with each transaction; `open_serial` is the run that has not finished."""

    lineage: str
    fleet_name: str
    fingerprint_key: bytes = field(repr=False)
    serial: int = 0
    changes: int = 1
    key_epoch: int = 0
    sequence: int = 0
    """The last journal key used."""
    open_serial: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    """Of the open run, by name of `RunSummary.counts`."""
    last_at: str | None = None
    """When the open run last gave a sign of life."""
    seals: Mapping[Table, Seal] = field(default_factory=dict)
    tombstones: Mapping[str, Any] = field(default_factory=dict)
    """Hosts that were given up as lost, by name (`sbctl.state.tombstones`)."""


def _head_body(head: Head) -> bytes:
    return encode(
        {
            "lineage": head.lineage,
            "fleet_name": head.fleet_name,
            "fingerprint_key": head.fingerprint_key.hex(),
            "serial": head.serial,
            "changes": head.changes,
            "key_epoch": head.key_epoch,
            "sequence": head.sequence,
            "open_serial": head.open_serial,
            "counts": head.counts,
            "last_at": head.last_at,
            "seals": {table: [seal.count, f"{seal.total:064x}"] for table, seal in head.seals.items()},
            "tombstones": head.tombstones,
        },
        what="head",
    )


def _row_digest(table: str, key: Key, body: bytes) -> bytes:
    return hashlib.sha256(f"{table}\0{key}\0".encode() + body).digest()


def insert_head(connection: sqlite3.Connection, head: Head) -> None:
    """Write the head row, sealed. Raises sqlite3.Error."""
    body = _head_body(head)
    connection.execute(
        "INSERT OR REPLACE INTO head (id, body, digest) VALUES (1, ?, ?)", (body, _row_digest("head", 1, body))
    )


def read_head(connection: sqlite3.Connection, paths: StatePaths) -> Head:
    """The head row. Raises StateError `state.empty` or `state.corrupt`."""
    row = connection.execute("SELECT body, digest FROM head WHERE id = 1").fetchone()
    if row is None:
        raise refusals.empty(paths)
    body, digest = row
    if not isinstance(body, bytes) or _row_digest("head", 1, body) != digest:
        raise refusals.corrupt(paths, "the digest of the head does not match")
    raw: dict[str, Any] = json.loads(body)
    seals: dict[Table, Seal] = {table: Seal(count, int(total, 16)) for table, (count, total) in raw["seals"].items()}
    return Head(**{**raw, "fingerprint_key": bytes.fromhex(raw["fingerprint_key"]), "seals": seals})


def read_verified(connection: sqlite3.Connection, table: Table) -> Iterator[tuple[Key, bytes]]:
    """The rows of a damaged file that their own digests still prove; what cannot be read is left out."""
    with contextlib.suppress(sqlite3.Error, UnicodeDecodeError):
        for key, body, digest in connection.execute(_SCAN[table]):
            if isinstance(body, bytes) and _row_digest(table, key, body) == digest:
                yield key, body


class Rows:
    """The sealed tables inside one transaction. Writes change `head` in memory; `write_head` ends them. Raises sqlite3.Error, StateError."""

    def __init__(self, connection: sqlite3.Connection, paths: StatePaths, head: Head | None = None) -> None:
        self._connection = connection
        self._paths = paths
        self.head = read_head(connection, paths) if head is None else head

    def _verified(self, table: Table, key: Key, body: object, digest: object) -> bytes:
        if not isinstance(body, bytes) or _row_digest(table, key, body) != digest:
            raise refusals.corrupt(self._paths, f"the digest of {table} row {key} does not match")
        return body

    def _seal(self, table: Table) -> Seal:
        return self.head.seals.get(table, Seal())

    def _reseal(self, table: Table, seal: Seal) -> None:
        self.head = replace(self.head, seals={**self.head.seals, table: seal})

    def get(self, table: Table, key: Key) -> bytes | None:
        """One row, verified by itself. That it is absent is proved by `scan` only."""
        row = self._connection.execute(_SELECT[table], (key,)).fetchone()
        return None if row is None else self._verified(table, key, row[0], row[1])

    def scan(self, table: Table) -> Iterator[tuple[Key, bytes]]:
        """All rows by key, each verified; after the last one the seal is."""
        seal = Seal()
        for key, body, digest in self._connection.execute(_SCAN[table]):
            verified = self._verified(table, key, body, digest)
            seal = seal.plus(digest)
            yield key, verified
        if seal != self._seal(table):
            raise refusals.corrupt(
                self._paths, f"{table} has {seal.count} rows that are not the sealed {self._seal(table).count}"
            )

    def require(self, table: Table, key: Key) -> bytes:
        """A row that another row says is there."""
        body = self.get(table, key)
        if body is None:
            raise refusals.corrupt(self._paths, f"{table} row {key} is gone")
        return body

    def serials(self, table: Table) -> Iterator[int]:
        """Integer keys in order, read one by one and not verified; the block may drop the row it was given."""
        last = -1
        while (row := self._connection.execute(_NEXT_KEY[table], (last,)).fetchone())[0] is not None:
            last = row[0]
            yield last

    def put(self, table: Table, key: Key, body: bytes) -> None:
        """Write or replace one row."""
        seal = self._seal(table)
        previous = self.get(table, key)
        if previous is not None:
            seal = seal.minus(_row_digest(table, key, previous))
        digest = _row_digest(table, key, body)
        self._connection.execute(_PUT[table], (key, body, digest))
        self._reseal(table, seal.plus(digest))

    def drop(self, table: Table, key: Key) -> bool:
        """Remove one row; False when there is none."""
        previous = self.get(table, key)
        if previous is None:
            return False
        self._connection.execute(_DROP[table], (key,))
        self._reseal(table, self._seal(table).minus(_row_digest(table, key, previous)))
        return True

    def row_digest(self, table: Table, key: Key, body: bytes) -> str:
        """64 hex characters that name one row's content."""
        return _row_digest(table, key, body).hex()

    def write_head(self) -> Head:
        """Count the change and seal it; the last write of a transaction."""
        self.head = replace(self.head, changes=self.head.changes + 1)
        insert_head(self._connection, self.head)
        return self.head
