"""How large a plan gets when everything changes at once, and what happens when it is too large."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sbctl.base.errors import RefusedError
from sbctl.base.limits import BUNDLE_DEPLOYMENTS_MAX
from sbctl.node.cluster_documents import BundleMark
from sbctl.node.placement_document import PlacedDeployment, PlacedReplica, PlacementDocument, RolloutState
from sbctl.runtime.cluster import controller
from sbctl.runtime.cluster.kept_documents import plan_of_text
from sbctl.runtime.cluster.status import status_document
from sbctl.trust.peer_kinds import PLACEMENT
from tests.simulators.cluster_nodes import clustered
from tests.simulators.cluster_trust import ClusterAuthority
from tests.simulators.cluster_world import ClusterWorld, run_in_cluster
from tests.simulators.engine_world import facts, until
from tests.simulators.runtime_world import member

MINUTE_S = 60.0


def _replica(slot: int, generation: int, deadline_unix_ms: int | None = None) -> PlacedReplica:
    return PlacedReplica(
        slot=slot,
        node_id=f"gpu-worker-{slot:04d}",
        generation=generation,
        variant="q4_k_m",
        artifact_digest="a" * 64,
        member_digest="b" * 64,
        engine="llama_cpp",
        accelerator="cuda",
        devices=(0,),
        host_memory_bytes=2**30,
        device_memory_bytes=20 * 2**30,
        artifact_cached=True,
        deadline_unix_ms=deadline_unix_ms,
    )


def _plan(replicas: int) -> PlacementDocument:
    """Every deployment that a bundle may have, all of them replaced by their next generation at once, in a cluster of a thousand workers."""
    changing = PlacedDeployment(
        model="qwen2.5-0.5b-instruct",
        member_digest="b" * 64,
        generation=8,
        desired_replicas=replicas,
        assignments=tuple(_replica(slot, 8) for slot in range(replicas)),
        retained=tuple(_replica(slot, 7, deadline_unix_ms=1_790_000_000_000) for slot in range(replicas)),
        weighed="f" * 250,
        rollout=RolloutState(phase="waiting_for_readiness", target_ready=False, since_unix_ms=1_790_000_000_000),
    )
    names = [f"deployment-{number:04d}" for number in range(BUNDLE_DEPLOYMENTS_MAX)]
    return PlacementDocument(
        cluster_id="prod",
        identity_epoch=1,
        boot_epoch=1,
        lease_epoch=3,
        lease_holder="gw-a",
        counter=9,
        issued_at_unix_ms=1_790_000_000_000,
        bundle=BundleMark(key_epoch=1, revision=2, content_digest="c" * 64),
        directory_digest="d" * 64,
        deployments=dict.fromkeys(names, changing),
        high_waters=dict.fromkeys(names, 8),
    )


def test_all_deployments_of_a_bundle_may_change_at_once() -> None:
    signer = ClusterAuthority().node("gw-a", "gateway", "authority").signer()
    plan = _plan(1)
    assert plan_of_text(signer.sign(PLACEMENT, plan)) == plan, "what is left out is what is read anyway"
    with pytest.raises(RefusedError) as caught:
        signer.sign(PLACEMENT, _plan(4))
    assert caught.value.code == "peer.too_large"


def test_a_plan_that_is_too_large_leaves_the_one_before_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (clustered(member(facts(name), "/engine"), replicas=1) for name in ("tiny", "other"))

    async def scenario(world: ClusterWorld) -> None:
        a, w1 = await world.build(a=("authority",), w1=("worker",))
        await world.publish(a, {"q": one}, 1)
        await until(lambda: w1.slots() == [0], at_most_s=10 * MINUTE_S)
        monkeypatch.setattr(controller, "PLACEMENT", replace(PLACEMENT, max_bytes=1000))
        await world.publish(a, {"q": other}, 2)
        await until(lambda: status_document(a.node.facts())["problem"] is not None, at_most_s=MINUTE_S)
        problem = status_document(a.node.facts())["problem"]
        assert "1 deployment with 1 replica, " in problem
        assert problem.endswith("what is replaced counts twice until it is gone")
        assert (w1.slots(), w1.starts) == ([0], 1)
        monkeypatch.setattr(controller, "PLACEMENT", PLACEMENT)
        await until(lambda: w1.starts == 2, at_most_s=10 * MINUTE_S)
        await until(lambda: status_document(a.node.facts())["problem"] is None, at_most_s=MINUTE_S)

    run_in_cluster(tmp_path, scenario)
