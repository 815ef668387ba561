"""A worker that lies about itself against the plan of everybody (docs/threats.md, sections C, D and G): it may lose or keep what was given to it; what
was given to others stays where it is, as it is, and the lease-holder goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.base.limits import JSON_INT_MAX
from sbctl.node.cluster_documents import (
    AssignmentDocument,
    BundleMark,
    CapacityReport,
    DeviceReport,
    NodeSnapshotDocument,
    ReplicaReport,
)
from sbctl.node.placement_document import PlacementDocument
from sbctl.placement.assignments import assignments
from sbctl.placement.believing import GENERATION_LEAP_MAX, STRANGERS_MAX, believed
from sbctl.placement.documents import Head, assignment_document, node_of, plan_document, plan_of
from sbctl.placement.model import ClusterView, Node, ObservedReplica, PlacementPlan
from sbctl.placement.reconcile import reconcile
from tests.simulators.peer_snapshots import node as snapshot_of
from tests.simulators.peer_snapshots import replica
from tests.simulators.placement_world import LLAMA, PlacementWorld, cpu_node, demand_of

HEAD: Head = {
    "cluster_id": "prod", "identity_epoch": 1, "boot_epoch": 3, "lease_epoch": 2, "lease_holder": "gw-a", "counter": 17,
    "issued_at_unix_ms": 5, "bundle": BundleMark(revision=4, content_digest="a" * 64),
}  # fmt: skip


def settled_world() -> PlacementWorld:
    world = PlacementWorld([cpu_node(f"n{number}") for number in range(3)])
    world.want(demand_of("a", 2), demand_of("b"))
    world.settle(6)
    return world


WORLD = settled_world()
WAY = WORLD.demands["a"].ways[0]


def claim(**changes: Any) -> ReplicaReport:
    """An engine of `a`, as its own nodes would tell of one."""
    same = {"variant": WAY.variant, "artifact_digest": WAY.artifact_digest, "member_digest": WAY.member_digest}
    return replica(**{"deployment": "a", "deployment_generation": 1, "slot": 0, **same, **changes})


def evil(*replicas: ReplicaReport, **changes: Any) -> Node:
    shown = snapshot_of("evil", *replicas, **{"capacity": CapacityReport(memory_bytes=1), "devices": (), **changes})
    return node_of(shown.snapshot, heard_at_ms=WORLD.now_ms)


def evaluated(nodes: Iterable[Node]) -> PlacementPlan:
    """Plan after plan over what `evil` says, each through its documents as nodes and the next holder read them."""
    plan, view = WORLD.plan, WORLD.view
    for number, node in enumerate(nodes):
        view = replace(view, nodes={**WORLD.view.nodes, "evil": node})
        now_ms = WORLD.now_ms + 200 * (number + 1)
        plan = reconcile(view, WORLD.demands.values(), plan, now_ms=now_ms, mark=(1, 1000 + number))
        plan = through_documents(plan, view)
    return plan


def through_documents(plan: PlacementPlan, view: ClusterView) -> PlacementPlan:
    for name, parts in assignments(plan, view).items():
        told = assignment_document(name, parts, HEAD)
        AssignmentDocument.model_validate_json(told.model_dump_json())
    document = plan_document(plan, view, HEAD, directory_digest="a" * 64, spread_by={})
    text = document.model_dump_json()
    assert len(text) < 1 << 20, "one node does not fill the plan of all"
    return plan_of(PlacementDocument.model_validate_json(text))


def unharmed(plan: PlacementPlan) -> None:
    for name, before in WORLD.plan.deployments.items():
        after = plan.deployments[name]
        assert (after.generation, after.target) == (before.generation, before.target), name
        assert after.rollout.phase == "stable", name


LIES: list[tuple[str, list[ReplicaReport]]] = [
    ("the next generation", [claim(deployment_generation=2)]),
    ("the next generation of another make", [claim(deployment_generation=2, member_digest="c" * 64)]),
    ("the last number there is", [claim(deployment_generation=JSON_INT_MAX)]),
    ("the last number, of another make", [claim(deployment_generation=JSON_INT_MAX, member_digest="c" * 64)]),
    ("no generation", [claim(deployment_generation=0, slot=7)]),
    ("somebody else's slot", [claim(slot=0), claim(slot=1)]),
    ("one slot twice", [claim(slot=3), claim(slot=3, state="failed"), claim(slot=3, variant="w")]),
    ("a slot of hosts' own, and none", [claim(slot=4096, deployment_generation=1), claim(slot=None)]),
    ("many generations", [claim(slot=3, deployment_generation=number) for number in range(1, 40)]),
    ("many slots", [claim(slot=number) for number in range(1024)]),
    ("many of its own", [claim(slot=None, deployment_generation=number) for number in range(1024)]),
    ("many names", [claim(deployment=f"x{number}", variant="\x1b" * 256) for number in range(1024)]),
    ("all devices", [claim(slot=9, selected_devices=tuple(range(64)), reserved_memory_bytes=JSON_INT_MAX)]),
]


@pytest.mark.parametrize("lie", [lie for _, lie in LIES], ids=[name for name, _ in LIES])
def test_C9_D11_what_a_node_says_of_others_deployments_moves_nothing(lie: list[ReplicaReport]) -> None:
    unharmed(evaluated([evil(*lie)] * 4))


def test_G17_lies_that_change_each_time_stay_bounded() -> None:
    def lies() -> Iterable[Node]:
        for number in range(12):
            names = [claim(deployment=f"x{number}-{each}") for each in range(100)]
            numbers = [claim(slot=each % 4096, deployment_generation=number + 1) for each in range(number, number + 90)]
            yield evil(*names, *numbers)

    plan = evaluated(lies())
    unharmed(plan)
    held = [each for one in plan.deployments.values() for each in one.held]
    assert len(held) <= STRANGERS_MAX
    assert max(plan.high_waters.values()) <= GENERATION_LEAP_MAX


def test_a_node_may_lie_about_its_size_and_no_request_is_lost_for_it() -> None:
    """It is offered what it says it could take; what serves goes on serving until the new is proven, which it never is."""
    large = evil(
        capacity=CapacityReport(memory_bytes=JSON_INT_MAX),
        devices=tuple(
            DeviceReport(
                index=0, accelerator="cuda", total_memory_bytes=JSON_INT_MAX, available_memory_bytes=JSON_INT_MAX
            )
            for _ in range(64)
        ),
    )
    plan = evaluated([replace(large, engines=(LLAMA,))] * 4)
    for name, before in WORLD.plan.deployments.items():
        after = plan.deployments[name]
        served = {(place.node_id, place.slot) for place in after.target} | {
            (held.place.node_id, held.place.slot) for held in after.held if not held.draining
        }
        assert {(place.node_id, place.slot) for place in before.target} <= served, name


NUMBERS = st.sampled_from([0, 1, 2, 3, 17, GENERATION_LEAP_MAX, GENERATION_LEAP_MAX + 2, JSON_INT_MAX])
CLAIMS = st.builds(
    claim,
    deployment=st.sampled_from(["a", "b", "c", ".hidden", "-"]),
    deployment_generation=NUMBERS,
    slot=st.one_of(st.none(), st.sampled_from([0, 1, 2, 4095, 4096, 4097, 8191])),
    state=st.sampled_from(["configured", "assigned", "preparing", "ready", "draining", "stopped", "failed"]),
    member_digest=st.sampled_from([WAY.member_digest, "c" * 64, None]),
    variant=st.sampled_from([WAY.variant, "", "\x1b[2J"]),
    engine=st.sampled_from(["llama_cpp", "vllm"]),
    selected_devices=st.lists(st.integers(0, 4095), max_size=3).map(tuple),
    reserved_memory_bytes=st.sampled_from([0, 1, JSON_INT_MAX]),
)
MARKS = st.sampled_from(
    [None, {"lease_epoch": 1, "counter": JSON_INT_MAX}, {"lease_epoch": JSON_INT_MAX, "counter": 1}]
)


@st.composite
def hostile_nodes(draw: st.DrawFn) -> Node:
    mark = draw(MARKS)
    document: dict[str, Any] = snapshot_of("evil", *draw(st.lists(CLAIMS, max_size=12))).snapshot.model_dump(
        mode="json"
    )
    document |= {
        "capacity": {"memory_bytes": draw(NUMBERS), "max_engines": draw(st.sampled_from([None, 0, 1024]))},
        "assignment": None if mark is None else {**mark, "state": "ready"},
        "engines": draw(st.sampled_from([[], [{"engine": "llama_cpp", "availability": "acquirable"}] * 3])),
        "artifacts": [],
    }

    shown = NodeSnapshotDocument.model_validate_json(json.dumps(document))
    return node_of(shown, heard_at_ms=WORLD.now_ms)


@settings(max_examples=60, deadline=None)
@given(st.lists(hostile_nodes(), min_size=1, max_size=4))
def test_C9_whatever_a_node_says_the_next_plan_can_be_written(nodes: list[Node]) -> None:
    plan = evaluated(nodes)
    # What it was given, since it says that it could hold it, is its own to spoil.
    may_hold = any(node.engines and node.memory_bytes >= WAY.host_bytes for node in nodes)
    for name, before in WORLD.plan.deployments.items():
        assert may_hold or plan.deployments[name].generation == before.generation, name


# --- whose number is believed


def _told(generation: int, slot: int | None = 0, state: Any = "ready") -> ObservedReplica:
    return ObservedReplica("a", generation, WAY.variant, WAY.artifact_digest, state, slot=slot)


@pytest.mark.parametrize(
    ("told", "counts"),
    [
        ({"n0": 1, "n1": 1, "n2": 9}, False),
        ({"n0": 9, "n1": 1}, False),
        ({"n0": 9, "n1": 9}, True),
        ({"n0": 9, "n1": 9, "n2": 1}, True),
        ({"n2": 9}, True),
        ({"n0": 1, "n2": 9}, False),
        ({"n0": GENERATION_LEAP_MAX + 2, "n1": GENERATION_LEAP_MAX + 2}, False),
    ],
)
def test_D11_a_number_above_the_plan_s_is_believed_of_most_of_those_that_have_it(
    told: dict[str, int], counts: bool
) -> None:
    """The plan has `a` on n0 and n1 with generation 1; a plan that was lost may have given out more."""
    placed = WORLD.plan.deployments["a"]
    places = tuple(replace(place, node_id=f"n{slot}") for slot, place in enumerate(placed.target))
    plan = PlacementPlan(deployments={"a": replace(placed, target=places)})
    nodes = {name: Node(name, replicas=(_told(number),)) for name, number in told.items()}
    view = believed(ClusterView(nodes), plan)
    highest = max(each.generation for node in view.nodes.values() for each in node.replicas or (_told(1),))
    assert (highest > 1) is counts


def test_of_two_engines_with_one_name_the_livelier_counts() -> None:
    node = Node("n0", replicas=(_told(1, state="failed"), _told(1, state="ready"), _told(0, state="stopped")))
    (kept,) = believed(ClusterView({"n0": node}), PlacementPlan()).nodes["n0"].replicas
    assert (kept.state, kept.generation) == ("ready", 1)


def test_what_is_as_it_should_be_is_handed_on_as_it_is() -> None:
    view = believed(WORLD.view, WORLD.plan)
    assert all(view.nodes[name] is node for name, node in WORLD.view.nodes.items())
