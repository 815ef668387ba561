"""Pieces of text that several views lay out alike: labelled lines, wrapped sentences, values as people read them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from typing import Any, Final

from rich.cells import cell_len
from rich.text import Text

from sbctl.base.display import display_safe, format_bytes
from sbctl.base.ids import is_digest

__all__ = ["RADIUS_STYLES", "joined", "label_columns", "labelled", "padded", "safe", "sentence", "value_text"]

RADIUS_STYLES: Final = {
    "hitless": "dim",
    "reload": "cyan",
    "restart": "yellow",
    "breaking": "bold red",
    "unreachable": "yellow",
}

_VALUE_MAX_CHARS: Final = 72


def safe(text: object, *, max_chars: int = 2000) -> str:
    """Foreign text for a terminal: on one line, without control characters."""
    return display_safe(str(text), max_chars=max_chars)


def padded(text: str, columns: int) -> str:
    """`text` and spaces up to `columns` cells, at least two behind it."""
    return text + " " * max(2, columns - cell_len(text))


def value_text(path: str, value: Any) -> str:
    """A leaf's value in a few words; `path` tells its unit."""
    if value is None:
        return "(none)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and path.endswith("_bytes"):
        return format_bytes(value)
    if isinstance(value, str):
        if is_digest(value):
            return f"{value[:12]}…"
        return safe(value, max_chars=_VALUE_MAX_CHARS) or '""'
    if isinstance(value, list) and all(isinstance(item, (str, int, float)) for item in value):
        return safe(f"[{', '.join(str(item) for item in value)}]", max_chars=_VALUE_MAX_CHARS)
    return safe(json.dumps(value, ensure_ascii=False, sort_keys=True, default=str), max_chars=_VALUE_MAX_CHARS)


def label_columns(labels: Iterable[str]) -> int:
    """How wide the column of these labels is, 20 to 36; a longer one pushes its own text aside."""
    return min(36, max(20, *(cell_len(safe(label)) + 2 for label in labels), 20))


def labelled(label: str, text: str, *, indent: int, width: int, columns: int = 20, style: str = "") -> Text:
    """`label` in its column, the text beside it, wrapped under itself. Ends with a newline."""
    head = " " * indent + padded(safe(label), columns)
    lines = _wrapped(text, width - cell_len(head), cell_len(head))
    line = Text(head, style="dim")
    line.append(lines, style=style or "not dim")
    return line.append("\n")


def sentence(text: str, *, indent: int, width: int, style: str = "", first: str = "") -> Text:
    """Running text, wrapped under itself; `first` stands before its first line. Ends with a newline."""
    head = " " * indent + first
    lines = _wrapped(text, width - cell_len(head), cell_len(head))
    return Text(head + lines + "\n", style=style)


def joined(parts: Iterable[str], separator: str = " · ") -> str:
    """The parts that say something."""
    return separator.join(part for part in parts if part)


def _wrapped(text: str, columns: int, hanging: int) -> str:
    lines = textwrap.wrap(safe(text), max(columns, 20), break_long_words=False, break_on_hyphens=False)
    return ("\n" + " " * hanging).join(lines)
