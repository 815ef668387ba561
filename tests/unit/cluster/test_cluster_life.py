"""The life of a cluster in virtual time: who leads, what runs where, and that no loss of store, leader or node touches what need not change."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from sbctl.base.errors import HTTP_STATUS, EngineError, SbctlError
from sbctl.node.cluster_messages import ClusterPublish, ClusterPublished
from sbctl.node.placement_document import PlacementDocument
from sbctl.node.snapshot import ClusterState
from sbctl.runtime.cluster.control import publish
from sbctl.runtime.cluster.fences import COPY_NAME
from sbctl.runtime.cluster.status import plans_document, status_document
from sbctl.runtime.cluster.store import Bucket
from sbctl.runtime.gateway.head import read_head
from sbctl.runtime.key_limits import KeyLimits
from sbctl.runtime.provision import quiet
from tests.simulators.cluster_nodes import clustered
from tests.simulators.cluster_world import ClusterWorld, SimNode, run_in_cluster
from tests.simulators.engine_world import facts, outcome_of, until
from tests.simulators.runtime_world import content, member

pytestmark = pytest.mark.flow

MINUTE_S = 60.0
Q = clustered(member(facts(), "/engine"), replicas=2)


def _slots(*nodes: SimNode, deployment: str = "q") -> list[int]:
    return sorted(slot for node in nodes for slot in node.slots(deployment))


async def _served(*nodes: SimNode, slots: tuple[int, ...] = (0, 1), deployment: str = "q") -> None:
    await until(lambda: _slots(*nodes, deployment=deployment) == list(slots), at_most_s=10 * MINUTE_S)


def test_a_bundle_becomes_replicas_and_every_part_says_so(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1, w2 = await world.build(a=("authority",), w1=("worker",), w2=("worker",))
        await world.publish(a, {"q": Q}, 1)
        await _served(w1, w2)
        assert (w1.starts, w2.starts) == (1, 1)
        await until(
            lambda: (mark := w1.node.obedience.mark()) is not None and mark.state == "ready", at_most_s=MINUTE_S
        )
        status = status_document(a.node.facts())
        assert status["summary"]["eligible_workers"] == 2
        assert status["deployment_authority"]["active_revision"] == 1
        told = ClusterState.model_validate_json(json.dumps(plans_document(a.node.facts())))
        assert (told.is_authority, told.store_reachable, set(told.members)) == (True, True, {"q"})
        assert told.bundle is not None
        assert told.bundle.revision == 1
        PlacementDocument.model_validate_json(json.dumps(told.placement))

    run_in_cluster(tmp_path, scenario)


def test_another_leader_goes_on_from_the_plan_and_moves_nothing(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        await world.build(a=("authority",), b=("authority",), w1=("worker",), w2=("worker",))
        w1, w2 = world.nodes["w1"], world.nodes["w2"]
        await world.publish(world.nodes["b"], {"q": Q}, 1)
        await _served(w1, w2)
        first = world.leader()
        assert first is not None
        before = first.node.feed.plan
        assert before is not None
        await first.crash()
        del world.nodes[first.name]
        await until(lambda: world.leader() is not None, at_most_s=5 * MINUTE_S)
        second = world.leader()
        assert second is not None
        await until(lambda: second.node.feed.plan is not None and second.node.feed.plan.lease_holder == second.name)
        after = second.node.feed.plan
        assert after is not None
        assert after.lease_epoch > before.lease_epoch
        assert after.deployments["q"].assignments == before.deployments["q"].assignments
        await until(
            lambda: all((m := n.node.obedience.mark()) and m.lease_epoch == after.lease_epoch for n in (w1, w2))
        )
        assert (w1.starts, w2.starts) == (1, 1)

    run_in_cluster(tmp_path, scenario)


@pytest.mark.parametrize("ahead_s", [600.0, -600.0])
def test_an_authority_whose_clock_is_off_leaves_the_lease_and_says_so(tmp_path: Path, ahead_s: float) -> None:
    async def scenario(world: ClusterWorld) -> None:
        await world.build(a=("authority",), b=("authority",), gw=("gateway",), w1=("worker",), w2=("worker",))
        gw, w1, w2 = world.nodes["gw"], world.nodes["w1"], world.nodes["w2"]
        await world.publish(world.nodes["a"], {"q": Q}, 1)
        await _served(w1, w2)
        first = world.leader()
        assert first is not None
        first.clock.ahead_s = ahead_s
        await until(lambda: world.leader() not in (None, first), at_most_s=5 * MINUTE_S)
        await until(lambda: status_document(first.node.facts())["problem"] is not None, at_most_s=MINUTE_S)
        problem = status_document(first.node.facts())["problem"]
        assert ("600 s ahead of" if ahead_s > 0 else "600 s behind") in problem
        await until(lambda: gw.node.roster.view.rows[first.name].exclusion == "clock_skew", at_most_s=2 * MINUTE_S)
        assert "600 s" in gw.node.roster.view.rows[first.name].problem
        for _ in range(150):
            await asyncio.sleep(2)
            assert first.node.controller is not None
            assert not first.node.controller.is_leading
        first.clock.ahead_s = 0.0
        await until(lambda: not gw.node.roster.view.rows[first.name].exclusion, at_most_s=MINUTE_S)
        assert status_document(first.node.facts())["problem"] is None
        assert (w1.starts, w2.starts, _slots(w1, w2)) == (1, 1, [0, 1])

    run_in_cluster(tmp_path, scenario)


@pytest.mark.parametrize("ahead_s", [600.0, -600.0])
def test_a_gateway_whose_clock_is_off_asks_on_and_loses_nobody(tmp_path: Path, ahead_s: float) -> None:
    async def scenario(world: ClusterWorld) -> None:
        await world.build(a=("authority",), gw=("gateway",), w1=("worker",), w2=("worker",))
        gw, w1, w2 = world.nodes["gw"], world.nodes["w1"], world.nodes["w2"]
        await world.publish(world.nodes["a"], {"q": Q}, 1)
        await _served(w1, w2)
        roster = gw.node.roster
        await until(lambda: {"w1", "w2"} <= roster.view.rows.keys(), at_most_s=MINUTE_S)
        gw.clock.ahead_s = ahead_s
        for _ in range(120):
            await asyncio.sleep(2)
            assert roster.is_asked(roster.view.rows["w1"])
            assert roster.is_asked(roster.view.rows["w2"])
        assert "600 s" in status_document(gw.node.facts())["problem"]
        gw.clock.ahead_s = 0.0
        await until(lambda: not any(row.exclusion for row in roster.view.rows.values()), at_most_s=MINUTE_S)
        assert (w1.starts, w2.starts) == (1, 1)

    run_in_cluster(tmp_path, scenario)


def test_workers_that_all_fall_silent_are_asked_all_the_same(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        await world.build(a=("authority",), gw=("gateway",), w1=("worker",), w2=("worker",))
        gw, w1, w2 = world.nodes["gw"], world.nodes["w1"], world.nodes["w2"]
        await world.publish(world.nodes["a"], {"q": Q}, 1)
        await _served(w1, w2)
        roster = gw.node.roster
        await until(lambda: {"w1", "w2"} <= roster.view.rows.keys(), at_most_s=MINUTE_S)
        for name in ("w1", "w2"):
            world.store.cut(name)
        await asyncio.sleep(2 * MINUTE_S)
        assert gw.node.store.status().state == "connected"
        for name in ("w1", "w2"):
            row = roster.view.rows[name]
            assert (row.exclusion, roster.is_asked(row), roster.may_answer(row)) == ("snapshot_expired", False, True)
        for name in ("w1", "w2"):
            world.store.mend(name)
        await until(lambda: not any(row.exclusion for row in roster.view.rows.values()), at_most_s=MINUTE_S)

    run_in_cluster(tmp_path, scenario)


def test_a_store_that_comes_back_empty_and_later_its_buckets_has_the_bundle_within_seconds(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, gw = await world.build(a=("authority",), gw=("gateway",))
        world.store.cut("a")
        await world.publish(a, {}, 1)
        assert not a.node.desired.in_store
        await asyncio.sleep(40)
        world.store.mend("a")
        await until(lambda: gw.node.desired.held is not None, at_most_s=5)

    run_in_cluster(tmp_path, scenario)


def test_a_store_that_is_away_changes_nothing_and_gets_everything_back(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1, w2 = await world.build(a=("authority",), w1=("worker",), w2=("worker",))
        await world.publish(a, {"q": Q}, 1)
        await _served(w1, w2)
        for name in world.nodes:
            world.store.cut(name)
        await asyncio.sleep(8 * MINUTE_S)
        assert _slots(w1, w2) == [0, 1]
        await w1.crash()
        w1 = await world.start("w1")
        await _served(w1, w2)
        world.store.lose_data()
        for name in world.nodes:
            world.store.mend(name)
        await until(lambda: "bundle" in world.store.data[Bucket.DESIRED], at_most_s=5 * MINUTE_S)
        await until(lambda: {"w1", "w2", "plan"} <= set(world.store.data[Bucket.ASSIGNMENTS]), at_most_s=5 * MINUTE_S)
        await asyncio.sleep(5 * MINUTE_S)
        assert _slots(w1, w2) == [0, 1]
        assert (w1.starts, w2.starts) == (1, 1)

    run_in_cluster(tmp_path, scenario)


def test_a_lost_node_is_replaced_and_gets_its_share_when_it_is_back(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1, w2 = await world.build(a=("authority",), w1=("worker",), w2=("worker",))
        await world.publish(a, {"q": Q}, 1)
        await _served(w1, w2)
        await w1.crash()
        await _served(w2)
        w1 = await world.start("w1")
        await until(lambda: len(w1.slots()) == len(w2.slots()) == 1, at_most_s=10 * MINUTE_S)
        await asyncio.sleep(2 * MINUTE_S)
        assert _slots(w1, w2) == [0, 1]
        assert len(w1.engines.alive) == len(w2.engines.alive) == 1

    run_in_cluster(tmp_path, scenario)


def test_a_node_behind_a_cut_link_serves_on_and_gives_up_what_went_elsewhere_when_it_is_heard_again(
    tmp_path: Path,
) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1, w2 = await world.build(a=("authority",), w1=("worker",), w2=("worker",))
        await world.publish(a, {"q": Q}, 1)
        await _served(w1, w2)
        own = w1.slots()
        world.store.cut("w1")
        await _served(w2)
        assert w1.slots() == own
        world.store.mend("w1")
        await until(lambda: _slots(w1, w2) == [0, 1] and len(w1.engines.alive) + len(w2.engines.alive) == 2)
        await asyncio.sleep(2 * MINUTE_S)
        assert _slots(w1, w2) == [0, 1]

    run_in_cluster(tmp_path, scenario)


def test_who_publishes_is_told_of_every_node_and_of_what_found_no_place(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1 = await world.build(a=("authority",), w1=("worker",))
        notes: list[str] = []

        async def published(revision: int, wait_s: float, **changes: object) -> ClusterPublished:
            envelope = world.bundle({"q": Q.model_copy(update=changes)}, revision)
            asked = ClusterPublish(envelope=envelope, expected_revision=revision - 1 or None, wait_s=wait_s)
            return await publish(a.node, asked, lambda _done, _total, note: notes.append(note))

        done = await published(1, 300, replicas=1)
        assert (done.ready, done.in_store, done.unplaced) == (True, True, {})
        assert {name: one.state for name, one in done.nodes.items()} == {"w1": "ready"}
        assert notes[-1] == "w1: ready"
        nowhere = await published(2, 60, replicas=3, required_labels={"gpu": "yes"})
        assert (nowhere.ready, nowhere.unplaced) == (False, {"q": 3})
        w1.engines.faults[:] = [EngineError("engine_early_exit", "the engine ended while loading")] * 40
        broken = await published(3, 60, replicas=1, max_concurrency=9)
        assert not broken.ready
        assert (broken.nodes["w1"].state, broken.nodes["w1"].detail) == ("failed", "q: engine_early_exit")

    run_in_cluster(tmp_path, scenario)


def test_a_rollout_never_leaves_nobody_to_serve(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1, w2 = await world.build(a=("authority",), w1=("worker",), w2=("worker",))
        await world.publish(a, {"q": Q}, 1)
        await _served(w1, w2)
        gaps: list[float] = []

        async def watch() -> None:
            while True:
                await asyncio.sleep(0.05)
                if not any(one.ready_replicas for node in (w1, w2) if (one := node.generation()) is not None):
                    gaps.append(asyncio.get_running_loop().time())

        watching = asyncio.create_task(watch())
        await world.publish(a, {"q": Q.model_copy(update={"max_concurrency": 7})}, 2)
        await until(
            lambda: all((one := n.generation()) and one.assigned and one.assigned.generation == 2 for n in (w1, w2)),
            at_most_s=10 * MINUTE_S,
        )
        await _served(w1, w2)
        await asyncio.sleep(2 * MINUTE_S)
        watching.cancel()
        assert gaps == []
        assert len(w1.engines.alive) == len(w2.engines.alive) == 1

    run_in_cluster(tmp_path, scenario)


def test_what_does_not_come_up_holds_nothing_else_up_and_is_tried_again(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1 = await world.build(a=("authority",), w1=("worker",))
        bad = EngineError("engine_early_exit", "the engine ended while loading", retryable=True)
        w1.engines.faults[:] = [bad, bad, bad, bad, bad, bad]
        one = Q.model_copy(update={"replicas": 1})
        await world.publish(a, {"q": one, "r": one}, 1)
        await until(lambda: bool(w1.node.obedience.problems()), at_most_s=MINUTE_S)
        await _served(w1, slots=(0,))
        await _served(w1, slots=(0,), deployment="r")
        assert w1.node.obedience.problems() == {}

    run_in_cluster(tmp_path, scenario)


def test_a_bundle_of_the_hosts_own_is_in_force_until_the_first_assignment_and_its_engine_stays(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1 = await world.build(a=("authority",), w1=("worker",))
        own = content({"q": member(facts(), "/engine")})
        await w1.reconciler.apply_bundle(world.operator.bundle(own, 1, scope="w1"), None, quiet)
        await asyncio.sleep(2 * MINUTE_S)
        assert w1.reconciler.bundle() is not None
        one = clustered(member(facts(), "/engine"), replicas=1)
        await world.publish(a, {"q": one}, 1)
        await until(lambda: w1.slots() == [0], at_most_s=5 * MINUTE_S)
        assert w1.starts == 1
        assert w1.reconciler.bundle() is None
        assert w1.runtime_store.fence() is not None
        # from here on the cluster alone says what runs: the host's own bundle is neither taken nor, cleared, missed
        again = world.operator.bundle(own, 2, scope="w1")
        assert await outcome_of(w1.reconciler.apply_bundle(again, 1, quiet)) == "bundle.cluster_authority"
        await w1.reconciler.clear()
        assert w1.slots() == [0]

    run_in_cluster(tmp_path, scenario)


def test_a_disk_that_is_full_takes_no_node_out_of_the_gateways_sight(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1 = await world.build(a=("authority", "gateway"), w1=("worker",))
        await world.publish(a, {"q": Q}, 1)
        await _served(w1)

        def full(_marks: object) -> None:
            raise SbctlError("cluster.state_not_written", "no space left", retryable=True)

        a.node.fences.advance = full  # type: ignore[method-assign]
        await asyncio.sleep(5 * MINUTE_S)
        rows = a.node.roster.view.rows
        assert rows["w1"].exclusion == "snapshot_expired"
        assert a.node.roster.is_asked(rows["w1"])

    run_in_cluster(tmp_path, scenario)


def test_a_gateway_that_starts_while_the_store_is_away_asks_the_nodes_that_it_knew(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1, gw = await world.build(a=("authority",), w1=("worker",), gw=("gateway",))
        await world.publish(a, {"q": Q}, 1)
        await _served(w1)
        await asyncio.sleep(2 * MINUTE_S)
        world.store.quorum = False
        await gw.crash()
        for name in world.nodes:
            world.store.cut(name)
        gw = world.make("gw")
        assert gw.node.roster.is_asked(gw.node.roster.view.rows["w1"]), "the first request finds nobody"
        await gw.start()
        world.store.cut("gw")
        await asyncio.sleep(5 * MINUTE_S)
        row = gw.node.roster.view.rows["w1"]
        assert (row.exclusion, gw.node.roster.is_asked(row)) == ("snapshot_expired", True)
        assert gw.node.feed.plan is not None
        assert gw.node.desired.held is not None
        await gw.crash()
        (world.paths("gw").state / "directory.json").write_text("{}")
        gw = await world.start("gw")
        await asyncio.sleep(1)
        assert not any(gw.node.roster.is_asked(row) for row in gw.node.roster.view.rows.values())

    run_in_cluster(tmp_path, scenario)


def test_a_gateway_whose_memory_is_lost_believes_nobody_lets_nobody_in_and_says_what_to_do(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1, gw = await world.build(a=("authority",), w1=("worker",), gw=("gateway",))
        await world.publish(a, {"q": Q}, 1)
        await _served(w1)
        await asyncio.sleep(MINUTE_S)
        await gw.crash()
        for name in ("cluster.db", COPY_NAME):
            (world.paths("gw").state / name).write_bytes(b"noise" * 2000)
        gw = await world.start("gw")
        public = gw.node.gateway(KeyLimits(), cast("Any", None), bound_to_loopback=False)
        assert public is not None
        await asyncio.sleep(5 * MINUTE_S)
        assert gw.node.desired.held is None
        assert not public._is_ready()
        with pytest.raises(EngineError) as refused:
            public.check(read_head(b"GET /v1/models HTTP/1.1\r\nHost: ai\r\nAuthorization: Bearer known\r\n\r\n"))
        assert (refused.value.code, HTTP_STATUS.status(refused.value.code)) == ("desired_state_unknown", 503)
        problem = gw.node.facts().problem or ""
        assert "is lost, and it believes nobody" in problem
        assert "sbctl cluster rotate" in problem
        assert a.node.roster.view.rows["gw"].exclusion == "behind_active_generation"

    run_in_cluster(tmp_path, scenario)


def test_an_engine_that_an_apply_installs_is_told_with_the_next_snapshot(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, _w1 = await world.build(a=("authority",), w1=("worker",))
        await asyncio.sleep(32)
        build = world.paths("w1").engines / "llama_cpp" / "9.9.9"
        build.mkdir(parents=True)
        digests = {"sha256": "a" * 64, "launcher_sha256": "b" * 64}
        record = {"schema_version": 1, "engine": "llama_cpp", "launch": "wheel", "version": "9.9.9", **digests}
        (build / "engine.json").write_text(json.dumps({**record, "wheel": "x.whl", "python": "python3"}))
        await asyncio.sleep(8)
        snapshot = a.node.roster.view.rows["w1"].snapshot
        assert snapshot is not None
        assert "9.9.9" in {each.version for each in snapshot.engines}

    run_in_cluster(tmp_path, scenario)


def test_a_host_on_its_own_loads_nothing_of_clusters() -> None:
    loaded = (
        "import sys, sbctl.runtime.daemon; print([n for n in sys.modules if 'runtime.cluster' in n or n == 'nats'])"
    )
    found = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
