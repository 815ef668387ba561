"""No more engines than allowed, and who makes room for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.runtime.engine_host import EngineLabel
from sbctl.runtime.replica import Replica
from sbctl.runtime.replica_messages import ReplicaPorts
from sbctl.trust.bundle import DeploymentMember
from tests.simulators.engine_world import EngineWorld, facts, in_virtual_time, outcome_of
from tests.simulators.runtime_world import member

MakeMember = Callable[..., DeploymentMember]


def _replica(name: str, ports: ReplicaPorts, wanted: DeploymentMember) -> Replica:
    return Replica(EngineLabel(name, 0, 1), wanted, ports)


def test_the_longest_idle_one_makes_room_and_comes_back_when_asked(make_member: MakeMember) -> None:
    async def work() -> None:
        world = EngineWorld()
        ports = world.ports(max_engines=2)
        a, b, c = (_replica(name, ports, make_member(warm=False)) for name in "abc")
        await a.load("request")
        await b.load("request")
        await asyncio.sleep(1)
        (await a.gate.acquire("standard")).release()
        await c.load("request")
        assert [replica.is_ready for replica in (a, b, c)] == [True, False, True]
        assert b.stopped_by == "idle"
        assert len(world.alive) == 2
        await b.load("request")
        assert len(world.alive) == 2

    in_virtual_time(work)


def test_warm_busy_and_one_s_own_deployment_stay(make_member: MakeMember) -> None:
    async def work() -> None:
        world = EngineWorld()
        ports = world.ports(max_engines=1)
        held = _replica("held", ports, make_member(warm=True))
        asking = _replica("asking", ports, make_member(warm=False))
        await held.load("reconcile")
        assert await outcome_of(asking.load("request")) == "insufficient_capacity"
        await held.stop("operator", drain_s=1)
        assert await outcome_of(asking.load("operator")) == "ok"
        permit = await asking.gate.acquire("standard")
        assert await outcome_of(held.load("operator")) == "insufficient_capacity"
        permit.release()
        successor = _replica("asking", ports, make_member(warm=False))
        assert await outcome_of(successor.load("reconcile")) == "insufficient_capacity"
        await asking.retire(drain_s=1)
        assert await outcome_of(successor.load("reconcile")) == "ok"

    in_virtual_time(work)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["load", "stop", "die", "use", "wait"]), st.integers(0, 3)), max_size=25),
    st.integers(1, 3),
)
def test_the_bound_holds_at_every_moment(steps: list[tuple[str, int]], bound: int) -> None:
    async def work() -> None:
        world = EngineWorld(stop_s=0.5)
        ports = world.ports(max_engines=bound, interval_s=1000)
        replicas = [_replica(f"d{number}", ports, member(facts(), "/engine", warm=False)) for number in range(4)]
        asked = []
        for what, number in steps:
            replica = replicas[number]
            if what == "load":
                asked.append(asyncio.create_task(outcome_of(replica.load("request"))))
            elif what == "stop":
                asked.append(asyncio.create_task(outcome_of(replica.stop("idle", drain_s=1))))
            elif what == "die" and world.alive:
                world.alive[number % len(world.alive)].die()
            elif what == "use" and replica.is_ready:
                (await replica.gate.acquire("standard")).release()
            await asyncio.sleep(0.4)
            assert len(world.alive) <= bound
        for replica in replicas:
            await replica.retire(drain_s=1)
        await asyncio.gather(*asked)
        assert world.alive == []

    in_virtual_time(work)
