"""Who could not take a replica when it was placed is offered it once, when it can; and nobody moves for a node that comes and goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sbctl.placement.model import ClusterView, Node, PlacementPlan
from sbctl.placement.reconcile import reconcile
from tests.simulators.placement_world import PlacementWorld, cpu_node, demand_of, lie

_NOW = 10_000_000

UNABLE: dict[str, Callable[[Node], Node]] = {
    "no engine is there yet": lambda node: replace(node, engines=()),
    "its engine is of another version": lambda node: replace(
        node, engines=tuple(replace(one, accelerators=frozenset({"vulkan"})) for one in node.engines)
    ),
    "gateways do not reach it yet": lambda node: replace(node, has_endpoint=False),
    "it says that it is unwell": lambda node: replace(node, health="unhealthy"),
    "it stands at an older bundle": lambda node: replace(node, exclusion="behind_active_generation"),
    "it has another label": lambda node: replace(node, labels={"pool": "other"}),
    "it is out of service": lambda node: replace(node, drain="cordon"),
    "it told of no memory": lambda node: replace(node, memory_bytes=0),
}


def _world(*late: str, unable: Callable[[Node], Node], nodes: int = 2) -> PlacementWorld:
    """Two replicas on what is able, with everything running."""
    world = PlacementWorld([cpu_node(f"n{number}", 16, pool="chat") for number in range(nodes)])
    for name in late:
        world.workers[name].node = unable(world.workers[name].node)
    world.now_ms += 60_000
    world.want(demand_of("a", 2, required_labels={"pool": "chat"}))
    world.settle(3)
    return world


def _set(world: PlacementWorld, name: str, change: Callable[[Node], Node]) -> None:
    world.workers[name].node = change(world.workers[name].node)


def _healed(node: Node) -> Node:
    able = cpu_node(node.node_id, 16, pool="chat")
    return replace(able, ready_artifacts=node.ready_artifacts)


@pytest.mark.parametrize("unable", UNABLE.values(), ids=UNABLE)
def test_who_is_able_later_gets_what_it_would_have_had(unable: Callable[[Node], Node]) -> None:
    world = _world("n1", unable=unable)
    assert sorted(lie(world.plan).values()) == ["n0", "n0"], "both had to go to the one that could"
    _set(world, "n1", _healed)
    for _ in range(6):
        world.settle(1)
        assert world.serving("a") >= 2
    assert sorted(lie(world.plan).values()) == ["n0", "n1"]
    assert world.starts == 3, "one moved, and only one"


def test_weights_that_are_there_later_count_where_nobody_fetches_them() -> None:
    world = PlacementWorld([cpu_node(f"n{number}") for number in range(2)])
    one = replace(demand_of("a", 2), pull="manual")
    weights = frozenset(one.ways[0].wanted_artifacts)
    _set(world, "n0", lambda node: replace(node, ready_artifacts=weights))
    world.want(one)
    world.settle(3)
    assert sorted(lie(world.plan).values()) == ["n0", "n0"]
    _set(world, "n1", lambda node: replace(node, ready_artifacts=weights))
    world.settle(6)
    assert sorted(lie(world.plan).values()) == ["n0", "n1"]


def test_who_was_silent_when_a_replica_was_placed_is_offered_that_one() -> None:
    world = PlacementWorld([cpu_node(f"n{number}") for number in range(2)])
    world.want(demand_of("old", 1))
    world.settle(3)
    before = lie(world.plan)["old", 0]
    silent = ({"n0", "n1"} - {before}).pop()
    world.cut(silent)
    world.evaluate(35)
    world.want(demand_of("a", 2))
    world.settle(3)
    world.heal(silent)
    world.settle(6)
    assert {lie(world.plan)["a", 0], lie(world.plan)["a", 1]} == {"n0", "n1"}
    assert lie(world.plan)["old", 0] == before, "it had its chance of the other one before"


@pytest.mark.parametrize("unable", UNABLE.values(), ids=UNABLE)
def test_a_node_that_comes_and_goes_moves_nobody(unable: Callable[[Node], Node]) -> None:
    world = _world(unable=unable, nodes=3)
    if unable is UNABLE["it has another label"]:
        unable = UNABLE["it says that it is unwell"]
    before, starts = lie(world.plan), world.starts
    for _ in range(5):
        for name in sorted(world.workers):
            _set(world, name, unable)
            world.settle(1)
            _set(world, name, _healed)
            world.settle(1)
    assert (lie(world.plan), world.starts) == (before, starts)


def test_a_node_that_comes_and_goes_gets_a_replica_once() -> None:
    unwell = UNABLE["it says that it is unwell"]
    world = _world("n1", unable=unwell, nodes=2)
    for _ in range(6):
        _set(world, "n1", _healed)
        world.settle(2)
        _set(world, "n1", unwell)
        world.settle(2)
    assert sorted(lie(world.plan).values()) == ["n0", "n1"], "an unwell node keeps what it has"
    assert world.starts == 3


def test_what_ends_before_it_begins_anew_is_not_moved() -> None:
    world = PlacementWorld([cpu_node(f"n{number}") for number in range(2)])
    _set(world, "n1", UNABLE["no engine is there yet"])
    world.want(demand_of("a", 2, rollout="recreate"))
    before = lie(world.settle(3))
    _set(world, "n1", _healed)
    assert lie(world.settle(6)) == before
    world.want(demand_of("a", 2, version=2, rollout="recreate"))
    assert sorted(lie(world.settle(6)).values()) == ["n0", "n1"], "with its next generation it is spread"


def test_who_is_owed_a_replica_gets_it_when_the_rollout_is_through() -> None:
    world = _world("n1", unable=UNABLE["no engine is there yet"])
    world.broken.add(("a", "v2"))
    world.want(demand_of("a", 2, version=2, required_labels={"pool": "chat"}))
    world.settle(3)
    for _ in range(3):
        world.evaluate(60)
    assert world.plan.deployments["a"].rollout.phase == "timed_out"
    _set(world, "n1", _healed)
    world.settle(2)
    assert world.serving("a") == 2, "nothing moves while it is stuck"
    world.broken.clear()
    for worker in world.workers.values():
        worker.engines = {key: one for key, one in worker.engines.items() if one.state != "failed"}
    world.settle(8)
    assert world.plan.deployments["a"].rollout.phase == "stable"
    assert sorted(lie(world.plan).values()) == ["n0", "n1"]


def test_the_next_holder_knows_who_is_owed_something() -> None:
    world = _world("n1", unable=UNABLE["no engine is there yet"])
    world.new_controller(plan_lost=False)
    _set(world, "n1", _healed)
    world.settle(6)
    assert sorted(lie(world.plan).values()) == ["n0", "n1"]


def test_nobody_moves_under_the_brake_and_is_owed_it() -> None:
    world = _world("n4", unable=UNABLE["no engine is there yet"], nodes=5)
    world.want(demand_of("b", 5, gib=2))
    world.settle(3)
    assert len(set(lie(world.plan).values())) == 4
    for name in ("n1", "n2", "n3"):
        world.cut(name)
    for _ in range(4):
        world.evaluate(45)
    assert world.plan.brake is not None
    before = lie(world.plan)
    _set(world, "n4", _healed)
    assert lie(world.evaluate()) == before
    for name in ("n1", "n2", "n3"):
        world.heal(name)
    world.settle(6)
    assert {node for (name, _), node in lie(world.plan).items() if name == "b"} == set(world.workers)


def _first(node: Node, *, after_ms: int) -> PlacementPlan:
    nodes = {one.node_id: replace(one, heard_at_ms=_NOW + after_ms) for one in (cpu_node("n0"), node)}
    view = ClusterView(nodes, watching_since_ms=_NOW, expected=frozenset(nodes))
    return reconcile(view, [demand_of("a", 2)], PlacementPlan(), now_ms=_NOW + after_ms, mark=(1, 1))


@pytest.mark.parametrize(
    ("node", "waits"),
    [
        (cpu_node("n1"), False),
        (replace(cpu_node("n1"), has_endpoint=False), True),
        (replace(cpu_node("n1"), health="unhealthy"), True),
        (replace(cpu_node("n1"), exclusion="behind_active_generation"), True),
        (replace(cpu_node("n1"), health="unhealthy", drain="cordon"), False),
        (replace(cpu_node("n1"), has_endpoint=False, is_worker=False), False),
        (replace(cpu_node("n1"), engines=()), False),
    ],
)
def test_a_first_plan_waits_a_while_for_workers_that_just_begin(node: Node, waits: bool) -> None:
    assert _first(node, after_ms=1_000).waits_for == (("n1",) if waits else ())
    late = _first(node, after_ms=30_000)
    assert (late.waits_for, len(late.deployments["a"].target)) == ((), 2)
