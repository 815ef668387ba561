"""What a plan says of where a cluster's replicas would go: as text, as data, with reasons, and from an earlier placement on."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbctl.base.errors import ExitCode, RefusedError
from sbctl.base.limits import GIB
from sbctl.cli.blockers import refuse_unfit
from sbctl.cli.placement_plan import with_placement
from sbctl.cli.planning import Planned
from sbctl.node.cluster_documents import BundleMark
from sbctl.placement.documents import plan_document as placement_document
from sbctl.placement.model import ClusterView, DeploymentPlacement, Place, PlacementPlan
from sbctl.plan.document import PlacementPart, document_of
from sbctl.plan.model import Plan
from sbctl.plan.policy import plan_exit_code
from sbctl.remote.observe import FleetObservation
from sbctl.views.plan_text import plan_text
from tests.simulators.provider_world import ProviderWorld
from tests.unit.providers.test_cluster import EVERYTHING, ROLES, text, world_of

pytestmark = pytest.mark.flow

BIG = ", big: {model: qwen2.5-0.5b-instruct, variant: q4_k_m, replicas: %d, memory: 20GiB, warm: true}"


@pytest.fixture
def world(tmp_path: Path) -> ProviderWorld:
    return world_of(tmp_path, *ROLES)


def planned(world: ProviderWorld, written: str) -> Plan:
    config = world.configure(written)
    unreachable = dict.fromkeys(world.fleet.unreachable, "no answer")
    plan = world.plan(unreachable=unreachable)
    return with_placement(plan, config, world.fleet.snapshots())


def shown(plan: Plan, *, explain: bool = False) -> str:
    """Everything behind the rows, without what is random in a certificate."""
    said = plan_text(document_of(plan), width=110, explain=explain).plain
    return said[said.index("placement in") :]


def part(plan: Plan) -> PlacementPart:
    found = document_of(plan).placement
    assert found is not None
    return found


GOLDEN = """\
placement in prod, 3 workers
  big: 2 of 2 on gpu-1, gpu-3; 20.0 GiB a replica
  chat: 2 of 2 on gpu-1, gpu-2; 440.3 MiB a replica
  → big replica 0: on gpu-3 (new, weights to fetch)
  → big replica 1: on gpu-1 (new, weights to fetch)
  → chat replica 0: on gpu-2 (new, weights to fetch)
  → chat replica 1: on gpu-1 (new, weights to fetch)

Plan: 32 to add, 0 to change, 0 to remove. Blast radius: hitless. Download 103.7 MiB. No downtime."""


def test_two_gateways_three_workers_one_authority(world: ProviderWorld) -> None:
    assert shown(planned(world, text(more=BIG % 2))) == GOLDEN


EXPLAINED = """\
  big: 2 of 4 on gpu-1, gpu-3; 20.0 GiB a replica; no place for 2
      gpu-3 gets replica 0: score 457.171; no more: q4_k_m: needs 20.0 GiB of main memory, has 2.4 GiB free:
      17.6 GiB short
      gpu-1 gets replica 1: score 62.897; no more: q4_k_m: needs 20.0 GiB of main memory, has 2.0 GiB free:
      18.0 GiB short
      gpu-2 refused: q4_k_m: needs 20.0 GiB of main memory, has 5.6 GiB in all: 14.4 GiB short
"""


def test_each_worker_has_its_reason_when_asked_for_and_what_has_no_place_is_refused(world: ProviderWorld) -> None:
    small = world.fleet.hosts["gpu-2"]
    small.facts = small.facts.model_copy(update={"memory_total_bytes": 8 * GIB})
    plan = planned(world, text(more=BIG % 4))
    assert EXPLAINED in shown(plan, explain=True)
    assert plan_exit_code(plan) == ExitCode.REFUSED
    (sentence,) = plan.unfit
    assert sentence.startswith(
        "big has no place for 2 of 4 replicas; nearest: gpu-3 q4_k_m: needs 20.0 GiB of main memory"
    )
    with pytest.raises(RefusedError, match="big has no place"):
        refuse_unfit(Planned(plan, world.inputs(), FleetObservation({}, {}, {}, 0.0), world.config))


def test_the_bundle_of_three_authorities_is_shown_once(tmp_path: Path) -> None:
    plan = planned(world_of(tmp_path, *EVERYTHING), text(EVERYTHING))
    said = plan_text(document_of(plan), width=110).plain
    assert [line.split()[1] for line in said.splitlines() if "/chat " in line] == ["deployment.a/chat"]
    assert said.count("      as bundle.a\n") == 2


def test_as_data_it_has_every_worker_and_its_facts(world: ProviderWorld) -> None:
    (big, chat) = part(planned(world, text(more=BIG % 4))).deployments
    assert (big.deployment, big.replicas, big.unplaced, len(big.assignments)) == ("big", 4, 1, 3)
    assert [row.standing for row in chat.nodes] == ["placed", "placed", "possible"]
    assert {row.node for row in big.nodes} == {"gpu-1", "gpu-2", "gpu-3"}


def test_the_row_of_a_deployment_tells_the_memory_that_it_is_placed_by(world: ProviderWorld) -> None:
    plan = planned(world, text(more=BIG % 2))
    placed = {one.deployment: one.memory_bytes for one in part(plan).deployments}
    rows = {change.address.name: change.memory_bytes for change in plan.changes if change.address.kind == "deployment"}
    assert rows == placed


def test_a_host_that_gives_no_answer_gets_nothing_and_says_so(world: ProviderWorld) -> None:
    world.fleet.unreachable.add("gpu-1")
    (chat,) = part(planned(world, text())).deployments
    refused = next(row for row in chat.nodes if row.node == "gpu-1")
    assert (refused.standing, refused.reason, refused.facts["code"]) == ("refused", "node_excluded", "host_unreachable")


def placed_on(world: ProviderWorld, *nodes: str) -> None:
    """As if a lease-holder had placed chat there."""
    plan = planned(world, text())
    (chat,) = part(plan).deployments
    row = next(change for change in plan.changes if change.address.kind == "deployment")
    assert row.desired is not None
    facts = row.desired.spec["artifact"]
    from sbctl.placement.demands import demand_of
    from sbctl.trust.cluster_bundle import ClusterDeployment

    deployment = ClusterDeployment.model_validate(row.desired.spec, strict=False)
    demand = demand_of("chat", deployment, safety_margin=0.1, handoff_timeout_ms=60_000, drain_timeout_ms=30_000)
    way = demand.ways[0]
    places = tuple(
        Place(at, node, 1, way.variant, facts["artifact"], way.member_digest, "llama_cpp", host_bytes=way.host_bytes)
        for at, node in enumerate(nodes)
    )
    prior = PlacementPlan(
        {"chat": DeploymentPlacement("chat", demand.digest, 1, chat.replicas, target=places)},
        known=frozenset({"gpu-1", "gpu-2", "gpu-3"}),
        high_waters={"chat": 1},
    )
    document = placement_document(
        prior,
        ClusterView({}),
        {
            "cluster_id": "prod", "identity_epoch": 1, "boot_epoch": 1, "lease_epoch": 3, "lease_holder": "auth", "counter": 7,
            "issued_at_unix_ms": 1, "bundle": BundleMark(revision=1, content_digest="0" * 64),
        },
        directory_digest="0" * 64,
        spread_by={},
    )  # fmt: skip
    world.fleet.cluster.placement = document.model_dump(mode="json")


def test_what_is_placed_stays_and_what_is_taken_out_of_service_by_its_labels_moves(world: ProviderWorld) -> None:
    world.configure(text())
    world.apply()
    placed_on(world, "gpu-2", "gpu-3")
    assert part(planned(world, text())).changes == ()
    labelled = text(chat=", required_labels: {tier: a}").replace(
        "roles: [worker]", "roles: [worker], labels: {tier: a}", 2
    )
    (moved,) = part(planned(world, labelled)).changes
    assert (moved.from_node, moved.to_node, moved.why) == ("gpu-3", "gpu-1", "required_labels")


@pytest.mark.parametrize(
    ("asked", "gib", "said"),
    [
        (", memory: 30GiB, tensor_parallel: 2", 24, "chat: 2 of 2 on gpu-1 (devices 0+1), gpu-2 (devices 0+1); 30.0 GiB a replica, 15.0 GiB on each of 2 devices"),
        (", memory: 30GiB", 24, "15.0 GiB on each of 2 devices"),
        (", memory: 30GiB", 48, "30.0 GiB a replica, 30.0 GiB on a device"),
        (", memory: 30GiB, tensor_parallel: 1", 24, "chat: 0 of 2; 30.0 GiB a replica, 30.0 GiB on a device; no place for 2"),
    ],
)  # fmt: skip
def test_a_replica_on_devices_says_what_each_must_hold(world: ProviderWorld, asked: str, gib: int, said: str) -> None:
    gpus = tuple({"number": at, "uuid": f"GPU-{at}", "memory_total_bytes": gib * GIB} for at in range(2))
    for name in ("gpu-1", "gpu-2"):
        host = world.fleet.hosts[name]
        host.facts = host.facts.model_copy(update={"gpus": gpus})
    cuda = (
        "model_host: {engines: {llama_cpp: {launch: binary, acceleration: cuda, path: /opt/llama-server}}, deployments"
    )
    plan = planned(world, text(chat=asked).replace("model_host: {deployments", cuda))
    assert said in " ".join(shown(plan).split())


def test_a_store_that_nobody_hears_is_said_before_anything_is_published(world: ProviderWorld) -> None:
    world.configure(text())
    assert planned(world, text()).notes == ()
    world.apply()
    assert not any("store of the cluster" in said for said in planned(world, text()).notes)
    world.fleet.cluster.hears_store = False
    (said,) = planned(world, text()).notes
    assert said.startswith("the store of the cluster is not heard by auth: what runs goes on")


def test_a_fleet_over_ssh_keeps_what_runs_where_it_runs(world: ProviderWorld) -> None:
    world.configure(text(cluster=False))
    world.apply()
    (chat,) = part(planned(world, text())).deployments
    assert chat.unplaced == 0
    assert all(row.has_weights for row in chat.nodes)


def test_without_a_cluster_a_plan_says_nothing_of_placement(world: ProviderWorld) -> None:
    assert document_of(planned(world, text(cluster=False))).placement is None
