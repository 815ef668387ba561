"""Engines as units, from the runtime's side: records before units, adoption by records, and nothing left that nobody wants."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sbctl.base.errors import EngineError, HostError
from sbctl.engines.llama_cpp import LlamaCpp
from sbctl.engines.model import EngineAddress, LaunchSpec
from sbctl.runtime.engine_host import EngineLabel
from sbctl.runtime.ownership import OwnershipRecords
from sbctl.runtime.unit_host import UnitEngineHost
from sbctl.runtime.unit_records import UnitRecords, start_fingerprint
from tests.simulators.llama_launches import launch_request
from tests.simulators.unit_world import Running, running, until, wheel_request

LABEL = EngineLabel("chat", 0, 1)
PROBE = LlamaCpp().probe(launch_request())


class Node:
    """One state directory over several daemons, and the launcher beside them."""

    def __init__(self, there: Running, state: Path) -> None:
        self.there = there
        self.records = UnitRecords(state / "engines" / "units")
        self._state = state

    def daemon(self) -> UnitEngineHost:
        children = OwnershipRecords(self._state / "engines")
        return UnitEngineHost(self.there.client, self.records, children, sockets=self.there.place.sockets)

    def spec(self, host: UnitEngineHost, context: int = 512) -> LaunchSpec:
        socket = host.new_socket()
        request = wheel_request(self.there.place, socket.parent.name)
        argv = [str(context) if word == "512" else word for word in request["argv"]]  # type: ignore[attr-defined]
        env = {"LANG": "C.UTF-8", "HOME": "/root", "PATH": "/evil", "LD_PRELOAD": "/x"}
        return LaunchSpec(tuple(argv), env, EngineAddress(unix_path=socket), PROBE, context_length=context)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running() as there:
        yield Node(there, tmp_path)


@contextlib.asynccontextmanager
async def life(node: Node) -> AsyncIterator[UnitEngineHost]:
    """One daemon from its start to its end."""
    host = node.daemon()
    try:
        yield host
    finally:
        await host.close()


async def test_an_engine_runs_as_a_unit_and_its_end_is_complete(node: Node) -> None:
    async with life(node) as host:
        assert await host.adopt() == frozenset()
        engine = await host.start(node.spec(host), LABEL)
        (record,) = node.records.read()
        assert (record.deployment, record.replica, record.address) == ("chat", 0, engine.address)
        assert set(node.there.world.specs[0].env) == {"LANG", "PATH", "HOME", "TMPDIR"}
        assert "/evil" not in node.there.world.specs[0].env.values()
        assert len(await engine.last_lines(5)) == 1
        await until(lambda: node.there.server._attending == 1)
        await host.stop(engine)
        assert list(node.records.read()) == []
        assert node.there.world.units == {}
        await until(lambda: node.there.server._attending == 0)


async def test_an_engine_has_its_ceiling_and_its_devices_and_keeps_them_when_what_is_known_of_its_kind_changes(
    node: Node,
) -> None:
    async with life(node) as first:
        spec = replace(node.spec(first), memory_max_bytes=2**30, devices=("gpu-1",))
        await first.leave(await first.start(spec, LABEL))
    assert node.there.world.specs[0].memory_bytes == 2**30
    async with life(node) as second:
        await second.adopt()
        assert second.adopted_devices(("chat", 0)) == ("gpu-1",)
        assert second.adopted_devices(("chat", 1)) == ("gpu-1",), "its replicas are alike"
        assert second.adopted_devices(("other", 0)) is None
        again = await second.start(replace(node.spec(second), memory_max_bytes=2**29), LABEL)
        assert len(node.there.world.specs) == 1
        assert await again.memory() is None, "its pid is no process of this machine"
        (unit,) = node.there.world.units
        node.there.world.ends(unit, -9, result="oom-kill")
        assert "since memory ran out (it may have 1.0 GiB)" in str(await again.wait())


async def test_F24_the_next_daemon_goes_on_with_the_same_engine(node: Node) -> None:
    async with life(node) as first:
        left = await first.start(node.spec(first), LABEL)
        await first.leave(left)
    async with life(node) as second:
        assert await second.adopt() == {("chat", 0)}
        await until(lambda: node.there.server._attending == 1)
        again = await second.start(node.spec(second), replace(LABEL, generation=7))
        assert (again.pid, again.address) == (left.pid, left.address)
        await second.drop_unclaimed()
        assert len(node.there.world.specs) == 1
        assert len(node.there.world.units) == 1
        node.there.world.ends(next(iter(node.there.world.units)), -9)
        assert str(await again.wait()).startswith("signal SIGKILL")


async def test_an_engine_that_would_be_started_otherwise_is_replaced(node: Node) -> None:
    async with life(node) as first:
        await first.leave(left := await first.start(node.spec(first), LABEL))
    async with life(node) as second:
        await second.adopt()
        new = await second.start(node.spec(second, context=640), LABEL)
        assert new.pid != left.pid
        await second.drop_unclaimed()
        assert [state.pid for state in node.there.world.units.values()] == [new.pid]


async def test_what_has_no_record_or_no_unit_is_cleared_away(node: Node) -> None:
    async with life(node) as first:
        ended = await first.start(node.spec(first), LABEL)
        gone = await first.start(node.spec(first), replace(LABEL, replica=1))
        stray = await first.start(node.spec(first), replace(LABEL, replica=2))
        for engine in (ended, gone, stray):
            await first.leave(engine)
        records = {record.replica: record for record in node.records.read()}
        node.there.world.ends(records[0].unit, 1)
        node.there.world.units.pop(records[1].unit)
        node.records.remove(records[2].token)
    (path,) = {path.parent for path in (node._state / "engines" / "units").iterdir()}
    (path / "damaged.json").write_text('{"token": "')
    async with life(node) as second:
        assert await second.adopt() == frozenset()
        assert node.there.world.units == {}
        assert list(path.iterdir()) == []


async def test_a_start_that_fails_leaves_no_record_and_says_why(node: Node) -> None:
    async with life(node) as host:
        node.there.world.start_fault = HostError("launcher.start_failed", "no such program", retryable=True)
        with pytest.raises(EngineError, match="no such program") as caught:
            await host.start(node.spec(host), LABEL)
        assert (caught.value.code, caught.value.retryable) == ("engine_spawn_failed", True)
        assert list(node.records.read()) == []


async def test_a_start_that_nobody_waits_for_any_more_leaves_nothing(node: Node) -> None:
    async with life(node) as host:
        starting = asyncio.create_task(host.start(node.spec(host), LABEL))
        await until(lambda: bool(node.there.world.events))
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        if not starting.cancelled():
            await host.stop(starting.result())
        await until(lambda: not node.there.world.units)
        assert list(node.records.read()) == []


async def test_the_record_is_durable_before_the_unit_is_asked_for(node: Node) -> None:
    seen: list[int] = []
    async with life(node) as host:
        start = node.there.world.start

        async def looking(spec: object) -> None:
            seen.append(len(list(node.records.read())))
            await start(spec)  # type: ignore[arg-type]

        node.there.world.start = looking  # type: ignore[method-assign, assignment]
        await host.start(node.spec(host), LABEL)
    assert seen == [1]


def test_a_launch_is_the_same_whatever_its_address_is() -> None:
    def by_port(port: int, *more: str, **changes: object) -> str:
        argv = ("/llama-server", "--port", str(port), "--ctx-size", "512", *more)
        return start_fingerprint(replace(LaunchSpec(argv, {}, EngineAddress(port=port), PROBE), **changes))  # type: ignore[arg-type]

    assert by_port(4000) == by_port(512)
    assert len({by_port(4000), by_port(4000, "--mlock"), by_port(4000, env={"LANG": "C"}), by_port(4000, slots=2)}) == 4
