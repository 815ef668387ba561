"""The hosts of a fleet: who they are, how they are reached, whether they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from sbctl.views.layout import safe
from sbctl.views.tables import Cell, Column, render_rows

__all__ = ["HostRow", "host_list_body", "host_list_text"]

_REACHABLE_STYLES: Final = {"yes": "green", "no": "bold red"}
_PINNED_STYLES: Final = {"NO": "bold red"}


@dataclass(frozen=True, slots=True)
class HostRow:
    """One host of sb.yml, or one that only the state still knows (`declared` False)."""

    name: str
    address: str
    jumps: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    group: str | None = None
    labels: Mapping[str, str] | None = None
    pinned: tuple[str, ...] | None = None
    """Fingerprints or key types of the pins; None where none is needed."""
    serial: int | None = None
    """The last serial that changed what is recorded of it; None when nothing is recorded."""
    declared: bool = True
    reachable: bool | None = None
    """None: not asked."""
    problem: str = ""
    """Why it is not reachable, and what to do."""
    out_of_service: str = ""
    """By whom and since when an operator drained it; empty when it is in service, or was not asked."""


def host_list_text(rows: Sequence[HostRow]) -> RenderableType:
    """A table; the reasons of hosts that gave no answer under it."""
    checked = any(row.reachable is not None for row in rows)
    columns: list[Column | str] = [
        "name", "address", "roles", "group", "labels", Column("pinned", style_by=_PINNED_STYLES), Column("serial", "right"),
    ]  # fmt: skip
    if checked:
        columns.append(Column("reachable", style_by=_REACHABLE_STYLES))
    listed: list[list[Cell]] = []
    for row in rows:
        pinned = None if row.pinned is None else "yes" if row.pinned else "NO"
        labels = ", ".join(f"{name}={value}" for name, value in sorted((row.labels or {}).items()))
        cells: list[Cell] = [
            row.name if row.declared else f"{row.name} (not in sb.yml)",
            " via ".join((row.address, *reversed(row.jumps))),
            ", ".join(row.roles),
            row.group,
            labels,
            pinned,
            row.serial,
        ]
        listed.append([*cells, row.reachable] if checked else cells)
    table = render_rows(columns, listed, empty="there are no hosts")
    reasons = [Text(f"\n{safe(row.name)}: {safe(row.problem)}") for row in rows if row.problem]
    drained = [Text(f"\n{safe(row.name)}: {safe(row.out_of_service)}") for row in rows if row.out_of_service]
    return Group(table, *reasons, *drained)


def host_list_body(rows: Sequence[HostRow]) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "hosts": [
            {**asdict(row), "labels": dict(row.labels or {}), "pinned": None if row.pinned is None else bool(row.pinned),
             "pins": list(row.pinned or ())}
            for row in rows
        ]
    }  # fmt: skip
