"""Bundles as transactions: what is started, kept and retired, in which order, and that a failure leaves everything as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.clock import SYSTEM_CLOCK, rfc3339
from sbctl.base.errors import EngineError, SbctlError
from sbctl.runtime.provision import quiet
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.store import RuntimeStore
from sbctl.trust.bundle import BundleContent, DeploymentMember, TrustSet
from tests.simulators.engine_world import EngineWorld, in_virtual_time, outcome_of, settle, until
from tests.simulators.runtime_world import SCOPE, Operator, content

MakeMember = Callable[..., DeploymentMember]
CRASH = EngineError("engine_early_exit", "the engine ended while loading", retryable=True)


class _Node:
    def __init__(self, folder: Path, world: EngineWorld, **changes: Any) -> None:
        self.world = world
        self.operator: Operator = changes.pop("operator", None) or Operator()
        self.store = RuntimeStore(folder / "runtime.db", folder / "bundle.json")
        trust: TrustSet | None = changes.pop("trust", self.operator.trust)
        self.reconciler = Reconciler(
            scope=SCOPE,
            trust=trust,
            store=self.store,
            ports=world.ports(),
            clock=SYSTEM_CLOCK,
            drain_s=5,
            parallel_prepares=2,
            **changes,
        )

    async def apply(self, desired: BundleContent, revision: int, expected: int | None = None) -> dict[str, Any]:
        expected = revision - 1 or None if expected is None else expected
        return await self.reconciler.apply_bundle(self.operator.bundle(desired, revision), expected, quiet)

    def states(self) -> dict[str, str]:
        return {row.deployment: row.state for row in self.reconciler.deployments()}


def _run(folder: Path, scenario: Callable[[_Node], Coroutine[Any, Any, None]], **changes: Any) -> EngineWorld:
    world = EngineWorld()

    async def work() -> None:
        node = _Node(folder, world, **changes)
        try:
            await scenario(node)
        finally:
            await node.reconciler.shutdown(drain_s=1.0)
            node.store.close()

    in_virtual_time(work)
    return world


def test_rolling_starts_the_new_before_it_stops_the_old(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(node: _Node) -> None:
        await node.apply(content({"q": make_member()}), 1)
        node.world.events.clear()
        outcome = await node.apply(content({"q": make_member(max_concurrency=9)}), 2)
        assert outcome["report"]["changed"] == ["q"]
        assert node.world.events == ["prepare tiny", "prepare tiny", "start q#2", "stop q#1"]

    _run(tmp_path, scenario)


def test_recreate_stops_the_old_first_and_starts_it_again_when_the_new_fails(
    tmp_path: Path, make_member: MakeMember
) -> None:
    async def scenario(node: _Node) -> None:
        await node.apply(content({"q": make_member(rollout="recreate")}), 1)
        node.world.events.clear()
        changed = content({"q": make_member(rollout="recreate", max_concurrency=9)})
        await node.apply(changed, 2)
        assert node.world.events[1:] == ["stop q#1", "prepare tiny", "start q#2"]
        node.world.events.clear()
        node.world.faults[:] = [CRASH]
        again = content({"q": make_member(rollout="recreate", max_concurrency=5)})
        assert await outcome_of(node.apply(again, 3)) == "engine_early_exit"
        assert [event for event in node.world.events if "prepare" not in event] == [
            "stop q#2",
            "start q#3",
            "stop q#3",
            "start q#2",
        ]
        assert node.states() == {"q": "ready"}
        assert node.reconciler.bundle().revision == 2  # type: ignore[union-attr]

    _run(tmp_path, scenario)


def test_a_failed_restore_of_a_recreate_is_named_beside_the_cause(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(node: _Node) -> None:
        await node.apply(content({"q": make_member(rollout="recreate")}), 1)
        node.world.faults[:] = [CRASH, CRASH]
        with pytest.raises(SbctlError) as caught:
            await node.apply(content({"q": make_member(rollout="recreate", max_concurrency=5)}), 2)
        assert caught.value.place == "deployment.local/q"
        assert caught.value.detail["stage"] == "start"
        assert list(caught.value.detail["not_restored"]) == ["q"]

    _run(tmp_path, scenario)


def test_one_bad_deployment_refuses_the_whole_candidate(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(node: _Node) -> None:
        await node.apply(content({"q": make_member()}), 1)
        before = node.reconciler.routes
        wanted = content(
            {"q": make_member(max_concurrency=7), "new": make_member(program="/missing"), "other": make_member()}
        )
        with pytest.raises(SbctlError) as caught:
            await node.apply(wanted, 2)
        assert (caught.value.code, caught.value.place) == ("engine_missing", "deployment.local/new")
        assert node.reconciler.routes is before
        assert len(node.world.alive) == 1
        assert node.store.fence().revision == 1  # type: ignore[union-attr]
        assert (await node.apply(content({"q": make_member()}), 2, 1))["revision"] == 2

    _run(tmp_path, scenario)


def test_a_commit_that_the_disk_refuses_leaves_the_old_serving(
    tmp_path: Path, make_member: MakeMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_named: object) -> None:
        raise SbctlError("store_failed", "the disk is full")

    async def scenario(node: _Node) -> None:
        await node.apply(content({"q": make_member()}), 1)
        monkeypatch.setattr(node.store, "accept", refuse)
        assert await outcome_of(node.apply(content({"q": make_member(max_concurrency=7)}), 2)) == "store_failed"
        assert [engine.label.generation for engine in node.world.alive] == [1]
        assert node.states() == {"q": "ready"}

    _run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"max_queue_depth": 1}, True),
        ({"queue_timeout_ms": 1}, True),
        ({"keep_alive_secs": 60}, True),
        ({"cold_start": "reject"}, True),
        ({"rollout": "recreate"}, True),
        ({"model": "renamed"}, False),
        ({"max_concurrency": 3}, False),
        ({"context_length": 256}, False),
        ({"threads": 2}, False),
        ({"tensor_parallel": 2}, False),
        ({"extra_args": ("--mlock",)}, False),
        ({"program": "/engine2"}, False),
    ],
)
def test_only_what_the_gate_reads_changes_without_a_new_engine(
    tmp_path: Path, make_member: MakeMember, change: dict[str, Any], kept: bool
) -> None:
    async def scenario(node: _Node) -> None:
        await node.apply(content({"q": make_member()}), 1)
        report = (await node.apply(content({"q": make_member(**change)}), 2))["report"]
        assert (report["adjusted"], report["changed"]) == ((["q"], []) if kept else ([], ["q"]))
        assert (node.world.alive[0].label.generation == 1) is kept
        assert report["deployments"][0]["state"] == "ready"

    _run(tmp_path, scenario)


def test_a_new_mirror_is_provenance_and_restarts_nothing(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(node: _Node) -> None:
        first = make_member()
        await node.apply(content({"q": first}), 1)
        moved = first.model_copy(update={"artifact": first.artifact.model_copy(update={"mirrors": ("file:/other",)})})
        assert (await node.apply(content({"q": moved}), 2))["report"]["adjusted"] == ["q"]

    _run(tmp_path, scenario)


def test_a_repeat_starts_again_what_was_stopped_or_failed(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(node: _Node) -> None:
        desired = content({"q": make_member(), "cold": make_member(warm=False, pull="on_demand")})
        await node.apply(desired, 1)
        await node.reconciler.act("q", "stop")
        await node.reconciler.act("cold", "stop")
        assert node.store.stopped() == {"q", "cold"}
        report = (await node.apply(desired, 1, 1))["report"]
        assert report["preserved"] == ["cold", "q"]
        assert node.states() == {"q": "ready", "cold": "configured"}
        assert node.store.stopped() == frozenset()

    _run(tmp_path, scenario)


def test_what_does_not_start_again_after_a_commit_is_reported_as_degraded(
    tmp_path: Path, make_member: MakeMember
) -> None:
    async def scenario(node: _Node) -> None:
        desired = content({"q": make_member()})
        await node.apply(desired, 1)
        await node.reconciler.act("q", "stop")
        node.world.faults[:] = [CRASH]
        assert list((await node.apply(desired, 1, 1))["report"]["degraded"]) == ["q"]

    _run(tmp_path, scenario)


def test_what_runs_keeps_running_although_its_successor_is_not_warm(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(node: _Node) -> None:
        await node.apply(content({"q": make_member(warm=False, pull="on_demand")}), 1)
        await node.reconciler.act("q", "load")
        await node.apply(content({"q": make_member(warm=False, pull="on_demand", max_concurrency=5)}), 2)
        assert node.states() == {"q": "ready"}

    _run(tmp_path, scenario)


def test_becoming_warm_starts_it_before_the_commit(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(node: _Node) -> None:
        await node.apply(content({"q": make_member(warm=False)}), 1)
        assert node.states() == {"q": "cached"}
        node.world.faults[:] = [CRASH]
        assert await outcome_of(node.apply(content({"q": make_member()}), 2)) == "engine_early_exit"
        assert node.world.alive == []
        await node.apply(content({"q": make_member()}), 2)
        assert node.states() == {"q": "ready"}

    _run(tmp_path, scenario)


def test_an_accepted_bundle_is_served_by_the_next_process(tmp_path: Path, make_member: MakeMember) -> None:
    operator = Operator()

    async def refused_then_accepted(node: _Node) -> None:
        assert await outcome_of(node.apply(content({}), 3)) == "bundle.revision_conflict"
        desired = content({"q": make_member(), "off": make_member(), "cold": make_member(warm=False, pull="on_demand")})
        tomorrow = rfc3339(SYSTEM_CLOCK.now() + timedelta(days=1))
        await node.reconciler.apply_bundle(operator.bundle(desired, 3, expires_at=tomorrow), None, quiet)
        await node.reconciler.act("off", "stop")

    async def second(node: _Node) -> None:
        await node.reconciler.restore()
        assert set(node.reconciler.routes.generations) == {"q", "off", "cold"}
        await until(lambda: node.states()["q"] == "ready")
        assert node.states() == {"q": "ready", "off": "stopped", "cold": "configured"}
        assert node.reconciler.bundle().revision == 3  # type: ignore[union-attr]

    _run(tmp_path, refused_then_accepted, operator=operator)
    _run(tmp_path, second, operator=operator)


def test_without_signers_or_started_by_hand_no_bundle_is_taken(tmp_path: Path, make_member: MakeMember) -> None:
    async def no_trust(node: _Node) -> None:
        assert await outcome_of(node.apply(content({}), 1)) == "bundle.no_trust"

    async def by_hand(node: _Node) -> None:
        await node.reconciler.apply_content(content({"q": make_member()}), quiet)
        assert node.states() == {"q": "ready"}
        assert await outcome_of(node.apply(content({}), 1)) == "runtime.started_by_hand"

    _run(tmp_path, no_trust, trust=None)
    _run(tmp_path, by_hand, by_hand=True)


def test_a_request_that_waits_while_its_model_is_recreated_gets_the_new_one(
    tmp_path: Path, make_member: MakeMember
) -> None:
    async def scenario(node: _Node) -> None:
        await node.apply(content({"q": make_member(rollout="recreate")}), 1)
        old = node.reconciler.generations["q"]
        applying = asyncio.create_task(
            node.apply(content({"q": make_member(rollout="recreate", max_concurrency=5)}), 2)
        )
        await until(lambda: "stop q#1" in node.world.events)
        waiting = asyncio.create_task(outcome_of(old.admit("standard")))
        await settle()
        await applying
        assert await waiting == "draining", "the data plane follows to the new table"
        (await node.reconciler.generations["q"].admit("standard")).release()
        assert node.world.events.count("start q#1") == 1

    _run(tmp_path, scenario)


def test_weights_are_leased_only_while_something_desires_them(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(node: _Node) -> None:
        member = make_member()
        await node.apply(content({"q": member}), 1)
        assert node.world.leases == {member.artifact.artifact}
        await node.reconciler.clear()
        assert node.world.leases == frozenset()

    _run(tmp_path, scenario)


def test_admission_of_a_cold_deployment(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(node: _Node) -> None:
        node.world.load_s = 100
        cold: dict[str, Any] = {"warm": False, "pull": "on_demand"}
        members = {
            "wait": make_member(**cold, queue_timeout_ms=5000, max_queue_depth=0, max_concurrency=1),
            "reject": make_member(**cold, cold_start="reject"),
        }
        await node.apply(content(members), 1)
        generations = node.reconciler.generations
        assert await outcome_of(generations["reject"].admit("standard")) == "no_ready_replica"
        first = asyncio.create_task(outcome_of(generations["wait"].admit("standard")))
        await settle()
        assert await outcome_of(generations["wait"].admit("standard")) == "queue_full"
        assert await first == "queue_timeout"
        await until(lambda: node.states()["wait"] == "ready")
        (await generations["wait"].admit("standard")).release()

    _run(tmp_path, scenario)


def test_requests_go_to_the_least_busy_replica(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(node: _Node) -> None:
        await node.apply(content({"q": make_member(replicas=2)}), 1)
        leases = [await node.reconciler.generations["q"].admit("standard") for _ in range(4)]
        assert [lease.replica.label.replica for lease in leases] == [0, 1, 0, 1]
        leases[2].release()
        assert (await node.reconciler.generations["q"].admit("standard")).replica.label.replica == 0

    _run(tmp_path, scenario)


def test_engines_that_outlive_the_daemon_are_left_to_the_next_which_has_them_ready_before_it_serves(
    tmp_path: Path, make_member: MakeMember
) -> None:
    operator = Operator()
    desired = content({"cold": make_member(warm=False), "stopped": make_member(), "warm": make_member(replicas=2)})

    async def first(node: _Node) -> None:
        node.world.outlives_daemon = True
        await node.apply(desired, 1)
        await node.reconciler.act("cold", "load")
        await node.reconciler.act("stopped", "stop")
        node.world.events.clear()

    world = _run(tmp_path, first, operator=operator)
    assert sorted(world.events) == ["leave cold", "leave warm", "leave warm"]

    async def second(node: _Node) -> None:
        adopted = {("cold", 0), ("warm", 0), ("stopped", 0), ("gone", 0), ("warm", 7)}
        await node.reconciler.restore(adopted)
        rows = {row.deployment: row for row in node.reconciler.deployments()}
        assert (rows["cold"].state, rows["stopped"].state) == ("ready", "stopped")
        assert rows["warm"].replicas[0].state == "ready"
        await until(lambda: node.reconciler.generations["warm"].ready_replicas == 2)

    _run(tmp_path, second, operator=operator)


@pytest.mark.flow
def test_an_adopted_engine_that_does_not_answer_holds_serving_up_for_half_a_minute_at_most(
    tmp_path: Path, make_member: MakeMember
) -> None:
    operator = Operator()

    async def first(node: _Node) -> None:
        await node.apply(content({"q": make_member()}), 1)

    _run(tmp_path, first, operator=operator)

    async def second(node: _Node) -> None:
        node.world.load_s = 300.0
        began_s = asyncio.get_running_loop().time()
        await node.reconciler.restore({("q", 0)})
        assert 29.0 < asyncio.get_running_loop().time() - began_s < 31.0
        await until(lambda: node.states()["q"] == "ready")

    _run(tmp_path, second, operator=operator)
