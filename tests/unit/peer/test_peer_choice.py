"""Which replica is chosen, and who may be: pure rules over what nodes published."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.runtime.peer.candidates import KnownNode, Serving, select
from sbctl.runtime.peer.choice import Candidate, choose, prefix_score
from tests.simulators.peer_snapshots import node, replica

A = Candidate("n-a", 3, "ready", region="eu", active=1, queue_depth=1)
PREFIX = b"p" * 32


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        pytest.param({"queue_depth": 9, "active": 9}, {"state": "starting"}, id="ready before starting"),
        pytest.param({"state": "starting"}, {"state": "cold"}, id="starting before cold"),
        pytest.param({"queue_depth": 9}, {"plane_is_ready": False}, id="a healthy plane before a short queue"),
        pytest.param({"region": "eu", "queue_depth": 9}, {"region": "us"}, id="the region before the queue"),
        pytest.param({"queue_depth": 1, "active": 9}, {"queue_depth": 2}, id="the queue before what runs"),
        pytest.param({"active": 1, "compute_utilization_millis": 900}, {"active": 2}, id="what runs before the device"),
        pytest.param({"compute_utilization_millis": 199, "memory_occupancy_millis": 900}, {"compute_utilization_millis": 200}, id="the device before its memory"),
        pytest.param({"memory_occupancy_millis": 101}, {"memory_occupancy_millis": 201, "is_local": True}, id="memory before here"),
        pytest.param({"is_local": True}, {}, id="here before elsewhere"),
        pytest.param({"is_local": True, "compute_utilization_millis": 90, "memory_occupancy_millis": 99}, {}, id="here, though a little busier"),
        pytest.param({"active": 2, "replicas": 4}, {"active": 1, "replicas": 1}, id="by the load of one replica"),
    ],
)  # fmt: skip
def test_the_order_of_candidates(better: dict[str, Any], worse: dict[str, Any]) -> None:
    for names in (("n-a", "n-b"), ("n-b", "n-a")):
        one = replace(A, **{"node_id": names[0], **better})
        other = replace(A, **{"node_id": names[1], **worse})
        assert choose([one, other], region="eu") == one
        assert choose([other, one], region="eu") == one
        assert choose([one, other], region="eu", tried=[one.key]) == other
        assert choose([one], region="eu", tried=[one.key]) is None


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        node_id=st.sampled_from([f"n-{number}" for number in range(6)]),
        generation=st.just(3),
        state=st.sampled_from(["ready", "starting", "cold"]),
        is_local=st.booleans(),
        plane_is_ready=st.booleans(),
        region=st.sampled_from(["", "eu", "us"]),
        replicas=st.integers(1, 4),
        queue_depth=st.integers(0, 3),
        active=st.integers(0, 9),
        compute_utilization_millis=st.integers(0, 3),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda candidate: candidate.node_id,
)


@settings(max_examples=60, deadline=None)
@given(CANDIDATES, st.randoms(), st.sampled_from([b"", PREFIX]), st.sampled_from(["", "eu"]))
def test_the_choice_does_not_depend_on_the_order_and_names_everybody_once(
    candidates: list[Candidate], random: Any, prefix: bytes, region: str
) -> None:
    shuffled = list(candidates)
    random.shuffle(shuffled)
    tried: set[tuple[str, int]] = set()
    while (chosen := choose(candidates, region=region, prefix=prefix, tried=tried)) is not None:
        assert chosen == choose(shuffled, region=region, prefix=prefix, tried=tried)
        left = [each for each in candidates if each.key not in tried]
        assert any(each.state == "ready" for each in left) == (chosen.state == "ready")
        tried.add(chosen.key)
    assert len(tried) == len(candidates)


@settings(max_examples=60, deadline=None)
@given(CANDIDATES)
def test_a_prompt_s_own_node_is_never_one_that_is_worse_off_than_the_bound_allows(candidates: list[Candidate]) -> None:
    plain, near = choose(candidates), choose(candidates, prefix=PREFIX)
    assert plain is not None
    assert near is not None
    assert (near.state, near.plane_is_ready) == (plain.state, plain.plane_is_ready)
    if near.queue_depth > 0:
        assert near.queue_depth / near.replicas == plain.queue_depth / plain.replicas


def test_a_prompt_comes_back_to_its_node_until_that_is_fuller_than_the_others() -> None:
    nodes = [replace(A, node_id=f"n-{number}", active=4, queue_depth=0) for number in range(4)]
    own = max(nodes, key=lambda node: prefix_score(PREFIX, node.node_id))
    assert choose(nodes, prefix=PREFIX) == own
    for others, active, stays in ((4, 4, True), (4, 5, False), (0, 1, True), (0, 2, False)):
        busy = [replace(node, active=active if node is own else others) for node in nodes]
        assert (choose(busy, prefix=PREFIX) == replace(own, active=active)) == stays
    waiting = [replace(node, queue_depth=1) if node is own else node for node in nodes]
    assert choose(waiting, prefix=PREFIX) != replace(own, queue_depth=1)


def test_all_requests_wake_the_same_cold_replica() -> None:
    cold = [Candidate(f"n-{number}", 3, "cold", active=number, is_local=number == 2) for number in range(4)]
    chosen = {choose(cold, prefix=prefix, running=lambda each: hash(each) % 7) for prefix in (b"", PREFIX, b"q" * 32)}
    assert chosen == {cold[0]}
    assert choose([*cold, Candidate("n-9", 3, "starting")]) == Candidate("n-9", 3, "starting")


@pytest.mark.parametrize(
    ("known", "stage"),
    [
        (node("n-a", replica(deployment_generation=1)), "generation"),
        (node("n-a", replica(deployment_generation=2, state="cached")), "generation"),
        (node("n-a", replica(deployment_generation=4)), "generation"),
        (node("n-a", replica(), health={"state": "unhealthy"}), "health"),
        (node("n-a", replica(), health={"peer_plane": "unavailable"}), "health"),
        (node("n-a", replica(), health={"draining": True}), "health"),
        (node("n-a", replica(), address=None), "endpoint"),
        (node("n-a", replica(), roles=("gateway",)), "endpoint"),
        (node("n-a", replica(state="failed")), "state"),
        (node("n-a", replica(state="draining")), "state"),
        (node("n-a", replica(), replica()), None),
        (node("n-a", replica(deployment_generation=2)), None),
        (node("n-a", replica(deployment="other", state="failed")), ""),
    ],
)
def test_who_is_left_out_and_at_which_stage(known: KnownNode, stage: str | None) -> None:
    found = select([known], "q", serving=Serving((3, 2)), here="gw")
    assert dict(found.excluded) == ({stage: 1} if stage else {})
    assert len(found.candidates) == (1 if stage is None else 0)


def test_what_a_candidate_says_of_its_node() -> None:
    loaded = [
        replica(active_requests=2, queue_depth=1, selected_devices=(0,)),
        replica(active_requests=1, selected_devices=(1,)),
        replica(state="preparing", active_requests=9),
        replica(deployment_generation=2, adapters=("x",)),
    ]
    found = select([node("n-a", *loaded)], "q", serving=Serving((3, 2)), here="gw")
    newest = next(candidate for candidate in found.candidates if candidate.generation == 3)
    assert (newest.replicas, newest.active, newest.queue_depth, newest.region) == (2, 3, 1, "eu")
    assert (newest.compute_utilization_millis, newest.memory_occupancy_millis) == (700, 900)
    assert (newest.address, newest.boot_epoch, newest.plane_is_ready) == ("n-a:9443", 5, True)
    adapted = select([node("n-a", *loaded)], "q", serving=Serving((3, 2)), here="gw", adapters=["x"])
    assert [candidate.generation for candidate in adapted.candidates] == [2]
    assert adapted.excluded["adapter"] == 3
    here = select(
        [node("gw", replica(), address=None, health={"peer_plane": "unavailable"})],
        "q",
        serving=Serving((3,)),
        here="gw",
    )
    assert here.candidates[0].is_local
    assert here.candidates[0].plane_is_ready


def test_what_a_node_says_of_a_deployment_that_was_not_given_to_it_brings_it_no_request() -> None:
    serving = Serving((3, 2), {3: frozenset({"n-a"}), 2: frozenset({"n-b"})})
    nodes = [node(name, replica(), replica(deployment_generation=2)) for name in ("n-a", "n-b", "n-c")]
    found = select(nodes, "q", serving=serving, here="gw")
    assert [candidate.key for candidate in found.candidates] == [("n-a", 3), ("n-b", 2)]
    assert found.excluded == {"generation": 4}


def test_who_is_silent_is_asked_where_nobody_else_is_left() -> None:
    heard, silent = node("n-a", replica()), replace(node("n-b", replica()), is_silent=True)
    serving = Serving((3,))
    assert [one.node_id for one in select([silent, heard], "q", serving=serving, here="gw").candidates] == ["n-a"]
    assert [one.node_id for one in select([silent], "q", serving=serving, here="gw").candidates] == ["n-b"]
    cold = node("n-a", replica(state="cached"))
    assert [one.node_id for one in select([silent, cold], "q", serving=serving, here="gw").candidates] == ["n-a"]
