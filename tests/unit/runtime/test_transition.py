"""Changes of the desired state on a host whose memory is scarce, under load: both fit or nothing is touched, and no request is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import EngineError, SbctlError
from sbctl.runtime.provision import Prepared, Progress, quiet
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.room import Room
from sbctl.runtime.store import RuntimeStore
from sbctl.runtime.transition import Delta
from sbctl.trust.bundle import BundleContent, DeploymentMember
from tests.simulators.engine_world import EngineWorld, in_virtual_time, outcome_of, settle, until
from tests.simulators.runtime_world import SCOPE, Operator, content

pytestmark = pytest.mark.flow

MakeMember = Callable[..., DeploymentMember]
GIB = 2**30
CRASH = EngineError("engine_early_exit", "the engine ended while loading", retryable=True)


class _Node:
    """A reconciler with so many GiB, and callers as the gateway is one."""

    def __init__(self, folder: Path, world: EngineWorld, gib: int) -> None:
        self.world = world
        self.operator = Operator()
        self.store = RuntimeStore(folder / "runtime.db", folder / "bundle.json")
        self.ports = world.ports(memory_bytes=gib * GIB)
        self.reconciler = self.again()
        self.revision = 0
        self.told: Counter[str] = Counter()

    def again(self) -> Reconciler:
        return Reconciler(
            scope=SCOPE,
            trust=self.operator.trust,
            store=self.store,
            ports=self.ports,
            clock=SYSTEM_CLOCK,
            drain_s=5,
            handoff_s=20,
            parallel_prepares=2,
        )

    async def apply(self, deployments: dict[str, DeploymentMember]) -> None:
        desired: BundleContent = content(deployments)
        envelope = self.operator.bundle(desired, self.revision + 1)
        await self.reconciler.apply_bundle(envelope, self.revision or None, quiet)
        self.revision += 1

    async def ask(self, name: str, works_s: float) -> str:
        while True:
            table = self.reconciler.routes
            try:
                lease = await self.reconciler.generations[name].admit("standard")
            except SbctlError as error:
                if error.code == "draining" and self.reconciler.routes is not table:
                    continue
                return error.code
            replica = lease.replica
            await asyncio.sleep(works_s)
            was_cut = not replica.gate.active or replica.launched is None
            lease.release()
            return "cut" if was_cut else "ok"

    def callers(self, name: str, count: int, works_s: float) -> list[asyncio.Task[None]]:
        async def caller() -> None:
            while True:
                self.told[await self.ask(name, works_s)] += 1

        return [asyncio.create_task(caller()) for _ in range(count)]


class _SlowPreparation(EngineWorld):
    async def prepare(self, member: DeploymentMember, progress: Progress) -> Prepared:
        await asyncio.sleep(3 if member.model == "slow" else 0)
        return await super().prepare(member, progress)


def _run(
    folder: Path,
    gib: int,
    scenario: Callable[[_Node], Coroutine[Any, Any, None]],
    *,
    world: EngineWorld | None = None,
    **behaves: float,
) -> None:
    async def work() -> None:
        node = _Node(folder, world or EngineWorld(**behaves), gib)  # type: ignore[arg-type]
        try:
            await scenario(node)
        finally:
            await node.reconciler.shutdown(drain_s=1.0)
            node.store.close()

    in_virtual_time(work)


def _starts_and_stops(node: _Node) -> list[str]:
    return [event for event in node.world.events if "prepare" not in event]


def test_rolling_without_room_for_both_is_refused_before_anything_is_touched_and_told_of_recreate(
    tmp_path: Path, make_member: MakeMember
) -> None:
    async def scenario(node: _Node) -> None:
        await node.apply({"q": make_member(memory_bytes=2 * GIB)})
        with pytest.raises(SbctlError) as refused:
            await node.apply({"q": make_member(memory_bytes=2 * GIB, max_concurrency=9)})
        error = refused.value
        assert (error.code, error.place) == ("insufficient_capacity", "deployment.local/q")
        assert "1.0 GiB of memory too much" in error.message
        assert "recreate" in (error.next_step or "")
        assert _starts_and_stops(node) == ["start q#1"]
        assert await node.ask("q", 1) == "ok"
        await node.apply({"q": make_member(memory_bytes=2 * GIB, max_concurrency=9, rollout="recreate")})
        assert _starts_and_stops(node) == ["start q#1", "stop q#1", "start q#3"]
        assert node.ports.residency.used == Room(2 * GIB)

    _run(tmp_path, 3, scenario)


def test_a_change_unloads_idle_models_for_its_room_never_a_busy_one(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(node: _Node) -> None:
        cold = {"warm": False, "pull": "on_demand", "memory_bytes": GIB}
        others = {"idle": make_member(**cold), "busy": make_member(**cold)}
        await node.apply({"q": make_member(memory_bytes=GIB), **others})
        assert await node.ask("idle", 0.1) == "ok"
        working = asyncio.create_task(node.ask("busy", 60))
        await settle()
        await node.apply({"q": make_member(memory_bytes=GIB, max_concurrency=9), **others})
        assert node.reconciler.generations["idle"].ready_replicas == 0
        refused = node.apply({"q": make_member(memory_bytes=2 * GIB, max_concurrency=8), **others})
        assert await outcome_of(refused) == "insufficient_capacity"
        assert await working == "ok"

    _run(tmp_path, 3, scenario)


def test_recreate_keeps_the_room_of_the_old_until_it_is_committed_so_a_failure_restores_it(
    tmp_path: Path, make_member: MakeMember
) -> None:
    async def scenario(node: _Node) -> None:
        other = make_member(warm=False, pull="on_demand", memory_bytes=GIB)
        await node.apply({"q": make_member(memory_bytes=2 * GIB, rollout="recreate"), "other": other})
        node.world.faults[:] = [CRASH]
        changed = make_member(memory_bytes=GIB, rollout="recreate", max_concurrency=9)
        change = asyncio.create_task(outcome_of(node.apply({"q": changed, "other": other})))
        await until(lambda: "start q#3" in node.world.events)
        waiting = asyncio.create_task(node.ask("other", 1))
        assert await change == "engine_early_exit"
        assert node.reconciler.generations["q"].ready_replicas == 1
        assert await waiting == "insufficient_capacity"
        assert "start other#2" not in node.world.events

    _run(tmp_path, 2, scenario)


def test_recreate_does_not_cut_a_long_answer_off_and_says_what_to_do(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(node: _Node) -> None:
        await node.apply({"q": make_member(rollout="recreate")})
        long = asyncio.create_task(node.ask("q", 60))
        await settle()
        with pytest.raises(SbctlError) as refused:
            await node.apply({"q": make_member(rollout="recreate", max_concurrency=9)})
        assert (refused.value.code, refused.value.detail["stage"]) == ("drain_timeout", "drain")
        assert await node.ask("q", 1) == "ok"
        assert await long == "ok"
        assert _starts_and_stops(node) == ["start q#1"]

    _run(tmp_path, 3, scenario)


@pytest.mark.parametrize("rollout", ["rolling", "recreate"])
def test_a_hundred_edits_in_a_row_under_load_fail_no_request(
    tmp_path: Path, make_member: MakeMember, rollout: str
) -> None:
    """Every tenth candidate is bad: the old goes on."""

    async def scenario(node: _Node) -> None:
        make = lambda depth: make_member(  # noqa: E731
            memory_bytes=GIB, rollout=rollout, max_concurrency=depth, max_queue_depth=64, queue_timeout_ms=30_000
        )
        await node.apply({"q": make(2)})
        callers = node.callers("q", 12, 0.4)
        for edit in range(100):
            if edit % 10 == 9:
                node.world.faults[:] = [CRASH]
                assert await outcome_of(node.apply({"q": make(90 + edit)})) == "engine_early_exit"
            else:
                await node.apply({"q": make(3 + edit % 4)})
            assert node.reconciler.generations["q"].ready_replicas == 1
        for caller in callers:
            caller.cancel()
        assert set(node.told) == {"ok"}
        assert node.told["ok"] > 500
        assert len(node.world.alive) == 1
        assert node.ports.residency.used == Room(GIB)

    _run(tmp_path, 2 if rollout == "rolling" else 1, scenario, load_s=0.7, stop_s=0.3)


def test_two_models_on_one_budget_swap_under_load_while_one_is_edited_and_lose_no_request(
    tmp_path: Path, make_member: MakeMember
) -> None:
    async def scenario(node: _Node) -> None:
        make = lambda depth: make_member(  # noqa: E731
            warm=False, pull="on_demand", memory_bytes=GIB, max_concurrency=depth, rollout="recreate",
            max_queue_depth=64, queue_timeout_ms=60_000,
        )  # fmt: skip
        await node.apply({"a": make(2), "b": make(2)})
        callers = node.callers("a", 4, 0.5) + node.callers("b", 4, 0.5)
        outcomes: Counter[str] = Counter()
        for edit in range(20):
            await asyncio.sleep(3)
            outcomes[await outcome_of(node.apply({"a": make(2 + edit % 2), "b": make(2)}))] += 1
        for caller in callers:
            caller.cancel()
        assert set(node.told) == {"ok"}
        assert set(outcomes) == {"ok"}

    _run(tmp_path, 1, scenario)


@pytest.mark.parametrize("rollout", ["rolling", "recreate"])
def test_a_model_that_is_asked_for_while_its_successor_is_prepared_answers_all_the_same(
    tmp_path: Path, make_member: MakeMember, rollout: str
) -> None:
    async def scenario(node: _Node) -> None:
        cold = {"warm": False, "pull": "on_demand", "memory_bytes": GIB, "rollout": rollout}
        await node.apply({"q": make_member(**cold)})
        slow = make_member(pull="on_boot", warm=False, memory_bytes=GIB, model="slow")
        change = asyncio.create_task(node.apply({"q": make_member(**cold, max_concurrency=5), "other": slow}))
        await settle()
        early = asyncio.create_task(node.ask("q", 0.5))
        await change
        assert await early == await node.ask("q", 0.5) == "ok"
        assert [engine.label.generation for engine in node.world.alive] == [3]

    _run(tmp_path, 2 if rollout == "rolling" else 1, scenario, world=_SlowPreparation())


def test_recreate_takes_the_place_of_what_is_still_starting_and_who_waited_for_that_is_answered(
    tmp_path: Path, make_member: MakeMember
) -> None:
    async def scenario(node: _Node) -> None:
        make = lambda depth, **more: make_member(  # noqa: E731
            rollout="recreate", memory_bytes=GIB, max_concurrency=depth, **more
        )
        await node.apply({"q": make(2, warm=False, pull="on_demand")})
        node.world.load_s = 5.0
        waiting = asyncio.create_task(node.ask("q", 0.5))
        await asyncio.sleep(2)
        await node.apply({"q": make(3)})
        assert await waiting == "ok"
        assert _starts_and_stops(node) == ["start q#1", "stop q#1", "start q#2"]

    _run(tmp_path, 1, scenario)


def test_an_engine_that_does_not_end_is_tried_again_until_its_room_is_back(
    tmp_path: Path, make_member: MakeMember
) -> None:
    async def scenario(node: _Node) -> None:
        await node.apply({"q": make_member(memory_bytes=GIB)})
        node.world.stop_fault = EngineError("engine_shutdown_failed", "it does not end")
        await node.apply({})
        assert node.ports.residency.used == Room(GIB)
        await asyncio.sleep(20)
        node.world.stop_fault = None
        await until(lambda: node.ports.residency.used == Room(engines=0), at_most_s=120)
        assert node.world.alive == []

    _run(tmp_path, 1, scenario)


def test_after_a_restart_engines_that_run_on_have_their_place_before_those_that_are_to_be_started(
    tmp_path: Path, make_member: MakeMember
) -> None:
    async def scenario(node: _Node) -> None:
        left = make_member(warm=False, pull="on_demand", memory_bytes=GIB)
        await node.apply({"a": make_member(memory_bytes=GIB), "left": left})
        assert await node.ask("left", 1) == "ok"
        await node.reconciler.shutdown(drain_s=1)
        node.world.events.clear()
        node.reconciler = node.again()
        await node.reconciler.restore({("left", 0)})
        assert node.reconciler.generations["left"].ready_replicas == 1
        await until(lambda: node.reconciler.generations["a"].ready_replicas == 1)
        assert _starts_and_stops(node)[0] == "start left#2"

    _run(tmp_path, 2, scenario)


def test_what_is_committed_stands_in_one_line_however_much_it_is() -> None:
    names = tuple(f"d{number:04d}" for number in range(2048))
    told = Delta(added=(), changed=names, adjusted=(), removed=("gone",), preserved=names).told()
    assert told["changed"] == told["preserved"] == 2048
    assert str(told["first"]).startswith("d0000, d0001, ")
    assert str(told["first"]).endswith("d0007, …")
    assert "first" not in Delta((), (), (), (), ("q",)).told()
