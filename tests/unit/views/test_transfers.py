"""Bytes outside an apply: a line for each piece of work in a log, bars on a terminal, nothing that a terminal would obey."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sbctl.views import transfers as module
from sbctl.views.transfers import transfers
from tests.simulators.fleet import ManualClock

MIB = 1 << 20


def test_a_log_gets_the_title_and_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    report = module._lines("weights\x1b[2J", clock=clock)
    for done in range(1, 5):
        clock.advance(6)
        report(done * MIB, 5 * MIB)
    report(5 * MIB, 5 * MIB)
    assert capsys.readouterr().err.splitlines() == [
        "weights\\x1b[2J",
        "weights\\x1b[2J: 2.0 of 5.0 MiB",
        "weights\\x1b[2J: 4.0 of 5.0 MiB",
    ]


@pytest.mark.parametrize("width", [40, 80])
def test_a_terminal_gets_one_bar_for_each_and_they_go_away(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=width, color_system=None, _environ={"TERM": "xterm"})
    monkeypatch.setattr(module, "stderr_console", lambda: console)
    with transfers() as begin:
        for title in ("wheels for x86_64, Python 3.11", "a model with a very long name indeed:q4_k_m"):
            begin(title)(3 * MIB, 4 * MIB)
    shown = stream.getvalue()
    assert "wheels" in shown
    assert max(len(line) for line in shown.replace("\r", "\n").replace("\x1b", "\n").splitlines()) <= width + 4
