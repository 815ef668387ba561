"""The shape of state.db, as numbered functions. Each is applied once, in order, in one transaction with the number it leads to.

A released function never changes; a new shape is a new function. The number stands in `user_version`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["APPLICATION_ID", "MIGRATIONS", "Migration", "migrate"]

APPLICATION_ID: Final = 0x5BC71001
"""Marks a SQLite file as a state of sbctl."""

Migration = Callable[[sqlite3.Connection], None]


def _0001_sealed_rows(connection: sqlite3.Connection) -> None:
    """Rows of JSON with a digest each, and one head row that seals them all. Bodies are compact JSON, desired lists and snapshots zlib."""
    for statement in (
        "CREATE TABLE head (id INTEGER PRIMARY KEY CHECK (id = 1), body BLOB NOT NULL, digest BLOB NOT NULL)",
        "CREATE TABLE resources (key TEXT PRIMARY KEY, body BLOB NOT NULL, digest BLOB NOT NULL)",
        "CREATE TABLE signers (key TEXT PRIMARY KEY, body BLOB NOT NULL, digest BLOB NOT NULL)",
        "CREATE TABLE revisions (key TEXT PRIMARY KEY, body BLOB NOT NULL, digest BLOB NOT NULL)",
        "CREATE TABLE intents (key TEXT PRIMARY KEY, body BLOB NOT NULL, digest BLOB NOT NULL)",
        "CREATE TABLE journal (key INTEGER PRIMARY KEY, body BLOB NOT NULL, digest BLOB NOT NULL)",
        "CREATE TABLE runs (key INTEGER PRIMARY KEY, body BLOB NOT NULL, digest BLOB NOT NULL)",
        "CREATE TABLE desired (key INTEGER PRIMARY KEY, body BLOB NOT NULL, digest BLOB NOT NULL)",
        "CREATE TABLE snapshots (key INTEGER PRIMARY KEY, body BLOB NOT NULL, digest BLOB NOT NULL)",
        "CREATE TABLE holder (id INTEGER PRIMARY KEY CHECK (id = 1), body BLOB NOT NULL)",
    ):
        connection.execute(statement)


MIGRATIONS: Sequence[Migration] = (_0001_sealed_rows,)


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> int:
    """Bring the file to the last number; returns how many functions ran. The connection has no open transaction.

    All of them are one transaction: an interrupted migration leaves the old shape. Raises sqlite3.Error.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        pending = migrations[version:]
        for migration in pending:
            migration(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID:d}")
        connection.execute(f"PRAGMA user_version = {len(migrations):d}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return len(pending)
