from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console, RenderableType

from sbctl.views.tables import Column, cell_text, render_fields, render_rows


def shown(renderable: RenderableType, width: int = 80) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, markup=False, highlight=False).print(renderable)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_rows_stand_in_columns_as_wide_as_their_cells() -> None:
    assert shown(render_rows(["name", Column("size", "right")], [("a", 1), ("longer", 100)], empty="none")) == [
        "NAME    SIZE",
        "a          1",
        "longer   100",
    ]


def test_no_rows_is_a_sentence() -> None:
    assert shown(render_rows(["name"], [], empty="nothing yet")) == ["nothing yet"]


def test_a_narrow_terminal_folds_cells_instead_of_cutting_them() -> None:
    lines = shown(render_rows(["name", "where"], [("x", "abcdefghij" * 4)], empty=""), width=20)
    assert "".join("".join(lines[1:]).split()) == "x" + "abcdefghij" * 4


def test_words_are_broken_only_where_not_even_they_have_room() -> None:
    rows = [("gpu-1", "not-pulled, in use", "apache-2.0", "two words and more of them")]
    lines = shown(render_rows(["host", "status", "licence", "why"], rows, empty=""), width=44)
    assert lines[1].split()[:3] == ["gpu-1", "not-pulled,", "apache-2.0"]
    assert max(map(len, lines)) <= 44


def test_a_name_stays_in_one_piece_where_the_others_can_give_way() -> None:
    lines = shown(render_rows(["model", "where"], [("llama-3.1-8b-instruct", "abcdefghij " * 4)], empty=""), width=40)
    assert lines[1].startswith("llama-3.1-8b-instruct")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        ("", "-"),
        (True, "yes"),
        (False, "no"),
        (3, "3"),
        (1.25, "1.2"),
        (datetime(2026, 11, 28, 9, 12, tzinfo=UTC), "2026-11-28T09:12:00Z"),
        ("\x1b[31m", "\\x1b[31m"),
    ],
)
def test_cells_are_shown_alike_everywhere(value: Any, text: str) -> None:
    assert cell_text(value) == text


def test_X14_cells_are_never_markup() -> None:
    hostile = "[link=http://evil]x[/link] [/x]"
    assert hostile in "\n".join(shown(render_rows(["c"], [(hostile,)], empty="")))
    assert hostile in "\n".join(shown(render_fields([("label", hostile)], title="[/x]")))


def test_fields_stand_under_their_title() -> None:
    assert shown(render_fields([("a", 1), ("longer label", None)], title="host")) == [
        "host",
        "  a                   1",
        "  longer label        -",
    ]
    assert shown(render_fields([("a", 1)])) == ["a                   1"]
