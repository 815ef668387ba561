"""From one generation to the next: what serves while it happens, what is said, and what a deadline does not do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sbctl.base.limits import GIB
from sbctl.node.cluster_documents import RolloutPhase
from sbctl.placement.assignments import assignments
from sbctl.placement.explain import rollout_text
from sbctl.placement.model import ClusterView, Device, ObservedReplica, PlacementPlan
from tests.simulators.placement_world import PlacementWorld, cpu_node, demand_of, gpu_node, lie


def _world(nodes: int = 3, memory_gib: int = 16, **fields: object) -> PlacementWorld:
    world = PlacementWorld([cpu_node(f"n{number}", memory_gib) for number in range(nodes)])
    world.want(demand_of("a", **fields))  # type: ignore[arg-type]
    world.settle(3)
    return world


def _phases(world: PlacementWorld, rounds: int = 30, seconds: float = 5) -> list[str]:
    """The phases that a deployment goes through, each named once, while everybody obeys."""
    found: list[str] = []
    for _ in range(rounds):
        phase = world.evaluate(seconds).deployments["a"].rollout.phase
        found += [] if found[-1:] == [phase] else [phase]
        for name in sorted(world.workers):
            world.work(name)
    return found


def _told(plan: PlacementPlan, node_id: str) -> list[tuple[str, int]]:
    return [(part.phase, part.generation) for part in assignments(plan, ClusterView({}))[node_id]]


ROLLING: list[tuple[str, dict[str, object], dict[str, object], list[RolloutPhase]]] = [
    ("beside what it replaces", {"replicas": 2}, {}, ["waiting_for_readiness", "stable"]),
    ("more of the same", {"replicas": 2}, {"replicas": 3, "version": 1}, ["starting", "stable"]),
    ("fewer of the same", {"replicas": 3}, {"replicas": 1, "version": 1}, ["stable"]),
    (
        "no room beside, two replicas",
        {"replicas": 3, "gib": 12},
        {"gib": 12},
        [
            "making_room",
            "waiting_for_readiness",
            "making_room",
            "waiting_for_readiness",
            "making_room",
            "starting",
            "stable",
        ],
    ),
    ("no room beside, one replica", {"replicas": 1, "gib": 12, "nodes": 1}, {"gib": 12}, ["no_room", "timed_out"]),
    (
        "recreate",
        {"replicas": 2, "gib": 12, "rollout": "recreate"},
        {"gib": 12, "rollout": "recreate"},
        ["draining_prior", "starting", "stable"],
    ),
]


@pytest.mark.parametrize(
    ("before", "after", "phases"), [case[1:] for case in ROLLING], ids=[case[0] for case in ROLLING]
)
def test_a_change_goes_through_its_phases(before: dict, after: dict, phases: list[str]) -> None:
    world = _world(**before)
    replicas = after.get("replicas", before["replicas"])
    world.want(demand_of("a", **{"version": 2, **after, "replicas": replicas}))
    assert _phases(world) == phases
    assert all(rollout_text(replace(world.plan.deployments["a"].rollout, phase=phase)) for phase in phases)


def test_the_old_serves_until_all_of_the_new_are_ready() -> None:
    world = _world(replicas=2)
    world.want(demand_of("a", 2, version=2))
    plan = world.evaluate()
    placed = plan.deployments["a"]
    assert placed.generation == 2
    assert {held.draining for held in placed.held} == {False}
    for place in placed.target:
        assert _told(plan, place.node_id) == [("retain", 1), ("start", 2)], "the same nodes, beside the old"
    assert {held.deadline_ms for held in placed.held} == {placed.rollout.deadline_ms}
    for _ in range(8):
        world.evaluate()
        assert world.serving("a") >= 2
        for name in sorted(world.workers):
            world.work(name)
    assert [place.generation for _, place in world.live("a")] == [2, 2]


def test_an_old_replica_goes_as_soon_as_enough_others_serve() -> None:
    world = _world(replicas=2)
    world.want(demand_of("a", 2, version=2))
    first = world.evaluate().deployments["a"].target[0].node_id
    world.work(first)
    held = world.evaluate().deployments["a"].held
    assert sorted(one.draining for one in held) == [False, True]
    assert next(one.place.slot for one in held if one.draining) == 0, "the one whose slot is ready again"


def test_a_deadline_drains_nothing_and_says_so() -> None:
    world = _world(replicas=2)
    world.broken.add(("a", "v2"))
    world.want(demand_of("a", 2, version=2))
    assert _phases(world) == ["waiting_for_readiness", "timed_out"]
    placed = world.plan.deployments["a"]
    assert placed.rollout.timed_out
    assert world.serving("a") == 2
    assert {held.draining for held in placed.held} == {False}
    world.broken.clear()
    assert _phases(world)[-1] == "stable", "late is better than never"
    assert {place.generation for _, place in world.live("a")} == {2}


def test_a_new_change_during_a_rollout_keeps_what_serves() -> None:
    world = _world(replicas=2)
    world.broken.add(("a", "v2"))
    world.want(demand_of("a", 2, version=2))
    _phases(world, 3)
    world.want(demand_of("a", 2, version=3))
    assert _phases(world) == ["waiting_for_readiness", "stable"]
    assert world.plan.deployments["a"].generation == 3
    assert world.plan.deployments["a"].held == ()


def test_recreate_that_fails_takes_up_what_it_took_down() -> None:
    world = _world(replicas=2, gib=12, rollout="recreate")
    world.broken.add(("a", "v2"))
    world.want(demand_of("a", 2, gib=12, version=2, rollout="recreate"))
    assert _phases(world, 60) == ["draining_prior", "starting", "restoring", "restored"]
    placed = world.plan.deployments["a"]
    assert (placed.generation, {place.generation for place in placed.target}) == (2, {1})
    assert (world.serving("a"), placed.rollout.timed_out) == (2, True)
    world.want(demand_of("a", 2, gib=12, version=3, rollout="recreate"))
    assert _phases(world)[-1] == "stable"
    assert {place.generation for _, place in world.live("a")} == {3}


def test_recreate_of_one_replica_leaves_the_others_alone() -> None:
    world = _world(nodes=3, replicas=2, gib=12, rollout="recreate")
    leaving, staying = (place.node_id for place in world.plan.deployments["a"].target)
    world.evacuate(leaving, begin=True)
    plan = world.evaluate()
    assert plan.deployments["a"].rollout.waiting_slots == {0}
    assert _told(plan, leaving) == [("drain", 1)]
    assert _told(plan, staying) == [("start", 1)]
    world.settle()
    assert world.serving("a") == 2
    assert world.live("a", reachable=True)[0][0] != leaving


def test_recreate_waits_for_a_node_that_nobody_hears() -> None:
    world = _world(replicas=1, rollout="recreate")
    world.cut(world.plan.deployments["a"].target[0].node_id)
    world.evaluate(40)
    world.want(demand_of("a", 1, version=2, rollout="recreate"))
    assert world.evaluate(5).deployments["a"].rollout.waiting_slots == {0}
    for _ in range(3):
        world.evaluate(40)
    assert world.plan.losses != {}
    assert world.plan.deployments["a"].rollout.waiting_slots == frozenset(), "once it is lost, nobody waits"


def test_a_deployment_that_left_the_bundle_drains_and_its_number_is_kept() -> None:
    world = _world(replicas=2)
    del world.demands["a"]
    plan = world.evaluate()
    assert plan.deployments["a"].desired == 0
    assert {phase for name in lie(plan) for phase, _ in _told(plan, name[0])} == set()
    assert {held.draining for held in plan.deployments["a"].held} == {True}
    plan = world.settle(4)
    assert (plan.deployments, plan.high_waters, world.live("a")) == ({}, {"a": 1}, [])
    world.want(demand_of("a", 1, version=9))
    assert world.settle(3).deployments["a"].generation == 2


def test_only_what_changed_gets_a_new_generation() -> None:
    world = _world(replicas=1)
    world.want(demand_of("b", 2), demand_of("a", 3))
    world.settle(3)
    world.want(demand_of("b", 2, version=2))
    plan = world.settle(5)
    assert {name: one.generation for name, one in plan.deployments.items()} == {"a": 1, "b": 2}


@pytest.mark.parametrize("state", ["configured", "cached"])
def test_a_cold_deployment_is_ready_without_an_engine_and_without_weights(state: str) -> None:
    world = PlacementWorld([cpu_node("n0")])
    world.want(demand_of("a", 1, warm=False))
    world.evaluate()
    world.work("n0", engines=False)
    engine = next(iter(world.workers["n0"].engines.values()))
    engine.state = state  # type: ignore[assignment]
    assert world.evaluate().deployments["a"].rollout.phase == "stable"


def test_an_evacuated_node_gives_up_what_it_has_once_it_runs_elsewhere() -> None:
    world = _world(replicas=2)
    leaving = world.plan.deployments["a"].target[0].node_id
    world.evacuate(leaving, begin=True)
    for _ in range(8):
        world.evaluate()
        assert world.serving("a") >= 2
        for name in sorted(world.workers):
            world.work(name)
    assert leaving not in {name for name, _ in world.live("a")}


# --- fleets that ran something before there was a cluster


def _own(node_id: str, demand_version: int = 1, generation: int = 4) -> ObservedReplica:
    way = demand_of("a", version=demand_version).ways[0]
    return ObservedReplica("a", generation, way.variant, way.artifact_digest, "ready", member_digest=way.member_digest)


def _fleet(version: int, nodes: int = 3, **fields: object) -> PlacementWorld:
    """Each node runs the deployment by a bundle of its own."""
    world = PlacementWorld(
        replace(cpu_node(f"n{number}"), replicas=(_own(f"n{number}", version),)) for number in range(nodes)
    )
    world._snapshot = lambda worker: replace(worker.node, heard_at_ms=world.now_ms)  # type: ignore[method-assign]
    world.want(demand_of("a", **fields))  # type: ignore[arg-type]
    return world


def test_a_fleet_that_becomes_a_cluster_keeps_what_is_the_same() -> None:
    plan = _fleet(1, replicas=2).evaluate()
    placed = plan.deployments["a"]
    assert [place.slot for place in placed.target] == [0, 1]
    assert len(placed.held) == 1, "there were three: one is given up once two are the cluster's"
    assert not placed.held[0].draining
    assert placed.held[0].place.generation == 4
    assert placed.held[0].place.node_id not in lie(plan).values()
    assert placed.generation == 5, "above the numbers that nodes gave themselves"


def test_a_fleet_that_becomes_a_cluster_retains_what_is_another() -> None:
    placed = _fleet(7, replicas=3).evaluate().deployments["a"]
    assert len(placed.target) == 3
    assert {held.draining for held in placed.held} == {False}
    assert len(placed.held) == 3
    assert placed.generation == 5


def test_several_engines_of_one_host_are_several_replicas() -> None:
    world = _fleet(1, nodes=2, replicas=3)
    for worker in world.workers.values():
        worker.node = replace(worker.node, replicas=(*worker.node.replicas, *worker.node.replicas))
    placed = world.evaluate().deployments["a"]
    assert [place.slot for place in placed.target] == [0, 1, 2]
    assert sorted(place.node_id for place in (*placed.target, *(held.place for held in placed.held))) == [
        "n0",
        "n0",
        "n1",
        "n1",
    ]


def test_what_a_host_let_in_is_taken_over_whatever_it_is_estimated_at() -> None:
    world = _fleet(1, nodes=2, replicas=4, gib=10)
    for worker in world.workers.values():
        worker.node = replace(worker.node, replicas=(*worker.node.replicas, *worker.node.replicas))
    placed = world.evaluate().deployments["a"]
    assert (len(placed.target), placed.held) == (4, ())
    before = lie(world.plan)
    placed = world.evaluate().deployments["a"]
    assert (lie(world.plan), placed.held) == (before, ()), "also while the hosts do not know their new numbers yet"
    world.want(demand_of("b", 1, gib=1))
    assert world.evaluate().deployments["b"].unplaced == 1, "and such a host gets nothing more"


# --- devices


def test_a_replica_over_several_devices_takes_those_with_most_room() -> None:
    mixed = replace(
        gpu_node("n", 4, 24), devices=(*gpu_node("n", 4, 24).devices, Device(4, "cuda", 80 * GIB, "gpu-80"))
    )
    world = PlacementWorld([mixed])
    world.want(
        demand_of("a", 1, gib=10, devices=1), demand_of("b", 1, gib=20, devices=2), demand_of("c", 2, gib=4, devices=4)
    )
    plan = world.settle(3)
    where = {(name, place.slot): place.devices for name, one in plan.deployments.items() for place in one.target}
    assert where["b", 0] == (0, 1)
    assert where["a", 0] == (4,)
    assert where["c", 0] == (0, 1, 2, 3)
    assert plan.deployments["c"].unplaced == 1, "two of the devices have none left"
    assert world.overdrawn() == []


# --- what operators and nodes do in between


def test_an_operator_tries_again_what_was_taken_back() -> None:
    world = _world(replicas=2, gib=12, rollout="recreate")
    world.broken.add(("a", "v2"))
    world.want(demand_of("a", 2, gib=12, version=2, rollout="recreate"))
    _phases(world, 60)
    assert world.plan.deployments["a"].rollout.phase == "restored"
    world.broken.clear()
    world.evaluate(tried_again={"a": 3})
    assert _phases(world) == ["draining_prior", "starting", "stable"]
    assert {(place.generation, place.variant) for _, place in world.live("a")} == {(2, "v2")}


def test_a_second_try_of_a_rolling_rollout_has_a_deadline_of_its_own() -> None:
    world = _world(replicas=2)
    world.broken.add(("a", "v2"))
    world.want(demand_of("a", 2, version=2))
    _phases(world)
    placed = world.evaluate(tried_again={"a": 3}).deployments["a"]
    assert (placed.rollout.phase, placed.rollout.since_ms) == ("waiting_for_readiness", world.now_ms)
    began_ms = world.now_ms
    assert world.evaluate(tried_again={"a": 3}).deployments["a"].rollout.since_ms == began_ms, "a wish is followed once"
    assert world.evaluate(tried_again={"a": 7}).deployments["a"].rollout.since_ms == world.now_ms


def test_what_is_out_of_service_does_not_count_as_serving() -> None:
    world = _world(nodes=2, replicas=2)
    world.want(demand_of("a", 2, version=2))
    first = world.evaluate().deployments["a"].target[0].node_id
    world.work(first)
    world.workers[first].node = replace(world.workers[first].node, drain="cordon", admits=False)
    assert {held.draining for held in world.evaluate().deployments["a"].held} == {False}


def test_a_node_that_comes_back_in_time_takes_its_replica_back() -> None:
    world = _world(nodes=2, replicas=2, gib=12)
    leaving = world.plan.deployments["a"].target[0].node_id
    world.cut(leaving)
    for _ in range(5):
        world.evaluate(40)
    assert world.plan.deployments["a"].unplaced == 1
    world.heal(leaving)
    placed = world.evaluate().deployments["a"]
    assert {(place.slot, place.node_id) for place in placed.target} >= {(0, leaving)}
    assert (placed.rollout.phase, placed.held) == ("stable", ())


def test_nodes_that_are_offered_again_mend_a_spread_that_came_about_when_there_was_no_room() -> None:
    world = PlacementWorld([cpu_node("a1", 16, zone="a"), cpu_node("a2", 16, zone="a"), cpu_node("b1", 16, zone="b")])
    world.want(demand_of("full", 1, gib=14, required_labels={"zone": "b"}))
    world.settle(2)
    world.want(demand_of("a", 2, gib=4, spread_by=("zone",)))
    world.settle(4)
    del world.demands["full"]
    plan = world.settle(4)
    assert {place.node_id for place in plan.deployments["a"].target} == {"a1", "a2"}, "room that is free moves nobody"
    world.evacuate("b1", begin=True)
    world.evaluate()
    world.evacuate("b1", begin=False)
    for _ in range(8):
        assert world.serving("a") >= 2
        plan = world.settle(1)
    assert {place.node_id for place in plan.deployments["a"].target} - {"a1", "a2"} == {"b1"}
    assert plan.deployments["a"].weighed == set(world.workers)


def test_an_old_replica_that_crashed_is_kept_as_long_as_the_new_is_not_ready() -> None:
    world = _world(replicas=1)
    world.broken.add(("a", "v2"))
    world.want(demand_of("a", 1, version=2))
    world.evaluate()
    for worker in world.workers.values():
        for engine in worker.engines.values():
            engine.state = "failed"
    assert [held.draining for held in world.evaluate().deployments["a"].held] == [False], "it may come back"


def test_what_never_served_makes_room_for_what_takes_its_place() -> None:
    world = PlacementWorld([cpu_node("n0", 16)])
    world.want(demand_of("a", 1, gib=12))
    world.evaluate()
    world.want(demand_of("a", 1, gib=12, version=2))
    world.work("n0", engines=False)
    assert world.evaluate().deployments["a"].rollout.phase == "making_room"
    world.settle(5)
    assert [place.variant for _, place in world.live("a")] == ["v2"]


def test_a_replica_that_comes_back_to_a_node_before_it_has_left_it_is_another_one() -> None:
    world = _world(nodes=2, replicas=1)
    first = world.plan.deployments["a"].target[0].node_id
    second = ({"n0", "n1"} - {first}).pop()
    world.evacuate(first, begin=True)
    world.evaluate()
    world.work(second)
    assert [held.draining for held in world.evaluate().deployments["a"].held] == [True]
    world.evacuate(first, begin=False)
    world.evacuate(second, begin=True)
    placed = world.evaluate().deployments["a"]
    assert [(place.node_id, place.slot) for place in placed.target] == [(first, 1)]
    assert [(held.place.node_id, held.place.slot, held.draining) for held in placed.held] == [
        (first, 0, True),
        (second, 0, False),
    ]
    world.settle()
    assert len(world.live("a")) == world.serving("a") == 1
