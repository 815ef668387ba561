"""Who changed what on this node, as a chain: every entry carries the digest of the one before it.

An entry is written in the transaction of the change that it tells of, so there is neither a change without its entry nor the reverse. An entry
that was edited, taken out or put in breaks a link, and so does a cut end, since the head stands in a row of its own. Whoever may write the
database can also forge the whole chain: keep a head elsewhere (`sbctl audit verify` prints it) and ask for it again by `expected`.

The tables are additions that older runtimes do not look at.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sbctl.base.digests import canonical_json, sha256_bytes
from sbctl.base.display import display_safe
from sbctl.node.records import AuditAnswer

__all__ = ["AUDIT_TABLES", "AuditEntry", "append_audit", "verify_audit"]

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
    detail: Mapping[str, str | int | None] = field(default_factory=dict)


def append_audit(db: sqlite3.Connection, entry: AuditEntry) -> None:
    """The next link, inside the caller's transaction. Raises sqlite3.Error."""
    head = db.execute("SELECT seq, hash FROM audit_head").fetchone()
    seq, previous = (0, _GENESIS) if head is None else (int(head[0]), str(head[1]))
    texts = (entry.at, entry.actor, entry.role, entry.action, entry.subject, entry.source)
    shown = [display_safe(text, max_chars=_TEXT_MAX_CHARS) for text in texts]
    detail = {name: _short(value) for name, value in list(entry.detail.items())[:_DETAILS_MAX]}
    row = (seq + 1, *shown, canonical_json(detail).decode(), previous)
    digest = _digest(row)
    db.execute("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, digest))
    db.execute("INSERT OR REPLACE INTO audit_head VALUES (1, ?, ?)", (seq + 1, digest))


def _short(value: str | int | None) -> str | int | None:
    return display_safe(value, max_chars=_TEXT_MAX_CHARS) if isinstance(value, str) else value


def _digest(row: tuple[object, ...]) -> str:
    return sha256_bytes(canonical_json(dict(zip(_COLUMNS, row, strict=True))))


def verify_audit(database: Path, *, expected: tuple[int, str] | None = None) -> AuditAnswer:
    """Walk the chain from its beginning. `expected`: an entry's number and digest, as an earlier look found them. Raises sqlite3.Error."""
    if not database.is_file():
        return _answer(0, _GENESIS, "", *_missing(0, _GENESIS, expected, {}))
    with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)) as connection:
        connection.execute("BEGIN")
        if connection.execute("SELECT 1 FROM sqlite_master WHERE type='table' AND name='audit'").fetchone() is None:
            return _answer(0, _GENESIS, "", *_missing(0, _GENESIS, expected, {}))
        return _walked(connection, expected)


def _walked(connection: sqlite3.Connection, expected: tuple[int, str] | None) -> AuditAnswer:
    seq, previous, last_at = 0, _GENESIS, ""
    found: dict[int, str] = {}
    for row in connection.execute(f"SELECT {', '.join(_COLUMNS)}, hash FROM audit ORDER BY seq"):  # noqa: S608 - constants
        at_fault = _fault(row, seq, previous)
        if at_fault is not None:
            return _answer(seq, previous, last_at, seq + 1, at_fault)
        seq, previous, last_at = int(row[0]), str(row[9]), str(row[1])
        if expected is not None and seq == expected[0]:
            found[seq] = previous
    head = connection.execute("SELECT seq, hash FROM audit_head").fetchone()
    if head is None and seq:
        return _answer(seq, previous, last_at, seq, "the head of the chain is gone")
    if head is not None and (int(head[0]), str(head[1])) != (seq, previous):
        lost = f"the chain ends at {seq}, its head says {int(head[0])}: entries were cut off"
        return _answer(seq, previous, last_at, seq + 1, lost)
    return _answer(seq, previous, last_at, *_missing(seq, previous, expected, found))


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


def _missing(
    seq: int, head: str, expected: tuple[int, str] | None, found: Mapping[int, str]
) -> tuple[int | None, str | None]:
    if expected is None or found.get(expected[0]) == expected[1] or expected == (seq, head):
        return None, None
    if expected[0] > seq:
        return seq + 1, f"the chain ends at {seq}, entry {expected[0]} was there before"
    return expected[0], f"entry {expected[0]} is another one than it was before"


def _answer(entries: int, head: str, last_at: str, broken_at: int | None, why: str | None) -> AuditAnswer:
    return AuditAnswer(entries=entries, head=head, last_at=last_at, broken_at=broken_at, why=why)
