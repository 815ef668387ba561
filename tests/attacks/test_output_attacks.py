"""Abuse cases of output (docs/threats.md, H3, H4): foreign text on a terminal, JSON for every failure, any encoding."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sbctl.cli.main import main
from sbctl.views import console

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = 'model \u202e \x9b31m \x1b[0m \U0001f600 “é” {"n": 1}\n'


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_H3_foreign_text_in_json_stays_json_and_reaches_no_terminal_raw(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    console.print_json("plan", {"said": FOREIGN, FOREIGN: 1})
    text = raw.getvalue().decode(encoding)
    assert json.loads(text) == {"schema_version": 1, "command": "plan", "said": FOREIGN, FOREIGN: 1}
    assert not set(text) & set("\u202e\x9b\x1b")


@pytest.mark.parametrize(
    ("arguments", "command", "code"),
    [
        (["plan", "-f", "nowhere.yml", "--format", "json"], "plan", 3),
        (["state", "list", "-f", "nowhere/sb.yml", "--format=json"], "state.list", 3),
        (["plan", "--no-such-option", "--format", "json"], "plan", 64),
        (["nonsense", "--format", "json"], "", 64),
    ],
)
def test_H4_every_failure_of_a_json_command_is_one_json_document(
    arguments: list[str],
    command: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert (document["command"], document["error"]["exit_code"], err) == (command, code, "")


@pytest.mark.parametrize("command", [["validate"], ["plan"], ["state", "list"], ["doctor"]])
def test_A7_a_path_the_system_does_not_take_is_a_named_failure(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, "-f", "x" * 5000]) in (1, 3)
    err = capsys.readouterr().err
    assert err.startswith("error[")
    assert "error[bug]" not in err


@pytest.mark.parametrize(
    "arguments", [["version"], ["--help"], ["schema"], ["explain", "proxy"], ["plan", "-f", "no", "--format", "json"]]
)
def test_B13_a_result_that_cannot_be_written_is_a_failure_that_says_so(arguments: list[str], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sbctl.cli.main", *arguments],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)},
        )
    assert done.returncode in (1, 3)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.stderr.startswith("error[") or arguments == ["version"]


@pytest.mark.parametrize("arguments", [["nonsense"], ["plan", "-f", "nowhere.yml"]])
def test_B13_an_error_that_cannot_be_written_keeps_its_exit_code(arguments: list[str], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sbctl.cli.main", *arguments],
            cwd=tmp_path,
            stderr=full,
            check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)},
        )
    assert done.returncode == (64 if arguments == ["nonsense"] else 3)
