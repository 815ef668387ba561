"""Who belongs to a cluster and was never heard, and who belonged to it: in the roster, each told as what it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sbctl.apply.verify import degraded_replicas
from sbctl.node.cluster_documents import ClusterRole
from sbctl.node.cluster_messages import ClusterPublish
from sbctl.node.cluster_status import ClusterStatus
from sbctl.node.snapshot import ClusterState, NodeSnapshot
from sbctl.runtime.cluster.control import publish
from sbctl.runtime.cluster.gauges import ClusterGauges
from sbctl.runtime.cluster.status import plans_document, status_document
from sbctl.views.cluster_live_views import alerts
from tests.simulators.cluster_nodes import clustered
from tests.simulators.cluster_trust import NOW
from tests.simulators.cluster_world import ClusterWorld, SimNode, run_in_cluster
from tests.simulators.engine_world import facts, until
from tests.simulators.runtime_world import member

Q = clustered(member(facts(), "/engine"), replicas=1)
MINUTE_S = 60.0


def run(folder: Path, scenario: Callable[[ClusterWorld], Awaitable[None]]) -> None:
    async def with_w2_to_come(world: ClusterWorld) -> None:
        world.kits["w2"] = world.authority.node("w2", "worker", now=NOW - timedelta(hours=1))
        await scenario(world)

    run_in_cluster(folder, with_w2_to_come)


def _is_told_stale(at: SimNode, name: str) -> bool:
    row = at.node.roster.view.rows.get(name)
    return row is not None and row.snapshot is not None and row.snapshot.authority_stale


def gauge(gauges: ClusterGauges, line: str) -> bool:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(gauges)
    return line in generate_latest(registry).decode()


def test_who_was_never_heard_is_in_the_roster_and_in_the_metrics_until_it_comes(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, _ = await world.build(a=("authority",), w1=("worker",))
        gauges = ClusterGauges(a.node, world.clock)
        await until(lambda: a.node.facts().leads and len(a.node.roster.view.rows) == 2, at_most_s=MINUTE_S)
        told = status_document(a.node.facts())
        (row,) = told["unhealthy_nodes"]
        assert (row["node_id"], row["reasons"], row["snapshot_age_ms"]) == ("w2", ["snapshot_missing"], None)
        assert (told["summary"]["total_nodes"], told["summary"]["unhealthy_nodes"]) == (3, 1)
        assert "sbctl logs" in next(one for one in told["nodes"] if one["node_id"] == "w2")["problem"]
        assert len({frozenset(one) for one in told["nodes"]}) == 1, "every row has the same fields"
        assert plans_document(a.node.facts())["absent"] == ["w2"]
        assert gauge(gauges, 'sbctl_cluster_nodes{state="excluded"} 1.0')
        world._write("w2", world.kits["w2"])
        await world.start("w2")
        await until(lambda: not a.node.facts().absent, at_most_s=MINUTE_S)
        assert status_document(a.node.facts())["unhealthy_nodes"] == []
        assert gauge(gauges, 'sbctl_cluster_nodes{state="excluded"} 0.0')

    run(tmp_path, scenario)


def test_a_publication_waits_for_it_a_moment_and_names_it(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, _ = await world.build(a=("authority",), w1=("worker",))
        loop, notes = asyncio.get_running_loop(), list[str]()
        asked = ClusterPublish(envelope=world.bundle({"q": Q}, 1), wait_s=9 * MINUTE_S)
        began_s = loop.time()
        answer = await publish(a.node, asked, lambda _done, _total, note: notes.append(note))
        assert answer.ready
        assert (answer.nodes["w1"].state, answer.nodes["w2"].state) == ("ready", "unseen")
        assert loop.time() - began_s < 5 * MINUTE_S
        assert "w2: unseen (it has not reported)" in notes
        again = await publish(a.node, asked.model_copy(update={"wait_s": 0.0}), lambda *_: None)
        assert not again.ready, "it would have been waited for"

    run(tmp_path, scenario)


@pytest.mark.parametrize("role", ["worker", "gateway"])
def test_a_node_that_is_heard_and_has_not_taken_the_bundle_is_waited_for(tmp_path: Path, role: ClusterRole) -> None:
    async def scenario(world: ClusterWorld) -> None:
        del world.kits["w2"]
        a, _, w2 = await world.build(a=("authority",), w1=("worker",), w2=(role,))
        await until(lambda: len(a.node.roster.view.rows) == 3, at_most_s=MINUTE_S)

        async def refused(_envelope: str) -> bool:
            return False

        accept, w2.node.desired._accept = w2.node.desired._accept, refused  # type: ignore[method-assign]
        asked = ClusterPublish(envelope=world.bundle({"q": Q}, 1), wait_s=5 * MINUTE_S)
        answer = await publish(a.node, asked, lambda *_: None)
        assert (answer.ready, answer.nodes["w2"].state) == (False, "behind")
        w2.node.desired._accept = accept  # type: ignore[method-assign]
        asked = ClusterPublish(envelope=world.bundle({"q": Q}, 2), expected_revision=1, wait_s=5 * MINUTE_S)
        answer = await publish(a.node, asked, lambda *_: None)
        assert (answer.ready, answer.nodes["w2"].state) == (True, "idle" if role == "worker" else "ready")

    run(tmp_path, scenario)


def test_an_apply_ends_degraded_with_its_name() -> None:
    snapshot = NodeSnapshot(bootstrapped=True, cluster=ClusterState(cluster_id="prod", absent=("w2",)))
    (said,) = degraded_replicas(snapshot)
    assert said.startswith("w2 was never heard in its cluster")
    assert degraded_replicas(NodeSnapshot(bootstrapped=True, cluster=ClusterState(cluster_id="prod"))) == ()


@pytest.mark.parametrize("role", ["worker", "gateway"])
def test_a_node_that_is_taken_out_says_farewell_and_is_no_alert(tmp_path: Path, role: ClusterRole) -> None:
    async def scenario(world: ClusterWorld) -> None:
        del world.kits["w2"]
        a, _, leaves = await world.build(a=("authority",), w1=("worker",), w2=(role,))
        await until(lambda: len(a.node.roster.view.rows) == 3, at_most_s=MINUTE_S)
        leaves.node.host.drain.begin("leave")
        del world.kits["w2"], world.nodes["w2"]
        await leaves.node.leave()
        await leaves.crash()
        a.node.config = a.node.config.model_copy(update={"expected_nodes": ("w1",)})
        await until(lambda: a.node.roster.view.rows["w2"].removed, at_most_s=MINUTE_S)
        told = status_document(a.node.facts())
        assert told["unhealthy_nodes"] == []
        assert {one["node_id"]: one["removed"] for one in told["nodes"]} == {"a": False, "w1": False, "w2": True}
        assert (told["summary"]["total_nodes"], told["summary"]["healthy_nodes"]) == (2, 2)
        assert not alerts(ClusterStatus.model_validate(told))

    run(tmp_path, scenario)


def test_who_hears_of_no_authority_for_seven_days_is_degraded_and_says_why(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        del world.kits["w2"]
        a, w1 = await world.build(a=("authority",), w1=("worker",))
        w1.node.publisher._ports = replace(w1.node.publisher._ports, authority_stale=lambda: True)
        w1.node.publisher.poke()
        await until(lambda: _is_told_stale(a, "w1"), at_most_s=MINUTE_S)
        row = next(one for one in status_document(a.node.facts())["nodes"] if one["node_id"] == "w1")
        assert (row["health"], row["unhealthy_reasons"]) == ("degraded", ["authority_stale"])

    run(tmp_path, scenario)


def test_a_revoked_host_that_sb_yml_does_not_name_any_more_is_a_tombstone(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        del world.kits["w2"]
        a, _ = await world.build(a=("authority",), w1=("worker",))
        await until(lambda: len(a.node.roster.view.rows) == 2, at_most_s=MINUTE_S)
        revoked = replace(a.node.roster.view.rows["w1"], exclusion="identity_revoked")
        for expected, is_out in ((frozenset({"w1"}), False), (frozenset(), True)):
            assert replace(a.node.facts(), expected=expected).is_out(revoked) is is_out
        assert not replace(a.node.facts(), expected=frozenset(), is_authority=False).is_out(revoked)

    run(tmp_path, scenario)
