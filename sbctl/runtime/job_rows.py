"""Jobs as rows of the runtime's database. How far one got stands in a table of its own, which older runtimes do not look at."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Final

__all__ = ["ENDED", "JOBS_SCHEMA", "JOB_PROGRESS", "JobRow", "insert_job", "read_job", "read_jobs"]

ENDED: Final = frozenset({"ready", "failed", "deleted"})
_KEPT: Final = 512

JOBS_SCHEMA: Final = """
CREATE TABLE job (id TEXT PRIMARY KEY, kind TEXT NOT NULL, subject TEXT NOT NULL, state TEXT NOT NULL, created_at_ms INTEGER NOT NULL,
                  updated_at_ms INTEGER NOT NULL, error TEXT) STRICT;
"""
JOB_PROGRESS: Final = """
CREATE TABLE IF NOT EXISTS job_progress (id TEXT PRIMARY KEY, completed_bytes INTEGER NOT NULL, total_bytes INTEGER, current_file TEXT) STRICT
"""
_FORGET: Final = """
DELETE FROM job WHERE state IN ('ready', 'failed', 'deleted') AND rowid NOT IN (SELECT rowid FROM job ORDER BY rowid DESC LIMIT ?)
"""
"""By when they were written, which a clock that was put back does not change: ids begin with the time."""
_SELECT: Final = """
SELECT job.id, kind, subject, state, created_at_ms, updated_at_ms, error, coalesce(completed_bytes, 0), total_bytes, current_file
FROM job LEFT JOIN job_progress USING (id)
"""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One operation that somebody asked for. `state`: queued, downloading, verifying, or deleting, then ready, deleted or failed; `error` is one sentence."""

    id: str
    kind: str
    subject: str
    state: str
    created_at_ms: int
    updated_at_ms: int
    error: str | None = None
    completed_bytes: int = 0
    total_bytes: int | None = None
    current_file: str | None = None
    """What it fetches or does."""


def insert_job(db: sqlite3.Connection, job: JobRow) -> None:
    """Insert or update, inside the caller's transaction; what runs and the 512 written last are kept. Raises sqlite3.Error."""
    db.execute(
        "INSERT OR REPLACE INTO job VALUES (?, ?, ?, ?, ?, ?, ?)",
        (job.id, job.kind, job.subject, job.state, job.created_at_ms, job.updated_at_ms, job.error),
    )
    db.execute(
        "INSERT OR REPLACE INTO job_progress VALUES (?, ?, ?, ?)",
        (job.id, job.completed_bytes, job.total_bytes, job.current_file),
    )
    db.execute(_FORGET, (_KEPT,))
    db.execute("DELETE FROM job_progress WHERE id NOT IN (SELECT id FROM job)")


def read_jobs(db: sqlite3.Connection) -> list[JobRow]:
    """Newest first. Raises sqlite3.Error."""
    return [JobRow(*row) for row in db.execute(f"{_SELECT} ORDER BY id DESC")]


def read_job(db: sqlite3.Connection, asked: str) -> JobRow | None:
    """Raises sqlite3.Error."""
    row = db.execute(f"{_SELECT} WHERE job.id = ?", (asked,)).fetchone()
    return None if row is None else JobRow(*row)
