"""F13, F14, B13, B14, E10, H10 end to end: disks that fill up or turn read-only under an apply, and limits of the process itself.

The n-th write of states and artifacts fails in test_state_faults.py and test_artifact_faults.py; here each case is the whole product on real
small disks. Each must say which disk and what to do, keep what was there, and converge once there is room.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.cache_calls import CacheCalls
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.state.store import StateStore
from tests.attacks.test_http_attacks import Target, body_of, raw, request, status_of
from tests.simulators.gguf_files import tiny_gguf
from tests.simulators.kill_loop import quick_world
from tests.simulators.operator_world import Done, OperatorWorld
from tests.simulators.runtime_world import weights

pytestmark = pytest.mark.integration

MIB = 1 << 20
ROOM = "size=700m"


class SmallDisk:
    """A filesystem in memory at `place`. `room` changes its size, `free` leaves so much of it, `read_only` lasts for a block."""

    def __init__(self, place: Path, options: str) -> None:
        self.place = place
        place.mkdir(mode=0o700, exist_ok=True)
        if os.geteuid() != 0:
            pytest.skip("mounting needs root")
        try:
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"mode=0700,{options}", "tmpfs", str(place)],
                capture_output=True,
                check=False,
                text=True,
            )
        except FileNotFoundError:
            pytest.skip("mounting needs mount(8)")
        if done.returncode:
            pytest.skip(f"no filesystem can be mounted here: {done.stderr.strip()}")

    def room(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.place)], check=True)

    def free(self, count: int) -> None:
        status = os.statvfs(self.place)
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        self.room(f"size={used + count}")

    @contextlib.contextmanager
    def read_only(self) -> Iterator[None]:
        """For whoever opens a file now; what is open stays open, as after an emergency remount."""
        subprocess.run(["mount", "--bind", str(self.place), str(self.place)], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(self.place)], check=True)
            yield
        finally:
            subprocess.run(["umount", "-l", str(self.place)], check=True)

    def fill(self) -> Path:
        """Not a byte is left until the file is removed."""
        path = self.place / "somebody-elses-file"
        fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            with contextlib.suppress(OSError):
                while True:
                    os.write(fd, b"x" * 4096)
        finally:
            os.close(fd)
        return path


@pytest.fixture
def world() -> Iterator[OperatorWorld]:
    with quick_world() as made:
        yield made


@contextlib.contextmanager
def disk(place: Path, options: str) -> Iterator[SmallDisk]:
    made = SmallDisk(place, options)
    try:
        yield made
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def node_disk(world: OperatorWorld) -> Iterator[SmallDisk]:
    with disk(world.prefix, ROOM) as made:
        yield made
        world.close()


@pytest.fixture
def state_disk(world: OperatorWorld) -> Iterator[SmallDisk]:
    with disk(world.fleet / ".sbctl", "size=1m") as made:
        yield made


def recorded(world: OperatorWorld) -> set[str]:
    store = StateStore(world.fleet / ".sbctl", SYSTEM_CLOCK)
    store.verify()
    return {str(address) for address in store.read().resources}


def requires(done: Done, code: str, place: Path, step: str) -> None:
    """It failed, says why, where and what to do, and shows no traceback."""
    assert done.code == 1, done.text
    squeezed = done.text.replace(" ", "")
    assert code in done.text, done.text
    assert str(place) in squeezed, done.text
    assert step in done.text, done.text
    assert "Traceback" not in done.text, done.text
    assert "internal.error" not in done.text, done.text


def converges(world: OperatorWorld) -> None:
    world.sbctl("apply", "--yes", expect=0)
    world.check_settled()


def test_B13_B14_a_state_disk_that_fills_up_or_turns_read_only_stops_the_apply_and_keeps_what_was_recorded(
    world: OperatorWorld, state_disk: SmallDisk
) -> None:
    command = world.start("apply", "--yes")
    command.until_said("install runtime")
    filler = state_disk.fill()
    requires(command.finish(), "disk.full", state_disk.place, "free space on this filesystem")
    assert {"host.local", "runtime.local"} <= recorded(world)
    world.sbctl("state", "list", expect=0)
    world.sbctl("plan", expect=2)
    requires(world.sbctl("apply", "--yes"), "disk.full", state_disk.place, "free space on this filesystem")
    filler.unlink()
    converges(world)
    before = recorded(world)
    world.deployments["chat"]["max_concurrency"] = 4
    with state_disk.read_only():
        world.sbctl("plan", expect=2)
        world.sbctl("drift", expect=0)
        requires(world.sbctl("apply", "--yes"), "disk.read_only", state_disk.place, "remount it writable")
        assert recorded(world) == before
    converges(world)


def test_E10_a_host_without_room_for_the_runtime_says_so_and_goes_on_once_there_is(
    world: OperatorWorld, node_disk: SmallDisk
) -> None:
    node_disk.room("size=25m")
    assert "disk for programs" in world.sbctl("apply", "--yes", expect=4).text
    for mebibytes in (25, 60, 110):  # while wheels are sent, while uv is unpacked, while uv installs
        node_disk.room(f"size={mebibytes}m")
        requires(
            world.sbctl("apply", "--yes", "--accept-blockers"),
            "disk.full",
            world.prefix,
            "free space on this filesystem",
        )
        assert "host.local" in recorded(world)
        assert not list(world.prefix.glob("opt/.sbctl-tmp-*"))
        assert not world.processes()
    node_disk.room(ROOM)
    converges(world)


def large_model(world: OperatorWorld, size: int) -> None:
    """The second model has so many bytes, and a deployment."""
    head = tiny_gguf(note="large")
    data = head + os.urandom(size - len(head))
    (world.root / "small.gguf").write_bytes(data)
    catalog = json.loads((world.fleet / "models.yaml").read_text())
    (file,) = catalog["models"]["small"]["variants"][0]["files"]
    file.update(sha256=hashlib.sha256(data).hexdigest(), size_bytes=size)
    (world.fleet / "models.yaml").write_text(json.dumps(catalog))
    world.deployments["code"] = {**world.deployments["chat"], "model": "small"}


def test_F14_weights_that_do_not_fit_or_may_not_be_written_leave_what_serves_alone(
    world: OperatorWorld, node_disk: SmallDisk
) -> None:
    world.sbctl("apply", "--yes", expect=0)
    before = recorded(world)
    large_model(world, 8 * MIB)
    node_disk.free(5 * MIB)
    requires(
        world.sbctl("apply", "--yes", "--accept-blockers"),
        "disk.full",
        world.paths.models,
        "free space on this filesystem",
    )
    assert world.answers()
    node_disk.room(ROOM)
    with node_disk.read_only():
        requires(world.sbctl("apply", "--yes"), "disk.read_only", world.prefix, "remount it writable")
        assert world.answers()
        assert before <= recorded(world)
        world.sbctl("drift", expect=0)
    converges(world)
    world.sbctl("destroy", "--yes", expect=0)
    assert world.leftovers() == []


def test_H10_a_full_disk_keeps_nobody_from_giving_memory_back(world: OperatorWorld, node_disk: SmallDisk) -> None:
    world.sbctl("apply", "--yes", expect=0)
    filler = node_disk.fill()
    stopped = world.sbctl("models", "stop", "chat", expect=0)
    assert "chat is stopped; its disk takes no write" in " ".join(stopped.text.split())
    assert world.sbctl("models", "load", "chat").code == 1, "what takes memory needs its place in the database"
    filler.unlink()
    world.sbctl("models", "load", "chat", expect=0)
    converges(world)


async def over_the_admin_api(target: Target, line: str) -> tuple[int, Any]:
    body = b"{}" if line.startswith("POST") else b""
    rows = ("Content-Type: application/json", "Connection: close")
    answer = await raw(target.admin_port, request(target, line, *rows, body=body), seconds=30)
    return status_of(answer), body_of(answer)


async def test_H10_a_full_disk_is_freed_over_the_admin_api(tmp_path: Path) -> None:
    with disk(tmp_path / "small", "size=20m") as made:
        target = Target(made.place)
        await target.start()
        calls = CacheCalls(ArtifactCache(target.paths.models), {})
        facts = [weights(tmp_path, name) for name in ("old", "older")]
        for one in facts:
            await asyncio.to_thread(calls.pull, one, asyncio.run, progress=lambda _done, _total: None)
        filler = made.fill()
        status, gone = await over_the_admin_api(target, f"DELETE /admin/model-host/artifacts/{facts[0].artifact}")
        assert (status, gone["removed"]) == (200, True)
        assert "takes no write" in gone["warning"]
        filler.unlink()
        filler = made.fill()
        target.cache_changes = {"budget_bytes": 1}
        status, report = await over_the_admin_api(target, "POST /admin/model-host/gc")
        assert (status, report["deleted_artifacts"]) == (200, [facts[1].artifact])
        filler.unlink()
        assert target.store.settle()
        assert target.audited() == ["job.delete", "job.delete", "cache.collect"]
        await target.stop()


@pytest.mark.engine
def test_F14_an_engine_that_does_not_fit_says_so_and_is_installed_once_there_is_room(
    world: OperatorWorld, node_disk: SmallDisk
) -> None:
    world.deployments["chat"] |= {"warm": False, "pull": "manual"}
    world.sbctl("apply", "--yes", expect=0)
    world.config["proxy"]["model_host"]["engines"] = {"llama_cpp": {"launch": "wheel"}}
    node_disk.free(50 * MIB)
    requires(
        world.sbctl("apply", "--yes", "--accept-blockers"),
        "disk.full",
        world.paths.engines,
        "free space on this filesystem",
    )
    assert not list(world.paths.engines.glob("llama_cpp/*"))
    node_disk.room(ROOM)
    converges(world)


def limited(world: OperatorWorld, which: int, limit: int) -> Done:
    """An apply whose process, and what it starts, may not have more."""
    command = world.start("apply", "--yes")
    resource.prlimit(command.pid, which, (limit, limit))
    return command.finish()


def test_B13_limits_of_the_process_are_answers_not_signals(world: OperatorWorld) -> None:
    for which, limit, said in (
        (resource.RLIMIT_FSIZE, 100_000, "may or may not have reached the disk"),
        (resource.RLIMIT_NOFILE, 64, "Too many open files"),
    ):
        done = limited(world, which, limit)
        assert done.code == 1, done.text
        assert said in done.text, done.text
        assert "Traceback" not in done.text, done.text
        assert "internal.error" not in done.text, done.text
        assert "host.local" in recorded(world)
    converges(world)
