"""Who changed what on this node, as a chain: every entry carries the digest of the one before it.

An entry is written in the transaction of the change that it tells of, so there is neither a change without its entry nor the reverse. An entry
that was edited, taken out or put in breaks a link, and so does a cut end, since the head stands in a row of its own. Whoever may write the
database can also forge the whole chain: keep a head elsewhere (`sbctl audit verify` prints it) and ask for it again by `expected`.

The newest hundred thousand entries are kept. What is older goes a thousand at a time: a checkpoint holds number and digest of the last that
went, and an entry of the chain, written in the same transaction, says the same. So entries that somebody took out at the beginning are not
mistaken for old ones.

The tables are additions that older runtimes do not look at.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sbctl.base.digests import canonical_json, sha256_bytes
from sbctl.base.display import display_safe
from sbctl.node.records import AuditAnswer

__all__ = ["AUDIT_TABLES", "ENTRIES_KEPT", "AuditEntry", "Detail", "Note", "append_audit", "verify_audit"]

Detail = Mapping[str, str | int | None]
Note = Callable[[str, str, Detail], None]
"""Writes an entry by who acts: action, subject, details."""

ENTRIES_KEPT: Final = 100_000
_TRIMMED_AT_ONCE: Final = 1000
_TRIMMED: Final = "audit.trimmed"

_GENESIS: Final = "0" * 64
_TEXT_MAX_CHARS: Final = 256
_DETAILS_MAX: Final = 16
_BUSY_S: Final = 5.0

AUDIT_TABLES: Final = (
    """
CREATE TABLE IF NOT EXISTS audit (seq INTEGER PRIMARY KEY, at TEXT NOT NULL, actor TEXT NOT NULL, role TEXT NOT NULL, action TEXT NOT NULL,
                                  subject TEXT NOT NULL, source TEXT NOT NULL, detail TEXT NOT NULL, previous TEXT NOT NULL,
                                  hash TEXT NOT NULL) STRICT
""",
    """
CREATE TABLE IF NOT EXISTS audit_head (only INTEGER PRIMARY KEY CHECK (only = 1), seq INTEGER NOT NULL, hash TEXT NOT NULL) STRICT
""",
    """
CREATE TABLE IF NOT EXISTS audit_start (only INTEGER PRIMARY KEY CHECK (only = 1), seq INTEGER NOT NULL, hash TEXT NOT NULL) STRICT
""",
)

_COLUMNS: Final = ("seq", "at", "actor", "role", "action", "subject", "source", "detail", "previous")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """`at` is RFC 3339. `source` says by which way it came: `admin 127.0.0.1`, `control`, `bundle`. `detail` holds no secret."""

    at: str
    actor: str
    role: str
    action: str
    subject: str
    source: str
    detail: Detail = field(default_factory=dict)


def append_audit(db: sqlite3.Connection, entry: AuditEntry, *, keep: int = ENTRIES_KEPT) -> None:
    """The next link, inside the caller's transaction; beyond `keep` entries the oldest go. Raises sqlite3.Error."""
    seq = _linked(db, entry)
    start = db.execute("SELECT seq FROM audit_start").fetchone()
    through = seq - keep
    if through - (0 if start is None else int(start[0])) >= _TRIMMED_AT_ONCE:
        _trim(db, through, entry.at)


def _trim(db: sqlite3.Connection, through: int, at: str) -> None:
    (digest,) = db.execute("SELECT hash FROM audit WHERE seq = ?", (through,)).fetchone()
    db.execute("INSERT OR REPLACE INTO audit_start VALUES (1, ?, ?)", (through, digest))
    told: dict[str, str | int | None] = {"through": through, "hash": str(digest)}
    _linked(db, AuditEntry(at, "runtime", "runtime", _TRIMMED, "audit", "runtime", told))
    db.execute("DELETE FROM audit WHERE seq <= ?", (through,))


def _linked(db: sqlite3.Connection, entry: AuditEntry) -> int:
    """The number of the new link."""
    head = db.execute("SELECT seq, hash FROM audit_head").fetchone()
    seq, previous = (0, _GENESIS) if head is None else (int(head[0]), str(head[1]))
    texts = (entry.at, entry.actor, entry.role, entry.action, entry.subject, entry.source)
    shown = [display_safe(text, max_chars=_TEXT_MAX_CHARS) for text in texts]
    detail = {name: _short(value) for name, value in list(entry.detail.items())[:_DETAILS_MAX]}
    row = (seq + 1, *shown, canonical_json(detail).decode(), previous)
    digest = _digest(row)
    db.execute("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, digest))
    db.execute("INSERT OR REPLACE INTO audit_head VALUES (1, ?, ?)", (seq + 1, digest))
    return seq + 1


def _short(value: str | int | None) -> str | int | None:
    return display_safe(value, max_chars=_TEXT_MAX_CHARS) if isinstance(value, str) else value


def _digest(row: tuple[object, ...]) -> str:
    return sha256_bytes(canonical_json(dict(zip(_COLUMNS, row, strict=True))))


def verify_audit(database: Path, *, expected: tuple[int, str] | None = None) -> AuditAnswer:
    """Walk the chain from its beginning, or from its checkpoint. `expected`: an entry's number and digest, as an earlier look found them.

    Raises sqlite3.Error.
    """
    if not database.is_file():
        return _judged(_Walk(0, _GENESIS), expected)
    with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)) as connection:
        connection.execute("BEGIN")
        if not _has_table(connection, "audit"):
            return _judged(_Walk(0, _GENESIS), expected)
        return _judged(_walked(connection, expected), expected)


@dataclass(slots=True)
class _Walk:
    """How far the links hold. `start` and `start_hash` are of the checkpoint; `seen` is the digest of the entry that somebody expects."""

    start: int
    start_hash: str
    seq: int = 0
    head: str = _GENESIS
    last_at: str = ""
    seen: str | None = None
    attested: bool = False
    """An entry of the chain says the same as the checkpoint."""
    broken_at: int | None = None
    why: str | None = None

    def broken(self, at: int, why: str) -> _Walk:
        self.broken_at, self.why = at, why
        return self


def _has_table(connection: sqlite3.Connection, name: str) -> bool:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type='table' AND name=?", (name,)).fetchone()
    return found is not None


def _walked(connection: sqlite3.Connection, expected: tuple[int, str] | None) -> _Walk:
    row = (
        connection.execute("SELECT seq, hash FROM audit_start").fetchone()
        if _has_table(connection, "audit_start")
        else None
    )
    start, start_hash = (0, _GENESIS) if row is None else (int(row[0]), str(row[1]))
    walk = _Walk(start, start_hash, seq=start, head=start_hash, attested=start == 0)
    for link in connection.execute(f"SELECT {', '.join(_COLUMNS)}, hash FROM audit ORDER BY seq"):  # noqa: S608 - constants
        at_fault = _fault(link, walk.seq, walk.head)
        if at_fault is not None:
            return walk.broken(walk.seq + 1, at_fault)
        walk.seq, walk.head, walk.last_at = int(link[0]), str(link[9]), str(link[1])
        walk.attested = walk.attested or _attests(link, start, start_hash)
        if expected is not None and walk.seq == expected[0]:
            walk.seen = walk.head
    head = connection.execute("SELECT seq, hash FROM audit_head").fetchone()
    if head is None and walk.seq:
        return walk.broken(walk.seq, "the head of the chain is gone")
    if head is not None and (int(head[0]), str(head[1])) != (walk.seq, walk.head):
        lost = f"the chain ends at {walk.seq}, its head says {int(head[0])}: entries were cut off"
        return walk.broken(walk.seq + 1, lost)
    if not walk.attested:
        return walk.broken(start, f"the entries up to {start} were taken out, and no entry says that they were old")
    return walk


def _attests(link: tuple[object, ...], start: int, start_hash: str) -> bool:
    return link[4] == _TRIMMED and json.loads(str(link[7])) == {"through": start, "hash": start_hash}


def _fault(row: tuple[object, ...], seq: int, previous: str) -> str | None:
    """What is wrong with the link behind `seq`."""
    if row[0] != seq + 1:
        return f"entry {seq + 1} is missing: {row[0]} follows {seq}"
    if row[8] != previous:
        return f"entry {row[0]} does not follow the one before it"
    try:
        json.loads(str(row[7]))
    except ValueError:
        return f"entry {row[0]} has a detail that cannot be read"
    return None if _digest(row[:9]) == row[9] else f"entry {row[0]} was changed after it was written"


def _judged(walk: _Walk, expected: tuple[int, str] | None) -> AuditAnswer:
    broken_at, why = (walk.broken_at, walk.why) if walk.broken_at is not None else _missing(walk, expected)
    return AuditAnswer(
        entries=walk.seq, trimmed=walk.start, head=walk.head, last_at=walk.last_at, broken_at=broken_at, why=why
    )


def _missing(walk: _Walk, expected: tuple[int, str] | None) -> tuple[int | None, str | None]:
    if expected is None or expected in ((walk.seq, walk.head), (walk.start, walk.start_hash)):
        return None, None
    number, digest = expected
    if number > walk.seq:
        return walk.seq + 1, f"the chain ends at {walk.seq}, entry {number} was there before"
    if number < walk.start:
        return number, f"entry {number} is older than what is kept, so it cannot be compared: keep a newer head"
    if walk.seen == digest:
        return None, None
    return max(1, number), f"entry {number} is another one than it was before"
