"""A node's cluster for its admin API and its metrics: bodies in their schemas, a publication with its audit, refusals with their way on."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from prometheus_client import CollectorRegistry, generate_latest

from sbctl.base.errors import RefusedError
from sbctl.runtime.cluster.door import ClusterDoor
from sbctl.runtime.cluster.gauges import ClusterGauges
from sbctl.runtime.openapi import openapi_document
from tests.simulators.cluster_nodes import clustered
from tests.simulators.cluster_world import ClusterWorld, SimNode, run_in_cluster
from tests.simulators.engine_world import facts, until
from tests.simulators.runtime_world import member

SCHEMAS = {"components": openapi_document()["components"]}
Q = clustered(member(facts(), "/engine"), replicas=2)
MINUTE_S = 60.0


def checked(name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    validator = Draft202012Validator({**SCHEMAS, "$ref": f"#/components/schemas/{name}"})
    document: dict[str, Any] = json.loads(json.dumps(body))
    assert [error.message for error in validator.iter_errors(document)] == []
    return document


def metrics(gauges: ClusterGauges) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(gauges)
    return generate_latest(registry).decode()


def run(folder: Path, scenario: Callable[[ClusterWorld, list[tuple[Any, ...]]], Awaitable[None]]) -> None:
    async def heard(world: ClusterWorld) -> None:
        await scenario(world, [])

    run_in_cluster(folder, heard)


def door(node: SimNode, entries: list[tuple[Any, ...]]) -> ClusterDoor:
    return ClusterDoor(node.node, lambda *entry: entries.append(entry))


def test_a_publication_over_the_admin_api_is_served_told_and_audited(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld, entries: list[tuple[Any, ...]]) -> None:
        a, w1, w2 = await world.build(a=("authority",), w1=("worker",), w2=("worker",))
        gauges, at = ClusterGauges(a.node, world.clock), door(a, entries)
        with pytest.raises(RefusedError) as caught:
            await at.deployments()
        assert caught.value.code == "deployment_bundle_missing"
        envelope = world.bundle({"q": Q}, 1)
        status, body = await at.publish(envelope)
        assert (status, checked("ClusterPublished", body)["revision"], body["in_store"]) == (202, 1, True)
        assert (await at.publish(envelope))[0] == 202, "a repeat is the same answer"
        for text, code in ((world.bundle({}, 1), "revision_conflict"), ("{}", "invalid_bundle")):
            status, body = await at.publish(text)
            assert (status, checked("AdminError", body)["code"]) == (409 if code != "invalid_bundle" else 400, code)
        assert [entry[2]["outcome"] for entry in entries] == [
            "asked", "published", "asked", "repeat", "asked", "revision_conflict", "asked", "invalid_bundle",
        ]  # fmt: skip
        assert {entry[:2] for entry in entries} == {("cluster_deployments_publish", "prod")}
        assert (entries[1][2]["prior_revision"], entries[1][2]["next_revision"]) == (None, 1)
        assert checked("ClusterBundle", await at.deployments())["bundle"]["revision"] == 1
        await until(lambda: sorted([*w1.slots(), *w2.slots()]) == [0, 1], at_most_s=10 * MINUTE_S)
        await until(lambda: _ready(a) == 2, at_most_s=MINUTE_S)
        told = checked("ClusterStatus", await at.status())
        assert (told["deployments"][0]["ready_replicas"], told["store"]["state"]) == (2, "connected")
        assert checked("ClusterVram", await at.vram())["cluster"]["node_count"] == 2
        assert checked("ClusterArtifacts", await at.artifacts())["partial"] is False
        assert checked("ClusterMetrics", await at.metrics())["metrics"]["sbproxy_model_host_resident_models"] == 2
        assert checked("ClusterPlacement", await at.placement("q"))["placement"]["desired_replicas"] == 2
        with pytest.raises(RefusedError, match="no such deployment"):
            await at.placement("nobody")
        shown = metrics(gauges)
        for line in (
            "sbctl_cluster_store_connected 1.0",
            "sbctl_cluster_lease_held 1.0",
            "sbctl_cluster_bundle_revision 1.0",
            "sbctl_cluster_brake 0.0",
            'sbctl_cluster_unplaced_replicas{deployment="q"} 0.0',
            'sbctl_cluster_nodes{state="excluded"} 0.0',
        ):
            assert line in shown, shown

    run(tmp_path, scenario)


def _ready(node: SimNode) -> int:
    replicas = [one for row in node.node.roster.view.rows.values() if row.snapshot for one in row.snapshot.replicas]
    return sum(one.state == "ready" for one in replicas)


def test_a_worker_says_where_to_ask_and_takes_nothing(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld, entries: list[tuple[Any, ...]]) -> None:
        _, w1 = await world.build(a=("authority",), w1=("worker",))
        at = door(w1, entries)
        for ask, code in (
            (at.status, "cluster_not_seen_here"),
            (lambda: at.publish("{}"), "deployment_authority_read_only"),
        ):
            with pytest.raises(RefusedError) as caught:
                await ask()
            assert caught.value.code == code
            assert caught.value.next_step
        assert entries == []

    run(tmp_path, scenario)


def test_what_begins_is_counted_once_and_a_lost_store_has_its_age(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld, entries: list[tuple[Any, ...]]) -> None:
        a, w1 = await world.build(a=("authority",), w1=("worker",))
        gauges = ClusterGauges(a.node, world.clock)
        await world.publish(
            a, {"q": Q, "big": clustered(member(facts(), "/engine"), replicas=1, required_labels={"zone": "b"})}, 1
        )
        await until(lambda: "required_labels" in metrics(gauges), at_most_s=10 * MINUTE_S)
        line = 'sbproxy_model_host_placement_rejections_total{deployment="big",placement_reason="required_labels"} 1.0'
        await until(lambda: line in metrics(gauges), at_most_s=MINUTE_S)
        assert 'sbctl_cluster_unplaced_replicas{deployment="big"} 1.0' in metrics(gauges)
        await w1.crash()
        del world.nodes["w1"]
        expired = 'sbproxy_ai_model_directory_exclusions_total{exclusion_reason="snapshot_expired"} 1.0'
        await until(lambda: expired in metrics(gauges), at_most_s=10 * MINUTE_S)
        assert 'sbctl_cluster_nodes{state="excluded"} 1.0' in metrics(gauges)
        world.store.quorum = False
        await until(lambda: "sbctl_cluster_store_connected 0.0" in metrics(gauges), at_most_s=MINUTE_S)
        await until(lambda: "sbctl_cluster_store_lost_seconds 0.0" not in metrics(gauges), at_most_s=MINUTE_S)

    run(tmp_path, scenario)
