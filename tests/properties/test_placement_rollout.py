"""Whatever happens to nodes, words and engines: a rolling deployment serves, a recreated one never runs twice, no node holds more than it has."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbctl.placement.occasion import occasion_of
from sbctl.placement.reconcile import reconcile
from tests.simulators.placement_world import PlacementWorld, cpu_node, demand_of

NODES = [
    replace(cpu_node(f"n{number}", memory_gib=10, zone="ab"[number % 2]), max_engines=(None, 3)[number // 2])
    for number in range(4)
]

_EVALUATE = st.tuples(st.just("evaluate"), st.sampled_from((1, 5, 20, 61)), st.booleans())
_EVACUATE = st.tuples(st.just("evacuate"), st.integers(0, 3), st.booleans())
_WORK = st.tuples(st.just("work"), st.integers(0, 3), st.booleans())
_CHANGE = st.tuples(st.just("change"), st.integers(0, 1), st.integers(1, 3), st.booleans())
_EVENTS = st.one_of(_EVALUATE, _EVALUATE, _WORK, _WORK, _WORK, _CHANGE, _EVACUATE)
_STEPS = st.lists(_EVENTS, max_size=40)
_CONTROLLER = st.tuples(st.just("controller"), st.just(False))
_LINK = st.tuples(st.sampled_from(("cut", "kill", "heal")), st.integers(0, 3))
_SIZES = st.sampled_from(((1, 3), (2, 5), (4, 3), (4, 5), (4, 7), (1, 7), (2, 7)))
"""Nodes of 10 GiB, and GiB of a replica: with room for old and new, for some of both, and for one of them only."""


def _world(rollout: str, replicas: int, nodes: int, gib: int) -> PlacementWorld:
    world = PlacementWorld(NODES[:nodes])
    world.want(demand_of("a", replicas, gib=gib, rollout=rollout), demand_of("b", 1, gib=3))  # type: ignore[arg-type]
    world.settle(4)
    return world


def _step(world: PlacementWorld, step: tuple, rollout: str, gib: int, versions: list[int]) -> None:
    match step:
        case ("evaluate", seconds, fresh):
            world.evaluate(seconds, fresh=fresh)
        case ("work", number, engines) if f"n{number}" in world.workers:
            world.work(f"n{number}", engines=engines)
        case ("evacuate", number, begin) if f"n{number}" in world.workers:
            world.evacuate(f"n{number}", begin=begin)
        case ("change", which, replicas, is_broken):
            versions[0] += 1
            name = "ab"[which]
            if is_broken:
                world.broken.add((name, f"v{versions[0]}"))
            world.want(
                demand_of(name, replicas, gib=gib, version=versions[0], rollout=rollout if name == "a" else "rolling")
            )  # type: ignore[arg-type]
        case ("cut" | "kill" | "heal" as event, number):
            getattr(world, event)(f"n{number}")
        case ("controller", plan_lost):
            world.new_controller(plan_lost=plan_lost)


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(steps=_STEPS, replicas=st.integers(1, 3), size=_SIZES)
def test_rolling_never_serves_with_nobody(steps: list[tuple], replicas: int, size: tuple[int, int]) -> None:
    world, versions = _world("rolling", replicas, *size), [1]
    assert world.serving("a") >= 1
    had_room = world.serving("b")
    for step in steps:
        _step(world, step, "rolling", size[1], versions)
        assert world.serving("a") >= 1, step
        assert world.serving("b") >= had_room, step
        assert world.overdrawn() == [], step


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(st.one_of(_EVENTS, _CONTROLLER), max_size=40), replicas=st.integers(1, 3), size=_SIZES)
def test_recreate_never_runs_two_engines_for_one_replica(
    steps: list[tuple], replicas: int, size: tuple[int, int]
) -> None:
    world, versions = _world("recreate", replicas, *size), [1]
    for step in steps:
        _step(world, step, "recreate", size[1], versions)
        live = world.live("a")
        assert len({place.generation for _, place in live}) <= 1, step
        assert len({place.slot for _, place in live}) == len(live), step
        assert world.overdrawn() == [], step


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(st.one_of(_EVENTS, _LINK, st.tuples(st.just("controller"), st.booleans())), max_size=40),
    rollout=st.sampled_from(("rolling", "recreate")),
    replicas=st.integers(1, 3),
)
def test_what_can_be_brought_up_is_stable_in_the_end(steps: list[tuple], rollout: str, replicas: int) -> None:
    world, versions = _world(rollout, replicas, 4, 3), [1]
    for step in steps:
        _step(world, step, rollout, 3, versions)
        assert world.overdrawn() == [], step
    world.broken.clear()
    for number in range(4):
        world.heal(f"n{number}")
        world.evacuate(f"n{number}", begin=False)
    versions[0] += 1
    world.want(demand_of("a", replicas, gib=3, version=versions[0], rollout=rollout))  # type: ignore[arg-type]
    world.want(demand_of("b", 1, gib=3, version=versions[0]))
    plan = world.settle(20)
    for name, count in (("a", replicas), ("b", 1)):
        placed = plan.deployments[name]
        assert (placed.rollout.phase, placed.rollout.target_ready, placed.held) == ("stable", True, ()), placed
        assert len(world.live(name)) == world.serving(name) == count


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    owned=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 2), st.integers(1, 9), st.integers(1, 2)), min_size=1, max_size=4
    ),
    replicas=st.integers(1, 4),
    steps=st.lists(st.one_of(_EVALUATE, _WORK, _WORK), max_size=30),
)
def test_a_fleet_becomes_a_cluster_without_an_outage(
    owned: list[tuple[int, int, int, int]], replicas: int, steps: list[tuple]
) -> None:
    world = PlacementWorld(NODES)
    for number, version, generation, count in {one[0]: one for one in owned}.values():
        world.had(f"n{number}", demand_of("a", gib=3, version=version), generation, count)
    same = sum(one.variant == "v1" for worker in world.workers.values() for one in worker.own)
    world.want(demand_of("a", replicas, gib=3))
    for step in steps:
        _step(world, step, "rolling", 3, [1])
        assert world.serving("a") >= 1, step
    plan = world.settle(15)
    assert plan.deployments["a"].rollout.phase == "stable"
    assert len(world.live("a")) == world.serving("a") == replicas
    assert world.starts == max(0, replicas - same), "what is the same is taken over as it runs"


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(
        st.one_of(
            _EVENTS,
            _LINK,
            st.tuples(st.just("controller"), st.booleans()),
            st.tuples(st.just("later"), st.sampled_from((1, 29, 31, 61, 119, 601)), st.booleans()),
        ),
        max_size=40,
    ),
    rollout=st.sampled_from(("rolling", "recreate")),
)
def test_an_occasion_that_is_no_other_makes_no_other_plan(steps: list[tuple], rollout: str) -> None:
    """So a controller that has seen one leave its plan as it was need not evaluate at the next."""
    world, versions = _world(rollout, 2, 4, 3), [1]
    rests: object = None
    for step in steps:
        if step[0] == "later":
            world.now_ms += step[1] * 1000
            if step[2]:
                world.publish()
        else:
            _step(world, step, rollout, 3, versions)
        said = {name: replace(node, heard_at_ms=0) for name, node in world.view.nodes.items()}
        occasion = occasion_of(world.view, said, world.plan, policy=world.policy, now_ms=world.now_ms)
        basis = occasion, dict(world.demands), world.plan
        mark = (world.mark[0], world.mark[1] + 1)
        after = reconcile(
            world.view, world.demands.values(), world.plan, now_ms=world.now_ms, mark=mark, policy=world.policy
        )
        assert rests != basis or after == world.plan, step
        rests = basis if after == world.plan else None
