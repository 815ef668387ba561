"""Engines as processes: recorded before they run, alone in their environment, and gone when they are stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import EngineError, SbctlError
from sbctl.engines.llama_cpp import LlamaCpp
from sbctl.engines.model import EngineAddress, LaunchSpec, engine_environment
from sbctl.runtime import ownership as ownership_module
from sbctl.runtime.engine_exit import EngineExit
from sbctl.runtime.engine_host import ChildEngineHost, EngineLabel, OutputRing
from sbctl.runtime.listener_proof import free_loopback_port, prove_listener
from sbctl.runtime.ownership import OwnershipRecord, OwnershipRecords, end_tree
from sbctl.runtime.processes import ProcessIdentity, boot_id, own_identity, process_identity, signal_process, tree_of
from tests.simulators.llama_launches import launch_request

LABEL = EngineLabel("q", 0, 1)
PROBE = LlamaCpp().probe(launch_request())


def _spec(code: str, address: EngineAddress | None = None) -> LaunchSpec:
    argv = (sys.executable, "-I", "-S", "-c", code)
    return LaunchSpec(argv, engine_environment({"LANG": "C.UTF-8"}), address or EngineAddress(port=1), PROBE)


@pytest.fixture
def host(tmp_path: Path) -> tuple[ChildEngineHost, OwnershipRecords]:
    records = OwnershipRecords(tmp_path / "engines")
    return ChildEngineHost(records, tmp_path), records


async def _said(engine: Any, word: str) -> str:
    while not any(word in line for line in await engine.last_lines(50)):
        await asyncio.sleep(0.01)
    return next(line for line in await engine.last_lines(50) if word in line)


SLEEP = "import time; print('up', flush=True); time.sleep(600)"


async def test_the_record_is_there_before_the_engine_and_goes_with_it(
    tmp_path: Path, host: tuple[ChildEngineHost, OwnershipRecords]
) -> None:
    engines, records = host
    engine = await engines.start(
        _spec(f"import os; print('seen', os.listdir({str(tmp_path / 'engines')!r}), flush=True); {SLEEP}"), LABEL
    )
    (path, record), *_ = records.read()
    assert record is not None
    assert path.name in await _said(engine, "seen")
    assert (record.pid, record.boot_id) == (engine.pid, boot_id())
    assert process_identity(record.pid) == record.leader
    await engines.stop(engine)
    assert list(records.read()) == []
    assert process_identity(engine.pid) is None


async def test_an_engine_gets_an_environment_from_empty_and_no_descriptor_of_ours(
    host: tuple[ChildEngineHost, OwnershipRecords], monkeypatch: pytest.MonkeyPatch
) -> None:
    engines, _ = host
    for name in ("LD_PRELOAD", "LLAMA_ARG_HOST", "HF_TOKEN", "SBCTL_SIGNING_KEY"):
        monkeypatch.setenv(name, "canary")
    with socket.socket() as mine:
        mine.set_inheritable(True)
        code = (
            "import os; print('env', sorted(os.environ), flush=True); print('fds', os.listdir('/proc/self/fd'), flush=True);"
            + SLEEP
        )
        engine = await engines.start(_spec(code), LABEL)
        assert await _said(engine, "env") == "env ['LANG', 'PATH', 'SBCTL_ENGINE_TOKEN']"
        assert await _said(engine, "fds") == "fds ['0', '1', '2', '3']", "3 is the directory being listed"
    assert os.getsid(engine.pid) == engine.pid
    await engines.stop(engine)


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("raise SystemExit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "signal SIGKILL from outside"),
    ],
)
async def test_F23_an_exit_is_explained(host: tuple[ChildEngineHost, OwnershipRecords], code: str, ended: str) -> None:
    engines, _ = host
    engine = await engines.start(_spec(f"print('reason', flush=True); {code}"), LABEL)
    assert str(await engine.wait()) == ended
    assert await engine.last_lines(5) == ("reason",)
    await engines.stop(engine)


def test_a_signal_without_a_name_is_its_number() -> None:
    assert str(EngineExit(-99)) == "signal 99"


async def test_a_program_that_is_not_there_is_said(host: tuple[ChildEngineHost, OwnershipRecords]) -> None:
    engines, records = host
    spec = LaunchSpec(("/does/not/exist",), {}, EngineAddress(port=1), PROBE)
    engine = await engines.start(spec, LABEL)
    assert (await engine.wait()).returncode == 127
    assert "cannot be executed" in (await engine.last_lines(1))[0]
    await engines.stop(engine)
    assert list(records.read()) == []


async def test_without_a_durable_record_nothing_runs(
    tmp_path: Path, host: tuple[ChildEngineHost, OwnershipRecords], monkeypatch: pytest.MonkeyPatch
) -> None:
    engines, records = host
    seen: list[OwnershipRecord] = []

    def refuse(record: OwnershipRecord) -> None:
        seen.append(record)
        raise SbctlError("disk.full", "the disk is full")

    monkeypatch.setattr(records, "write", refuse)
    proof = tmp_path / "ran"
    with pytest.raises(SbctlError, match="disk is full"):
        await engines.start(_spec(f"open({str(proof)!r}, 'w')"), LABEL)
    while process_identity(seen[0].pid) is not None:
        await asyncio.sleep(0.01)
    assert not proof.exists()


@pytest.mark.parametrize("own_session", [False, True])
async def test_F23_an_engine_that_ignores_sigterm_and_forks_is_gone_after_the_ladder(
    host: tuple[ChildEngineHost, OwnershipRecords], own_session: bool
) -> None:
    engines, _ = host
    code = (
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'], start_new_session={own_session});"
        "print('child', child.pid, flush=True); import time; time.sleep(600)"
    )
    engine = await engines.start(_spec(code), LABEL)
    child = int((await _said(engine, "child")).split()[1])
    assert engine.pids() == {engine.pid, child}
    await engines.stop(engine, grace_s=0.1)
    assert process_identity(child) is None
    assert process_identity(engine.pid) is None
    await engines.stop(engine)


async def test_F23_endless_output_is_bounded_and_read(host: tuple[ChildEngineHost, OwnershipRecords]) -> None:
    engines, _ = host
    engine = await engines.start(
        _spec("import os\nfor _ in range(400): os.write(2, b'x' * 65536)\nos.write(2, b'\\nend\\n')"), LABEL
    )
    assert (await engine.wait()).returncode == 0
    assert await engine.last_lines(1) == ("end",)
    assert all(len(line) < 500 for line in await engine.last_lines(10))
    await engines.stop(engine)


def test_the_ring_keeps_the_end_and_masks_credentials() -> None:
    ring = OutputRing(max_bytes=64)
    for number in range(100):
        ring.add(f"line {number}\n".encode())
    ring.add(b"--api-key sk-abcdefghijkl \x1b[31m\n")
    assert ring.lines(2) == ("line 99", "--api-key (secret) \\x1b[31m")
    assert sum(map(len, ring.lines(1000))) <= 80


async def test_F24_leftovers_of_a_dead_daemon_are_reaped_and_strangers_are_not(
    host: tuple[ChildEngineHost, OwnershipRecords], tmp_path: Path
) -> None:
    engines, records = host
    env = {"SBCTL_ENGINE_TOKEN": "a" * 16}
    left = subprocess.Popen(
        [sys.executable, "-S", "-c", SLEEP], env=env, stdout=subprocess.DEVNULL, start_new_session=True
    )
    stranger = subprocess.Popen(
        [sys.executable, "-S", "-c", SLEEP], env={}, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        reused = process_identity(stranger.pid)
        assert reused is not None
        base = {"boot_id": boot_id(), "deployment": "q", "replica": 0, "generation": 1, "program": "x", "address": "x"}
        left_at = process_identity(left.pid)
        assert left_at is not None
        records.write(OwnershipRecord(token="a" * 16, pid=left.pid, start_ticks=left_at.start_ticks, **base))  # type: ignore[arg-type]
        records.write(OwnershipRecord(token="b" * 16, pid=stranger.pid, start_ticks=reused.start_ticks + 7, **base))  # type: ignore[arg-type]
        other_boot = {**base, "boot_id": "another"}
        records.write(OwnershipRecord(token="c" * 16, pid=stranger.pid, start_ticks=reused.start_ticks, **other_boot))  # type: ignore[arg-type]
        (tmp_path / "engines" / "damaged.json").write_text('{"token": "')
        reaping = asyncio.create_task(engines.adopt())
        await asyncio.to_thread(left.wait)
        assert await reaping == frozenset()
        assert stranger.poll() is None
        assert list(records.read()) == []
    finally:
        for process in (left, stranger):
            process.kill()
            process.wait()


async def test_a_tree_that_outlives_sigkill_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership_module, "tree_of", lambda _leader, _token: (ProcessIdentity(4, 4),))
    monkeypatch.setattr(ownership_module, "_KILL_WAIT_S", 0.0)
    with pytest.raises(EngineError) as caught:
        await end_tree(ProcessIdentity(4, 4), "d" * 16, grace_s=0)
    assert caught.value.code == "engine_shutdown_failed"


def test_a_reused_pid_is_never_signalled() -> None:
    me = own_identity()
    assert process_identity(me.pid) == me
    assert not signal_process(ProcessIdentity(me.pid, me.start_ticks + 1), signal.SIGKILL)
    assert not signal_process(ProcessIdentity(2**22 + 1, 1), signal.SIGKILL)
    assert tree_of(ProcessIdentity(me.pid, me.start_ticks + 1), "e" * 16) == ()


def test_F22_only_the_engine_s_own_listener_is_trusted(tmp_path: Path) -> None:
    mine = frozenset({os.getpid()})
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix, socket.socket() as wide:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        unix.bind(str(tmp_path / "s.sock"))
        unix.listen()
        wide.bind(("0.0.0.0", 0))
        wide.listen()
        for address in (EngineAddress(port=tcp.getsockname()[1]), EngineAddress(unix_path=tmp_path / "s.sock")):
            prove_listener(address, mine)
            with pytest.raises(EngineError) as caught:
                prove_listener(address, {1})
            assert caught.value.code == "engine_not_ours"
        with pytest.raises(EngineError) as caught:
            prove_listener(EngineAddress(port=wide.getsockname()[1]), mine)
        assert caught.value.code == "engine_exposed"
    with pytest.raises(EngineError) as caught:
        prove_listener(EngineAddress(port=free_loopback_port()), mine)
    assert caught.value.code == "engine_not_ours"
    with pytest.raises(EngineError) as caught:
        prove_listener(EngineAddress(unix_path=tmp_path / "gone.sock"), mine)
    assert caught.value.code == "engine_health_failed"


def test_F24_an_engine_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = f"""
import asyncio, os, sys
from pathlib import Path
from sbctl.engines.model import Canary, EngineAddress, LaunchSpec, ProbePlan
from sbctl.runtime.engine_host import ChildEngineHost, EngineLabel
from sbctl.runtime.ownership import OwnershipRecords
PROBE = ProbePlan("/health", Canary("/", {{}}))
async def main():
    host = ChildEngineHost(OwnershipRecords(Path({str(tmp_path / "engines")!r})), Path({str(tmp_path)!r}))
    spec = LaunchSpec((sys.executable, "-S", "-c", {SLEEP!r}), {{}}, EngineAddress(port=1), PROBE)
    engine = await host.start(spec, EngineLabel("q", 0, 1))
    while not await engine.last_lines(1):
        await asyncio.sleep(0.01)
    print(engine.pid, flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    record = json.loads(next((tmp_path / "engines").glob("*.json")).read_text())
    assert record["pid"] == int(done.stdout)
    leader = ProcessIdentity(record["pid"], record["start_ticks"])
    for _ in range(500):
        if process_identity(leader.pid) != leader:
            return
        subprocess.run(["sleep", "0.01"], check=True)
    raise AssertionError("the engine outlived its daemon")
