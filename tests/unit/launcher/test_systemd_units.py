"""How the launcher asks systemd, with programs of that name that record what they were asked and answer from a table."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sbctl.base.errors import HostError
from sbctl.runtime.launcher import units as units_module
from sbctl.runtime.launcher.spec import read_spec
from sbctl.runtime.launcher.units import SystemdUnits
from tests.simulators.unit_world import TOKEN, make_place, short_directory, wheel_request

UNIT = f"sbctl-engine-chat-g1-r0-{TOKEN}.service"
PROGRAM = """#!{python} -IS
import json, os, sys
folder = {folder!r}
name = os.path.basename(sys.argv[0])
with open(folder + "/asked", "a") as file:
    file.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
answers = json.load(open(folder + "/answers.json"))
verb = next((word for word in sys.argv[1:] if word in answers), name)
status, text = answers.get(verb, [0, ""])
sys.stdout.write(text)
sys.exit(status)
"""


class Programs:
    """`systemctl`, `systemd-run` and `journalctl`: answers by verb, else by the program's name: [status, output]."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("systemctl", "systemd-run", "journalctl"):
            (folder / name).write_text(PROGRAM.format(python=sys.executable, folder=str(folder)))
            (folder / name).chmod(0o755)
        self.answer({})

    def answer(self, answers: Mapping[str, tuple[int, str]]) -> None:
        (self._folder / "answers.json").write_text(json.dumps({"--version": (0, "systemd 252 (252.1)\n"), **answers}))

    def asked(self) -> list[list[str]]:
        path = self._folder / "asked"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Programs]:
    with short_directory() as folder:
        monkeypatch.setattr(units_module, "_DIRECTORIES", (str(folder),))
        yield Programs(folder)


def shown(**fields: object) -> str:
    known = {"Id": UNIT, "LoadState": "loaded", "ActiveState": "active", "SubState": "running", "MainPID": 77}
    return "".join(f"{name}={value}\n" for name, value in {**known, **fields}.items())


STATES = [
    (shown(), (True, True, False, 77, None)),
    (shown(SubState="exited", MainPID=0, ExecMainCode=1, ExecMainStatus=0), (True, False, True, None, 0)),
    (
        shown(ActiveState="failed", SubState="failed", MainPID=0, ExecMainCode=1, ExecMainStatus=3),
        (True, False, True, None, 3),
    ),
    (
        shown(ActiveState="failed", SubState="failed", MainPID=0, ExecMainCode=2, ExecMainStatus=9),
        (True, False, True, None, -9),
    ),
    (shown(ActiveState="deactivating", SubState="stop-sigterm"), (True, False, False, 77, None)),
    (
        shown(LoadState="not-found", ActiveState="inactive", SubState="dead", MainPID=0),
        (False, False, True, None, None),
    ),
    ("", (False, False, True, None, None)),
]


@pytest.mark.parametrize(("text", "expected"), STATES)
async def test_a_unit_is_read_as_systemd_shows_it(
    programs: Programs, text: str, expected: tuple[bool, bool, bool, int | None, int | None]
) -> None:
    programs.answer({"show": (0, text)})
    state = await SystemdUnits().show(UNIT)
    assert (state.is_loaded, state.is_running, state.is_stopped, state.pid, state.returncode) == expected


async def test_only_engine_units_are_listed(programs: Programs) -> None:
    programs.answer(
        {"list-units": (0, f"{UNIT} loaded active running x\nsbctl-engine-odd.service loaded\n"), "show": (0, shown())}
    )
    assert [state.unit for state in await SystemdUnits().listed()] == [UNIT]
    assert programs.asked()[-1][-1] == UNIT
    programs.answer({})
    assert await SystemdUnits().listed() == ()


async def test_an_engine_is_started_by_one_command_and_a_refusal_is_explained(programs: Programs) -> None:
    with short_directory() as root:
        place = make_place(root)
        spec = read_spec(wheel_request(place), place.site, sockets=place.sockets, owner=os.geteuid())
        await SystemdUnits().start(spec)
        command = programs.asked()[-1]
        assert command[0] == "systemd-run"
        assert command[command.index("--") + 1 :] == list(spec.argv)
        assert command[command.index("--unit") + 1] == UNIT
        programs.answer({"systemd-run": (1, "Failed to start transient service unit: Unit exists\n")})
        with pytest.raises(HostError, match="Unit exists") as caught:
            await SystemdUnits().start(spec)
        assert caught.value.code == "launcher.start_failed"


async def test_stopping_asks_and_never_fails_for_a_unit_that_is_gone(programs: Programs) -> None:
    programs.answer({"stop": (5, "not loaded"), "kill": (1, ""), "reset-failed": (1, "")})
    units = SystemdUnits()
    await units.stop(UNIT)
    await units.kill(UNIT)
    await units.forget(UNIT)
    assert [words[2] for words in programs.asked()] == ["stop", "kill", "reset-failed"]


async def test_last_lines_are_of_that_run_and_safe_to_show(programs: Programs) -> None:
    programs.answer(
        {"journalctl": (0, "loading\n\n\x1b[31mred\x1b[0m token=hf_abcdefghijklmnopqrstuvwxyz0123456789\n")}
    )
    lines = await SystemdUnits().lines("a" * 32, 5)
    assert lines[0] == "loading"
    assert "\x1b" not in lines[1]
    assert "hf_abc" not in lines[1]
    assert f"_SYSTEMD_INVOCATION_ID={'a' * 32}" in programs.asked()[-1]


async def test_a_host_without_systemd_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units_module, "_DIRECTORIES", ("/nonexistent",))
    assert await SystemdUnits().lines("a" * 32, 5) == ()
    with pytest.raises(HostError) as caught:
        await SystemdUnits().listed()
    assert caught.value.code == "host.program_missing"


async def test_a_systemd_that_refuses_is_quoted(programs: Programs) -> None:
    programs.answer({"list-units": (1, "Failed to connect to bus\n")})
    with pytest.raises(HostError, match="Failed to connect to bus"):
        await SystemdUnits().listed()
