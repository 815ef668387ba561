"""Every refusal has a reason, and the number that says how much was short."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import get_args

import pytest

from sbctl.base.limits import GIB
from sbctl.node.cluster_documents import ASSIGNED_REPLICAS_MAX, SNAPSHOT_REPLICAS_MAX, BundleMark
from sbctl.placement.assignments import assignments
from sbctl.placement.documents import Head, assignment_document
from sbctl.placement.explain import explain, refusal_text
from sbctl.placement.fleet import Fleet
from sbctl.placement.model import (
    ClusterView,
    DeploymentDemand,
    EngineOffer,
    Loss,
    Node,
    PlacementPlan,
    RefusalReason,
    Way,
)
from sbctl.placement.reconcile import reconcile
from sbctl.placement.refusing import refusals
from tests.simulators.placement_world import cpu_node, demand_of, gpu_node

CPU, GPU = cpu_node("n", 16, zone="b"), gpu_node("n", 2, 24, memory_gib=64)
SMALL, BIG = demand_of("a", gib=4), demand_of("a", gib=20)
ON_GPU, WIDE = demand_of("a", gib=30, devices=1), demand_of("a", gib=20, devices=4)


def _way(demand: DeploymentDemand, **fields: object) -> DeploymentDemand:
    return replace(demand, ways=(replace(demand.ways[0], **fields),))  # type: ignore[arg-type]


CASES: list[tuple[RefusalReason, Node, DeploymentDemand, Loss | None, str]] = [
    ("not_worker", replace(CPU, is_worker=False), SMALL, None, "is no worker"),
    ("node_lost", CPU, SMALL, Loss("lost", 7), "is lost: not heard of for too long"),
    ("node_unreachable", CPU, SMALL, Loss("unreachable", 7), "is not heard of at the moment"),
    (
        "node_excluded",
        replace(CPU, exclusion="identity_mismatch"),
        SMALL,
        None,
        "is left out by the directory (identity_mismatch)",
    ),
    (
        "node_unhealthy",
        replace(CPU, health="unhealthy", health_reasons=("no_usable_model_engine",)),
        SMALL,
        None,
        "says that it is unhealthy (no_usable_model_engine)",
    ),
    ("node_draining", replace(CPU, drain="evacuate"), SMALL, None, "is being evacuated"),
    ("node_draining", replace(CPU, drain="cordon"), SMALL, None, "is out of service for a change"),
    ("required_labels", CPU, replace(SMALL, required_labels={"zone": "a"}), None, "has zone=b, and zone=a is required"),
    (
        "required_labels",
        CPU,
        replace(SMALL, required_labels={"gpu": "l4"}),
        None,
        "has gpu=none, and gpu=l4 is required",
    ),
    ("missing_endpoint", replace(CPU, has_endpoint=False), SMALL, None, "has no address at which gateways reach it"),
    ("no_capacity", replace(CPU, memory_bytes=0), SMALL, None, "tells of no memory and no device"),
    (
        "variant_incompatible",
        CPU,
        _way(SMALL, artifact_format="safetensors"),
        None,
        "v1: its llama_cpp does not read safetensors",
    ),
    ("accelerator_incompatible", CPU, ON_GPU, None, "v1: has no cuda device"),
    ("insufficient_memory", GPU, ON_GPU, None, "v1: needs 30.0 GiB of a device, has 24.0 GiB in all: 6.0 GiB short"),
    ("insufficient_memory", GPU, WIDE, None, "v1: has 2 devices that are alike and large enough, needs 4"),
    ("insufficient_memory", CPU, BIG, None, "v1: needs 20.0 GiB of main memory, has 16.0 GiB in all: 4.0 GiB short"),
    (
        "engine_unavailable",
        CPU,
        _way(SMALL, engine_version="b9999"),
        None,
        "v1: has llama_cpp b9905, and b9999 is wanted",
    ),
    ("engine_unavailable", replace(CPU, engines=()), SMALL, None, "v1: has llama_cpp none, and any is wanted"),
    (
        "artifact_not_ready",
        CPU,
        replace(SMALL, pull="manual"),
        None,
        "v1: 1 of the weights are not there, and pull is manual (sbctl models pull)",
    ),
]


@pytest.mark.parametrize(("reason", "node", "demand", "loss", "text"), CASES)
def test_a_node_is_refused_by_name_and_number(
    reason: RefusalReason, node: Node, demand: DeploymentDemand, loss: Loss | None, text: str
) -> None:
    fleet = Fleet(ClusterView({"n": node}), {"n": loss} if loss else {})
    assert {name: refusal.reason for name, refusal in refusals(fleet, demand, ()).items()} == {"n": reason}
    assert refusal_text(refusals(fleet, demand, ())["n"]) == text
    assert not any(
        fleet.room.devices_for("n", way, warm=demand.warm) is not None
        for way in demand.ways
        if 0 in fleet.candidates(demand, way)
    )


def test_room_that_others_take_is_told_apart_from_room_that_was_never_there() -> None:
    view = ClusterView({"n": replace(GPU, heard_at_ms=1)})
    demands = [demand_of("a", 2, gib=20, devices=1), demand_of("b", 1, gib=10, devices=1)]
    plan = reconcile(view, demands, PlacementPlan(), now_ms=2, mark=(1, 1))
    refusal = plan.deployments["b"].refusals["n"]
    assert refusal.reason == "no_room"
    assert dict(refusal.facts)["short_bytes"] == 6 * GIB
    assert refusal_text(refusal) == "v1: needs 10.0 GiB of a device, has 4.0 GiB free: 6.0 GiB short"


def test_a_node_keeps_no_more_engines_than_it_says() -> None:
    nodes = {"n": replace(CPU, max_engines=1)}
    plan = reconcile(ClusterView(nodes), [replace(SMALL, replicas=2)], PlacementPlan(), now_ms=2, mark=(1, 1))
    placed = plan.deployments["a"]
    assert (len(placed.target), placed.unplaced) == (1, 1)
    assert refusal_text(placed.refusals["n"]) == "v1: keeps 1 models loaded at most (max_resident_models), and has them"


def test_what_is_loaded_on_demand_takes_turns_beside_what_is_warm() -> None:
    nodes = {"n": cpu_node("n", 16)}
    cold = [demand_of(name, gib=gib, warm=False) for name, gib in (("c", 10), ("d", 10), ("e", 12))]
    plan = reconcile(ClusterView(nodes), [demand_of("w", gib=5), *cold], PlacementPlan(), now_ms=2, mark=(1, 1))
    assert {name: one.unplaced for name, one in plan.deployments.items()} == {"c": 0, "d": 0, "e": 1, "w": 0}
    assert dict(plan.deployments["e"].refusals["n"].facts)["short_bytes"] == GIB
    more = [demand_of("w", gib=5), demand_of("x", gib=2), *cold[:2]]
    plan = reconcile(
        ClusterView(nodes),
        more,
        replace(plan, deployments={n: plan.deployments[n] for n in "cdw"}),
        now_ms=3,
        mark=(1, 2),
    )
    assert plan.deployments["x"].unplaced == 1, "what takes turns keeps room for its largest"
    assert dict(plan.deployments["x"].refusals["n"].facts)["short_bytes"] == GIB


@pytest.mark.parametrize(("accelerator", "runs"), [("cuda", True), ("vulkan", True), ("metal", False)])
def test_a_vulkan_build_runs_on_any_device(accelerator: str, runs: bool) -> None:
    node = replace(GPU, engines=(EngineOffer("llama_cpp"),))
    demand = _way(demand_of("a", gib=4, devices=2), accelerator=accelerator)
    assert (refusals(Fleet(ClusterView({"n": node}), {}), demand, ()) == {}) is runs


def test_a_vulkan_build_takes_all_devices_of_its_node() -> None:
    node = replace(GPU, engines=(EngineOffer("llama_cpp"),))
    one = _way(demand_of("a", gib=4, devices=1), accelerator="vulkan")
    told = refusals(Fleet(ClusterView({"n": node}), {}), one, ())["n"]
    assert refusal_text(told) == "v1: takes all 2 devices of the node, and lies on 1"


def test_every_reason_has_a_case() -> None:
    assert {case[0] for case in CASES} | {"no_room"} == set(get_args(RefusalReason))


def test_the_way_that_got_furthest_is_told() -> None:
    ways = (*ON_GPU.ways, replace(SMALL.ways[0], variant="small", engine_version="b1"))
    fleet = Fleet(ClusterView({"n": CPU}), {})
    assert refusals(fleet, replace(SMALL, ways=ways), ())["n"].variant == "small"


def test_a_manual_pull_goes_where_all_its_weights_are() -> None:
    way = replace(SMALL.ways[0], artifacts=("w1", "w2"))
    some, whole = (
        replace(cpu_node(name), ready_artifacts=frozenset(held)) for name, held in (("x", {"w1"}), ("y", {"w1", "w2"}))
    )
    demand = replace(SMALL, pull="manual", ways=(way,), replicas=2)
    plan = reconcile(ClusterView({"x": some, "y": whole}), [demand], PlacementPlan(), now_ms=2, mark=(1, 1))
    assert {place.node_id for place in plan.deployments["a"].target} == {"y"}


@pytest.mark.parametrize(
    ("offer", "version", "runs"),
    [
        (EngineOffer("llama_cpp", "b1"), "b1", True),
        (EngineOffer("llama_cpp", "b1"), "b2", False),
        (EngineOffer("llama_cpp", "b1"), None, True),
        (EngineOffer("llama_cpp"), None, True),
        (EngineOffer("llama_cpp"), "b1", False),
        (EngineOffer("llama_cpp", any_version=True), "b1", True),
        (EngineOffer("llama_cpp", any_version=True, usable=False), "b1", False),
        (EngineOffer("llama_cpp", "b1", launch="binary"), "b1", True),
        (EngineOffer("llama_cpp", "b1", launch="wheel"), "b1", False),
    ],
)
def test_an_engine_is_the_one_that_is_wanted(offer: EngineOffer, version: str | None, runs: bool) -> None:
    node = replace(CPU, engines=(offer,))
    demand = _way(SMALL, engine_version=version, launch="binary")
    assert (refusals(Fleet(ClusterView({"n": node}), {}), demand, ()) == {}) is runs


def test_explain_lists_every_node_best_first() -> None:
    nodes = [
        cpu_node("x", 16, zone="a"),
        cpu_node("y", 16, zone="b"),
        cpu_node("z", 2, zone="a"),
        replace(CPU, node_id="gw", is_worker=False),
    ]
    view = ClusterView({node.node_id: node for node in nodes})
    demand = replace(SMALL, spread_by=("zone",))
    plan = reconcile(view, [demand], PlacementPlan(), now_ms=2, mark=(1, 1))
    told = explain(view, [demand], plan, "a")
    assert told is not None
    assert (told.desired, told.placed) == (1, 1)
    assert [(row.standing, row.node_id) for row in told.rows][1:] == [
        ("possible", {"x": "y", "y": "x"}[told.rows[0].node_id]),
        ("refused", "z"),
        ("refused", "gw"),
    ]
    assert told.rows[0].standing == "placed"
    assert told.rows[0].slots == (0,)
    assert explain(view, [demand], plan, "nobody") is None


def test_ways_are_taken_in_order_and_the_next_where_there_is_no_room() -> None:
    gpu = Way("q8", "1" * 64, "1" * 64, "llama_cpp", GIB, "cuda", 1, 20 * GIB)
    cpu = Way("q4", "2" * 64, "2" * 64, "llama_cpp", 12 * GIB)
    nodes = {"big": cpu_node("big", 512), "card": gpu_node("card", 1, 24)}
    demand = replace(SMALL, ways=(gpu, cpu), replicas=2)
    plan = reconcile(ClusterView(nodes), [demand], PlacementPlan(), now_ms=2, mark=(1, 1))
    assert [(place.node_id, place.variant) for place in plan.deployments["a"].target] == [("card", "q8"), ("big", "q4")]


@pytest.mark.parametrize("warm", [True, False])
def test_a_node_gets_no_more_replicas_than_it_can_be_told_of(warm: bool) -> None:
    nodes = {name: replace(cpu_node(name, 10_000), heard_at_ms=1) for name in ("n0", "n1")}
    many = demand_of("many", 200, gib=4, warm=warm)
    plan = reconcile(
        ClusterView(nodes), [many, demand_of("other", 3, warm=warm)], PlacementPlan(), now_ms=2, mark=(1, 1)
    )
    placed = plan.deployments["many"]
    assert len(plan.deployments["other"].target) == 3, "others have all the room there is"
    assert Counter(place.node_id for place in placed.target) == dict.fromkeys(nodes, ASSIGNED_REPLICAS_MAX)
    assert refusal_text(placed.refusals["n0"]) == "v1: has 64 replicas, and can have no more of them"
    head = Head(
        cluster_id="prod",
        identity_epoch=1,
        boot_epoch=1,
        lease_epoch=1,
        lease_holder="a",
        counter=1,
        issued_at_unix_ms=1,
        bundle=BundleMark(revision=1, content_digest="a" * 64),
    )
    told = {
        name: assignment_document(name, parts, head) for name, parts in assignments(plan, ClusterView(nodes)).items()
    }
    assert told.keys() == nodes.keys()


@pytest.mark.parametrize("warm", [True, False])
def test_a_node_gets_no_more_replicas_than_its_snapshot_tells(warm: bool) -> None:
    nodes = {"n0": replace(cpu_node("n0", 10_000), heard_at_ms=1)}
    several = [demand_of(f"m{number:04}", gib=1, warm=warm) for number in range(SNAPSHOT_REPLICAS_MAX + 5)]
    plan = reconcile(ClusterView(nodes), several, PlacementPlan(), now_ms=2, mark=(1, 1))
    assert sum(len(one.target) for one in plan.deployments.values()) == SNAPSHOT_REPLICAS_MAX
    short = [one for one in plan.deployments.values() if one.unplaced]
    assert {refusal_text(one.refusals["n0"]) for one in short} == {
        "v1: has 1024 replicas, and can have no more of them"
    }
