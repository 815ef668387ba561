"""A cluster over a life: from nothing, from a fleet over SSH, another revision, an authority more, what nodes refuse, and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sbctl.base.errors import HostError
from sbctl.base.ids import Address
from sbctl.base.update_policy import UpdatePolicy
from sbctl.node.cluster_messages import NodeProgress
from sbctl.plan.model import Plan
from sbctl.trust.authority import Authority
from sbctl.trust.cluster_bundle import CLUSTER_BUNDLE_PAYLOAD_TYPE, ClusterBundlePayload
from sbctl.trust.envelope import open_envelope
from sbctl.trust.identity import Grant
from tests.simulators.provider_world import ProviderWorld

pytestmark = pytest.mark.flow

PIN = "SHA256:" + "A" * 43
ROLES = {
    "auth": "authority",
    "gw-1": "gateway",
    "gw-2": "gateway",
    "gpu-1": "worker",
    "gpu-2": "worker",
    "gpu-3": "worker",
}
EVERYTHING = dict.fromkeys(("a", "b", "c"), "gateway, worker, authority")
CHAT = "chat: {model: smollm2-135m-instruct, variant: q4_1, replicas: 2, warm: true%s}"


def text(roles: dict[str, str] = ROLES, *, cluster: bool = True, chat: str = "", more: str = "") -> str:
    hosts = ", ".join(
        f'{name}: {{address: 10.0.0.{at}, host_key: "{PIN}", roles: [{role}]}}'
        for at, (name, role) in enumerate(roles.items(), 1)
    )
    joined = "\n  cluster: {cluster_id: prod}" if cluster else ""
    return (
        f"fleet: {{name: f, identity: {{directory: ./cluster}}, ssh: {{identity_file: /k}}, hosts: {{{hosts}}}}}\n"
        f"proxy:\n  http_bind_port: 8080{joined}\n  model_host: {{deployments: {{{CHAT % chat}{more}}}}}\n"
        "origins: {localhost: {action: {type: ai_proxy, providers: [{name: p, provider_type: managed_model, deployment: chat, models: [m]}]}}}\n"
    )


def world_of(directory: Path, *hosts: str) -> ProviderWorld:
    world = ProviderWorld(directory, *hosts)
    grant = Grant(node_id="authority", roles=("authority",))
    world.authority = Authority.create(
        directory / "cluster", cluster_id="prod", grant=grant, server_name="mesh", now=world.fleet.clock.now()
    )
    return world


@pytest.fixture
def world(tmp_path: Path) -> ProviderWorld:
    return world_of(tmp_path, *ROLES)


def applied(world: ProviderWorld, written: str) -> None:
    world.configure(written)
    result = world.apply()
    assert [(str(one.address), str(one.cause or one.because)) for one in result.changes if one.status != "done"] == []
    assert world.rows() == {}


def payloads(world: ProviderWorld) -> list[ClusterBundlePayload]:
    opened = (
        open_envelope(one, CLUSTER_BUNDLE_PAYLOAD_TYPE, world.signers, max_bytes=10**6)
        for one in world.fleet.cluster.envelopes
    )
    return [ClusterBundlePayload.model_validate_json(one.payload) for one in opened]


def test_from_nothing_to_a_published_bundle_by_one_apply(world: ProviderWorld) -> None:
    applied(world, text())
    (payload,) = payloads(world)
    assert (payload.scope, payload.cluster_id, payload.revision) == ("prod", "prod", 1)
    assert payload.content.deployments["chat"].replicas == 2
    assert list(payload.content.origins) == ["localhost"]
    assert {name for name, host in world.fleet.hosts.items() if host.bundle is not None} == set()
    assert {name for name, host in world.fleet.hosts.items() if host.engines} == {"gpu-1", "gpu-2", "gpu-3"}
    assert not any(host.artifacts for host in world.fleet.hosts.values()), "workers fetch what they are assigned"


def test_each_node_is_told_who_it_is_and_where_the_others_are(world: ProviderWorld) -> None:
    applied(world, text())
    told = {name: host.config.cluster for name, host in world.fleet.hosts.items() if host.config is not None}
    assert {name: one.roles for name, one in told.items() if one is not None} == {
        name: (role,) for name, role in ROLES.items()
    }
    for name, one in told.items():
        assert one is not None
        assert [(server.node_id, server.address, server.port) for server in one.store] == [("auth", "10.0.0.1", 4222)]
        assert (one.peer is not None) == (ROLES[name] == "worker")
    worker, authority = told["gpu-2"], told["auth"]
    assert worker is not None
    assert worker.peer is not None
    assert (worker.peer.advertise, worker.peer.port) == ("10.0.0.5", 9443)
    assert authority is not None
    assert authority.expected_nodes == ("gpu-1", "gpu-2", "gpu-3")


def test_identities_stores_runtimes_then_the_bundle(world: ProviderWorld) -> None:
    applied(world, text())
    calls = [(call.host, call.method) for call in world.fleet.calls]
    published = calls.index(("auth", "cluster.publish"))
    for host in ROLES:
        assert calls.index((host, "certificate.install")) < calls.index((host, "runtime.activate")) < published
    assert calls.index(("auth", "store.install")) < published
    assert max(at for at, call in enumerate(calls) if call[1] == "engine.install") < published


def test_a_fleet_over_ssh_becomes_a_cluster_and_no_engine_is_stopped(world: ProviderWorld) -> None:
    applied(world, text(cluster=False))
    before = {name: dict(host.deployments) for name, host in world.fleet.hosts.items()}
    assert before["gpu-1"]
    world.fleet.calls.clear()
    world.configure(text())
    plan = world.plan()
    gone = [
        one for one in plan.actionable if one.address.scope == "gpu-1" and one.address.kind in ("bundle", "deployment")
    ]
    assert {one.action for one in gone} == {"forget"}
    assert not [one for one in plan.actionable if one.downtime == "refuse"]
    applied(world, text())
    assert not {"bundle.clear", "deployment.action", "artifact.remove", "engine.remove"} & set(world.fleet.methods())
    assert {name: dict(host.deployments) for name, host in world.fleet.hosts.items()} == before


def test_and_goes_back_to_what_it_was(world: ProviderWorld) -> None:
    applied(world, text())
    applied(world, text(cluster=False))
    assert world.host("gpu-1").bundle is not None
    assert not [
        address for address in world.state.resources if address.kind in ("store", "bundle") and address.scope == "auth"
    ]


def test_a_changed_deployment_is_one_revision_and_one_row(world: ProviderWorld) -> None:
    applied(world, text())
    world.configure(text(chat=", max_queue_depth: 9"))
    assert world.rows() == {"bundle.auth": "update", "deployment.auth/chat": "update"}
    applied(world, text(chat=", max_queue_depth: 9"))
    assert [one.revision for one in payloads(world)] == [1, 2]


def test_three_authorities_get_one_document_under_one_number(tmp_path: Path) -> None:
    world = world_of(tmp_path, *EVERYTHING)
    applied(world, text(EVERYTHING))
    assert len(set(world.fleet.cluster.envelopes)) == 1
    assert {world.record_of(f"bundle.{name}")["revision"] for name in EVERYTHING} == {1}
    applied(world, text(EVERYTHING, chat=", max_queue_depth: 9"))
    assert {world.record_of(f"bundle.{name}")["revision"] for name in EVERYTHING} == {2}


@pytest.mark.parametrize("canary", [None, "a", "b"])
def test_three_authorities_that_roll_one_by_one_do_not_wait_for_each_other_for_ever(
    tmp_path: Path, canary: str | None
) -> None:
    world = world_of(tmp_path, *EVERYTHING)
    applied(world, text(EVERYTHING, cluster=False).replace("gateway, worker, authority", "gateway, worker"))
    world.configure(text(EVERYTHING))
    update = UpdatePolicy(canary=canary, max_unavailable=1, pause_secs=0, max_failures=1)
    result = world.execute(world.plan(), update=update)
    assert result.status == "applied"
    assert world.settled()


def test_a_worker_that_fails_keeps_no_bundle_from_the_others(world: ProviderWorld) -> None:
    world.fleet.break_call("fail", host="gpu-2", method="engine.install")
    world.configure(text())
    result = world.apply()
    assert {str(one.address): one.status for one in result.changes}["bundle.auth"] == "done"
    assert result.status == "partial"
    world.fleet.heal()
    applied(world, text())


def test_without_its_store_an_authority_publishes_nothing(world: ProviderWorld) -> None:
    world.fleet.break_call("fail", host="auth", method="store.install")
    world.configure(text())
    result = world.apply()
    assert {str(one.address): one.status for one in result.changes}["bundle.auth"] == "skipped"
    assert world.fleet.cluster.envelopes == []


def test_what_nodes_are_not_ready_with_is_named_and_taken_note_of_later(world: ProviderWorld) -> None:
    cluster = world.fleet.cluster
    cluster.states = {"gpu-2": NodeProgress(state="accepted", detail="weights are on their way")}
    cluster.unplaced = {"chat": 1}
    world.configure(text())
    failed = next(one for one in world.apply().changes if str(one.address) == "bundle.auth")
    assert isinstance(failed.cause, HostError)
    assert failed.cause.code == "cluster.not_ready"
    for said in (
        "revision 1 is published",
        "gpu-2 is accepted: weights are on their way",
        "chat has no place for 1 replica",
    ):
        assert said in failed.cause.message
    cluster.states, cluster.unplaced = {}, {}
    applied(world, text())
    assert len(cluster.envelopes) == 1


def test_another_revision_in_the_store_is_drift_and_is_published_anew(world: ProviderWorld) -> None:
    applied(world, text())
    earlier = world.fleet.cluster.accepted
    applied(world, text(chat=", max_queue_depth: 9"))
    world.fleet.cluster.accepted = earlier
    rows = world.rows()
    assert rows["bundle.auth"] == "update"
    applied(world, text(chat=", max_queue_depth: 9"))


def test_a_store_that_lost_everything_gets_the_bundle_again(world: ProviderWorld) -> None:
    applied(world, text())
    world.fleet.cluster.accepted = None
    assert world.rows()["bundle.auth"] == "create"
    applied(world, text())
    assert payloads(world)[-1].revision == 2


def test_what_left_sb_yml_leaves_the_bundle_and_stays_on_hosts_while_the_cluster_runs_it(world: ProviderWorld) -> None:
    more = ", small: {model: qwen2.5-0.5b-instruct, variant: q4_k_m}"
    applied(world, text(more=more))
    world.fleet.calls.clear()
    applied(world, text())
    assert "small" not in payloads(world)[-1].content.deployments
    assert "artifact.remove" not in world.fleet.methods()


def test_replicas_are_not_replaced_at_their_publisher(world: ProviderWorld) -> None:
    applied(world, text())
    plan = world.plan(replaces=("deployment.auth/chat",))
    row = next(one for one in plan.changes if one.address == Address("deployment", "auth", "chat"))
    assert row.blocked_code == "cluster.no_replace"


def test_destroy_takes_everything_away(world: ProviderWorld) -> None:
    applied(world, text())
    assert world.execute(world.plan(mode="destroy", desired=())).status == "applied"
    assert not world.state.resources


def shown(plan: Plan) -> set[str]:
    return {str(one.address) for one in plan.actionable}


def test_a_key_that_comes_to_the_set_signs_the_bundle_anew(world: ProviderWorld) -> None:
    applied(world, text())
    world.key_epoch += 1
    assert world.config is not None
    world.config = replace(world.config, key_epoch=world.key_epoch)
    assert "bundle.auth" in shown(world.plan())
    applied(world, text())
    assert payloads(world)[-1].key_epoch == 1


def _without(name: str) -> dict[str, str]:
    return {host: role for host, role in ROLES.items() if host != name}


def test_a_worker_that_leaves_sb_yml_leaves_its_cluster_first_and_behind_the_new_bundle(world: ProviderWorld) -> None:
    applied(world, text())
    world.configure(text(_without("gpu-2"), chat=", max_queue_depth: 9"))
    plan = world.plan()
    row = next(one for one in plan.changes if str(one.address) == "runtime.gpu-2")
    assert row.action == "delete"
    assert "placed on other workers first" in row.notes[0]
    world.fleet.calls.clear()
    assert {one.status for one in world.execute(plan).changes} == {"done"}
    order = [(call.host, call.method) for call in world.fleet.calls if call.method not in ("snapshot", "put")]
    of_gpu_2 = [method for host, method in order if host == "gpu-2"]
    assert of_gpu_2[0] == "host.leave"
    assert of_gpu_2.index("host.leave") < of_gpu_2.index("runtime.remove")
    assert order.index(("auth", "cluster.publish")) < order.index(("gpu-2", "host.leave"))
    assert of_gpu_2.count("host.leave") == 1
    assert world.rows() == {}


def test_a_worker_whose_replicas_have_no_other_place_stays_unless_the_outage_is_accepted(world: ProviderWorld) -> None:
    applied(world, text())
    world.fleet.cluster.stuck = ["chat"]
    world.configure(text(_without("gpu-2")))
    world.fleet.calls.clear()
    failed = [one for one in world.apply().changes if one.cause is not None]
    assert {one.cause.code for one in failed if one.cause} == {"cluster.evacuation_unfinished"}
    assert "runtime.remove" not in world.fleet.methods("gpu-2")
    assert world.execute(world.plan(), leave_anyway=True).status == "applied"
    assert "runtime.remove" in world.fleet.methods("gpu-2")


def test_a_worker_that_loses_the_role_leaves_first_and_a_whole_cluster_that_goes_does_not(world: ProviderWorld) -> None:
    applied(world, text())
    world.fleet.calls.clear()
    applied(world, text(ROLES | {"gpu-2": "gateway"}))
    methods = world.fleet.methods("gpu-2")
    assert methods.index("host.leave") < methods.index("runtime.activate")
    world.fleet.calls.clear()
    applied(world, text(cluster=False))
    assert "host.leave" not in world.fleet.methods()
    applied(world, text())
    world.fleet.calls.clear()
    assert {one.status for one in world.execute(world.plan(mode="destroy")).changes} == {"done"}
    assert "host.leave" not in world.fleet.methods()
