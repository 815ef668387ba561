"""What the documents of a cluster carry is all that the next evaluation needs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sbctl.base.limits import GIB
from sbctl.node.cluster_documents import AssignmentDocument, BundleMark, NodeSnapshotDocument
from sbctl.node.placement_document import PlacementDocument
from sbctl.placement.assignments import assignments
from sbctl.placement.documents import Head, assignment_document, node_of, plan_document, plan_of
from sbctl.placement.model import ClusterView, ObservedReplica, PlacementPlan
from sbctl.placement.reconcile import reconcile
from tests.simulators.placement_world import PlacementWorld, cpu_node, demand_of

DIGEST = "a" * 64
HEAD: Head = {
    "cluster_id": "prod",
    "identity_epoch": 1,
    "boot_epoch": 3,
    "lease_epoch": 2,
    "lease_holder": "gw-a",
    "counter": 17,
    "issued_at_unix_ms": 5,
    "bundle": BundleMark(revision=4, content_digest=DIGEST),
}


def _busy_world(rollout: str) -> PlacementWorld:
    """In the middle of things: a rollout, a node in silence, one that was lost, a deployment that is going, one without room."""
    world = PlacementWorld([cpu_node(f"n{number}", 10, zone="ab"[number % 2]) for number in range(6)])
    world.want(demand_of("a", 3, gib=6, rollout=rollout), demand_of("b"), demand_of("gone"), demand_of("big", gib=99))  # type: ignore[arg-type]
    world.settle(4)
    world.cut("n0")
    for _ in range(5):
        world.evaluate(40)
    world.cut("n1")
    world.evaluate(35)
    del world.demands["gone"]
    world.want(demand_of("a", 3, gib=6, version=2, rollout=rollout, spread_by=("zone",)))  # type: ignore[arg-type]
    world.evaluate()
    for name in ("n2", "n3"):
        world.work(name, engines=False)
    world.evaluate()
    return world


def _document(plan: PlacementPlan, view: ClusterView) -> PlacementDocument:
    return plan_document(plan, view, HEAD, directory_digest=DIGEST, spread_by={"a": ("zone",)})


@pytest.mark.parametrize("rollout", ["rolling", "recreate"])
def test_a_plan_survives_its_document(rollout: str) -> None:
    world = _busy_world(rollout)
    view = world.view
    document = PlacementDocument.model_validate_json(_document(world.plan, view).model_dump_json())
    back = plan_of(document)
    rebuilt = replace(
        back, deployments={name: replace(one, refusals={}) for name, one in world.plan.deployments.items()}
    )
    assert back == replace(rebuilt, deployments=back.deployments)
    for name, one in world.plan.deployments.items():
        assert back.deployments[name] == replace(one, refusals={}, held=back.deployments[name].held)
        assert set(back.deployments[name].held) == set(one.held)
    assert {"unreachable", "lost"} == {loss.state for loss in back.losses.values()}
    arguments: dict[str, Any] = {"now_ms": world.now_ms + 1000, "mark": (2, 1)}
    after = reconcile(view, world.demands.values(), back, **arguments)
    assert assignments(after, view) == assignments(
        reconcile(view, world.demands.values(), world.plan, **arguments), view
    )


def test_status_reads_domains_rejections_and_what_is_short() -> None:
    world = _busy_world("rolling")
    placed = _document(world.plan, world.view).deployments
    zones = {one.node_id: one.failure_domains["zone"] for one in placed["a"].assignments}
    assert zones == {name: "ab"[int(name[1]) % 2] for name in zones} != {}
    assert placed["big"].unplaced_replicas == 1
    assert placed["big"].rejections["n2"].facts["short_bytes"] == 89 * GIB
    assert placed["big"].rejections["n0"].reason == "node_lost"
    assert (placed["gone"].desired_replicas, len(placed["gone"].draining)) == (0, 1)


def test_long_names_fit_into_a_document() -> None:
    world = PlacementWorld([cpu_node("n" * 120 + str(number)) for number in range(8)])
    world.want(replace(demand_of("a"), model="m" * 999))
    world.settle(2)
    for name in world.workers:
        world.cut(name)
    plan = world.evaluate(200)
    assert plan.brake is not None
    assert len(_document(plan, world.view).brake) == 256


def test_engines_that_nobody_asked_for_and_nobody_named_go_through_documents() -> None:
    stray = ObservedReplica("stray", 3, "v", DIGEST, "ready", reserved_bytes=GIB)
    other = ObservedReplica("a", 2, "v", "b" * 64, "ready", reserved_bytes=GIB)
    view = ClusterView({"n": replace(cpu_node("n"), heard_at_ms=1, replicas=(stray, other))})
    plan = reconcile(view, [demand_of("a")], PlacementPlan(), now_ms=2, mark=(2, 17))
    document = PlacementDocument.model_validate_json(_document(plan, view).model_dump_json())
    assert plan_of(document).deployments == plan.deployments
    told = assignment_document("n", assignments(plan, view)["n"], HEAD).deployments
    assert [part.phase for part in told["stray"]] == ["drain"]
    assert [(part.phase, part.generation) for part in told["a"]] == [("retain", 2), ("start", 3)]


def test_an_assignment_has_old_and_new_of_one_deployment() -> None:
    world = _busy_world("rolling")
    told = assignments(world.plan, world.view)
    for node_id, parts in told.items():
        document = assignment_document(node_id, parts, HEAD)
        assert AssignmentDocument.model_validate_json(document.model_dump_json()) == document
        assert sum(len(several) for several in document.deployments.values()) == len(parts)
    both = {part.phase for parts in told.values() for part in parts if part.deployment == "a"}
    assert {"start", "retain"} <= both


SNAPSHOT: dict[str, Any] = {
    "cluster_id": "prod",
    "identity_epoch": 1,
    "boot_epoch": 9,
    "counter": 3,
    "published_at_unix_ms": 1,
    "expires_at_unix_ms": 2,
    "node": {"node_id": "gpu-a", "roles": ["worker"], "labels": {"zone": "a"}, "peer_address": "10.0.0.1:9443"},
    "health": {"state": "ready", "peer_plane": "ready"},
    "capacity": {"memory_bytes": 64 * GIB, "device_memory_bytes": 48 * GIB},
    "engines": [
        {
            "engine": "llama_cpp",
            "version": "b1",
            "launch": "wheel",
            "availability": "acquirable",
            "accelerators": ["cpu", "cuda"],
        },
        {"engine": "vllm", "availability": "blocked"},
    ],
    "devices": [
        {
            "index": 0,
            "accelerator": "cuda",
            "name": "L40S",
            "total_memory_bytes": 48 * GIB,
            "usable_memory_bytes": 43 * GIB,
            "available_memory_bytes": 1,
        }
    ],
    "artifacts": [
        {"artifact_digest": DIGEST, "model": "m", "variant": "v", "state": "ready"},
        {"artifact_digest": "b" * 64, "model": "m", "variant": "w", "state": "partial"},
    ],
    "replicas": [
        {
            "deployment": "chat",
            "deployment_generation": 2,
            "slot": 1,
            "model": "m",
            "variant": "v",
            "engine": "llama_cpp",
            "state": "ready",
            "artifact_digest": DIGEST,
        }
    ],
    "assignment": {"lease_epoch": 2, "counter": 16, "state": "prepared"},
}


def _snapshot(**fields: Any) -> NodeSnapshotDocument:
    return NodeSnapshotDocument.model_validate_json(json.dumps(SNAPSHOT | fields))


def test_a_node_is_what_its_snapshot_says() -> None:
    node = node_of(_snapshot(), heard_at_ms=77)
    assert (node.node_id, node.heard_at_ms, node.is_worker, node.has_endpoint) == ("gpu-a", 77, True, True)
    assert [(offer.engine, offer.usable) for offer in node.engines] == [("llama_cpp", True), ("vllm", False)]
    assert node.devices[0].total_bytes == 43 * GIB
    assert node.ready_artifacts == {DIGEST}
    assert node.acknowledged == (2, 16)
    assert node.replicas[0].slot == 1


@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        ({"node": SNAPSHOT["node"] | {"roles": ["gateway"]}}, "is_worker", False),
        ({"node": SNAPSHOT["node"] | {"peer_address": None}}, "has_endpoint", False),
        ({"health": SNAPSHOT["health"] | {"peer_plane": "unavailable"}}, "has_endpoint", False),
        ({"health": SNAPSHOT["health"] | {"draining": True}}, "drain", "cordon"),
        (
            {"health": SNAPSHOT["health"] | {"draining": True, "reason_codes": ["leaves_cluster"]}},
            "drain",
            "evacuate",
        ),
        ({"health": SNAPSHOT["health"] | {"draining": True}}, "admits", False),
        ({"authority_stale": True}, "exclusion", "authority_stale"),
        ({"assignment": None}, "acknowledged", (0, 0)),
    ],
)
def test_what_a_snapshot_says_of_itself_decides(fields: dict[str, Any], attribute: str, value: object) -> None:
    assert getattr(node_of(_snapshot(**fields), heard_at_ms=1), attribute) == value


def test_the_directory_has_the_last_word() -> None:
    assert (
        node_of(_snapshot(authority_stale=True), heard_at_ms=1, exclusion="snapshot_expired").exclusion
        == "snapshot_expired"
    )
    unwell = _snapshot(health=SNAPSHOT["health"] | {"state": "unhealthy"})
    assert node_of(unwell, heard_at_ms=1, exclusion="reported_unhealthy").exclusion == ""


def test_fault_68_another_address_of_a_node_moves_and_restarts_nothing() -> None:
    here = _snapshot(node=SNAPSHOT["node"] | {"peer_address": "10.0.0.7:7443"})
    there = _snapshot(node=SNAPSHOT["node"] | {"peer_address": "192.168.1.7:7443"})
    assert here.node != there.node
    assert node_of(here, heard_at_ms=1) == node_of(there, heard_at_ms=1), "placement knows no addresses"
