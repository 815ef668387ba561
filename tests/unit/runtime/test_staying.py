"""How many replicas there are and on which devices changes without the others: their engines and their requests go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import EngineError
from sbctl.runtime.reconcile import Assigned, Reconciler
from sbctl.runtime.staying import AssignedAs
from sbctl.runtime.store import RuntimeStore
from sbctl.runtime.transition import nothing_durable
from sbctl.trust.bundle import DeploymentMember
from tests.simulators.engine_world import EngineWorld, in_virtual_time, outcome_of, until
from tests.simulators.runtime_world import SCOPE, Operator, content

MakeMember = Callable[..., DeploymentMember]
CRASH = EngineError("engine_early_exit", "the engine ended while loading", retryable=True)
A, B, C = ("gpu-a",), ("gpu-b",), ("gpu-c",)


class _Node:
    def __init__(self, folder: Path, world: EngineWorld, make_member: MakeMember) -> None:
        self.world, self._make = world, make_member
        self.store = RuntimeStore(folder / "runtime.db", folder / "bundle.json")
        self.reconciler = Reconciler(
            scope=SCOPE,
            trust=Operator().trust,
            store=self.store,
            ports=world.ports(),
            clock=SYSTEM_CLOCK,
            drain_s=5,
            parallel_prepares=2,
        )

    async def assign(self, *replicas: tuple[int, tuple[str, ...]], **changes: Any) -> None:
        """Slots with their devices."""
        named = AssignedAs(1, tuple(slot for slot, _ in replicas), tuple(devices for _, devices in replicas))
        desired = content({"q": self._make("tiny", replicas=len(replicas), **changes)})
        await self.reconciler.apply_assigned(Assigned(desired, {"q": named}), nothing_durable)

    def shown(self) -> dict[int, tuple[int, ...]]:
        """By slot, the devices of replicas that are ready."""
        found = self.reconciler.generations["q"]
        assert found.assigned is not None
        return {
            slot: found.selected_devices(one)
            for slot, one in zip(found.assigned.slots, found.replicas, strict=True)
            if one.is_ready
        }


def _run(folder: Path, make_member: MakeMember, scenario: Callable[[_Node], Coroutine[Any, Any, None]]) -> None:
    world = EngineWorld(budget_devices=dict.fromkeys((*A, *B, *C), 100), device_bytes={"tiny": 60})

    async def work() -> None:
        node = _Node(folder, world, make_member)
        try:
            await scenario(node)
        finally:
            await node.reconciler.shutdown(drain_s=1.0)
            node.store.close()

    in_virtual_time(work)


def test_engines_lie_on_the_devices_they_are_assigned_to(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(node: _Node) -> None:
        await node.assign((0, C), (1, A))
        assert node.shown() == {0: (2,), 1: (0,)}

    _run(tmp_path, make_member, scenario)


def test_one_more_replica_needs_room_for_one(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(node: _Node) -> None:
        await node.assign((0, A))
        (first,) = node.world.alive
        await node.assign((0, A), (4, B))
        assert node.shown() == {0: (0,), 4: (1,)}
        assert node.world.alive[0] is first
        await node.assign((4, B))
        await until(lambda: len(node.world.alive) == 1)
        assert node.shown() == {4: (1,)}
        assert first.is_stopped

    _run(tmp_path, make_member, scenario)


def test_a_replica_that_is_to_lie_elsewhere_is_started_there_before_the_old_ends(
    tmp_path: Path, make_member: MakeMember
) -> None:
    async def scenario(node: _Node) -> None:
        await node.assign((0, A), (1, B))
        stays = node.world.alive[0]
        serving = asyncio.create_task(node.reconciler.generations["q"].admit("standard"))
        lease = await serving
        await node.assign((0, A), (2, C))
        assert node.shown() == {0: (0,), 2: (2,)}
        assert stays in node.world.alive
        lease.release()
        await until(lambda: len(node.world.alive) == 2)
        assert node.world.events.index("stop q#1") > node.world.events.index("start q#2")

    _run(tmp_path, make_member, scenario)


def test_what_does_not_start_on_its_new_device_leaves_all_as_it_was(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(node: _Node) -> None:
        await node.assign((0, A), (1, B))
        before = list(node.world.alive)
        node.world.faults[:] = [CRASH]
        assert await outcome_of(node.assign((0, A), (1, C))) == "engine_early_exit"
        assert node.shown() == {0: (0,), 1: (1,)}
        assert node.world.alive == before
        await node.assign((0, A), (1, C))
        assert node.shown() == {0: (0,), 1: (2,)}

    _run(tmp_path, make_member, scenario)


def test_another_name_for_the_same_replicas_moves_nothing(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(node: _Node) -> None:
        await node.assign((0, A), (1, B))
        before = list(node.world.alive)
        await node.assign((3, B), (5, A))
        assert node.shown() == {3: (1,), 5: (0,)}
        await node.assign((3, B), (5, A), max_queue_depth=3)
        assert {replica.gate.queued for replica in node.reconciler.generations["q"].replicas} == {0}
        assert node.world.alive == before

    _run(tmp_path, make_member, scenario)


def test_what_an_engine_is_started_with_replaces_all_of_them(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(node: _Node) -> None:
        await node.assign((0, A))
        first = node.world.alive[0]
        await node.assign((0, B), max_concurrency=9)
        await until(lambda: first.is_stopped)
        assert node.shown() == {0: (1,)}

    _run(tmp_path, make_member, scenario)
