"""`logs.read`, `events.read`: what the node remembers, bounded, safe to show, from a cursor on.

runtime   the journal of our units where systemd runs them, else <state>/logs/runtime.log
engines   the journal of sbctl-engine-* where they are units, else <state>/logs/engines/*.log
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from sbctl.base.clock import rfc3339
from sbctl.base.display import display_safe
from sbctl.base.errors import HostError
from sbctl.base.limits import KIB, MIB
from sbctl.base.secret import redact
from sbctl.node.reading_messages import AuditVerify, EventsRead, LogsRead
from sbctl.node.records import LogLine, LogsAnswer, log_fields
from sbctl.runtime import audit, event_log
from sbctl.runtime.engine_output import engine_log_slot
from sbctl.runtime.launcher.spec import UNIT_RE, unit_pattern
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.journal import JournalEntry, read_journal
from sbctl.runtime.nodeops.launcher_units import LAUNCHER_SERVICE
from sbctl.runtime.nodeops.log_files import FileTail, read_behind, read_end
from sbctl.runtime.nodeops.snapshot import host_facts
from sbctl.runtime.nodeops.units import GUARD_NAME, UNIT_NAME, systemd_of

__all__ = ["read_events", "read_logs", "verify_audit"]

_ANSWER_MAX_BYTES: Final = 512 * KIB
_SEARCHED_BYTES: Final = 4 * MIB
_SEARCHED_LINES: Final = 10_000
_TEXT_MAX_CHARS: Final = 2000
_SHOWN_MAX_CHARS: Final = 8192
"""Characters that a terminal would obey take several to show."""
_JOURNAL: Final = "journal"
_FROM: Final = "from:"


@dataclass(frozen=True, slots=True)
class _Part:
    """What one source gave."""

    name: str
    lines: tuple[LogLine, ...]
    cursor: str
    more: bool = False
    lost: bool = False


def read_events(context: NodeContext, params: EventsRead) -> dict[str, Any]:
    """Raises HostError `events.unreadable`."""
    found = event_log.read_events(
        context.paths.database,
        after=params.after,
        limit=params.limit,
        deployment=params.deployment,
        since=_since(context, params.since_s),
    )
    return found.model_dump(mode="json")


def verify_audit(context: NodeContext, params: AuditVerify) -> dict[str, Any]:
    """Raises HostError `audit.unreadable`."""
    expected = None if params.seq is None or params.digest is None else (params.seq, params.digest)
    try:
        return audit.verify_audit(context.paths.database, expected=expected).model_dump(mode="json")
    except sqlite3.Error as error:
        raise HostError(
            "audit.unreadable",
            f"the audit cannot be read: {error}",
            place=str(context.paths.database),
            next_step="the database of the runtime is damaged: restore it from a backup",
            retryable=True,
        ) from error


def read_logs(context: NodeContext, params: LogsRead) -> dict[str, Any]:
    """Raises HostError `journal.unreadable`, `host.marker_damaged`."""
    since = _since(context, params.since_s)
    cursor = params.cursor
    parts: list[_Part] = []
    left = _ANSWER_MAX_BYTES
    for part in _parts(context, params, cursor):
        wanted = _wanted(part, params.deployment, since)
        parts.append(wanted)
        left -= sum(len(line.text) for line in wanted.lines)
        if cursor is not None and left <= 0:
            parts[-1] = replace(wanted, more=True)
            break
    lines = sorted((line for part in parts for line in part.lines), key=lambda line: line.at)
    if cursor is None:
        lines = _newest(lines, params.lines)
    answer = LogsAnswer(
        lines=tuple(lines[:_SEARCHED_LINES]),
        cursor={**(cursor or {}), **{part.name: part.cursor for part in parts if part.cursor}},
        more=any(part.more for part in parts),
        lost=any(part.lost for part in parts),
    )
    return answer.model_dump(mode="json")


def _newest(lines: list[LogLine], count: int) -> list[LogLine]:
    """The last `count`, and no more than an answer holds."""
    kept: list[LogLine] = []
    left = _ANSWER_MAX_BYTES
    for line in reversed(lines[-count:] if count else []):
        left -= len(line.text)
        if left < 0:
            break
        kept.append(line)
    return kept[::-1]


def _since(context: NodeContext, since_s: int | None) -> str:
    return "" if since_s is None else rfc3339(context.clock.now() - timedelta(seconds=since_s))


def _wanted(part: _Part, deployment: str | None, since: str) -> _Part:
    kept = tuple(
        line
        for line in part.lines
        if (deployment is None or line.deployment == deployment) and (not line.at or line.at >= since)
    )
    return replace(part, lines=kept)


def _parts(context: NodeContext, params: LogsRead, cursor: dict[str, str] | None) -> Iterator[_Part]:
    paths = context.paths
    if (paths.logs / "runtime.log").is_file() or "runtime" in (cursor or {}):
        yield _file("runtime", paths.logs / "runtime.log", cursor, _runtime_lines)
    for path in sorted(paths.engine_logs.glob("*.log")) if paths.engine_logs.is_dir() else ():
        slot = engine_log_slot(path.name)
        if slot is not None and params.deployment in (None, slot[0]):
            yield _file(f"engine:{path.stem}", path, cursor, _EngineLines(*slot))
    yield from _journal(context, params, cursor)


def _file(name: str, path: Path, cursor: dict[str, str] | None, read: Any) -> _Part:
    if cursor is None:
        tail = read_end(path, max_bytes=_SEARCHED_BYTES)
    else:
        # A log that began after the first answer is read from its beginning.
        tail = read_behind(path, cursor.get(name, ""), max_bytes=_ANSWER_MAX_BYTES)
    return _told(name, tail, read)


def _told(name: str, tail: FileTail, read: Any) -> _Part:
    return _Part(name, tuple(read(tail.lines)), tail.place, tail.more, tail.lost)


def _runtime_lines(lines: Iterable[bytes]) -> Iterator[LogLine]:
    """Lines are JSON; what is none, a traceback say, belongs to the moment of the line before it."""
    at = ""
    for raw in lines:
        text = raw.decode("utf-8", "replace")
        fields = log_fields(text)
        at = str(fields.get("at", at))[:40]
        yield _line(at, "runtime", text, fields.get("deployment"), fields.get("replica"))


@dataclass(frozen=True, slots=True)
class _EngineLines:
    """Of the log of one replica: the time, a space, the line."""

    deployment: str
    replica: int

    def __call__(self, lines: Iterable[bytes]) -> Iterator[LogLine]:
        for raw in lines:
            at, _, text = raw.decode("utf-8", "replace").partition(" ")
            yield _line(at[:40], "engine", text, self.deployment, self.replica)


def _journal(context: NodeContext, params: LogsRead, cursor: dict[str, str] | None) -> Iterator[_Part]:
    systemd = systemd_of(str(host_facts(context)["host"]["init"]), context.environ, context.uid)
    if systemd is None or UNIT_NAME not in systemd.installed():
        return
    units = (UNIT_NAME, LAUNCHER_SERVICE, GUARD_NAME, unit_pattern(params.deployment))
    place = (cursor or {}).get(_JOURNAL, "")
    now_s = int(context.clock.now().timestamp())
    begin = int(place.removeprefix(_FROM)) if place.startswith(_FROM) and place.removeprefix(_FROM).isdigit() else None
    if cursor is None and params.since_s is not None:
        begin = now_s - params.since_s
    found = read_journal(
        systemd.kind,
        units,
        after="" if place.startswith(_FROM) else place,
        since_s=begin,
        lines=(_SEARCHED_LINES if params.deployment else params.lines) if cursor is None else None,
        max_bytes=_SEARCHED_BYTES if cursor is None else _ANSWER_MAX_BYTES,
        environ=systemd.environ,
    )
    # Without an entry there is no cursor yet: what comes is then looked for from this moment on.
    behind = found.cursor or place or f"{_FROM}{now_s}"
    yield _Part(_JOURNAL, tuple(_journal_line(entry, params.deployment) for entry in found.entries), behind, found.more)


def _journal_line(entry: JournalEntry, asked: str | None) -> LogLine:
    at = rfc3339(datetime.fromtimestamp(entry.at_us / 1e6, UTC))
    engine = UNIT_RE.fullmatch(entry.unit)
    if engine is not None:
        # The unit has only the beginning of a long name.
        named = asked if asked is not None and asked.startswith(engine["deployment"]) else engine["deployment"]
        return _line(at, "engine", entry.text, named, int(engine["replica"]))
    fields = log_fields(entry.text)
    source = "launcher" if entry.unit == LAUNCHER_SERVICE else "runtime"
    return _line(at, source, entry.text, fields.get("deployment"), fields.get("replica"))


def _line(at: str, source: Any, text: str, deployment: object, replica: object) -> LogLine:
    return LogLine(
        at=at,
        source=source,
        deployment=deployment[:128] if isinstance(deployment, str) else None,
        replica=replica if isinstance(replica, int) and replica >= 0 else None,
        text=display_safe(redact(text), max_chars=_TEXT_MAX_CHARS)[:_SHOWN_MAX_CHARS],
    )
