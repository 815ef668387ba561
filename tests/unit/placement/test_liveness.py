"""Silence: unreachable, lost, and the brake that keeps a fault of ours from moving the fleet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sbctl.placement.assignments import assignments
from sbctl.placement.explain import brake_text
from sbctl.placement.liveness import Liveness, judge
from sbctl.placement.model import ClusterView, Loss, PlacementPlan, PlacementPolicy
from sbctl.placement.reconcile import reconcile
from tests.simulators.placement_world import PlacementWorld, cpu_node, demand_of, lie

POLICY = PlacementPolicy(unreachable_after_ms=30_000, lost_after_ms=120_000, brake_percent=40, brake_window_ms=600_000)
NOW = 10_000_000


def _judged(
    silent_s: dict[str, float],
    prior: dict[str, Loss] | None = None,
    confirmed: set[str] | None = None,
    watching_s: float = 9000,
) -> Liveness:
    nodes = {name: replace(cpu_node(name), heard_at_ms=NOW - int(silent * 1000)) for name, silent in silent_s.items()}
    view = ClusterView(nodes, watching_since_ms=NOW - int(watching_s * 1000))
    return judge(view, set(nodes), prior or {}, policy=POLICY, confirmed=confirmed or set(), now_ms=NOW)


FRESH = dict.fromkeys(("f1", "f2", "f3", "f4"), 1.0)


@pytest.mark.parametrize(
    ("silent_s", "state"),
    [(0, None), (29.9, None), (30, "unreachable"), (119.9, "unreachable"), (120, "lost"), (8000, "lost")],
)
def test_silence_has_two_stages(silent_s: float, state: str | None) -> None:
    judged = _judged({**FRESH, "n": silent_s})
    assert (judged.losses["n"].state if "n" in judged.losses else None) == state
    assert judged.brake is None


@pytest.mark.parametrize(
    ("workers", "silent", "lost"),
    [
        (1, 1, 1),
        (2, 1, 1),
        (2, 2, 0),
        (3, 1, 1),
        (3, 2, 0),
        (5, 2, 2),
        (5, 3, 0),
        (10, 4, 4),
        (10, 5, 0),
        (100, 40, 40),
        (100, 41, 0),
    ],
)
def test_more_than_a_share_of_the_workers_at_once_moves_nothing(workers: int, silent: int, lost: int) -> None:
    judged = _judged({f"n{number}": 300 if number < silent else 1 for number in range(workers)})
    assert sum(loss.state == "lost" for loss in judged.losses.values()) == lost
    assert (judged.brake is not None) == (lost == 0)


def test_those_who_are_about_to_be_lost_count_too() -> None:
    """Nodes die together and their clocks do not: the first is never lost while the others are silent already."""
    judged = _judged({"a": 121, "b": 100, "c": 90, "d": 1, "e": 1})
    assert {name: loss.state for name, loss in judged.losses.items()} == dict.fromkeys("abc", "unreachable")
    assert judged.brake is not None
    assert brake_text(judged.brake) == (
        "3 of 5 workers are silent or were lost a short while ago, and at most 2 may be: nothing is placed anew for a"
    )


def test_losses_one_after_another_add_up_within_the_window() -> None:
    early = {name: Loss("lost", NOW - 60_000) for name in ("a", "b")}
    silent = {"a": 500, "b": 500, "c": 130, **FRESH}
    assert _judged(silent, early).losses["c"].state == "unreachable"
    before = {name: Loss("lost", NOW - 700_000) for name in ("a", "b")}
    assert _judged(silent, before).losses["c"].state == "lost"


def test_nobody_is_lost_while_the_store_is_not_heard() -> None:
    view = ClusterView({"a": replace(cpu_node("a"), heard_at_ms=NOW - 900_000)}, stale_since_ms=NOW - 800_000)
    judged = judge(view, {"a"}, {}, policy=POLICY, confirmed=(), now_ms=NOW)
    assert judged.losses["a"].state == "unreachable"
    assert judged.brake is not None
    assert brake_text(judged.brake) == "the store is not heard: nothing is placed anew for a"


def test_an_operator_confirms_who_is_gone() -> None:
    judged = _judged({"a": 300, "b": 300, "c": 300, "d": 1}, confirmed={"a", "b"})
    assert {name: loss.state for name, loss in judged.losses.items()} == dict.fromkeys("abc", "lost")
    assert judged.brake is None


def test_a_reader_that_just_began_calls_nobody_lost() -> None:
    judged = _judged(dict.fromkeys("abcd", 5000.0), watching_s=10)
    assert {loss.state for loss in judged.losses.values()} == {"unreachable"}
    assert judged.brake is None


def test_who_was_lost_stays_lost_for_a_new_reader_until_it_is_heard() -> None:
    prior = {"a": Loss("lost", NOW - 5000)}
    assert _judged({**FRESH, "a": 5000}, prior, watching_s=10).losses["a"] == prior["a"]
    assert _judged({**FRESH, "a": 2}, prior, watching_s=10).losses.keys() == set()


# --- what it does to placement


def _world(nodes: int = 5, replicas: int = 3) -> PlacementWorld:
    world = PlacementWorld([cpu_node(f"n{number}") for number in range(nodes)])
    world.want(demand_of("a", replicas), demand_of("b", 2))
    world.settle(3)
    return world


def test_an_unreachable_node_keeps_its_replicas_and_a_lost_one_gives_them_up() -> None:
    world = _world()
    before = lie(world.plan)
    victim = before["a", 0]
    world.cut(victim)
    for seconds in (20, 20, 70):
        assert lie(world.evaluate(seconds)) == before
    after = lie(world.evaluate(40))
    assert victim not in after.values()
    assert {key: node for key, node in before.items() if node != victim}.items() <= after.items()


def test_a_node_that_comes_back_after_its_replicas_moved_drains_what_it_still_runs() -> None:
    world = _world()
    victim = lie(world.plan)["a", 0]
    world.cut(victim)
    for _ in range(6):
        world.evaluate(30)
        for name in sorted(world.workers):
            world.work(name)
    assert world.serving("a") == 3
    world.heal(victim)
    plan = world.settle()
    assert plan.losses == {}
    assert [len(world.live(name)) for name in ("a", "b")] == [3, 2]
    assert world.overdrawn() == []


def test_a_cut_store_moves_nothing_and_says_so() -> None:
    world = _world()
    before = lie(world.plan)
    for name in list(world.workers)[:3]:
        world.cut(name)
    for _ in range(10):
        world.evaluate(60)
    assert lie(world.plan) == before
    assert world.plan.brake is not None
    for name in list(world.workers)[:3]:
        world.heal(name)
    world.evaluate()
    assert (world.plan.brake, lie(world.plan)) == (None, before)


def test_a_node_that_an_operator_removed_is_not_waited_for() -> None:
    world = _world()
    victim = lie(world.plan)["a", 0]
    world.removed.add(victim)
    assert victim not in lie(world.evaluate(1)).values()


@pytest.mark.parametrize("plan_lost", [False, True])
def test_a_new_controller_moves_nothing(plan_lost: bool) -> None:
    world = _world()
    before, generations = lie(world.plan), {name: one.generation for name, one in world.plan.deployments.items()}
    world.new_controller(plan_lost=plan_lost)
    plan = world.settle()
    assert lie(plan) == before
    assert {name: one.generation for name, one in plan.deployments.items()} == generations
    assert {one.rollout.phase for one in plan.deployments.values()} == {"stable"}


def test_a_controller_that_heard_only_some_keeps_the_places_of_the_others() -> None:
    world = _world()
    before = lie(world.plan)
    world.cut(before["a", 1])
    world.new_controller(plan_lost=False)
    assert lie(world.evaluate(1)) == before


def test_a_first_plan_waits_for_who_may_run_something_already() -> None:
    nodes = {name: replace(cpu_node(name), heard_at_ms=NOW) for name in ("a", "b")}
    view = ClusterView(nodes, watching_since_ms=NOW, expected=frozenset(("a", "b", "c")))
    plan = reconcile(view, [demand_of("x")], PlacementPlan(), now_ms=NOW + 1000, mark=(1, 1))
    assert (plan.waits_for, plan.deployments) == (("c",), {})
    assert assignments(plan, view) == {}
    heard = {name: replace(node, heard_at_ms=NOW + 25_000) for name, node in nodes.items()}
    later = reconcile(replace(view, nodes=heard), [demand_of("x")], plan, now_ms=NOW + 30_000, mark=(1, 2))
    assert (later.waits_for, len(later.deployments["x"].target)) == ((), 1)
    at_once = reconcile(
        replace(view, expected=frozenset(nodes)), [demand_of("x")], plan, now_ms=NOW + 1000, mark=(1, 2)
    )
    assert len(at_once.deployments["x"].target) == 1


def test_a_controller_that_knows_nothing_tells_nobody_to_stop() -> None:
    world = _world()
    for name in world.workers:
        world.cut(name)
    world.new_controller(plan_lost=True)
    for _ in range(5):
        world.evaluate(40)
    assert assignments(world.plan, world.view) == {}
    for name in world.workers:
        world.heal(name)
    world.settle()
    assert (world.serving("a"), world.serving("b")) == (3, 2)
