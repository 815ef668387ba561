"""Parameters of the node interface that ask for what a host tells of its past (`sbctl.node.records`)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sbctl.node.params import DIGEST_PATTERN, Params
from sbctl.node.records import EVENTS_MAX, LINES_MAX

__all__ = ["AuditVerify", "EventsRead", "LogsRead"]


class LogsRead(Params):
    """Lines of the runtime's log and of what engines print. Reads only. → LogsAnswer

    Without a `cursor` the newest `lines`, of the last `since_s` seconds; with one what came behind it, as far as an answer holds.
    """

    cursor: dict[str, Annotated[str, Field(max_length=512)]] | None = Field(default=None, max_length=1024)
    lines: int = Field(default=100, ge=0, le=LINES_MAX)
    since_s: int | None = Field(default=None, ge=0, le=10**9)
    deployment: str | None = Field(default=None, min_length=1, max_length=128)


class EventsRead(Params):
    """What the runtime remembers. Reads only. → EventsAnswer

    Without `after` the newest `limit`, of the last `since_s` seconds; with it what came behind that number.
    """

    after: int | None = Field(default=None, ge=0)
    limit: int = Field(default=100, ge=1, le=EVENTS_MAX)
    since_s: int | None = Field(default=None, ge=0, le=10**9)
    deployment: str | None = Field(default=None, min_length=1, max_length=128)


class AuditVerify(Params):
    """Walk the audit chain of the runtime. Reads only. → AuditAnswer

    With `seq` and `digest`, as an earlier walk found its head, that entry has to be there still.
    """

    seq: int | None = Field(default=None, ge=0)
    digest: str | None = Field(default=None, pattern=DIGEST_PATTERN)
