"""What happened although the disk took no write, so that memory and disk can be freed while it is full: written with the next write that succeeds.

Stops are kept by deployment, so all of them are; jobs and entries of the audit up to a bound, the newest of them, and how many are lost is an
entry of its own. A process that ends before the disk takes a write takes all of it along.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from sbctl.runtime.audit import AuditEntry, Detail, append_audit
from sbctl.runtime.job_rows import JobRow, insert_job

__all__ = ["OwedWrites", "write_stop"]

_KEPT: Final = 512
_LOST: Final = "audit.lost"


class OwedWrites:
    """Used under the lock of the database that it belongs to; `stops` and `jobs` may be read without it."""

    def __init__(self) -> None:
        self.stops: dict[str, bool] = {}
        """By deployment: stopped by an operator, or released."""
        self.jobs: OrderedDict[str, JobRow] = OrderedDict()
        self._entries: list[AuditEntry] = []
        self._lost = 0

    def __bool__(self) -> bool:
        return bool(self.stops or self.jobs or self._entries)

    def owe_job(self, row: JobRow) -> None:
        self.jobs[row.id] = row
        if len(self.jobs) > _KEPT:
            self.jobs.popitem(last=False)

    def owe_entry(self, entry: AuditEntry) -> None:
        self._entries.append(entry)
        if len(self._entries) > _KEPT:
            del self._entries[0]
            self._lost += 1

    def write(self, db: sqlite3.Connection, told: Callable[[str, str, Detail], AuditEntry]) -> None:
        """All of it, inside the caller's transaction; `told` makes an entry of the runtime's own. Raises sqlite3.Error."""
        for entry in self._entries:
            append_audit(db, entry)
        if self._lost:
            append_audit(db, told(_LOST, "audit", {"entries": self._lost}))
        for deployment, stopped in self.stops.items():
            write_stop(db, deployment, stopped=stopped)
        for row in self.jobs.values():
            insert_job(db, row)

    def clear(self) -> None:
        """It is durable now."""
        self.stops, self.jobs, self._entries, self._lost = {}, OrderedDict(), [], 0


def write_stop(db: sqlite3.Connection, deployment: str, *, stopped: bool) -> bool:
    """Whether that changed anything. Raises sqlite3.Error."""
    statement = "INSERT OR IGNORE INTO stopped VALUES (?)" if stopped else "DELETE FROM stopped WHERE deployment=?"
    return bool(db.execute(statement, (deployment,)).rowcount)
