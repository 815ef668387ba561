"""What operators ask of a cluster: it holds over a lost leader and a wiped store, moves without a gap, and ends when its reason does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import EngineError, RefusedError, UnreachableError
from sbctl.node.cluster_actions import ActionName, ClusterAct, ClusterActed
from sbctl.runtime.cluster.actions import ActionsMemory
from sbctl.runtime.cluster.operator_door import OperatorDoor
from sbctl.runtime.cluster.status import status_document
from sbctl.runtime.cluster.store import ACTIONS_KEY, Bucket
from sbctl.runtime.event_log import EventSink, Told
from tests.simulators.cluster_nodes import clustered
from tests.simulators.cluster_world import ClusterWorld, SimNode, run_in_cluster
from tests.simulators.engine_world import facts, until
from tests.simulators.runtime_world import member

MINUTE_S = 60.0
Q = clustered(member(facts(), "/engine"), replicas=2)


class Heard(EventSink):
    def __init__(self) -> None:
        self.told: list[Told] = []

    def take(self, told: Told) -> None:
        self.told.append(told)

    def kinds(self) -> list[str]:
        return [one.kind.value.removeprefix("cluster.") for one in self.told]


class Operator:
    """At one authority."""

    def __init__(self, node: SimNode) -> None:
        self.audited: list[tuple[Any, ...]] = []
        self.door = OperatorDoor(node.node, lambda *entry: self.audited.append(entry))

    async def asks(self, action: ActionName, subject: str, reason: str = "") -> ClusterActed:
        return await self.door.ask(ClusterAct(action=action, subject=subject, by="ops", reason=reason))

    async def is_refused(self, action: ActionName, subject: str) -> str:
        with pytest.raises(RefusedError) as caught:
            await self.asks(action, subject)
        assert caught.value.next_step
        return caught.value.code


def _slots(*nodes: SimNode) -> list[int]:
    return sorted(slot for node in nodes for slot in node.slots())


def _actions(node: SimNode) -> list[tuple[str, str]]:
    return [(one["action"], one["subject"]) for one in status_document(node.node.facts())["actions"]]


def test_a_node_that_is_evacuated_serves_until_its_replicas_are_ready_elsewhere(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1, w2 = await world.build(a=("authority",), w1=("worker",), w2=("worker",))
        operator = Operator(a)
        await world.publish(a, {"q": Q}, 1)
        await until(lambda: len(w1.slots()) == len(w2.slots()) == 1, at_most_s=10 * MINUTE_S)
        told = await operator.asks("evacuate", "w1", "new memory")
        assert (told.changed, told.by, told.authority) == (True, "ops", "a")
        gaps = []

        async def watch() -> None:
            while True:
                await asyncio.sleep(0.05)
                if len(_slots(w1, w2)) < 2:
                    gaps.append(world.clock.now())

        watching = asyncio.create_task(watch())
        await until(lambda: len(w2.slots()) == 2 and not w1.engines.alive, at_most_s=10 * MINUTE_S)
        watching.cancel()
        assert gaps == []
        # again is the same, and it stands in the status until it is taken back
        assert not (await operator.asks("evacuate", "w1")).changed
        assert _actions(a) == [("evacuate", "w1")]
        await asyncio.sleep(10 * MINUTE_S)
        assert _slots(w1) == []
        assert (await operator.asks("restore", "w1")).changed
        assert not (await operator.asks("restore", "w1")).changed
        assert _actions(a) == []
        await until(lambda: len(w1.slots()) == len(w2.slots()) == 1, at_most_s=10 * MINUTE_S)
        assert [(entry[0], entry[1], entry[2]["outcome"]) for entry in operator.audited] == [
            ("cluster_evacuate", "w1", "asked"), ("cluster_evacuate", "w1", "done"),
            ("cluster_restore", "w1", "asked"), ("cluster_restore", "w1", "done"),
        ]  # fmt: skip

    run_in_cluster(tmp_path, scenario)


def test_what_was_asked_holds_over_a_lost_leader_and_a_wiped_store(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, b, w1, w2 = await world.build(a=("authority",), b=("authority",), w1=("worker",), w2=("worker",))
        await world.publish(a, {"q": Q}, 1)
        await until(lambda: len(w1.slots()) == len(w2.slots()) == 1, at_most_s=10 * MINUTE_S)
        leader = world.leader()
        assert leader is not None
        other = b if leader is a else a
        # at whoever is asked, and for whoever leads next
        await Operator(other).asks("evacuate", "w1")
        await until(lambda: len(w2.slots()) == 2 and not w1.engines.alive, at_most_s=10 * MINUTE_S)
        for name in world.nodes:
            world.store.cut(name)
        await leader.crash()
        del world.nodes[leader.name]
        world.store.lose_data()
        for name in world.nodes:
            world.store.mend(name)
        await until(lambda: ACTIONS_KEY in world.store.data[Bucket.DESIRED], at_most_s=5 * MINUTE_S)
        await until(lambda: world.leader() is other, at_most_s=5 * MINUTE_S)
        await asyncio.sleep(10 * MINUTE_S)
        assert (_slots(w1), len(w2.slots()), _actions(other)) == ([], 2, [("evacuate", "w1")])
        # the one that was away comes back with what it knew, and both know what was asked meanwhile
        await Operator(other).asks("restore", "w1")
        back = await world.start(leader.name)
        await until(lambda: back.node.facts().actions == other.node.facts().actions, at_most_s=5 * MINUTE_S)
        assert _actions(back) == []
        world.store.cut(other.name)
        assert await _code(Operator(other).asks("evacuate", "w2")) == "store.unreachable"
        assert _actions(other) == [], "what could not be written is not asked"

    run_in_cluster(tmp_path, scenario)


async def _code(work: Awaitable[object]) -> str:
    with pytest.raises(UnreachableError) as caught:
        await work
    return caught.value.code


def test_a_confirmed_loss_releases_the_brake_and_is_over_when_the_node_is_heard_again(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1, w2, w3 = await world.build(a=("authority",), w1=("worker",), w2=("worker",), w3=("worker",))
        heard = a.node.controller._events = Heard()  # type: ignore[union-attr]
        operator = Operator(a)
        await world.publish(a, {"q": Q.model_copy(update={"replicas": 3})}, 1)
        await until(lambda: all(len(each.slots()) == 1 for each in (w1, w2, w3)), at_most_s=10 * MINUTE_S)
        assert await operator.is_refused("confirm_lost", "w1") == "node_is_heard"
        assert await operator.is_refused("confirm_lost", "nobody") == "unknown_node"
        assert await operator.is_refused("evacuate", "a") == "not_a_worker"
        assert await operator.is_refused("retry", "q") == "nothing_to_retry"
        assert await operator.is_refused("retry", "nothing") == "unknown_deployment"
        assert operator.audited == []
        await w1.crash()
        await w2.crash()
        await until(lambda: bool(status_document(a.node.facts())["brake"]), at_most_s=10 * MINUTE_S)
        await asyncio.sleep(10 * MINUTE_S)
        assert _slots(w3) == _slots(w3)[:1], "two of three at once are more likely ours than theirs"
        await operator.asks("confirm_lost", "w1", "burnt")
        await until(lambda: not status_document(a.node.facts())["brake"], at_most_s=10 * MINUTE_S)
        await until(lambda: len(w3.slots()) == 3, at_most_s=10 * MINUTE_S)
        assert _actions(a) == [("confirm_lost", "w1")]
        w1 = await world.start("w1")
        await until(lambda: _actions(a) == [], at_most_s=10 * MINUTE_S)
        await until(lambda: len(w1.slots()) == 1, at_most_s=10 * MINUTE_S)
        kinds = heard.kinds()
        for kind in ("node_unreachable", "brake_engaged", "brake_released", "node_lost", "node_back", "rollout_done"):
            assert kind in kinds, kinds
        assert kinds.count("brake_engaged") == 1
        del world.nodes["w2"]

    run_in_cluster(tmp_path, scenario)


def test_a_rollout_that_failed_is_begun_again_at_once_where_it_failed(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1 = await world.build(a=("authority",), w1=("worker",))
        heard = a.node.controller._events = Heard()  # type: ignore[union-attr]
        bad = EngineError("engine_early_exit", "the engine ended while loading", retryable=True)
        w1.engines.faults[:] = [bad] * 200
        await world.publish(a, {"q": Q.model_copy(update={"replicas": 1})}, 1)
        plan = lambda: a.node.feed.plan  # noqa: E731
        await until(lambda: (p := plan()) is not None and p.deployments["q"].rollout.timed_out, at_most_s=60 * MINUTE_S)
        await until(lambda: w1.node.obedience._tries._failed["q"].attempts == 7, at_most_s=60 * MINUTE_S)
        w1.engines.faults.clear()
        began = world.clock.monotonic_s()
        first = await Operator(a).asks("retry", "q")
        assert first.changed
        await until(lambda: w1.slots() == [0], at_most_s=MINUTE_S)
        assert world.clock.monotonic_s() - began < 20, "it does not wait for its next turn"
        await until(lambda: (p := plan()) is not None and p.deployments["q"].rollout.phase == "stable")
        found = plan()
        assert found is not None
        assert found.deployments["q"].tried_again == first.number
        assert _actions(a) == []
        assert await Operator(a).is_refused("retry", "q") == "nothing_to_retry"
        kinds = heard.kinds()
        assert [kind for kind in kinds if kind.startswith("rollout")] == [
            "rollout_started", "rollout_timed_out", "rollout_started", "rollout_done",
        ]  # fmt: skip

    run_in_cluster(tmp_path, scenario)


def test_a_worker_takes_no_action_and_a_damaged_memory_is_no_reason_not_to_start(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1 = await world.build(a=("authority",), w1=("worker",))
        assert await Operator(w1).is_refused("evacuate", "w1") == "deployment_authority_read_only"
        await until(lambda: "w1" in a.node.roster.view.rows)
        await Operator(a).asks("evacuate", "w1")
        await a.crash()
        path = world.paths("a").state / "cluster-actions.json"
        assert ActionsMemory(path.parent).recall().evacuated == {"w1"}
        path.write_text(path.read_text().replace("ops", "spo"))
        assert ActionsMemory(path.parent).recall().evacuated == frozenset()
        a = await world.start("a")
        await until(lambda: _actions(a) == [("evacuate", "w1")], at_most_s=5 * MINUTE_S)

    run_in_cluster(tmp_path, scenario)
