"""Never more than the budget, and who makes room for whom: by idleness, by turns, and for a change of the desired state at once or not at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.base.errors import EngineError, SbctlError
from sbctl.engines.model import LaunchSpec
from sbctl.runtime.engine_host import EngineLabel, RunningEngine
from sbctl.runtime.generation import Generation
from sbctl.runtime.replica import Replica
from sbctl.runtime.replica_messages import ReplicaPorts
from sbctl.runtime.room import Budget, Room
from sbctl.trust.bundle import DeploymentMember
from tests.simulators.engine_world import EngineWorld, FakeEngine, facts, in_virtual_time, outcome_of, settle, until
from tests.simulators.runtime_world import member

MakeMember = Callable[..., DeploymentMember]
GIB = 2**30


def _replica(name: str, ports: ReplicaPorts, wanted: DeploymentMember) -> Replica:
    return Replica(EngineLabel(name, 0, 1), wanted, ports)


def _generation(name: str, ports: ReplicaPorts, memory_bytes: int = GIB, **changes: Any) -> Generation:
    values = {"warm": False, "max_queue_depth": 64, "queue_timeout_ms": 60_000, "memory_bytes": memory_bytes}
    return Generation(name, 1, member(facts(), "/engine", **{**values, **changes}), ports)


async def _ask(generation: Generation, works_s: float) -> str:
    try:
        lease = await generation.admit("standard")
    except SbctlError as error:
        return error.code
    try:
        await asyncio.sleep(works_s)
    finally:
        lease.release()
    return "ok"


def test_the_longest_idle_one_makes_room_and_comes_back_when_asked(make_member: MakeMember) -> None:
    async def work() -> None:
        world = EngineWorld()
        ports = world.ports(max_engines=2)
        a, b, c = (_replica(name, ports, make_member(warm=False)) for name in "abc")
        await a.load("request")
        await b.load("request")
        await asyncio.sleep(3)
        (await a.gate.acquire("standard")).release()
        await c.load("request")
        assert [replica.is_ready for replica in (a, b, c)] == [True, False, True]
        assert b.stopped_by == "idle"
        assert len(world.alive) == 2
        await b.load("request")
        assert len(world.alive) == 2

    in_virtual_time(work)


def test_fault_47_what_is_warm_is_never_unloaded_for_others_however_long_it_was_idle() -> None:
    async def work() -> None:
        ports = EngineWorld().ports(memory_bytes=3 * GIB)
        pinned, other = _generation("pinned", ports, 2 * GIB, warm=True), _generation("other", ports, 2 * GIB)
        await pinned.load("reconcile")
        await asyncio.sleep(10_000)
        with pytest.raises(EngineError) as refused:
            await other.load("operator")
        assert refused.value.code == "insufficient_capacity"
        assert "1.0 GiB of memory too much" in refused.value.message
        assert "pinned 2.0 GiB" in refused.value.message
        assert other.state().state == "stopped"
        assert pinned.ready_replicas == 1

    in_virtual_time(work)


def test_fault_32_places_are_bytes_and_one_large_model_replaces_several_small_ones() -> None:
    async def work() -> None:
        world = EngineWorld(stop_s=3.0)
        ports = world.ports(memory_bytes=4 * GIB)
        small = [_generation(name, ports) for name in "abc"]
        for generation in small:
            assert await _ask(generation, 1) == "ok"
        await asyncio.sleep(5)
        assert await _ask(_generation("large", ports, 3 * GIB), 1) == "ok"
        assert [generation.ready_replicas for generation in small] == [0, 0, 1]
        starts = [event for event in world.events if "prepare" not in event]
        assert starts[-3:] == ["stop a#1", "stop b#1", "start large#1"]

    in_virtual_time(work)


@pytest.mark.flow
@pytest.mark.parametrize(("load_s", "works_s", "callers"), [(1.0, 0.2, 4), (6.0, 1.5, 8)])
def test_fault_56_two_models_on_one_place_take_turns_under_load_and_lose_no_request(
    load_s: float, works_s: float, callers: int
) -> None:
    """Each caller asks again at once: neither model is ever idle by itself."""

    async def work() -> None:
        world = EngineWorld(load_s=load_s)
        ports = world.ports(memory_bytes=GIB)
        models = [_generation(name, ports) for name in "ab"]
        outcomes: Counter[str] = Counter()
        until_s = asyncio.get_running_loop().time() + 300

        async def caller(generation: Generation) -> None:
            while asyncio.get_running_loop().time() < until_s:
                outcomes[f"{generation.deployment} {await _ask(generation, works_s)}"] += 1

        await asyncio.gather(*(caller(model) for model in models for _ in range(callers)))
        assert set(outcomes) == {"a ok", "b ok"}
        assert min(outcomes.values()) * 2 > max(outcomes.values())
        starts = Counter(event for event in world.events if event.startswith("start"))
        a_turn_s = max(2.0, load_s) + load_s
        assert 10 <= sum(starts.values()) <= 300 / a_turn_s + 1

    in_virtual_time(work)


def test_a_request_that_runs_long_is_waited_for_and_what_came_before_the_turn_is_served_first() -> None:
    async def work() -> None:
        world = EngineWorld()
        ports = world.ports(memory_bytes=GIB)
        a, b = _generation("a", ports, max_concurrency=1), _generation("b", ports)
        long = asyncio.create_task(_ask(a, 40))
        await until(lambda: a.ready_replicas == 1)
        queued = asyncio.create_task(_ask(a, 1))
        await asyncio.sleep(5)
        other = asyncio.create_task(_ask(b, 1))
        await until(lambda: a.replicas[0].place.is_giving_way)
        late = asyncio.create_task(_ask(a, 1))
        await settle()
        assert a.replicas[0].gate.queued == 1
        assert await long == await queued == "ok"
        assert not late.done()
        assert await other == await late == "ok"
        assert [event for event in world.events if "start" in event] == ["start a#1", "start b#1", "start a#1"]

    in_virtual_time(work)


def test_a_model_whose_cold_requests_are_refused_does_not_give_way_but_makes_room_when_idle() -> None:
    async def work() -> None:
        ports = EngineWorld().ports(memory_bytes=GIB)
        a, b = _generation("a", ports, cold_start="reject"), _generation("b", ports)
        await a.load("operator")
        working = asyncio.create_task(_ask(a, 20))
        await settle()
        waiting = asyncio.create_task(_ask(b, 1))
        await asyncio.sleep(15)
        assert await _ask(a, 0) == "ok"
        assert await working == await waiting == "ok"
        assert a.ready_replicas == 0

    in_virtual_time(work)


def test_who_fits_beside_the_first_of_the_line_does_not_wait_behind_it_nor_take_what_was_freed_for_it() -> None:
    async def work() -> None:
        world = EngineWorld()
        ports = world.ports(memory_bytes=4 * GIB)
        busy, large, tiny = (
            _generation("busy", ports, 3 * GIB),
            _generation("large", ports, 4 * GIB),
            _generation("tiny", ports),
        )
        long = asyncio.create_task(_ask(busy, 30))
        await until(lambda: busy.ready_replicas == 1)
        waiting = asyncio.create_task(_ask(large, 1))
        await asyncio.sleep(3)
        assert await _ask(tiny, 1) == "ok"
        assert not waiting.done()
        assert await long == await waiting == "ok"

    in_virtual_time(work)


def test_what_was_freed_for_the_first_of_the_line_is_not_taken_by_who_comes_along() -> None:
    async def work() -> None:
        world = EngineWorld()
        ports = world.ports(memory_bytes=2 * GIB)
        idle, busy, tiny = (_generation(name, ports) for name in ("idle", "busy", "tiny"))
        large = _generation("large", ports, 2 * GIB)
        assert await _ask(idle, 0) == "ok"
        long = asyncio.create_task(_ask(busy, 20))
        await until(lambda: busy.ready_replicas == 1)
        await asyncio.sleep(5)
        first = asyncio.create_task(_ask(large, 1))
        await until(lambda: idle.ready_replicas == 0)
        second = asyncio.create_task(_ask(tiny, 1))
        assert await long == await first == await second == "ok"
        starts = [event for event in world.events if event.startswith("start")]
        assert starts[2:] == ["start large#1", "start tiny#1"]

    in_virtual_time(work)


def test_when_nobody_waits_any_more_nothing_is_unloaded_and_who_gave_way_stays() -> None:
    async def work() -> None:
        world = EngineWorld()
        ports = world.ports(memory_bytes=GIB)
        a, b = _generation("a", ports), _generation("b", ports)
        working = asyncio.create_task(_ask(a, 30))
        await until(lambda: a.ready_replicas == 1)
        await asyncio.sleep(5)
        leaving = asyncio.create_task(_ask(b, 1))
        await until(lambda: a.replicas[0].place.is_giving_way)
        held = asyncio.create_task(_ask(a, 1))
        leaving.cancel()
        assert await held == "ok"
        assert not working.done()
        assert b.state().state == "stopped"
        assert await working == "ok"
        assert len([event for event in world.events if "start" in event]) == 1

    in_virtual_time(work)


def test_a_change_of_the_desired_state_does_not_wait_for_what_works() -> None:
    async def work() -> None:
        ports = EngineWorld().ports(memory_bytes=GIB)
        a, b = _generation("a", ports), _generation("b", ports)
        working = asyncio.create_task(_ask(a, 30))
        await until(lambda: a.ready_replicas == 1)
        assert await outcome_of(b.load("reconcile")) == "insufficient_capacity"
        assert await working == "ok"
        assert await outcome_of(b.load("reconcile")) == "ok"

    in_virtual_time(work)


def test_no_room_is_no_failure_of_an_engine_and_what_is_warm_comes_when_there_is_room() -> None:
    async def work() -> None:
        ports = EngineWorld().ports(memory_bytes=GIB)
        a, b = _generation("a", ports, warm=True), _generation("b", ports, warm=True)
        await a.load("reconcile")
        assert await outcome_of(b.load("reconcile")) == "insufficient_capacity"
        await asyncio.sleep(1000)
        state = b.state()
        assert (state.state, state.replicas[0].reason_code) == ("failed", "insufficient_capacity")
        await a.stop("operator", drain_s=1)
        await until(lambda: b.ready_replicas == 1, at_most_s=60)

    in_virtual_time(work)


def test_an_engine_that_does_not_end_keeps_its_place_until_it_did() -> None:
    async def work() -> None:
        world = EngineWorld()
        ports = world.ports(memory_bytes=GIB)
        a, b = _generation("a", ports), _generation("b", ports, queue_timeout_ms=5_000)
        await a.load("operator")
        world.stop_fault = EngineError("engine_shutdown_failed", "it does not end")
        assert await outcome_of(a.stop("operator", drain_s=0)) == "engine_shutdown_failed"
        assert await outcome_of(a.stop("operator", drain_s=0)) == "engine_shutdown_failed"
        assert a.has_unended
        assert await _ask(b, 1) == "queue_timeout"
        world.stop_fault = None
        await a.end_what_is_left()
        assert await _ask(b, 1) == "ok"

    in_virtual_time(work)


@pytest.mark.parametrize(
    ("room", "short"),
    [
        (Room(3 * GIB), ""),
        (Room(4 * GIB), "1.0 GiB of memory too much for the 3.0 GiB that models may take"),
        (Room(0, 3 * GIB, 1), "1.0 GiB of device memory too much for the 2.0 GiB that models may take"),
        (Room(0, 0, 3), "3 engines where max_resident_models allows 2"),
    ],
)
def test_what_is_short_is_said_with_how_much(room: Room, short: str) -> None:
    assert Budget(3 * GIB, {"gpu": 2 * GIB}, 2).short(room) == short


# Whatever happens


@dataclass
class _Host(EngineWorld):
    """Engines take memory from before their start to the end of their stop; an eviction while a request runs is a failure."""

    budget: int = 0
    working: Counter[str] = field(default_factory=Counter)
    stopping: Counter[str] = field(default_factory=Counter)
    sizes: dict[str, int] = field(default_factory=dict)

    async def start(self, spec: LaunchSpec, label: EngineLabel) -> RunningEngine:
        engine = await super().start(spec, label)
        assert sum(self.sizes[one.label.deployment] for one in self.alive) <= self.budget
        return engine

    async def stop(self, engine: RunningEngine, *, grace_s: float = 10.0) -> None:
        fake = cast("FakeEngine", engine)
        name = fake.label.deployment
        assert not self.working[name] or self.stopping[name] or fake._exit.done()
        await super().stop(engine, grace_s=grace_s)


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "leave", "stop", "load", "apply", "die", "wait"]),
        st.integers(0, 3),
        st.sampled_from([0.0, 0.3, 4.0]),
    ),
    max_size=30,
)
_TOLD = {"ok", "left", "queue_timeout", "queue_full", "insufficient_capacity", "stopped", "draining", "crash_loop",
         "engine_unhealthy", "engine_killed", "engine_early_exit", "engine_exited"}  # fmt: skip


@pytest.mark.flow
@settings(max_examples=40, deadline=None)
@given(_STEPS, st.integers(3, 6), st.integers(0, 3))
def test_the_budget_holds_nothing_that_works_is_unloaded_and_everybody_is_answered(
    steps: list[tuple[str, int, float]], budget: int, pinned: int
) -> None:
    async def work() -> None:
        world = _Host(load_s=0.5, stop_s=0.5, budget=budget, sizes={f"d{number}": number for number in range(4)})
        ports = world.ports(memory_bytes=budget, interval_s=1000)
        models = [
            _generation(f"d{number}", ports, number or None, warm=number == pinned, max_concurrency=1)  # type: ignore[arg-type]
            for number in range(4)
        ]
        asked: list[asyncio.Task[str]] = []

        async def ask(model: Generation, works_s: float) -> str:
            try:
                lease = await model.admit("standard")
            except SbctlError as error:
                return error.code
            world.working[model.deployment] += 1
            try:
                await asyncio.sleep(works_s)
            finally:
                world.working[model.deployment] -= 1
                lease.release()
            return "ok"

        async def stop(model: Generation) -> str:
            world.stopping[model.deployment] += 1
            try:
                return await outcome_of(model.stop("idle", drain_s=1))
            finally:
                world.stopping[model.deployment] -= 1

        for what, number, seconds in steps:
            model = models[number]
            match what:
                case "ask":
                    asked.append(asyncio.create_task(ask(model, seconds)))
                case "stop":
                    asked.append(asyncio.create_task(stop(model)))
                case "load" | "apply":
                    by: Any = "operator" if what == "load" else "reconcile"
                    asked.append(asyncio.create_task(outcome_of(model.load(by))))
                case "leave" if asked:
                    asked[number % len(asked)].cancel()
                case "die" if world.alive:
                    world.alive[number % len(world.alive)].die()
            await asyncio.sleep(seconds)
        async with asyncio.timeout(3600):
            told = await asyncio.gather(*asked, return_exceptions=True)
        assert {"left" if isinstance(each, asyncio.CancelledError) else each for each in told} <= _TOLD
        for model in models:
            world.stopping[model.deployment] += 1
            await model.retire(drain_s=1)
        assert world.alive == []
        assert ports.residency.used == Room(engines=0)

    in_virtual_time(work)
