"""Changes without hosts: `state rm`, `state import`, `key add`. Each is a whole run in one transaction: serial, history, snapshot."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sbctl.state.codec import decode, desired_of_recorded
from sbctl.state.journal import close_open_run, open_run
from sbctl.state.model import RunInfo
from sbctl.state.reading import latest_desired
from sbctl.state.rows import Rows

__all__ = ["amend"]

Json = dict[str, Any]


def amend(
    rows: Rows,
    info: RunInfo,
    at: datetime,
    change: Callable[[Rows], None],
    ask: Callable[[list[Json]], list[Json]] = lambda desired: desired,
) -> int:
    """Run `change` as one serial; `ask` edits the desired list that a rollback to it would apply. Returns the serial."""
    desired = latest_desired(rows)
    if desired is None:
        desired = [desired_of_recorded(decode(body)) for _, body in rows.scan("resources")]
    serial = open_run(rows, info, ask(desired), at)
    change(rows)
    close_open_run(rows, "applied", at)
    return serial
