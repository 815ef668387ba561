"""Replicas on devices: which group, what happens to it when one of its devices is gone, and one variant of a deployment a node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sbctl.base.limits import GIB
from sbctl.node.cluster_documents import BundleMark
from sbctl.placement.assignments import assignments
from sbctl.placement.documents import Head, assignment_document
from sbctl.placement.model import DeploymentDemand, Device
from tests.simulators.placement_world import PlacementWorld, cpu_node, demand_of, gpu_node, lie

HEAD = Head(
    cluster_id="prod",
    identity_epoch=1,
    boot_epoch=1,
    lease_epoch=1,
    lease_holder="a",
    counter=1,
    issued_at_unix_ms=1,
    bundle=BundleMark(key_epoch=0, revision=1, content_digest="a" * 64),
)


def _devices(world: PlacementWorld, name: str = "a") -> dict[int, tuple[int, ...]]:
    return {place.slot: place.devices for place in world.plan.deployments[name].target}


def test_several_replicas_share_a_node_on_devices_of_their_own() -> None:
    world = PlacementWorld([gpu_node("n0", 4, 24)])
    world.want(demand_of("a", 2, gib=20, devices=2))
    world.settle()
    assert sorted(_devices(world).values()) == [(0, 1), (2, 3)]


@pytest.mark.parametrize("rollout", ["rolling", "recreate"])
def test_a_replica_leaves_a_device_that_is_gone_for_another_of_its_node(rollout: str) -> None:
    world = PlacementWorld([gpu_node("n0", 3, 24)])
    world.want(demand_of("a", 2, gib=20, devices=1, rollout=rollout))  # type: ignore[arg-type]
    world.settle()
    before = _devices(world)
    gone = before[0]
    worker = world.workers["n0"]
    worker.node = replace(worker.node, devices=tuple(d for d in worker.node.devices if (d.index,) != gone))
    world.evaluate()
    told = assignments(world.plan, world.view)["n0"]
    assert assignment_document("n0", told, HEAD).node_id == "n0", "no replica stands twice in one generation"
    world.settle()
    after = _devices(world)
    assert gone not in after.values()
    assert before[1] in after.values(), "who lies elsewhere stays"
    assert len(world.live("a")) == 2


def test_a_node_runs_one_variant_of_a_deployment() -> None:
    large, small = (
        replace(demand_of("a", gib=gib, devices=1).ways[0], variant=variant, member_digest=digest * 64)
        for variant, gib, digest in (("q8", 20, "8"), ("q4", 4, "4"))
    )
    demand: DeploymentDemand = replace(demand_of("a", 3), ways=(large, small))
    mixed = (Device(0, "cuda", 24 * GIB, "x"), Device(1, "cuda", 6 * GIB, "y"))
    world = PlacementWorld([replace(gpu_node("n0", 1), devices=mixed), replace(gpu_node("n1", 1), devices=mixed[1:])])
    world.want(demand)
    world.settle()
    placed = world.plan.deployments["a"]
    assert {(place.node_id, place.variant) for place in placed.target} == {("n0", "q8"), ("n1", "q4")}
    assert placed.unplaced == 1
    assert placed.refusals["n0"].reason == "no_room"
    assert placed.refusals["n0"].variant == "q8", "it is told of the variant that the node runs"


def test_deployments_of_one_model_may_run_other_variants_of_it_beside_each_other() -> None:
    world = PlacementWorld([gpu_node("n0", 2, 24)])
    world.want(demand_of("chat", gib=20, devices=1), demand_of("chat-small", gib=4, devices=1, version=2))
    world.settle()
    assert set(lie(world.plan).values()) == {"n0"}
    assert {place.variant for one in world.plan.deployments.values() for place in one.target} == {"v1", "v2"}


def test_the_generation_before_serves_in_its_variant_until_the_new_one_is_ready() -> None:
    world = PlacementWorld([gpu_node("n0", 2, 24)])
    world.want(demand_of("a", gib=20, devices=1))
    world.settle()
    world.want(demand_of("a", gib=20, devices=1, version=2))
    told = assignments(world.evaluate(), world.view)["n0"]
    assert {(part.phase, part.variant) for part in told} == {("retain", "v1"), ("start", "v2")}
    assert len({place.devices for part in told for place in part.places}) == 2
    world.settle()
    assert [place.variant for _, place in world.live("a")] == ["v2"]


def test_main_memory_is_nobodys_device() -> None:
    world = PlacementWorld([cpu_node("n0", 16)])
    world.want(demand_of("a", 2, gib=4))
    world.settle()
    assert set(_devices(world).values()) == {()}
