"""Groups of devices: exact, of one kind, never beyond what a device has, the same whatever order, and moved only when they must."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbctl.base.limits import GIB
from sbctl.placement.model import ClusterView, DeploymentDemand, Device, Node, ObservedReplica, PlacementPlan
from sbctl.placement.reconcile import reconcile
from tests.simulators.placement_world import cpu_node, demand_of, gpu_node

_KINDS = (("L4", 24), ("L40", 48), ("A100", 80))


@st.composite
def _nodes(draw: st.DrawFn) -> list[Node]:
    found = []
    for number in range(draw(st.integers(1, 4))):
        kinds = draw(st.lists(st.sampled_from(_KINDS), max_size=6))
        numbers = draw(st.permutations(range(len(kinds))))
        devices = tuple(
            Device(index, "cuda", gib * GIB, name) for index, (name, gib) in zip(numbers, kinds, strict=True)
        )
        name = f"n{number}"
        found.append(replace(gpu_node(name), devices=devices) if devices else cpu_node(name, 64))
    return found


@st.composite
def _demands(draw: st.DrawFn) -> list[DeploymentDemand]:
    return [
        demand_of(
            f"m{number}",
            draw(st.integers(1, 3)),
            gib=draw(st.integers(1, 60)),
            devices=draw(st.sampled_from((0, 1, 1, 2, 3, 4))),
            warm=draw(st.booleans()),
        )
        for number in range(draw(st.integers(1, 5)))
    ]


def _view(nodes: list[Node], plan: PlacementPlan | None = None) -> ClusterView:
    shown: dict[str, list[ObservedReplica]] = {}
    for name, one in plan.deployments.items() if plan else ():
        for place in one.target:
            shown.setdefault(place.node_id, []).append(
                ObservedReplica(
                    name,
                    place.generation,
                    place.variant,
                    place.artifact_digest,
                    "ready",
                    slot=place.slot,
                    member_digest=place.member_digest,
                    devices=place.devices,
                )
            )
    return ClusterView(
        {
            node.node_id: replace(node, heard_at_ms=1, replicas=tuple(shown.get(node.node_id, ())), acknowledged=(9, 9))
            for node in nodes
        }
    )


def _placed(nodes: list[Node], demands: list[DeploymentDemand], plan: PlacementPlan, mark: int) -> PlacementPlan:
    return reconcile(_view(nodes, plan), demands, plan, now_ms=mark, mark=(1, mark))


def _groups(plan: PlacementPlan) -> dict[tuple[str, int], tuple[str, tuple[int, ...]]]:
    return {
        (name, place.slot): (place.node_id, place.devices)
        for name, one in plan.deployments.items()
        for place in one.target
    }


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(nodes=_nodes(), demands=_demands(), seed=st.integers(0, 99))
def test_a_group_is_exact_alike_within_its_devices_and_the_same_in_any_order(
    nodes: list[Node], demands: list[DeploymentDemand], seed: int
) -> None:
    plan = _placed(nodes, demands, PlacementPlan(), 1)
    wanted = {one.deployment: one for one in demands}
    has = {(node.node_id, device.index): device for node in nodes for device in node.devices}
    warm: Counter[tuple[str, int]] = Counter()
    turns: dict[tuple[str, int], int] = {}
    for (name, _slot), (node_id, indexes) in _groups(plan).items():
        way = wanted[name].ways[0]
        assert len(indexes) == len(set(indexes)) == way.devices
        assert len({(has[node_id, index].name, has[node_id, index].total_bytes) for index in indexes}) <= 1
        for index in indexes:
            key = node_id, index
            if wanted[name].warm:
                warm[key] += way.device_bytes
            else:
                turns[key] = max(turns.get(key, 0), way.device_bytes)
    for key, device in has.items():
        assert warm[key] + turns.get(key, 0) <= device.total_bytes
    random = Random(seed)
    mixed = [
        replace(node, devices=tuple(random.sample(node.devices, len(node.devices))))
        for node in random.sample(nodes, len(nodes))
    ]
    again = _placed(mixed, random.sample(demands, len(demands)), PlacementPlan(), 1)
    assert _groups(again) == _groups(plan)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(nodes=_nodes(), demands=_demands(), data=st.data())
def test_a_device_that_goes_moves_who_lies_on_it_and_one_that_comes_nobody(
    nodes: list[Node], demands: list[DeploymentDemand], data: st.DataObject
) -> None:
    plan = _placed(nodes, demands, PlacementPlan(), 1)
    before = _groups(plan)
    node = data.draw(st.sampled_from(nodes))
    gone = data.draw(st.sampled_from(node.devices)).index if node.devices else None
    left = replace(node, devices=tuple(device for device in node.devices if device.index != gone))
    after = _groups(_placed([left if one is node else one for one in nodes], demands, plan, 2))
    for key, (node_id, devices) in before.items():
        if (node_id, gone) != (node.node_id, gone) or gone not in devices:
            assert after[key] == (node_id, devices)
    assert not any(node_id == node.node_id and gone in devices for node_id, devices in after.values())
    more = replace(node, devices=(*node.devices, Device(99, "cuda", 80 * GIB, "A100")))
    grown = _groups(_placed([more if one is node else one for one in nodes], demands, plan, 2))
    assert before.items() <= grown.items()
