"""Audit chains as lines and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from sbctl.base.display import plural
from sbctl.node.records import AuditAnswer
from sbctl.views.layout import safe
from sbctl.views.models_views import PlaceError, errors_body

__all__ = ["AuditRow", "audit_body", "audit_text"]


@dataclass(frozen=True, slots=True)
class AuditRow:
    """What one host's audit log says of itself."""

    host: str
    answer: AuditAnswer


def audit_body(rows: Sequence[AuditRow], errors: Sequence[PlaceError]) -> dict[str, Any]:
    hosts = [{"host": row.host, "holds": row.answer.broken_at is None, **row.answer.model_dump()} for row in rows]
    return {"hosts": hosts, "errors": errors_body(errors)}


def audit_text(rows: Sequence[AuditRow]) -> RenderableType:
    return Group(*(line for row in rows for line in _lines(row)))


def _lines(row: AuditRow) -> tuple[Text, ...]:
    found = row.answer
    entries = plural(found.entries, "entry", "entries")
    if found.broken_at is not None:
        held = f"; the {entries} before it hold" if found.entries else ""
        return (
            Text(safe(f"{row.host}: the chain is broken at {found.broken_at}: {found.why}{held}"), style="bold red"),
        )
    if not found.entries:
        return (Text(safe(f"{row.host}: nothing was changed yet")),)
    kept = f", the first {found.trimmed} old and not kept" if found.trimmed else ""
    whole = Text(safe(f"{row.host}: {entries} hold{kept}, the last of {found.last_at}"))
    return whole, Text(safe(f"  --head {found.entries}:{found.head}"))
