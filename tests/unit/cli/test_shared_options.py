from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.main import get_command

from sbctl.base.errors import ExitCode
from sbctl.cli.app import app
from sbctl.cli.main import main

pytestmark = pytest.mark.flow

SHARED = {
    "--target", "--exclude", "--replace", "--refresh", "--no-refresh", "--max-blast-radius", "--allow-unreachable", "--parallelism",
    "--lock-timeout", "--file",
}  # fmt: skip


def options_of(command: str) -> set[str]:
    found = get_command(app).commands[command]  # type: ignore[attr-defined]
    return {name for option in found.params for name in (*option.opts, *option.secondary_opts)}


@pytest.mark.parametrize("command", ["plan", "apply", "destroy", "drift"])
def test_the_four_commands_share_their_options(command: str) -> None:
    assert options_of(command) >= SHARED


@pytest.mark.parametrize("command", ["plan", "apply", "destroy", "rollback"])
def test_yes_has_two_spellings(command: str) -> None:
    assert options_of(command) >= {"--yes", "--auto-approve"}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("apply", "--no-refresh"), "apply goes by what the hosts say"),
        (("destroy", "--no-refresh"), "destroy goes by what the hosts say"),
        (("drift", "--no-refresh"), "drift goes by what the hosts say"),
        (("drift", "--replace", "engine.*"), "drift makes nothing anew"),
        (("destroy", "--replace", "engine.*"), "destroy makes nothing anew"),
        (("plan", "--unsigned"), "--unsigned is about a pack"),
        (("apply", "--unsigned"), "--unsigned is about a pack"),
        (("rollback", "--unsigned"), "--unsigned is about a pack"),
        (("pack",), "--out FILE"),
        (("pack", "--out", "p", "--exclude", "engines"), "only weights can be left out"),
        (("pack", "--out", "p", "--arch", "sparc"), "--arch is a list such as x86_64,aarch64"),
        (("pack", "--out", "p", "--python", ","), "--python is a list such as 3.11,3.12"),
    ],
)
def test_a_shared_option_that_a_command_cannot_follow_is_refused_before_anything(
    arguments: tuple[str, ...],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == ExitCode.USAGE
    assert why in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("plan", "x.plan"), "plan"),
        (("state", "show", "host.a"), "state.show"),
        (("cluster", "status"), "cluster.status"),
        (("cluster", "confirm-lost", "w1"), "cluster.confirm-lost"),
        (("cluster", "token", "create"), "cluster.token.create"),
        (("pack", "verify", "here"), "pack.verify"),
    ],
)
def test_a_failure_has_the_name_that_the_commands_own_document_has(
    words: tuple[str, ...], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--nonsense", "--format", "json"]) == ExitCode.USAGE
    assert json.loads(capsys.readouterr().out)["command"] == command
