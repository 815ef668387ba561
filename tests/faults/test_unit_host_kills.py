"""F24 where engines outlive the daemon: it dies at the n-th boundary of its life, and the next one has each engine once, or none of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sbctl.base import fs
from sbctl.engines.llama_cpp import LlamaCpp
from sbctl.engines.model import EngineAddress, LaunchSpec
from sbctl.runtime.engine_host import EngineLabel
from sbctl.runtime.launcher_client import LauncherClient
from sbctl.runtime.ownership import OwnershipRecords
from sbctl.runtime.unit_host import UnitEngineHost
from sbctl.runtime.unit_records import UnitRecords
from tests.simulators.llama_launches import launch_request
from tests.simulators.unit_world import Running, running, wheel_request

PROBE = LlamaCpp().probe(launch_request())
CHAT, CODE, NEXT = EngineLabel("chat", 0, 1), EngineLabel("chat", 1, 1), EngineLabel("chat", 0, 2)
OLD = EngineLabel("chat", 2, 1)


class Died(BaseException):
    """The daemon is no more: nothing of it runs after this."""


class Boundaries:
    """Calls that change files, and both ends of each question to the launcher, counted from 1."""

    def __init__(self, die_at: int) -> None:
        self.left = die_at

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Died


class Files(fs.FileOps):
    def __init__(self, boundary: Callable[[], None]) -> None:
        self._boundary = boundary

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        if flags & os.O_CREAT:
            self._boundary()
        return super().open(path, flags, mode)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._boundary()
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self._boundary()
        super().fsync(fd)

    def rename(self, source: str, target: str) -> None:
        self._boundary()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._boundary()
        super().unlink(path)


class Asked(LauncherClient):
    """The launcher's client, with its boundaries."""

    def __init__(self, path: Path, boundary: Callable[[], None]) -> None:
        super().__init__(path)
        self._boundary = boundary

    async def _both_ends(self, call: Awaitable[Any]) -> Any:
        try:
            self._boundary()
        except Died:
            call.close()  # type: ignore[attr-defined]
            raise
        result = await call
        self._boundary()
        return result

    async def start(self, spec: Any) -> Any:
        return await self._both_ends(super().start(spec))

    async def listed(self) -> Any:
        return await self._both_ends(super().listed())

    async def stop(self, unit: str, *, grace_s: float) -> None:
        await self._both_ends(super().stop(unit, grace_s=grace_s))


class Node:
    """One state directory over many daemons."""

    def __init__(self, there: Running, state: Path) -> None:
        self.there = there
        self.state = state
        self.records = UnitRecords(state / "engines" / "units")

    def daemon(self, boundary: Callable[[], None] = lambda: None) -> UnitEngineHost:
        children = OwnershipRecords(self.state / "engines")
        client = Asked(self.there.path, boundary)
        return UnitEngineHost(client, self.records, children, sockets=self.there.place.sockets)

    def spec(self, host: UnitEngineHost, context: int = 512) -> LaunchSpec:
        socket = host.new_socket()
        request = wheel_request(self.there.place, socket.parent.name)
        argv = [str(context) if word == "512" else word for word in request["argv"]]  # type: ignore[attr-defined]
        env = {"LANG": "C.UTF-8"}
        return LaunchSpec(tuple(argv), env, EngineAddress(unix_path=socket), PROBE, context_length=context)

    async def live(self, host: UnitEngineHost) -> None:
        """Two engines begin, one of them is replaced by another kind, one ends."""
        await host.adopt()
        first = await host.start(self.spec(host), CHAT)
        second = await host.start(self.spec(host), CODE)
        await host.drop_unclaimed()
        await host.start(self.spec(host, 1024), NEXT)
        await host.stop(first)
        await host.stop(second)

    async def leave_two(self) -> None:
        """Engines of a daemon before: one that is wanted again, one that is not."""
        host = self.daemon()
        for label, context in ((CHAT, 512), (OLD, 2048)):
            await host.leave(await host.start(self.spec(host, context), label))
        await host.close()


@pytest.mark.parametrize("left", [False, True], ids=["from nothing", "from what another left"])
async def test_F24_killed_at_any_boundary_the_next_daemon_has_each_engine_once_and_no_other_runs(
    tmp_path: Path, left: bool
) -> None:
    number, died = 0, True
    async with running() as there:
        while died:
            number += 1
            node = Node(there, tmp_path / str(number))
            if left:
                await node.leave_two()
            boundary = Boundaries(number)
            host = node.daemon(boundary)
            with fs.use_ops(Files(boundary)), contextlib.suppress(Died):
                await node.live(host)
            died = boundary.left <= 0
            await host.close()  # the kernel does as much: its connection to the launcher is gone

            again = node.daemon()
            adopted = await again.adopt()
            assert adopted <= {CHAT.slot, CODE.slot, OLD.slot}
            wanted = [await again.start(node.spec(again), label) for label in (CHAT, CODE)]
            await again.drop_unclaimed()
            units = there.world.units
            assert {record.unit for record in node.records.read()} == set(units)
            assert sorted(engine.pid for engine in wanted) == sorted(unit.pid or 0 for unit in units.values())
            for engine in wanted:
                await again.stop(engine)
            assert not units
            assert not list(node.records.read())
            await again.close()
    assert number > 25
