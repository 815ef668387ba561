"""What somebody sees who types nothing but the name."""

from __future__ import annotations

import pytest

from sbctl.base.errors import ExitCode
from sbctl.cli.main import main


@pytest.mark.parametrize("words", [[], ["state"], ["key"], ["bundle"]])
def test_a_name_without_a_command_lists_the_commands(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == ExitCode.USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("Usage: sbctl")
    assert "\nCommands:\n" in shown.err
