"""Lines of logs and events of a fleet: each under its host's name, as people read them or as one JSON object a line. All of it is foreign text."""

from __future__ import annotations

import json
from typing import Any, Final

from sbctl.base.errors import SbctlError
from sbctl.node.records import LogLine, NodeEvent, log_fields
from sbctl.views.layout import safe

__all__ = ["event_document", "event_line", "failure_document", "log_document", "log_line", "lost_sentence"]

_TEXT_MAX_CHARS: Final = 10_000
_STRUCTURE: Final = ("at", "level", "part", "event", "deployment", "replica")


def log_line(host: str, line: LogLine, width: int) -> str:
    """`2026-11-29T22:50:57Z gpu-a | chat/0: text`, with a newline."""
    return f"{_when(line.at)} {safe(host).ljust(width)} | {_source(line)}: {safe(_readable(line.text), max_chars=_TEXT_MAX_CHARS)}\n"


def log_document(host: str, line: LogLine) -> dict[str, Any]:
    """One line as JSON; what the runtime itself logs is there as fields, too."""
    document = {"host": host, **line.model_dump(mode="json")}
    fields = log_fields(line.text)
    return {**document, "fields": fields} if fields else document


def event_line(host: str, event: NodeEvent, width: int) -> str:
    """`2026-11-29T22:50:57Z gpu-a | bundle.accepted: revision 3, by ops`, with a newline."""
    about = _about(event.deployment, event.replica)
    said = f"{safe(event.kind)}{f' {about}' if about else ''}: {safe(event.message)}"
    return f"{_when(event.at)} {safe(host).ljust(width)} | {said}\n"


def event_document(host: str, event: NodeEvent) -> dict[str, Any]:
    """One event as JSON."""
    return {"host": host, **event.model_dump(mode="json")}


def failure_document(host: str, error: SbctlError) -> dict[str, Any]:
    """A host that gave no answer, among the lines of the others."""
    return {"host": host, "error": error.to_wire()}


def lost_sentence(host: str, error: SbctlError) -> str:
    """For stderr."""
    then = f". {error.next_step}" if error.next_step else ""
    return f"{host}: {error.code}: {error.message}{then}"


def _when(at: str) -> str:
    return safe(at or "-", max_chars=40).ljust(20)


def _source(line: LogLine) -> str:
    if line.source == "engine":
        return _about(line.deployment, line.replica) or "engine"
    return line.source


def _about(deployment: str | None, replica: int | None) -> str:
    if deployment is None:
        return ""
    return safe(deployment) if replica is None else f"{safe(deployment)}/{replica}"


def _readable(text: str) -> str:
    """A structured line as a sentence: `replica: replica chat/0 before=ready after=failed`; any other line as it is."""
    fields = log_fields(text)
    if "event" not in fields:
        return text
    level = str(fields.get("level", ""))
    about = _about(_text(fields.get("deployment")), _number(fields.get("replica")))
    rest = [f"{name}={_shown(value)}" for name, value in fields.items() if name not in _STRUCTURE]
    head = [level if level not in ("", "info") else "", f"{fields.get('part', '')}:", str(fields["event"]), about]
    return " ".join(part for part in (*head, *rest) if part)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and " " not in value else json.dumps(value, ensure_ascii=False)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None
