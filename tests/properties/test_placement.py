"""Placement keeps its promises for fleets of any shape: order, moves, spread, capacity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import product
from random import Random

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sbctl.base.limits import GIB
from sbctl.placement.model import (
    ClusterView,
    DeploymentDemand,
    Mark,
    Node,
    ObservedReplica,
    PlacementPlan,
    PlacementPolicy,
)
from sbctl.placement.reconcile import reconcile
from tests.simulators.placement_world import cpu_node, demand_of, gpu_node, lie

_SHAPES = ((8, 0, 0), (16, 0, 0), (32, 1, 24), (32, 2, 24), (64, 4, 24), (64, 2, 48))
_LABELS = st.fixed_dictionaries({}, optional={"zone": st.sampled_from("abc"), "rack": st.sampled_from("12")})


@st.composite
def _nodes(draw: st.DrawFn, least: int = 1) -> list[Node]:
    found = []
    for number in range(draw(st.integers(least, 7))):
        memory, devices, gib = draw(st.sampled_from(_SHAPES))
        labels = draw(_LABELS)
        name = f"node-{number}"
        found.append(
            gpu_node(name, devices, gib, memory_gib=memory, **labels) if devices else cpu_node(name, memory, **labels)
        )
    return found


@st.composite
def _demands(draw: st.DrawFn) -> list[DeploymentDemand]:
    return [
        demand_of(
            f"model-{number}",
            draw(st.integers(1, 4)),
            gib=draw(st.integers(1, 14)),
            devices=draw(st.sampled_from((0, 0, 1, 2))),
            spread_by=draw(st.sampled_from(((), ("zone",), ("zone", "rack")))),
            required_labels=draw(st.sampled_from(({}, {}, {"zone": "a"}))),
            warm=draw(st.sampled_from((True, True, False))),
        )
        for number in range(draw(st.integers(1, 6)))
    ]


def _view(nodes: Iterable[Node], plan: PlacementPlan | None = None, mark: Mark = (1, 0)) -> ClusterView:
    """Nodes that run exactly what the plan says, with all of it ready."""
    shown: dict[str, list[ObservedReplica]] = {}
    for name, placed in plan.deployments.items() if plan else ():
        for place in placed.target:
            one = ObservedReplica(
                name, place.generation, place.variant, place.artifact_digest, "ready", slot=place.slot
            )
            shown.setdefault(place.node_id, []).append(
                replace(one, member_digest=place.member_digest, devices=place.devices)
            )
    return ClusterView(
        {
            node.node_id: replace(
                node,
                heard_at_ms=1,
                replicas=tuple(shown.get(node.node_id, ())),
                acknowledged=mark,
                ready_artifacts=frozenset(one.artifact_digest for one in shown.get(node.node_id, ())),
            )
            for node in nodes
        }
    )


def _settle(
    nodes: list[Node], demands: list[DeploymentDemand], plan: PlacementPlan, mark: int = 1
) -> tuple[PlacementPlan, int]:
    """Evaluate until nothing changes any more."""
    for _ in range(40):
        after = reconcile(_view(nodes, plan, (1, mark - 1)), demands, plan, now_ms=2, mark=(1, mark))
        if lie(after) == lie(plan) and after.deployments == plan.deployments:
            return after, mark
        plan, mark = after, mark + 1
    raise AssertionError("never settles")


@given(nodes=_nodes(), demands=_demands(), seed=st.integers(0, 1000))
def test_the_order_of_the_input_never_matters(nodes: list[Node], demands: list[DeploymentDemand], seed: int) -> None:
    random = Random(seed)
    shuffled, asked = random.sample(nodes, len(nodes)), random.sample(demands, len(demands))
    turned = [replace(node, labels=dict(reversed(node.labels.items()))) for node in shuffled]
    first = reconcile(_view(nodes), demands, PlacementPlan(), now_ms=2, mark=(1, 1))
    assert reconcile(_view(turned), asked, PlacementPlan(), now_ms=2, mark=(1, 1)) == first


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(nodes=_nodes(2), demands=_demands(), gone=st.integers(0, 6))
def test_a_node_that_leaves_moves_only_what_it_had(
    nodes: list[Node], demands: list[DeploymentDemand], gone: int
) -> None:
    plan, mark = _settle(nodes, demands, PlacementPlan())
    name = nodes[gone % len(nodes)].node_id
    view = replace(_view(nodes, plan, (1, mark)), removed=frozenset({name}))
    after = lie(reconcile(view, demands, plan, now_ms=3, mark=(1, mark + 1)))
    before = lie(plan)
    assert {key: node for key, node in before.items() if node != name}.items() <= after.items()
    assert name not in after.values()


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(nodes=_nodes(2), demands=_demands(), joins=st.integers(0, 6))
def test_a_node_that_joins_moves_only_what_goes_to_it(
    nodes: list[Node], demands: list[DeploymentDemand], joins: int
) -> None:
    late = nodes[joins % len(nodes)]
    plan, mark = _settle([node for node in nodes if node is not late], demands, PlacementPlan())
    before = lie(plan)
    plan, _ = _settle(nodes, demands, plan, mark)
    after = lie(plan)
    assert before.keys() <= after.keys()
    assert {after[key] for key, node in before.items() if after[key] != node} <= {late.node_id}
    assert plan.known == {node.node_id for node in nodes}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(nodes=_nodes(2), demands=_demands(), joins=st.integers(0, 6))
def test_a_node_without_limits_of_room_takes_what_plain_rendezvous_gives_it(
    nodes: list[Node], demands: list[DeploymentDemand], joins: int
) -> None:
    """Where there is room for everything everywhere, the way to a fleet does not matter."""
    size = 10_000 * GIB
    nodes = [
        replace(node, memory_bytes=size, devices=tuple(replace(d, total_bytes=size) for d in node.devices))
        for node in nodes
    ]
    demands = [replace(one, replicas=1, spread_by=()) for one in demands]
    late = nodes[joins % len(nodes)]
    policy = PlacementPolicy(weights_factor=1.0)
    fresh = lie(reconcile(_view(nodes), demands, PlacementPlan(), now_ms=2, mark=(1, 1), policy=policy))
    grown = PlacementPlan()
    for several in ([node for node in nodes if node is not late], nodes):
        for mark in range(1, 20):
            grown = reconcile(
                _view(several, grown, (1, mark)), demands, grown, now_ms=2, mark=(1, mark + 1), policy=policy
            )
    assert lie(grown) == fresh


@given(nodes=_nodes(), demands=_demands())
def test_no_node_gives_more_than_it_has_and_nobody_waits_who_could_be_placed(
    nodes: list[Node], demands: list[DeploymentDemand]
) -> None:
    plan = reconcile(_view(nodes), demands, PlacementPlan(), now_ms=2, mark=(1, 1))
    taken: Counter[tuple[str, str | int]] = Counter()
    turns: dict[tuple[str, str | int], int] = {}
    for one in demands:
        placed = plan.deployments[one.deployment]
        for place in placed.target:
            for what, size in (("host", place.host_bytes), *((index, place.device_bytes) for index in place.devices)):
                if one.warm:
                    taken[place.node_id, what] += size
                else:
                    turns[place.node_id, what] = max(size, turns.get((place.node_id, what), 0))
            assert len(set(place.devices)) == one.ways[0].devices
        assert len({place.slot for place in placed.target}) == len(placed.target)
        assert placed.unplaced == 0 or placed.refusals.keys() == {node.node_id for node in nodes}
    for node in nodes:
        for what, size in (
            ("host", node.memory_bytes),
            *((device.index, device.total_bytes) for device in node.devices),
        ):
            assert taken[node.node_id, what] + turns.get((node.node_id, what), 0) <= size


@given(
    rooms=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=6),
    replicas=st.integers(1, 6),
)
def test_spread_is_as_even_as_any_choice_could_be(rooms: list[tuple[str, int]], replicas: int) -> None:
    nodes = [
        cpu_node(f"n{number}", memory_gib=max(1, 4 * room), zone=zone) for number, (zone, room) in enumerate(rooms)
    ]
    assume(sum(room for _, room in rooms) >= replicas)
    one = demand_of("a", replicas, gib=4, spread_by=("zone",))
    placed = reconcile(_view(nodes), [one], PlacementPlan(), now_ms=2, mark=(1, 1)).deployments["a"].target
    zones = dict(zip((node.node_id for node in nodes), (zone for zone, _ in rooms), strict=True))
    assert _evenness(zones[place.node_id] for place in placed) == min(
        _evenness(rooms[number][0] for number, count in enumerate(counts) for _ in range(count))
        for counts in product(*(range(room + 1) for _, room in rooms))
        if sum(counts) == replicas
    )


_UNABLE: tuple[Callable[[Node], Node], ...] = (
    lambda node: replace(node, engines=()),
    lambda node: replace(node, health="unhealthy"),
    lambda node: replace(node, has_endpoint=False),
    lambda node: replace(node, exclusion="behind_active_generation"),
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    nodes=_nodes(2),
    demands=_demands(),
    late=st.sets(st.integers(0, 6)),
    why=st.sampled_from(_UNABLE),
    order=st.randoms(use_true_random=False),
)
def test_nodes_that_become_able_one_by_one_get_what_they_would_have_had_at_once(
    nodes: list[Node], demands: list[DeploymentDemand], late: set[int], why: Callable[[Node], Node], order: Random
) -> None:
    """Where there is room for everything everywhere: over the same nodes, as even over the first label."""
    size = 10_000 * GIB
    nodes = [
        replace(node, memory_bytes=size, devices=tuple(replace(d, total_bytes=size) for d in node.devices))
        for node in nodes
    ]
    at_once, _ = _settle(nodes, demands, PlacementPlan())
    able = {node.node_id: number not in late for number, node in enumerate(nodes)}
    assume(any(able.values()) and not all(able.values()))
    waiting = [name for name, is_able in able.items() if not is_able]
    order.shuffle(waiting)
    plan, mark = PlacementPlan(), 1
    for name in ("", *waiting):
        able[name] = True
        shown = [node if able[node.node_id] else why(node) for node in nodes]
        before = lie(plan)
        plan, mark = _settle(shown, demands, plan, mark)
        assert {lie(plan)[key] for key, node in before.items() if lie(plan)[key] != node} <= {name}
    zones = {node.node_id: node.labels.get("zone", "") for node in nodes}
    for one in demands:
        if one.spread_by:
            assert _evenness(_of(plan, one, zones)) == _evenness(_of(at_once, one, zones)), one


def _of(plan: PlacementPlan, demand: DeploymentDemand, zones: Mapping[str, str]) -> list[str]:
    return [zones[place.node_id] for place in plan.deployments[demand.deployment].target]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    nodes=_nodes(2),
    demands=_demands(),
    flips=st.lists(st.tuples(st.integers(0, 6), st.sampled_from(_UNABLE), st.booleans()), max_size=8),
)
def test_health_that_comes_and_goes_moves_nobody(
    nodes: list[Node], demands: list[DeploymentDemand], flips: list[tuple[int, Callable[[Node], Node], bool]]
) -> None:
    plan, mark = _settle(nodes, demands, PlacementPlan())
    before, shown = lie(plan), list(nodes)
    for number, why, is_able in flips:
        index = number % len(nodes)
        shown[index] = nodes[index] if is_able else why(nodes[index])
        mark += 1
        plan = reconcile(_view(shown, plan, (1, mark - 1)), demands, plan, now_ms=2, mark=(1, mark))
        assert lie(plan) == before


def _evenness(zones: Iterable[str]) -> tuple[int, ...]:
    return tuple(sorted(Counter(zones).values(), reverse=True))
