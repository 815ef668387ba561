"""What moves, in one line each, with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sbctl.placement.changes import change_text, changes
from tests.simulators.placement_world import PlacementWorld, cpu_node, demand_of


def _world() -> PlacementWorld:
    world = PlacementWorld([cpu_node(f"n{number}", 16, zone="a") for number in range(3)])
    world.want(demand_of("chat", 2, gib=6, required_labels={"zone": "a"}))
    world.settle(3)
    return world


def _relabel(world: PlacementWorld) -> None:
    for name in {place.node_id for place in world.plan.deployments["chat"].target}:
        world.workers[name].node = replace(world.workers[name].node, labels={"zone": "b"})


def _shrink(world: PlacementWorld) -> None:
    name = world.plan.deployments["chat"].target[0].node_id
    world.workers[name].node = replace(world.workers[name].node, memory_bytes=1)
    world.workers[name].engines.clear()


def _lose(world: PlacementWorld) -> None:
    world.cut(world.plan.deployments["chat"].target[0].node_id)
    for _ in range(3):
        world.evaluate(39)


def _first(world: PlacementWorld) -> str:
    return world.plan.deployments["chat"].target[0].node_id


CASES: list[tuple[Callable[[PlacementWorld], object], list[str]]] = [
    (lambda world: None, []),
    (lambda world: world.want(demand_of("other")), ["other replica 0: on {other} (new, weights to fetch)"]),
    (lambda world: world.want(demand_of("chat", 3, gib=6)), ["chat replica 2: on {free} (new, weights to fetch)"]),
    (lambda world: world.want(demand_of("chat", 1, gib=6)), ["chat replica 1: {second} → nowhere (fewer are wanted)"]),
    (
        lambda world: world.demands.clear(),
        [
            "chat replica 0: {first} → nowhere (the deployment is gone)",
            "chat replica 1: {second} → nowhere (the deployment is gone)",
        ],
    ),
    (
        lambda world: world.want(demand_of("chat", 2, gib=6, version=2)),
        [
            "chat replica 0: on {first} (changed, weights to fetch)",
            "chat replica 1: on {second} (changed, weights to fetch)",
        ],
    ),
    (_lose, ["chat replica 0: {first} → {free} (the node is lost, weights to fetch)"]),
    (
        lambda world: world.removed.add(_first(world)),
        ["chat replica 0: {first} → {free} (the node was removed, weights to fetch)"],
    ),
    (
        lambda world: world.evacuate(_first(world), begin=True),
        ["chat replica 0: {first} → {free} (the node was taken out of service, weights to fetch)"],
    ),
    (
        _relabel,
        [
            "chat replica 0: {first} → {free} (the node's labels do not match any more, weights to fetch)",
            "chat replica 1: {second} → {free} (the node's labels do not match any more, weights to fetch)",
        ],
    ),
    (_shrink, ["chat replica 0: {first} → {free} (the node has no room for it any more, weights to fetch)"]),
]


@pytest.mark.parametrize(("happens", "lines"), CASES)
def test_each_change_has_one_line(happens: Callable[[PlacementWorld], object], lines: list[str]) -> None:
    world = _world()
    before = world.plan
    first, second = (place.node_id for place in before.deployments["chat"].target)
    names = {"first": first, "second": second, "free": ({"n0", "n1", "n2"} - {first, second}).pop()}
    happens(world)
    after = world.evaluate()
    names["other"] = next(
        (p.node_id for one in after.deployments.values() if one.deployment == "other" for p in one.target), ""
    )
    found = changes(before, after, world.view, world.demands)
    assert sorted({change_text(one) for one in found}) == sorted(line.format(**names) for line in lines)


def test_a_newcomer_is_named_as_the_reason() -> None:
    world = PlacementWorld([cpu_node("n0", 64), cpu_node("n1", 256)])
    late = world.workers.pop("n1")
    world.want(*(demand_of(f"m{number}", gib=2) for number in range(12)))
    before = world.settle(3)
    world.workers["n1"] = late
    found = changes(before, world.evaluate(), world.view, world.demands)
    assert found
    assert {one.why for one in found} == {"newcomer"}
    assert {one.after.node_id for one in found if one.after} == {"n1"}
    assert all(one.before and one.after and one.before.node_id != "n1" for one in found)
