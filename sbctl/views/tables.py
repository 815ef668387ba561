"""Rows in columns and facts by label: the small texts of list, show and status commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sbctl.base.clock import rfc3339
from sbctl.views.layout import label_columns, labelled, safe

__all__ = ["Cell", "Column", "cell_text", "render_fields", "render_rows"]

Cell = str | int | float | bool | datetime | None
"""What a row may hold; None is shown as `-`."""

_WHOLE_NAME_MAX_CHARS: Final = 48


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `style_by` colours a cell by its text."""

    title: str
    align: Literal["left", "right"] = "left"
    style_by: Mapping[str, str] | None = None


def render_rows(columns: Sequence[Column | str], rows: Iterable[Sequence[Cell]], *, empty: str) -> RenderableType:
    """A table with a head line, columns as wide as their cells, wrapped where the terminal is too narrow. `empty` stands for no rows."""
    listed = [tuple(row) for row in rows]
    if not listed:
        return Text(safe(empty))
    heads = [Column(column) if isinstance(column, str) else column for column in columns]
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    # A name in the first column is one to copy: the others give way first.
    whole = max(len(cell_text(row[0])) for row in listed) <= _WHOLE_NAME_MAX_CHARS
    for index, head in enumerate(heads):
        keeps = whole and index == 0
        table.add_column(Text(safe(head.title.upper())), justify=head.align, overflow="fold", no_wrap=keeps)
    for row in listed:
        table.add_row(*(_cell(head, value) for head, value in zip(heads, row, strict=True)))
    return table


def render_fields(fields: Iterable[tuple[str, Cell]], *, width: int = 80, title: str = "") -> RenderableType:
    """`label  value` lines in one column, under a title."""
    listed = [(label, cell_text(value)) for label, value in fields]
    columns = label_columns(label for label, _ in listed)
    indent = 2 if title else 0
    lines = [labelled(label, text, indent=indent, width=width, columns=columns) for label, text in listed]
    for line in lines:
        line.rstrip()
    return Group(*([Text(safe(title), style="bold")] if title else []), *lines)


def cell_text(value: Cell) -> str:
    """A value as a cell shows it."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, float):
        return f"{value:.1f}"
    return safe(value)


def _cell(column: Column, value: Cell) -> Text:
    text = cell_text(value)
    return Text(text, style=(column.style_by or {}).get(text, ""))
