"""What was brought back from a copy, and who runs twice (docs/threats.md, sections B, C and D): nothing that runs goes back in time."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sbctl.placement.model import NO_MARK, ClusterView, Mark, Node
from sbctl.runtime.cluster.controller import spoken_for
from sbctl.runtime.cluster.status import plans_document, status_document
from sbctl.runtime.cluster.store import BUNDLE_KEY, Bucket
from tests.simulators.cluster_nodes import clustered
from tests.simulators.cluster_world import ClusterWorld, SimNode, run_in_cluster
from tests.simulators.engine_world import facts, until
from tests.simulators.runtime_world import member

pytestmark = pytest.mark.flow

MINUTE_S = 60.0
OLD = clustered(member(facts(), "/engine"), replicas=2)
NEW = clustered(member(facts(), "/engine", max_concurrency=7), replicas=2)


async def settled(world: ClusterWorld, *workers: SimNode, revision: int) -> None:
    """Both replicas are ready on workers that stand at this revision; each of these changes the deployment, so its generation is the same number."""

    def is_so() -> bool:
        slots = sorted(slot for worker in workers for slot in worker.slots())
        held = [worker.node.desired.mark for worker in workers]
        ready = [worker.node.obedience.mark() for worker in workers]
        generations = [found for worker in workers if (found := worker.generation()) is not None]
        return (
            slots == [0, 1]
            and all(each.assigned is not None and each.assigned.generation == revision for each in generations)
            and all(mark is not None and mark.revision == revision for mark in held)
            and all(mark is not None and mark.state == "ready" for mark in ready)
        )

    await until(is_so, at_most_s=10 * MINUTE_S)


async def pass_time(world: ClusterWorld, minutes: int) -> None:
    end_s = world.clock.monotonic_s() + minutes * MINUTE_S
    await until(lambda: world.clock.monotonic_s() >= end_s, at_most_s=2 * minutes * MINUTE_S)


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([(2, 5), (2, 5)], 2),
        ([(9, 1), (2, 0)], None),
        ([(9, 1)], 9),
        ([(9, 1), (9, 2), (1, 7)], 9),
        ([(9, 1), (1 << 52, 1), (9, 3)], 9),
        ([(1 << 52, 1), (2, 0), (2, 0)], None),
        ([(1, 99), (2, 0)], None),
        ([NO_MARK, NO_MARK, (3, 1)], 3),
        ([], None),
    ],
)
def test_C9_an_authority_is_behind_when_most_nodes_say_so(marks: list[Mark], expected: int | None) -> None:
    """It holds epoch 2 and said nothing yet. One node that lies is not most of them."""
    view = ClusterView({f"w{at}": Node(f"w{at}", acknowledged=mark) for at, mark in enumerate(marks)})
    assert spoken_for(view, (2, 0)) == expected


def keep(world: ClusterWorld) -> Callable[[], None]:
    """A copy of all that the store has; call it to bring that back."""
    data, sequence = copy.deepcopy(world.store.data), dict(world.store.sequence)

    def bring_back() -> None:
        world.store.data, world.store.sequence = copy.deepcopy(data), dict(sequence)
        for client in world.store.clients:
            client.restarted()

    return bring_back


def test_C6_D11_a_store_that_was_brought_back_from_a_copy_takes_nothing_back(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, w1, w2 = await world.build(a=("authority",), w1=("worker",), w2=("worker",))
        await world.publish(a, {"q": OLD}, 1)
        await settled(world, w1, w2, revision=1)
        bring_back = keep(world)
        await world.publish(a, {"q": NEW}, 2)
        await settled(world, w1, w2, revision=2)
        starts = (w1.starts, w2.starts)
        bring_back()
        await pass_time(world, 2)
        await settled(world, w1, w2, revision=2)
        assert (w1.starts, w2.starts) == starts, "nothing started anew"
        entry = await world.store.client("reader").get(Bucket.DESIRED, BUNDLE_KEY)
        held = a.node.desired.held
        assert entry is not None
        assert held is not None
        assert entry.value.decode() == held.envelope, "the authority gave the store the newest again"
        assert status_document(a.node.facts())["summary"]["eligible_workers"] == 2

    run_in_cluster(tmp_path, scenario)


def test_C6_store_and_authority_brought_back_from_copies_of_one_time_stop_nothing(tmp_path: Path) -> None:
    """Whoever restores both has an authority that is behind its workers. They refuse it, run on, and the next apply publishes above."""

    async def scenario(world: ClusterWorld) -> None:
        a, w1, w2 = await world.build(a=("authority",), w1=("worker",), w2=("worker",))
        await world.publish(a, {"q": OLD}, 1)
        await settled(world, w1, w2, revision=1)
        bring_back = keep(world)
        state, backup = world.paths("a").state, tmp_path / "backup"
        await a.crash()
        shutil.copytree(state, backup)
        a = await world.start("a")
        await pass_time(world, 1)
        await world.publish(a, {"q": NEW}, 2)
        await settled(world, w1, w2, revision=2)
        starts = (w1.starts, w2.starts)
        await a.crash()
        shutil.rmtree(state)
        shutil.copytree(backup, state)
        bring_back()
        a = await world.start("a")
        await pass_time(world, 2)
        assert (w1.starts, w2.starts) == starts
        assert sorted(w1.slots() + w2.slots()) == [0, 1]
        for worker in (w1, w2):
            mark = worker.node.desired.mark
            assert mark is not None
            assert mark.revision == 2, "a worker never goes back"
        bundle = plans_document(a.node.facts())["bundle"]
        assert bundle is not None
        assert bundle["revision"] in (1, 2)
        await a.node.desired.publish(world.bundle({"q": OLD}, 3), expected_revision=bundle["revision"])
        await settled(world, w1, w2, revision=3)

    run_in_cluster(tmp_path, scenario)


@pytest.mark.soak
def test_B6_C7_an_authority_that_runs_twice_moves_nothing(tmp_path: Path) -> None:
    """A machine that was cloned while it ran: one identity, one state, two processes. Peers see it; what runs is what was asked."""

    async def scenario(world: ClusterWorld) -> None:
        a, w1, w2 = await world.build(a=("authority",), w1=("worker",), w2=("worker",))
        await world.publish(a, {"q": OLD}, 1)
        await settled(world, w1, w2, revision=1)
        starts = (w1.starts, w2.starts)
        shutil.copytree(world.paths("a").state, tmp_path / "twin" / "state")
        shutil.copytree(world.paths("a").etc, tmp_path / "twin" / "etc")
        paths, clients = world.paths, list(world.store.clients)
        world.paths = lambda name: paths("twin" if name == "a" else name)  # type: ignore[method-assign]
        twin = world.make("a")
        world.store.clients = clients + [each for each in world.store.clients if each not in clients]
        await twin.start()
        world.paths = paths  # type: ignore[method-assign]
        await pass_time(world, 2)
        assert (w1.starts, w2.starts) == starts
        assert sorted(w1.slots() + w2.slots()) == [0, 1]
        await a.crash()
        await pass_time(world, 1)
        await world.publish(twin, {"q": NEW}, 2)
        await settled(world, w1, w2, revision=2)
        world.nodes["a"] = twin

    run_in_cluster(tmp_path, scenario)
