"""Rows in columns and facts by label: the small texts of list, show and status commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from sbctl.base.clock import rfc3339
from sbctl.views.layout import label_columns, labelled, safe

__all__ = ["Cell", "Column", "cell_text", "render_fields", "render_rows"]

Cell = str | int | float | bool | datetime | None
"""What a row may hold; None is shown as `-`."""

_WHOLE_NAME_MAX_CHARS: Final = 48
_GAP: Final = 2
"""Columns between two."""


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
    return _Rows(tuple(Column(column) if isinstance(column, str) else column for column in columns), listed)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The table, laid out for the width it is printed at: no word is broken where every column has room for its longest."""

    heads: Sequence[Column]
    rows: Sequence[Sequence[Cell]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=None, pad_edge=False, show_edge=False, header_style="dim", padding=(0, _GAP, 0, 0))
        cells = [
            [safe(head.title.upper()), *(cell_text(row[at]) for row in self.rows)] for at, head in enumerate(self.heads)
        ]
        # A name in the first column is one to copy: the others give way first.
        whole = max(cell_len(text) for text in cells[0]) <= _WHOLE_NAME_MAX_CHARS
        widths = _widths(cells, options.max_width - _GAP * (len(cells) - 1), whole=whole)
        for at, head in enumerate(self.heads):
            keeps = whole and at == 0
            table.add_column(Text(cells[at][0]), justify=head.align, overflow="fold", no_wrap=keeps, width=widths[at])
        for row in self.rows:
            table.add_row(*(_cell(head, value) for head, value in zip(self.heads, row, strict=True)))
        yield table


def _widths(cells: Sequence[Sequence[str]], room: int, *, whole: bool) -> Sequence[int | None]:
    """Of each column, where what it shows has to wrap and can do so between words; else None, and Rich decides."""
    natural = [max(cell_len(text) for text in column) for column in cells]
    least = [max(cell_len(word) for text in column for word in text.split() or [""]) for column in cells]
    if whole:
        least[0] = natural[0]
    if sum(natural) > room >= sum(least):
        for widest in range(max(natural), 0, -1):
            widths = [max(word, min(full, widest)) for word, full in zip(least, natural, strict=True)]
            if sum(widths) <= room:
                return widths
    return [None] * len(cells)


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
