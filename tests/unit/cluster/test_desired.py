"""Desired state from the store and into it: order, belief, compare-and-set, and what an authority gives back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from sbctl.runtime.cluster.store import BUNDLE_KEY, Bucket
from sbctl.trust.envelope import sign_envelope
from sbctl.trust.keys import SigningKey
from tests.simulators.cluster_nodes import clustered
from tests.simulators.cluster_world import ClusterWorld, SimNode, run_in_cluster
from tests.simulators.engine_world import facts, outcome_of, until
from tests.simulators.runtime_world import member

Q = clustered(member(facts(), "/engine"), replicas=1)


def _run(folder: Path, scenario: Callable[[ClusterWorld, SimNode, SimNode], Awaitable[None]]) -> None:
    async def with_two(world: ClusterWorld) -> None:
        a, b = await world.build(a=("authority",), b=("authority",))
        await scenario(world, a, b)

    run_in_cluster(folder, with_two)


def _revision(node: SimNode) -> int | None:
    held = node.node.desired.held
    return None if held is None else held.payload.revision


def test_who_publishes_from_an_old_state_is_refused_at_either_authority(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld, a: SimNode, b: SimNode) -> None:
        await world.publish(a, {"q": Q}, 1)
        await until(lambda: _revision(b) == 1)
        await world.publish(b, {"q": Q}, 2)
        await until(lambda: _revision(a) == 2)
        other = world.bundle({}, 2)
        assert await outcome_of(a.node.desired.publish(other, expected_revision=1)) == "bundle.revision_conflict"
        old = world.bundle({}, 1)
        assert await outcome_of(a.node.desired.publish(old, expected_revision=2)) == "bundle.stale_revision"
        assert await outcome_of(a.node.desired.publish(world.bundle({}, 4), expected_revision=3)) == (
            "bundle.revision_conflict"
        )

    _run(tmp_path, scenario)


def test_an_authority_that_did_not_hear_of_a_newer_bundle_takes_it_before_it_judges(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld, a: SimNode, b: SimNode) -> None:
        await world.publish(a, {"q": Q}, 1)
        await until(lambda: _revision(b) == 1)
        world.store.lose_events = True
        await world.publish(a, {"q": Q}, 2)
        assert _revision(b) == 1
        late = world.bundle({}, 2)
        assert await outcome_of(b.node.desired.publish(late, expected_revision=1)) in {
            "bundle.stale_revision",
            "bundle.revision_conflict",
        }
        assert _revision(b) == 2

    _run(tmp_path, scenario)


def test_what_is_published_while_the_store_is_away_is_kept_and_put_there_later(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld, a: SimNode, b: SimNode) -> None:
        world.store.quorum = False
        await world.publish(a, {"q": Q}, 1)
        assert (_revision(a), a.node.desired.in_store) == (1, False)
        world.store.quorum = True
        await until(lambda: _revision(b) == 1, at_most_s=300)
        assert a.node.desired.in_store

    _run(tmp_path, scenario)


def test_a_forged_bundle_in_the_store_is_not_taken_and_is_replaced_by_the_true_one(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld, a: SimNode, b: SimNode) -> None:
        await world.publish(a, {"q": Q}, 1)
        true = world.store.data[Bucket.DESIRED][BUNDLE_KEY].value
        thief = SigningKey.generate()
        forged = sign_envelope("application/vnd.sbctl.cluster-bundle.v1+json", b"{}", thief, "ops")
        world.store.write(Bucket.DESIRED, BUNDLE_KEY, forged.encode())
        await until(lambda: world.store.data[Bucket.DESIRED][BUNDLE_KEY].value == true, at_most_s=300)
        assert (_revision(a), _revision(b)) == (1, 1)

    _run(tmp_path, scenario)
