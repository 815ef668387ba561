"""What a machine really has, whatever the budget says: measured before a start, waited for where that can help, refused by name else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import EngineError
from sbctl.node.machine import memory_free
from sbctl.runtime.engine_host import EngineLabel
from sbctl.runtime.free_memory import AGAIN_BYTES, FreeMemory, Promised, free_memory, lacking
from sbctl.runtime.processes import ProcessMemory, memory_of
from sbctl.runtime.replica import Replica
from sbctl.runtime.room import Budget, Room
from sbctl.trust.bundle import DeploymentMember
from tests.simulators.engine_world import EngineWorld, facts, in_virtual_time, outcome_of, until
from tests.simulators.runtime_world import member

MakeMember = Callable[..., DeploymentMember]
GIB = 2**30
HOST = Room(4 * GIB)
ON_GPU = Room(GIB, 4 * GIB, devices=(("gpu", 4 * GIB),))


def _promised(held: int | None, room: Room = HOST, pid: int | None = 7) -> Promised:
    return Promised(room, pid, None if held is None else ProcessMemory(held * GIB, held * GIB))


@pytest.mark.parametrize(
    ("free", "wanted", "more", "short_gib"),
    [
        (FreeMemory(4 * GIB), HOST, {}, 0),
        (FreeMemory(3 * GIB), HOST, {}, 1),
        (FreeMemory(None), HOST, {}, 0),
        (FreeMemory(4 * GIB), HOST, {"more_bytes": GIB}, 1),
        # What another was promised and does not have yet is not free; what it has is no longer in what is free.
        (FreeMemory(8 * GIB), HOST, {"others": [_promised(None, pid=None)]}, 0),
        (FreeMemory(7 * GIB), HOST, {"others": [_promised(None, pid=None)]}, 1),
        (FreeMemory(7 * GIB), HOST, {"others": [_promised(1)]}, 0),
        (FreeMemory(4 * GIB), HOST, {"others": [_promised(9)]}, 0),
        (FreeMemory(4 * GIB), HOST, {"others": [_promised(None)]}, 0),
        # What leaves gives back what it has, not what it was promised.
        (FreeMemory(1 * GIB), HOST, {"leaving": [_promised(3)]}, 0),
        (FreeMemory(1 * GIB), HOST, {"leaving": [_promised(2)]}, 1),
        (FreeMemory(0), HOST, {"leaving": [_promised(None, pid=None)]}, 4),
        (FreeMemory(2 * GIB, {"gpu": 4 * GIB, "other": 0}), ON_GPU, {}, 0),
        (FreeMemory(2 * GIB, {"gpu": 3 * GIB}), ON_GPU, {}, 1),
        (FreeMemory(2 * GIB, {"gpu": 3 * GIB}), HOST, {}, 2),
        (FreeMemory(2 * GIB, {"gpu": 5 * GIB}), ON_GPU, {"others": [_promised(1, ON_GPU, None)]}, 3),
        (FreeMemory(2 * GIB, {"gpu": 7 * GIB}, {"gpu": {7: GIB}}), ON_GPU, {"others": [_promised(1, ON_GPU)]}, 0),
        (FreeMemory(2 * GIB, {"gpu": 0}, {"gpu": {7: 4 * GIB}}), ON_GPU, {"leaving": [_promised(1, ON_GPU)]}, 0),
        (FreeMemory(2 * GIB), ON_GPU, {}, 0),
    ],
)  # fmt: skip
def test_what_is_short(free: FreeMemory, wanted: Room, more: dict[str, Any], short_gib: int) -> None:
    short, said = lacking(free, wanted, **more)
    assert (short, bool(said)) == (short_gib * GIB, short_gib > 0)


def test_fault_10_and_65_who_holds_a_device_is_named_and_none_of_ours() -> None:
    free = FreeMemory(None, {"gpu": GIB}, {"gpu": {os.getpid(): 60 * GIB, 7: GIB, 1 << 30: 2 * GIB}})
    _short, said = lacking(free, ON_GPU, ours={7})
    assert f"pid {os.getpid()} (" in said
    assert "has 60.0 GiB" in said
    assert f"pid {1 << 30} has 2.0 GiB" in said
    assert "pid 7 " not in said


def test_the_machine_tells_within_every_control_group_around_us(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "sys/fs/cgroup"
    (proc / "self").mkdir(parents=True)
    assert memory_free(str(tmp_path / "sys"), str(proc)) is None
    (proc / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:    8000 kB\n")
    assert memory_free(str(tmp_path / "sys"), str(proc)) == 8000 * 1024
    (proc / "self/cgroup").write_text("4:memory:/a/b\n0::/c\n")
    for path, name, limit, used, stat in (
        ("memory/a", "limit_in_bytes", 5_000_000, 4_000_000, "total_inactive_file 1000000\ntotal_active_file 10\n"),
        ("memory/a/b", "limit_in_bytes", 1 << 62, 0, ""),
        ("c", "max", 3_000_000, 2_500_000, "inactive_file 7\nactive_file 100\nanon 5\n"),
    ):
        (groups / path).mkdir(parents=True)
        (groups / path / f"memory.{name}").write_text(f"{limit}\n")
        (groups / path / ("memory.current" if path == "c" else "memory.usage_in_bytes")).write_text(f"{used}\n")
        (groups / path / "memory.stat").write_text(stat)
    assert memory_free(str(tmp_path / "sys"), str(proc)) == 500_107
    (groups / "c/memory.current").write_text("3000000\n")
    (groups / "c/memory.stat").write_text("")
    assert memory_free(str(tmp_path / "sys"), str(proc)) == 0


def test_this_machine_and_this_process_tell() -> None:
    assert free_memory().host_bytes
    memory = memory_of([os.getpid(), 1 << 29])
    assert memory is not None
    assert 1 << 20 < memory.held < memory.peak
    assert memory_of([1 << 29]) is None


class Machine:
    """Memory that other programs have, beside the engines of a world: each has its planned memory once it began."""

    def __init__(self, total_gib: float, load_s: float = 1.0) -> None:
        self.world = EngineWorld(load_s=load_s, free=self.free)
        self.total = total_gib
        self.foreign = 0.0
        self.sizes: dict[str, float] = {}
        self.looks = 0

    def free(self) -> FreeMemory:
        self.looks += 1
        alive = [engine for engine in self.world.engines if not engine.is_stopped]
        for engine in alive:
            size = int(self.sizes[engine.label.deployment] * GIB)
            engine.has = ProcessMemory(size, size)
        used = self.foreign + sum(self.sizes[engine.label.deployment] for engine in alive)
        return FreeMemory(int((self.total - used) * GIB))

    def replica(self, name: str, gib: float, **changes: Any) -> Replica:
        self.sizes[name] = gib
        wanted = member(facts(), "/e", **{"warm": False, "memory_bytes": int(gib * GIB), **changes})
        return Replica(EngineLabel(name, 0, 1), wanted, self.world.ports(memory_bytes=100 * GIB))


def _together(machine: Machine, *models: tuple[str, float], **changes: Any) -> list[Replica]:
    ports = machine.world.ports(memory_bytes=100 * GIB)
    found = []
    for name, gib in models:
        replica = machine.replica(name, gib, **changes)
        found.append(Replica(replica.label, replica.member, ports))
    return found


def test_memory_that_others_have_is_a_refusal_in_plain_words_though_the_budget_says_yes() -> None:
    async def work() -> None:
        machine = Machine(16)
        machine.foreign = 13
        (chat,) = _together(machine, ("chat", 4))
        with pytest.raises(EngineError) as refused:
            await chat.load("operator")
        assert refused.value.code == "insufficient_capacity"
        assert "chat needs 4.0 GiB, and only 3.0 GiB of this machine's memory are free for it" in refused.value.message
        assert "ps" in (refused.value.next_step or "")
        assert not machine.world.engines
        assert 5 < asyncio.get_running_loop().time() < 15, "what a kernel shows late was waited for"

    in_virtual_time(work)


def test_what_hovers_about_the_need_starts_nothing_after_a_refusal_and_nothing_that_runs_is_ended() -> None:
    async def work() -> None:
        machine = Machine(16)
        machine.foreign = 6
        running, chat = _together(machine, ("running", 4), ("chat", 4))
        running.member = running.member.model_copy(update={"warm": True})
        await running.load("operator")
        machine.foreign = 9
        assert await outcome_of(chat.load("operator")) == "insufficient_capacity"
        machine.foreign = 8 - AGAIN_BYTES / GIB / 2
        assert await outcome_of(chat.load("operator")) == "insufficient_capacity"
        machine.foreign = 8 - AGAIN_BYTES / GIB
        looks = machine.looks
        assert await outcome_of(chat.load("operator")) == "ok"
        assert machine.looks - looks == 3
        machine.foreign = 12
        await asyncio.sleep(600)
        assert running.is_ready
        assert chat.is_ready

    in_virtual_time(work)


def test_engines_that_start_together_never_count_on_the_same_bytes_nor_on_theirs_twice() -> None:
    async def work() -> None:
        machine = Machine(12, load_s=300)
        replicas = _together(machine, ("a", 4), ("b", 4), ("c", 4), ("d", 4), warm=True)
        outcomes = await asyncio.gather(*(outcome_of(replica.load("operator")) for replica in replicas))
        assert sorted(outcomes) == ["insufficient_capacity", "ok", "ok", "ok"]
        assert asyncio.get_running_loop().time() < 900, "while others start it is waited for, and no longer"

    in_virtual_time(work)


def test_an_idle_model_makes_the_room_that_the_machine_lacks_if_that_is_enough() -> None:
    async def work() -> None:
        machine = Machine(10)
        idle, chat, huge = _together(machine, ("idle", 4), ("chat", 4), ("huge", 9))
        await idle.load("operator")
        await asyncio.sleep(60)
        machine.foreign = 5
        assert await outcome_of(huge.load("operator")) == "insufficient_capacity"
        assert idle.is_ready, "its end would not have been enough"
        assert await outcome_of(chat.load("operator")) == "ok"
        assert idle.stopped_by == "idle"

    in_virtual_time(work)


def test_a_change_is_refused_for_the_machine_before_anything_was_drained_and_counts_what_leaves() -> None:
    async def work() -> None:
        machine = Machine(10)
        old, new = _together(machine, ("old", 6), ("new", 6), warm=True)
        await old.load("operator")
        residency = old._ports.residency
        with pytest.raises(EngineError, match="of this machine's memory are free"):
            await residency.reserve({new.place: Room(6 * GIB)})
        assert not residency.holds(new.place)
        await residency.reserve({new.place: Room(6 * GIB)}, leaving={old.place})
        assert residency.holds(new.place)
        assert old.is_ready

    in_virtual_time(work)


def test_an_engine_that_is_taken_over_is_not_measured_again() -> None:
    async def work() -> None:
        machine = Machine(10)
        machine.foreign = 10
        (chat,) = _together(machine, ("chat", 6))
        machine.world.adopted["chat", 0] = ()
        await chat.load("reconcile")
        assert chat.is_ready
        assert machine.looks == 0

    in_virtual_time(work)


# Devices


@pytest.mark.parametrize(
    ("used", "need", "places"),
    [
        ({}, 5, [{"a": 5}, {"b": 5}, {"a": 3, "b": 3}]),
        ({"a": 4}, 5, [{"b": 5}, {"a": 5}, {"a": 3, "b": 3}]),
        ({}, 12, [{"a": 6, "b": 6}]),
        ({}, 9, [{"a": 9}, {"a": 5, "b": 5}]),
    ],
)
def test_an_engine_lies_on_the_freest_device_that_is_large_enough(
    used: dict[str, int], need: int, places: list[dict[str, int]]
) -> None:
    budget = Budget(devices={"a": 10, "b": 8})
    found = budget.places(Room(0, need), Room(0, sum(used.values()), devices=tuple(used.items())))
    assert [dict(one.devices) for one in found] == places


def test_without_devices_there_is_one_place() -> None:
    assert Budget(10).places(Room(5), Room(0)) == (Room(5),)
    assert Budget(10, {"a": 3}).places(Room(5), Room(0)) == (Room(5),)


def test_deployments_on_different_devices_start_beside_each_other_and_never_overlap_on_one() -> None:
    async def work() -> None:
        world = EngineWorld(load_s=10, budget_devices={"gpu-0": 10 * GIB, "gpu-1": 10 * GIB})
        world.device_bytes = {"tiny": 4 * GIB}
        ports = world.ports()
        replicas = [Replica(EngineLabel(name, 0, 1), member(facts(), "/e"), ports) for name in "abcd"]
        loading = [asyncio.create_task(replica.load("request")) for replica in replicas]
        await until(lambda: len(world.engines) == 2)
        await asyncio.sleep(5)
        assert len(world.engines) == 2, "one on each device; the others wait for their turn on it"
        await asyncio.gather(*loading)
        lie = [dict(ports.residency._held[replica.place].devices) for replica in replicas]
        assert sorted(device for one in lie for device in one) == ["gpu-0", "gpu-0", "gpu-1", "gpu-1"]
        assert asyncio.get_running_loop().time() < 25

    in_virtual_time(work)


def test_of_those_that_an_apply_starts_together_the_largest_lies_first() -> None:
    async def work() -> None:
        world = EngineWorld(budget_devices={"gpu-0": 10 * GIB, "gpu-1": 10 * GIB})
        world.device_bytes = {"tiny": 3 * GIB, "large": 8 * GIB}
        ports = world.ports()
        replicas = [
            Replica(EngineLabel(name, 0, 1), member(facts(), "/e", model=model), ports)
            for name, model in (("a", "tiny"), ("b", "tiny"), ("c", "large"))
        ]
        residency = ports.residency
        wanted = {one.place: one.place.wanted(Room(0, world.device_bytes[one.member.model])) for one in replicas}
        await residency.reserve(wanted)
        lie = [residency._held[one.place].device_ids for one in replicas]
        assert lie == [("gpu-1",), ("gpu-1",), ("gpu-0",)]

    in_virtual_time(work)


def test_a_device_s_lack_is_made_up_by_who_lies_on_it_not_by_a_model_on_the_processor() -> None:
    async def work() -> None:
        world = EngineWorld(budget_devices={"gpu": 10 * GIB})
        world.device_bytes = {"tiny": 6 * GIB}
        ports = world.ports(memory_bytes=100 * GIB)

        def replica(name: str, **changes: Any) -> Replica:
            return Replica(EngineLabel(name, 0, 1), member(facts(), "/e", warm=False, **changes), ports)

        on_cpu, first, second = replica("cpu", model="plain"), replica("first"), replica("second")
        await on_cpu.load("operator")
        await asyncio.sleep(60)
        await first.load("operator")
        await asyncio.sleep(60)
        await second.load("operator")
        assert (on_cpu.is_ready, first.stopped_by, second.is_ready) == (True, "idle", True)

    in_virtual_time(work)


def test_an_engine_that_is_taken_over_keeps_its_device() -> None:
    async def work() -> None:
        world = EngineWorld(budget_devices={"gpu-0": 10 * GIB, "gpu-1": 10 * GIB})
        world.device_bytes, world.adopted = {"tiny": 4 * GIB}, {("chat", 0): ("gpu-1",)}
        ports = world.ports()
        chat = Replica(EngineLabel("chat", 0, 1), member(facts(), "/e"), ports)
        await chat.load("reconcile")
        assert ports.residency._held[chat.place].device_ids == ("gpu-1",)

    in_virtual_time(work)


def test_an_engine_lies_on_as_many_devices_as_it_must_and_else_on_the_fewest_that_hold_it() -> None:
    budget = Budget(devices={"a": 10, "b": 10, "c": 8, "d": 8, "e": 8})
    used = Room(0, 4, devices=(("a", 4),))
    two = Room(0, 12, shares=(12, 7, 5, 4), span=2)
    assert [place.device_ids for place in budget.places(two, used)] == [("c", "d"), ("a", "b")]
    assert budget.places(two, Room(0))[0].devices == (("a", 7), ("b", 7))
    free = replace(two, span=None)
    places = budget.places(free, Room(0))
    assert [place.device_ids for place in places] == [("a", "b"), ("c", "d"), ("a", "b", "c", "d", "e")]
    assert places[0].device_bytes == 14, "what is needed on each is counted on each"
    assert budget.places(replace(two, span=4), Room(0))[0].device_ids == ("a", "b", "c", "d")
