from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from sbctl.views import console

ROOT = Path(__file__).resolve().parents[3]


class _Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class _Ascii(io.StringIO):
    encoding = "ascii"


def _coloured() -> Text:
    return Text("said → so", style="bold red")


def test_results_go_to_stdout_and_talk_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    console.result(Text("result"))
    console.talk(Text("talk"))
    console.note("note \x1b[31m")
    out, err = capsys.readouterr()
    assert out == "result\n"
    assert err == "talk\nnote \\x1b[31m\n"


def test_json_has_a_version_and_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json("plan", {"b": 1, "a": "→"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"schema_version": 1, "command": "plan", "a": "→", "b": 1}
    assert "→" in out


@pytest.mark.parametrize(
    ("stream", "environ", "colour"),
    [
        (_Terminal, {}, True),
        (_Terminal, {"NO_COLOR": "1"}, False),
        (io.StringIO, {}, False),
        (io.StringIO, {"FORCE_COLOR": "1"}, False),
    ],
)
def test_colour_only_on_a_terminal_and_without_NO_COLOR(
    stream: type[io.StringIO], environ: dict[str, str], colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    out = stream()
    monkeypatch.setattr(sys, "stdout", out)
    console.result(_coloured())
    assert ("\x1b[" in out.getvalue()) is colour


def test_an_encoding_without_our_signs_gets_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    out = _Ascii()
    monkeypatch.setattr(sys, "stdout", out)
    console.result(Text("a → b · c… é"))
    assert out.getvalue() == "a -> b - c... \\xe9\n"


def test_text_is_never_markup_and_never_wrapped_again(capsys: pytest.CaptureFixture[str]) -> None:
    console.result(Text("[bold]x[/bold] [/x] :smile: " + "y" * 300))
    assert capsys.readouterr().out == "[bold]x[/bold] [/x] :smile: " + "y" * 300 + "\n"


@pytest.mark.parametrize(
    ("columns", "width"), [("20", 40), ("80", 80), ("500", 110), ("", 80), ("many", 80), ("0", 80), ("-3", 80)]
)
def test_the_width_is_columns_within_reason(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert console.line_width(io.StringIO()) == width


def test_the_terminal_tells_its_width_when_COLUMNS_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((93, 24)))
    with Path(os.devnull).open("w") as stream:
        assert console.line_width(stream) == 93


def test_progress_gets_a_console_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    console.stderr_console().print("live")
    assert capsys.readouterr().err == "live\n"


def test_a_closed_stream_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    out.close()
    monkeypatch.setattr(sys, "stdout", out)
    console.result(Text("nobody"))


class _Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError

    def fileno(self) -> int:
        raise io.UnsupportedOperation


def test_a_reader_without_a_descriptor_that_went_away_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", _Gone())
    console.result(Text("nobody"))


@pytest.mark.flow
def test_B16_a_reader_that_went_away_ends_output_quietly_and_work_goes_on() -> None:
    code = (
        "import sys; from rich.text import Text; from sbctl.views.console import result\n"
        "for number in range(20000): result(Text('line ' * 20))\n"
        "sys.stderr.write('went on to the end')\n"
    )
    environ: dict[str, Any] = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ, cwd=ROOT
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        said = child.stderr.read()
        assert child.wait() == 0
    assert said == b"went on to the end"
