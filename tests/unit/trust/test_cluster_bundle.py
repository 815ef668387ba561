"""What one node runs of a cluster's bundle: the very member that a host's own bundle would hold."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from sbctl.base.errors import SbctlError
from sbctl.node.cluster_documents import AssignedDeployment, AssignedReplica, AssignmentDocument, BundleMark
from sbctl.trust.bundle import DeploymentMember, member_digest
from sbctl.trust.cluster_bundle import (
    ClusterContent,
    ClusterDeployment,
    generation_digest,
    node_content,
    projected,
    replica_digest,
    replica_of,
)
from tests.simulators.cluster_bundles import deployment, facts, host_member, option

CHAT = deployment(required_labels={"accelerator": "l4"}, spread_by=("zone",), replicas=2)
MIXED = deployment(alternatives=(option("q8_0"),))


def assigned(
    of: ClusterDeployment = CHAT,
    *,
    choice: int = 0,
    slots: int = 1,
    phase: Literal["start", "retain", "drain"] = "start",
    generation: int = 3,
    **changed: Any,
) -> AssignedDeployment:
    chosen = of.options[choice]
    base: dict[str, Any] = {
        "generation": generation,
        "phase": phase,
        "variant": chosen.variant,
        "artifact_digest": chosen.artifact.artifact,
        "member_digest": replica_digest(replica_of(of, chosen)),
        "replicas": tuple(AssignedReplica(slot=slot) for slot in range(slots)),
    }
    return AssignedDeployment(**base | changed)


def document(**deployments: tuple[AssignedDeployment, ...]) -> AssignmentDocument:
    return AssignmentDocument(
        cluster_id="prod",
        identity_epoch=1,
        boot_epoch=1,
        lease_epoch=1,
        lease_holder="gw-a",
        counter=1,
        issued_at_unix_ms=0,
        bundle=BundleMark(revision=1, content_digest="a" * 64),
        node_id="gpu-a",
        deployments=deployments,
    )


def content(**deployments: ClusterDeployment) -> ClusterContent:
    return ClusterContent(deployments=deployments, origins={}, api_keys={}, public=True)


def code(call: Any) -> str:
    with pytest.raises(SbctlError) as caught:
        call()
    assert caught.value.next_step
    return caught.value.code


def test_a_fleet_that_becomes_a_cluster_keeps_its_replicas() -> None:
    """Nothing of placement is part of what a node runs, so digest and member are those of the host's own bundle."""
    before = host_member()
    after = projected("chat", CHAT, assigned())
    assert type(after) is DeploymentMember
    assert after == before
    assert member_digest(after) == member_digest(before)


def test_a_member_is_named_the_same_however_many_a_node_runs() -> None:
    two = projected("chat", CHAT, assigned(slots=2))
    assert two.replicas == 2
    assert replica_digest(two) == replica_digest(host_member()) == assigned().member_digest


def test_another_variant_is_the_same_deployment_with_its_own_weights_context_and_engine() -> None:
    member = projected("chat", MIXED, assigned(MIXED, choice=1))
    assert (member.variant, member.artifact, member.context_length) == ("q8_0", facts("q8_0"), 256)
    assert member.max_concurrency == MIXED.max_concurrency


@pytest.mark.parametrize(
    ("change", "same"),
    [
        pytest.param({"replicas": 9}, True, id="how many"),
        pytest.param({"required_labels": {"zone": "b"}}, True, id="where"),
        pytest.param({"spread_by": ()}, True, id="how spread"),
        pytest.param({"tensor_parallel": 2}, False, id="over how many devices"),
        pytest.param({"max_concurrency": 8}, False, id="how it runs"),
        pytest.param({"alternatives": (option("q8_0"),)}, False, id="as what else it may run"),
    ],
)
def test_a_generation_depends_on_how_a_replica_runs_and_on_nothing_else(change: dict[str, Any], same: bool) -> None:
    other = CHAT.model_copy(update=change)
    assert (generation_digest(other) == generation_digest(CHAT)) is same


def test_an_assignment_of_other_weights_or_another_member_is_refused() -> None:
    stranger = assigned(artifact_digest="e" * 64)
    assert code(lambda: projected("chat", CHAT, stranger)) == "assignment.unknown_variant"
    assert code(lambda: projected("chat", CHAT, assigned(variant="q2"))) == "assignment.unknown_variant"
    assert code(lambda: projected("chat", CHAT, assigned(member_digest="e" * 64))) == "assignment.wrong_member"


OLD = host_member(max_concurrency=1)
HELD = {replica_digest(OLD): OLD}


def old(phase: Literal["start", "retain", "drain"]) -> AssignedDeployment:
    return assigned(phase=phase, generation=2, member_digest=replica_digest(OLD))


@pytest.mark.parametrize(
    ("parts", "runs", "draining", "forgotten"),
    [
        pytest.param((assigned(),), [host_member()], (), (), id="start"),
        pytest.param((old("retain"),), [OLD], (), (), id="retain what it ran before"),
        pytest.param((old("retain"), assigned()), [host_member()], (), (), id="start beside what is retained"),
        pytest.param((old("drain"), assigned()), [host_member()], (), (), id="start beside what drains"),
        pytest.param((old("start"),), [OLD], (), (), id="take up again what ran before"),
        pytest.param((old("drain"),), [], ("chat",), (), id="drain"),
        pytest.param(
            (assigned(phase="retain", member_digest="e" * 64),),
            [],
            (),
            ("chat",),
            id="retain what nobody knows any more",
        ),
    ],
)
def test_what_a_node_runs_by_its_assignment(
    parts: tuple[AssignedDeployment, ...],
    runs: list[DeploymentMember],
    draining: tuple[str, ...],
    forgotten: tuple[str, ...],
) -> None:
    found = node_content(content(chat=CHAT), document(chat=parts), held=HELD, running={})
    assert list(found.content.deployments.values()) == runs
    assert (found.draining, found.forgotten, found.refused) == (draining, forgotten, {})
    assert found.content.public


def test_a_deployment_that_is_not_assigned_does_not_run_here() -> None:
    found = node_content(content(chat=CHAT, other=MIXED), document(), held={}, running={"chat": host_member()})
    assert found.content.deployments == {}


@pytest.mark.parametrize(
    ("parts", "refusal"),
    [
        pytest.param((assigned(member_digest="e" * 64),), "assignment.wrong_member", id="another member"),
        pytest.param(
            (assigned(MIXED), assigned(MIXED, choice=1, replicas=(AssignedReplica(slot=7),))),
            "assignment.two_members",
            id="two variants at once",
        ),
    ],
)
def test_what_cannot_be_obeyed_stays_as_it_runs_and_holds_nothing_else_up(
    parts: tuple[AssignedDeployment, ...], refusal: str
) -> None:
    told = document(chat=parts, other=(assigned(),), gone=(assigned(),))
    found = node_content(content(chat=MIXED, other=CHAT), told, held={}, running={"chat": OLD})
    assert found.content.deployments == {"chat": OLD, "other": host_member()}
    assert {name: error.code for name, error in found.refused.items()} == {
        "chat": refusal,
        "gone": "assignment.unknown_deployment",
    }
    assert all(error.next_step for error in found.refused.values())
