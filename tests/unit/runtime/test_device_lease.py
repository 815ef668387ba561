"""Starts and stops on one device take turns, and a stop waits for the memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from sbctl.runtime.device_lease import DeviceLeases
from sbctl.runtime.engine_host import EngineLabel
from sbctl.runtime.replica import Replica
from tests.simulators.engine_world import EngineWorld, facts, in_virtual_time, outcome_of, until
from tests.simulators.runtime_world import member


class Device:
    """Shows freed memory late."""

    def __init__(self, late_s: float) -> None:
        self.late_s = late_s
        self.held = 0
        self.freed_at_s = 0.0

    def free(self) -> Mapping[str, int]:
        return {"gpu": 1000 - self.held}

    def take(self) -> None:
        self.held = 800

    def give(self) -> None:
        asyncio.get_running_loop().call_later(self.late_s, setattr, self, "held", 0)


def _stopped_after(late_s: float) -> float:
    async def work() -> float:
        device = Device(late_s)
        leases = DeviceLeases(device.free)
        async with leases.starting(("gpu",)):
            device.take()
        began_s = asyncio.get_running_loop().time()
        async with leases.stopping(("gpu",)):
            device.give()
        return asyncio.get_running_loop().time() - began_s

    return in_virtual_time(work)


def test_fault_39_a_stop_is_done_when_the_memory_is_back() -> None:
    assert 1.5 <= _stopped_after(1.5) < 3


def test_fault_79_memory_that_does_not_come_back_does_not_hold_a_stop_for_ever() -> None:
    assert 15 <= _stopped_after(1000) < 16


def test_fault_08_two_engines_never_start_on_one_device_at_once() -> None:
    async def work() -> list[str]:
        world = EngineWorld(load_s=5, devices=("gpu",))
        ports = world.ports()
        replicas = [Replica(EngineLabel(name, 0, 1), member(facts(), "/e"), ports) for name in ("a", "b")]
        loading = [asyncio.create_task(replica.load("request")) for replica in replicas]
        await until(lambda: bool(world.engines))
        await asyncio.sleep(3)
        assert len(world.engines) == 1, "the second waits for the first to be ready"
        await asyncio.gather(*loading)
        return world.events

    events = in_virtual_time(work)
    assert [event for event in events if event.startswith("start")] == ["start a#1", "start b#1"]


def test_fault_09_a_stop_waits_while_a_neighbour_measures_its_device() -> None:
    async def work() -> None:
        world = EngineWorld(load_s=5, devices=("gpu",))
        ports = world.ports()
        first, second = (Replica(EngineLabel(name, 0, 1), member(facts(), "/e"), ports) for name in ("a", "b"))
        await first.load("request")
        loading = asyncio.create_task(second.load("request"))
        await until(lambda: len(world.engines) == 2)
        stopping = asyncio.create_task(first.stop("operator", drain_s=0))
        await asyncio.sleep(3)
        assert len(world.alive) == 2
        await asyncio.gather(loading, stopping)
        assert second.is_ready

    in_virtual_time(work)


def test_a_start_that_is_stopped_gives_its_lease_back() -> None:
    async def work() -> None:
        world = EngineWorld(load_s=500, devices=("gpu",))
        replica = Replica(EngineLabel("a", 0, 1), member(facts(), "/e"), world.ports())
        asking = asyncio.create_task(outcome_of(replica.load("request")))
        await until(lambda: bool(world.engines))
        await replica.stop("operator", drain_s=0)
        assert (await asking, world.alive) == ("stopped", [])
        world.load_s = 1
        await replica.load("operator")
        assert replica.is_ready

    in_virtual_time(work)


def test_engines_on_the_cpu_take_no_turns() -> None:
    async def work() -> None:
        world = EngineWorld(load_s=5)
        ports = world.ports()
        replicas = [Replica(EngineLabel(name, 0, 1), member(facts(), "/e"), ports) for name in ("a", "b")]
        await asyncio.gather(*(replica.load("request") for replica in replicas))
        assert asyncio.get_running_loop().time() < 7

    in_virtual_time(work)


def test_every_device_is_no_two_at_once_and_keys_in_one_order_never_block_each_other() -> None:
    async def work() -> list[str]:
        leases = DeviceLeases(lambda: {"a": 1, "b": 1})
        held: set[str] = set()
        said: list[str] = []

        async def start(name: str, *devices: str) -> None:
            async with leases.starting(devices):
                took = {"a", "b"} if devices == ("all",) else set(devices)
                assert not held & took, "two on one device"
                held.update(took)
                said.append(name)
                await asyncio.sleep(5)
                held.difference_update(took)

        starts = (("1", "a"), ("2", "b"), ("3", "b", "a"), ("4", "all"), ("5", "a", "b"), ("6", "b"))
        await asyncio.gather(*(start(*one) for one in starts))
        assert asyncio.get_running_loop().time() < 26, "the first two ran beside each other"
        return said

    assert sorted(in_virtual_time(work)) == ["1", "2", "3", "4", "5", "6"]
