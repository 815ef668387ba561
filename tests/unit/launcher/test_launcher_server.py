"""The launcher's socket, with units that need no systemd: who is heard, what is stopped when, and that nothing half started stays."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import EngineError, HostError, InputError, RefusedError, SbctlError
from sbctl.runtime.launcher.program import run_launcher
from sbctl.runtime.launcher.server import LauncherServer
from sbctl.runtime.launcher.spec import unit_of
from sbctl.runtime.launcher_client import LauncherClient
from tests.simulators.unit_world import (
    TOKEN,
    Running,
    UnitWorld,
    make_place,
    running,
    short_directory,
    until,
    wheel_request,
)

UNIT = unit_of("chat", 1, 0, TOKEN)


async def test_an_engine_starts_is_listed_says_its_last_words_and_stops() -> None:
    async with running() as there:
        started = await there.client.start(wheel_request(there.place))
        assert started["unit"] == UNIT
        directory = there.place.sockets / TOKEN
        assert stat.S_IMODE(directory.stat().st_mode) == 0o2750
        assert await there.client.listed() == [{**started, "running": True}]
        assert await there.client.lines(str(started["invocation"]), 3) == (
            f"last words of {started['invocation'][-4:]}",
        )
        await there.client.stop(UNIT, grace_s=1.0)
        assert there.world.units == {}
        assert not directory.exists()
        await there.client.stop(UNIT, grace_s=1.0)


@pytest.mark.parametrize(("stubborn", "expected"), [(False, "kill"), (True, "engine_shutdown_failed")])
async def test_F23_an_engine_that_ignores_sigterm_is_killed(
    stubborn: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbctl.runtime.launcher.engine_units._KILL_WAIT_S", 0.0)
    async with running() as there:
        there.world.ignores_term, there.world.immortal = True, stubborn
        await there.client.start(wheel_request(there.place))
        if stubborn:
            with pytest.raises(EngineError) as caught:
                await there.client.stop(UNIT, grace_s=0.0)
            assert caught.value.code == expected
        else:
            await there.client.stop(UNIT, grace_s=0.0)
            assert any(event.startswith(expected) for event in there.world.events)


async def test_a_start_that_fails_leaves_nothing() -> None:
    async with running() as there:
        there.world.start_fault = HostError("launcher.start_failed", "no such program")
        with pytest.raises(HostError, match="no such program"):
            await there.client.start(wheel_request(there.place))
        assert not (there.place.sockets / TOKEN).exists()
        there.world.start_fault = None
        await there.client.start(wheel_request(there.place))
        with pytest.raises(RefusedError):
            await there.client.start(wheel_request(there.place))


async def test_how_an_engine_ended_is_told_to_who_waits() -> None:
    async with running() as there:
        started = await there.client.start(wheel_request(there.place))
        waiting = asyncio.create_task(there.client.wait(UNIT, str(started["invocation"])))
        await asyncio.sleep(0)
        there.world.ends(UNIT, 3)
        assert await waiting == {"returncode": 3, "result": "success"}
        assert (await there.client.wait(UNIT, "0" * 32))["returncode"] is None


async def test_F24_engines_are_stopped_when_nobody_attends_and_the_launcher_ends() -> None:
    async with running(away_s=0.1, idle_s=0.1, tick_s=0.02) as there:
        attending = asyncio.create_task(there.client.attend())
        await until(lambda: there.server._attending == 1)
        await there.client.start(wheel_request(there.place))
        await asyncio.sleep(0.4)  # several times what it takes to stop engines that nobody attends to
        assert UNIT in there.world.units
        attending.cancel()
        await until(lambda: not there.world.units)
        assert there.ended is not None
        await asyncio.wait_for(there.ended, 30)


async def test_who_attends_is_back_after_the_launcher_was_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbctl.runtime.launcher_client._AGAIN_S", 0.01)
    with short_directory() as root:
        place, world = make_place(root), UnitWorld()
        first = Running(place, world)
        first.begin()
        started = await first.client.start(wheel_request(place))
        attending = asyncio.create_task(first.client.attend())
        waiting = asyncio.create_task(first.client.wait(UNIT, str(started["invocation"])))
        await until(lambda: first.server._attending == 1)
        await first.end()
        second = Running(place, world)
        second.begin()
        await until(lambda: second.server._attending == 1)
        world.ends(UNIT, -9)
        assert (await waiting)["returncode"] == -9
        attending.cancel()
        await second.end()


async def test_F22_whoever_else_answers_at_an_engines_address_is_not_taken_for_it() -> None:
    async with running() as there:
        await there.client.start(wheel_request(there.place))
        with pytest.raises(EngineError) as caught:
            await there.client.prove(UNIT, None)
        assert caught.value.code == "engine_health_failed"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(there.place.sockets / TOKEN / "engine.sock"))
            listener.listen()
            with pytest.raises(EngineError) as caught:
                await there.client.prove(UNIT, None)
            assert caught.value.code == "engine_not_ours"
            there.world.units[UNIT] = replace(there.world.units[UNIT], pid=os.getpid())
            await there.client.prove(UNIT, None)


async def test_only_the_allowed_users_are_heard() -> None:
    async with running() as there:
        there.allowed.clear()
        with pytest.raises(RefusedError) as caught:
            await there.client.listed()
        assert caught.value.code == "launcher.not_allowed"
        assert there.said == [f"refused a connection of user {os.geteuid()}"]


NONSENSE: list[tuple[bytes, str | None]] = [
    (b"\n", "json.invalid"),
    (b"[]\n", "launcher.invalid_request"),
    (b'{"op": "list", "more": 1}\n', "launcher.invalid_request"),
    (b'{"op": "reboot"}\n', "launcher.invalid_request"),
    (b'{"op": "list", "op": "stop_all"}\n', "json.invalid"),
    (b'{"op": "stop", "unit": "ssh.service", "grace_s": 0}\n', "launcher.refused"),
    (b'{"op": "stop", "unit": "sbctl-engine-*", "grace_s": 0}\n', "launcher.refused"),
    (b'{"op": "lines", "invocation": "0 _UID=0", "count": 1}\n', "launcher.invalid_request"),
    (b'{"op": "prove", "unit": 1, "port": null}\n', "launcher.invalid_request"),
    (b'{"op": "start", "spec": {"argv": ["/bin/sh"]}}\n', "launcher.refused"),
    (b'{"op":' + b"[" * 100 + b"\n", "json.invalid"),
    (b"x" * (1 << 20), None),
]


@pytest.mark.parametrize(("sent", "code"), NONSENSE, ids=[line[:40].decode() for line, _ in NONSENSE])
async def test_nonsense_is_answered_by_a_sentence_or_by_the_end(sent: bytes, code: str | None) -> None:
    async with running() as there:
        reader, writer = await asyncio.open_unix_connection(str(there.path))
        with contextlib.suppress(ConnectionError):
            writer.write(sent)
            await writer.drain()
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = await reader.readline()
        writer.close()
        assert (json.loads(answer)["error"]["code"] if answer else None) == code
        assert there.world.events == []
        assert await there.client.listed() == []


async def test_all_engines_are_stopped_at_once_and_every_failure_is_told() -> None:
    async with running() as there:
        for number in range(3):
            await there.client.start(wheel_request(there.place, f"{number:016x}"))
        reader, writer = await asyncio.open_unix_connection(str(there.path))
        writer.write(b'{"op": "stop_all"}\n')
        assert json.loads(await reader.readline()) == {"ok": {"stopped": 3}}
        writer.close()
        assert there.world.units == {}


async def test_a_launcher_that_is_not_there_is_said_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbctl.runtime.launcher_client._AGAIN_S", 0.0)
    with pytest.raises(EngineError) as caught:
        await LauncherClient(tmp_path / "gone.sock").listed()
    assert caught.value.code == "launcher.unreachable"
    assert "sbctl-launcher.socket" in str(caught.value.next_step)


@pytest.mark.parametrize(
    ("argv", "euid", "environ", "code"),
    [
        (["--help"], 0, {}, "launcher.usage"),
        ([], 1000, {}, "launcher.not_root"),
        ([], 0, {}, "launcher.no_socket"),
        ([], 0, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, "launcher.no_socket"),
    ],
)
def test_it_runs_only_as_root_and_by_its_socket(
    argv: list[str], euid: int, environ: dict[str, str], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    for name in ("LISTEN_PID", "LISTEN_FDS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "umask", lambda _mask: 0)
    with pytest.raises(SbctlError) as caught:
        run_launcher(argv)
    assert caught.value.code == code


def test_a_list_that_cannot_be_read_keeps_the_usual_patience() -> None:
    def damaged() -> Any:
        raise InputError("launcher.site_invalid", "x")

    with short_directory() as root:
        place = make_place(root)
        server = LauncherServer(place.engines(UnitWorld()), damaged, frozenset, lambda _line: None)
        assert server._away_s() == 60.0
