"""What a placement says about devices is what the engine gets: from the bundle over the assignment to the launch, and back in the snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sbctl.node.cluster_documents import NodeSnapshotDocument
from sbctl.node.devices import NvidiaDevices
from sbctl.runtime import host_devices
from sbctl.runtime.host_devices import HostDevices
from sbctl.trust.bundle import EnginePolicy
from sbctl.trust.cluster_bundle import ClusterDeployment
from tests.simulators.cluster_nodes import clustered
from tests.simulators.cluster_world import GIB, ClusterWorld, SimNode, run_in_cluster
from tests.simulators.engine_world import facts, until
from tests.simulators.runtime_world import member

MINUTE_S = 60.0
CUDA = EnginePolicy(engine="llama_cpp", launch="binary", path="/engine", acceleration="cuda")


def _wanted(replicas: int, gib: int, span: int | None = None) -> ClusterDeployment:
    return clustered(
        member(facts(), "/engine"), replicas=replicas, engine=CUDA, memory_bytes=gib * GIB, tensor_parallel=span
    )


def _gpus(count: int) -> list[dict[str, str | int]]:
    return [{"uuid": f"GPU-{number}", "name": "L4", "memory_total_bytes": 24 * GIB} for number in range(count)]


class _Driver:
    """The machine's, as it sees devices now."""

    gpus: list[dict[str, str | int]]

    def host(self, state: Path, count: int) -> HostDevices:
        self.gpus = _gpus(count)
        return HostDevices.found(state, self.gpus)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    made = _Driver()
    monkeypatch.setattr(host_devices, "nvidia_devices", lambda: NvidiaDevices(gpus=tuple(made.gpus)))
    return made


def _run(folder: Path, devices: HostDevices, scenario: Callable[[ClusterWorld], Awaitable[None]]) -> None:
    async def with_devices(world: ClusterWorld) -> None:
        world.devices["w1"] = devices
        await scenario(world)

    run_in_cluster(folder, with_devices)


def _lies(node: SimNode) -> dict[int, tuple[str, ...]]:
    """By slot, where the engines of ready replicas were started."""
    found = node.generation()
    if found is None or found.assigned is None:
        return {}
    return {
        slot: one.launched.spec.devices
        for slot, one in zip(found.assigned.slots, found.replicas, strict=False)
        if one.launched is not None
    }


def _told(at: SimNode) -> NodeSnapshotDocument:
    snapshot = at.node.roster.view.rows["w1"].snapshot
    assert snapshot is not None
    return snapshot


def test_each_replica_has_the_devices_of_its_place_and_says_so(tmp_path: Path, driver: _Driver) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1 = await world.build(a=("authority",), w1=("worker",))
        await world.publish(a, {"q": _wanted(2, 30, 2)}, 1)
        await until(lambda: len(_lies(w1)) == 2, at_most_s=10 * MINUTE_S)
        assert a.node.feed.plan is not None
        await asyncio.sleep(MINUTE_S)
        placed = {one.slot: one.devices for one in a.node.feed.plan.deployments["q"].assignments}
        assert sorted(placed.values()) == [(0, 1), (2, 3)]
        assert _lies(w1) == {slot: tuple(f"GPU-{n}" for n in numbers) for slot, numbers in placed.items()}
        assert {one.slot: one.selected_devices for one in _told(a).replicas} == placed

    _run(tmp_path, driver.host(tmp_path, 4), scenario)


def test_how_busy_and_how_full_a_device_is_reaches_the_gateways(tmp_path: Path, driver: _Driver) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, _ = await world.build(a=("authority",), w1=("worker",))
        driver.gpus[0] |= {"utilization_percent": 73, "memory_free_bytes": 6 * GIB}
        driver.gpus[1] |= {"utilization_percent": -1, "memory_free_bytes": 99 * GIB}
        await asyncio.sleep(MINUTE_S)
        told = _told(a).devices
        found = [(one.compute_utilization_millis, one.memory_occupancy_millis) for one in told]
        assert found == [(730, 750), (None, None), (None, None)]

    _run(tmp_path, driver.host(tmp_path, 3), scenario)


def test_more_replicas_on_one_node_leave_the_first_alone(tmp_path: Path, driver: _Driver) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1 = await world.build(a=("authority",), w1=("worker",))
        await world.publish(a, {"q": _wanted(1, 20)}, 1)
        await until(lambda: len(_lies(w1)) == 1, at_most_s=10 * MINUTE_S)
        (first,) = w1.engines.alive
        await world.publish(a, {"q": _wanted(2, 20)}, 2)
        await until(lambda: len(_lies(w1)) == 2, at_most_s=10 * MINUTE_S)
        assert w1.starts == 2
        assert first in w1.engines.alive
        assert sorted(_lies(w1).values()) == [("GPU-0",), ("GPU-1",)]

    _run(tmp_path, driver.host(tmp_path, 2), scenario)


def test_a_device_that_is_gone_is_left_while_its_node_serves_on(tmp_path: Path, driver: _Driver) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1 = await world.build(a=("authority",), w1=("worker",))
        await world.publish(a, {"q": _wanted(2, 20)}, 1)
        await until(lambda: sorted(_lies(w1).values()) == [("GPU-0",), ("GPU-1",)], at_most_s=10 * MINUTE_S)
        driver.gpus = _gpus(3)[1:]
        await until(lambda: sorted(_lies(w1).values()) == [("GPU-1",), ("GPU-2",)], at_most_s=10 * MINUTE_S)
        assert w1.starts == 3, "who lies elsewhere stays"
        await asyncio.sleep(2 * MINUTE_S)
        assert {one.index: one.withheld for one in _told(a).devices} == {0: "gone", 1: None, 2: None}
        assert _told(a).capacity.device_memory_bytes == 48 * GIB

    _run(tmp_path, driver.host(tmp_path, 3), scenario)


def test_a_restart_with_a_device_excluded_starts_nothing_there_and_is_placed_anew(
    tmp_path: Path, driver: _Driver
) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1 = await world.build(a=("authority",), w1=("worker",))
        await world.publish(a, {"q": _wanted(1, 20)}, 1)
        await until(lambda: _lies(w1) == {0: ("GPU-0",)}, at_most_s=10 * MINUTE_S)
        await w1.crash()
        world.devices["w1"] = HostDevices.found(tmp_path, _gpus(2), ("0",))
        w1 = world.make("w1")
        assert w1.node.restored() is not None
        await w1.start()
        assert w1.generation() is None, "nothing runs where an operator said that nothing shall"
        await until(lambda: bool(w1.node.obedience.problems()), at_most_s=MINUTE_S)
        assert "device 0 (GPU-0)" in w1.node.obedience.problems()["q"]
        await until(lambda: list(_lies(w1).values()) == [("GPU-1",)], at_most_s=10 * MINUTE_S)
        assert w1.node.obedience.problems() == {}

    _run(tmp_path, driver.host(tmp_path, 2), scenario)
