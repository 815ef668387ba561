"""Fleets as people have them, and where everything goes. A change of the rules shows here as a change of places."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sbctl.base.limits import GIB
from sbctl.placement.explain import refusal_text
from sbctl.placement.model import ClusterView, DeploymentDemand, Device, Node, PlacementPlan, Way
from sbctl.placement.reconcile import reconcile
from tests.simulators.placement_world import LLAMA, cpu_node


def _gpu(name: str, count: int, gib: int, device: str, memory_gib: int, **labels: str) -> Node:
    devices = tuple(Device(index, "cuda", gib * GIB, device) for index in range(count))
    return Node(name, labels=labels, memory_bytes=memory_gib * GIB, engines=(LLAMA,), devices=devices)


FLEET = {
    node.node_id: node
    for node in (
        _gpu("dgx-a", 8, 80, "A100-SXM4-80GB", 1024, zone="a", accelerator="a100"),
        _gpu("dgx-b", 8, 80, "A100-SXM4-80GB", 1024, zone="b", accelerator="a100"),
        _gpu("box-1", 2, 24, "RTX 4090", 128, zone="a", accelerator="4090"),
        _gpu("box-2", 2, 24, "RTX 4090", 128, zone="b", accelerator="4090"),
        _gpu("box-3", 1, 24, "RTX 4090", 64, zone="c", accelerator="4090"),
        cpu_node("cpu-1", 96, zone="a"),
        cpu_node("cpu-2", 96, zone="c"),
        replace(cpu_node("gw", 16, zone="a"), is_worker=False),
    )
}


def _model(name: str, *ways: tuple[str, int, int], **fields: object) -> DeploymentDemand:
    """`ways`: variant, devices (0: main memory), GiB on each."""
    made = tuple(
        Way(
            variant,
            f"{number}" * 64,
            f"{number}" * 64,
            "llama_cpp",
            GIB if devices else gib * GIB,
            "cuda" if devices else "cpu",
            devices,
            gib * GIB if devices else 0,
        )
        for number, (variant, devices, gib) in enumerate(ways)
    )
    return DeploymentDemand(name, f"{len(name):064d}", made, **fields)  # type: ignore[arg-type]


DEMANDS = (
    _model("llama-405b", ("q4", 8, 34)),
    _model("qwen-72b", ("q8", 1, 76), ("q8", 2, 40), ("q8", 4, 21), replicas=2, spread_by=("zone",)),
    _model("qwen-8b", ("q8", 1, 11), replicas=3, spread_by=("zone",)),
    _model("coder-14b", ("q4", 1, 12), replicas=2, required_labels={"accelerator": "4090"}),
    _model("embed", ("f16", 0, 2), replicas=2, spread_by=("zone",)),
    _model("night-batch", ("q4", 0, 60), replicas=2, warm=False),
    _model("too-large", ("f16", 1, 90), ("f16", 2, 84)),
)
PLACES = {
    "llama-405b": "dgx-b[0, 1, 2, 3, 4, 5, 6, 7]",
    "qwen-72b": "dgx-a[0], dgx-b[0, 1]",
    "qwen-8b": "box-3[0], dgx-a[1], dgx-b[2]",
    "coder-14b": "box-1[0], box-2[0]",
    "embed": "cpu-1, dgx-b",
    "night-batch": "dgx-a, dgx-b",
    "too-large": "",
}


def _told(plan: PlacementPlan) -> dict[str, str]:
    return {
        name: ", ".join(
            f"{place.node_id}{list(place.devices) or ''}"
            for place in sorted(one.target, key=lambda place: place.node_id)
        )
        for name, one in plan.deployments.items()
    }


def _placed(
    nodes: dict[str, Node], plan: PlacementPlan, mark: int, removed: frozenset[str] = frozenset()
) -> PlacementPlan:
    return reconcile(ClusterView(nodes, removed=removed), DEMANDS, plan, now_ms=mark, mark=(1, mark))


def test_a_mixed_fleet() -> None:
    plan = _placed(FLEET, PlacementPlan(), 1)
    assert _told(plan) == PLACES
    assert plan.deployments["qwen-72b"].unplaced == plan.deployments["qwen-8b"].unplaced == 0


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        ("dgx-a", "f16: needs 84.0 GiB of a device, has 80.0 GiB in all: 4.0 GiB short"),
        ("box-3", "f16: needs 90.0 GiB of a device, has 24.0 GiB in all: 66.0 GiB short"),
        ("cpu-1", "f16: has no cuda device"),
        ("gw", "is no worker"),
    ],
)
def test_what_fits_nowhere_says_how_far_it_is_from_it(node: str, sentence: str) -> None:
    assert refusal_text(_placed(FLEET, PlacementPlan(), 1).deployments["too-large"].refusals[node]) == sentence


def test_a_large_host_is_lost() -> None:
    before = _placed(FLEET, PlacementPlan(), 1)
    after = _placed(FLEET, before, 2, frozenset({"dgx-b"}))
    assert _told(after) == PLACES | {
        "llama-405b": "",
        "qwen-72b": "dgx-a[0], dgx-a[2]",
        "qwen-8b": "box-2[1], box-3[0], dgx-a[1]",
        "embed": "box-3, cpu-1",
        "night-batch": "box-1, dgx-a",
    }
    assert after.deployments["llama-405b"].refusals["dgx-a"].reason == "no_room"


def test_a_large_host_joins() -> None:
    before = _placed({name: node for name, node in FLEET.items() if name != "dgx-a"}, PlacementPlan(), 1)
    after = _placed(FLEET, before, 2)
    assert _told(after) == _told(before), "nothing is stable yet, so nobody moves for it"
    owed = {name for name, one in after.deployments.items() if "dgx-a" not in one.weighed and one.target}
    assert owed == {"llama-405b", "qwen-72b", "qwen-8b", "coder-14b", "embed", "night-batch"}, (
        "and has its chance later"
    )
