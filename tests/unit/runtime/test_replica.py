"""The life of one replica: one owner, legal transitions only, restarts with backoff, and no second engine."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.base.errors import ArtifactError, EngineError
from sbctl.runtime.engine_host import EngineLabel
from sbctl.runtime.replica import Replica
from sbctl.runtime.replica_states import TRANSITIONS, ReplicaPhase, check_transition
from sbctl.runtime.restarts import backoff_s
from sbctl.trust.bundle import DeploymentMember
from tests.simulators.engine_world import EngineWorld, facts, in_virtual_time, outcome_of, settle, until
from tests.simulators.runtime_world import member

MakeMember = Callable[..., DeploymentMember]

CRASH = EngineError("engine_early_exit", "the engine ended while loading", retryable=True)


def _replica(world: EngineWorld, wanted: DeploymentMember, **times: float) -> Replica:
    return Replica(EngineLabel("q", 0, 1), wanted, world.ports(**times))


def test_a_load_is_shared_and_ends_ready_with_one_token_asked_once(make_member: MakeMember) -> None:
    async def work() -> None:
        world = EngineWorld()
        replica = _replica(world, make_member())
        await asyncio.gather(*(replica.load("request") for _ in range(5)))
        assert replica.is_ready
        assert len(world.engines) == 1
        await replica.load("operator")
        await replica.stop("idle", drain_s=1)
        await replica.load("request")
        assert (len(world.engines), world.tokens_asked) == (2, 1)

    in_virtual_time(work)


def test_a_caller_that_leaves_does_not_stop_the_start(make_member: MakeMember) -> None:
    async def work() -> None:
        world = EngineWorld(load_s=5)
        replica = _replica(world, make_member())
        asking = asyncio.create_task(replica.load("request"))
        await settle()
        asking.cancel()
        await until(lambda: replica.is_ready)
        assert len(world.engines) == 1

    in_virtual_time(work)


def test_a_dead_engine_is_restarted_with_growing_pauses_then_crash_loops_until_a_reset(make_member: MakeMember) -> None:
    async def work() -> None:
        world = EngineWorld(load_s=0, faults=[CRASH] * 5)
        replica = _replica(world, make_member())
        assert await outcome_of(replica.load("reconcile")) == "engine_early_exit"
        begins = []
        while not replica.crash_looping:
            count = len(world.engines)
            begins.append(asyncio.get_running_loop().time())
            await until(lambda count=count: len(world.engines) > count or replica.crash_looping)  # type: ignore[misc]
            await settle()
        pauses = [round(after - before) for before, after in itertools.pairwise(begins)]
        assert pauses == [1, 2, 4, 8][: len(pauses)]
        assert len(world.engines) == 5
        assert world.alive == []
        assert replica.state().reason_code == "crash_loop"
        assert replica.state().restarts == 4
        assert "sbctl models reset" in (replica.state().next_step or "")
        assert await outcome_of(replica.load("request")) == "crash_loop"
        await replica.reset()
        assert (replica.phase, replica.state().last_error) == (ReplicaPhase.CONFIGURED, None)
        assert await outcome_of(replica.load("request")) == "ok"

    in_virtual_time(work)


@pytest.mark.parametrize(
    ("failures", "chance", "seconds"), [(1, 0, 1), (2, 0, 2), (6, 0, 32), (7, 0, 60), (50, 0, 60), (3, 1, 2)]
)
def test_backoff_doubles_to_a_minute_and_jitter_takes_up_to_half(failures: int, chance: float, seconds: float) -> None:
    assert backoff_s(failures, chance) == seconds


def test_a_minute_of_being_ready_ends_the_row_of_failures(make_member: MakeMember) -> None:
    async def work() -> None:
        world = EngineWorld()
        replica = _replica(world, make_member(), interval_s=1000)
        for _ in range(8):
            await replica.load("request")
            await asyncio.sleep(61)
            world.alive[-1].die()
            await until(lambda: replica.phase is ReplicaPhase.FAILED)
            assert not replica.crash_looping
        assert replica.state().reason_code == "engine_exited"
        assert "SIGKILL" in (replica.state().last_error or "")
        assert "last words" in (replica.state().last_error or "")
        assert replica.state().next_step == "sbctl logs has what it printed"

    in_virtual_time(work)


def test_a_failure_that_no_retry_cures_waits_for_the_next_request(make_member: MakeMember) -> None:
    async def work() -> None:
        world = EngineWorld(prepare_fault=ArtifactError("artifact_not_ready", "not in the cache"))
        replica = _replica(world, make_member())
        assert await outcome_of(replica.load("request")) == "artifact_not_ready"
        await asyncio.sleep(500)
        assert replica.phase is ReplicaPhase.FAILED
        world.prepare_fault = None
        assert await outcome_of(replica.load("request")) == "ok"

    in_virtual_time(work)


def test_a_request_during_backoff_waits_for_the_next_attempt(make_member: MakeMember) -> None:
    async def work() -> None:
        world = EngineWorld(faults=[CRASH])
        replica = _replica(world, make_member())
        assert await outcome_of(replica.load("request")) == "engine_early_exit"
        assert await outcome_of(replica.load("request")) == "ok"
        assert len(world.engines) == 2

    in_virtual_time(work)


def test_a_stop_cancels_a_start_and_leaves_no_process(make_member: MakeMember) -> None:
    async def work() -> None:
        world = EngineWorld(load_s=100)
        replica = _replica(world, make_member())
        loading = asyncio.create_task(outcome_of(replica.load("request")))
        await until(lambda: bool(world.engines))
        await replica.stop("operator", drain_s=1)
        assert world.alive == []
        assert await loading == "stopped"
        assert (replica.phase, replica.stopped_by) == (ReplicaPhase.STOPPED, "operator")
        assert await outcome_of(replica.load("request")) == "stopped"
        assert await outcome_of(replica.load("operator")) == "ok"
        assert replica.stopped_by is None

    in_virtual_time(work)


def test_a_stop_that_fails_is_said_and_the_replica_is_failed(make_member: MakeMember) -> None:
    async def work() -> None:
        world = EngineWorld(stop_fault=EngineError("engine_shutdown_failed", "it outlives SIGKILL"))
        replica = _replica(world, make_member())
        await replica.load("request")
        assert await outcome_of(replica.stop("operator", drain_s=1)) == "engine_shutdown_failed"
        assert replica.phase is ReplicaPhase.FAILED

    in_virtual_time(work)


def test_idle_unload_follows_keep_alive_and_not_a_request(make_member: MakeMember) -> None:
    async def work() -> None:
        world = EngineWorld()
        replica = _replica(world, make_member(keep_alive_secs=10))
        await replica.load("request")
        permit = await replica.gate.acquire("standard")
        await asyncio.sleep(60)
        assert replica.is_ready, "a request that runs keeps it"
        permit.release()
        await asyncio.sleep(8)
        assert replica.is_ready
        await asyncio.sleep(4)
        assert (replica.phase, replica.stopped_by) == (ReplicaPhase.STOPPED, "idle")
        assert world.alive == []
        assert await outcome_of(replica.load("request")) == "ok"

    in_virtual_time(work)


def test_an_idle_engine_whose_health_fails_three_times_is_restarted(make_member: MakeMember) -> None:
    async def work() -> None:
        world = EngineWorld()
        replica = _replica(world, make_member(), interval_s=10)
        await replica.load("request")
        world.health = None
        await asyncio.sleep(25)
        assert replica.is_ready, "two failures are not enough"
        await asyncio.sleep(10)
        assert len(world.engines) == 2
        assert replica.restarts == 1

    in_virtual_time(work)


@pytest.mark.parametrize(
    ("metrics", "progress", "restarts"),
    [("llamacpp:tokens_predicted_total 5\n", False, 1), (None, False, 1), ("moving", False, 0), (None, True, 0)],
)
def test_a_busy_engine_is_judged_by_progress_not_by_its_health_route(
    make_member: MakeMember, metrics: str | None, progress: bool, restarts: int
) -> None:
    async def work() -> None:
        world = EngineWorld(metrics=metrics)
        replica = _replica(world, make_member(), interval_s=10, stall_s=100)
        await replica.load("request")
        await replica.gate.acquire("standard")
        world.health = None
        for tick in range(20):
            if metrics == "moving":
                world.metrics = f"llamacpp:n_decode_total {tick}\n"
            if progress:
                replica.progressed()
            await asyncio.sleep(10)
        assert replica.restarts == restarts

    in_virtual_time(work)


def test_a_retired_replica_refuses_everything_and_is_gone(make_member: MakeMember) -> None:
    async def work() -> None:
        world = EngineWorld()
        replica = _replica(world, make_member())
        await replica.load("request")
        await replica.retire(drain_s=1)
        await replica.retire(drain_s=1)
        assert world.alive == []
        assert await outcome_of(replica.load("operator")) == "draining"
        assert await outcome_of(replica.gate.acquire("standard")) == "draining"
        assert all(client.is_closed for client in world.clients)

    in_virtual_time(work)


def test_every_state_but_none_can_be_left_and_no_other_way_is_taken() -> None:
    assert set(TRANSITIONS) == set(ReplicaPhase)
    for before, allowed in TRANSITIONS.items():
        for after in ReplicaPhase:
            if after in allowed:
                check_transition(before, after)
            else:
                with pytest.raises(RuntimeError):
                    check_transition(before, after)


_STEPS = st.sampled_from(["load", "ask", "stop", "idle", "reset", "die", "wait", "fault", "hang", "use"])


@settings(max_examples=80, deadline=None)
@given(st.lists(_STEPS, max_size=25))
def test_whatever_happens_there_is_one_engine_at_most_and_the_owner_lives(steps: list[str]) -> None:
    async def work() -> None:
        world = EngineWorld()
        replica = _replica(world, member(facts(), "/engine", keep_alive_secs=50), interval_s=10)
        asked: list[asyncio.Task[str]] = []
        for step in steps:
            if step == "load":
                asked.append(asyncio.create_task(outcome_of(replica.load("operator"))))
            elif step == "ask":
                asked.append(asyncio.create_task(outcome_of(replica.load("request"))))
            elif step in ("stop", "idle"):
                by = "operator" if step == "stop" else "idle"
                asked.append(asyncio.create_task(outcome_of(replica.stop(by, drain_s=1))))  # type: ignore[arg-type]
            elif step == "reset":
                asked.append(asyncio.create_task(outcome_of(replica.reset())))
            elif step == "die" and world.alive:
                world.alive[-1].die()
            elif step == "fault":
                world.faults.append(CRASH)
            elif step == "hang":
                world.health = None if world.health else 200
            elif step == "use" and replica.is_ready:
                (await replica.gate.acquire("standard")).release()
            else:
                await asyncio.sleep(7)
            await settle(3)
            assert len(world.alive) <= 1
            assert replica.is_ready <= (replica.launched is not None)
            assert not replica.is_retired, "the owner met a transition that is not in the table"
        await replica.retire(drain_s=1)
        await asyncio.gather(*asked)
        assert world.alive == []

    in_virtual_time(work)
