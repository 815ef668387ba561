"""A cluster of thousands of deployments: what sb.yml compiles to is signed, verified and projected; where a bundle ends, it says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from providers.bundle.cluster import payload_of
from providers.bundle.numbering import refuse_too_large
from providers.bundle.spec import content_of, digest_of
from sbctl.base.digests import canonical_json
from sbctl.base.errors import SbctlError
from sbctl.base.limits import (
    BUNDLE_DEPLOYMENTS_MAX,
    BUNDLE_ENVELOPE_MAX_BYTES,
    BUNDLE_MAX_BYTES,
    FRAME_MAX_BYTES,
    KIB,
)
from sbctl.node.cluster_documents import (
    ASSIGNMENT_MAX_BYTES,
    AssignedDeployment,
    AssignedReplica,
    AssignmentDocument,
)
from sbctl.node.cluster_messages import ClusterPublish
from sbctl.node.frames import encode_frame
from sbctl.runtime.cluster.store import VALUE_MAX_BYTES, Bucket
from sbctl.runtime.nodeops.store_config import MESSAGE_MAX_BYTES
from sbctl.trust.bundle import TrustSet
from sbctl.trust.cluster_bundle import (
    CLUSTER_BUNDLE_PAYLOAD_TYPE,
    ClusterContent,
    ClusterDeployment,
    bundle_mark,
    node_content,
    replica_digest,
    replica_of,
    verify_cluster_bundle,
)
from sbctl.trust.envelope import sign_envelope
from tests.simulators.fleet import FleetSimulator
from tests.simulators.provider_world import LINEAGE, ProviderWorld, SimServices
from tests.unit.providers.test_cluster import ROLES, text, world_of

MODELS = (
    "smollm2-135m-instruct, variant: q4_1",
    "qwen2.5-0.5b-instruct, variant: q4_k_m",
    "llama-3.1-8b-instruct, variant: q4_k_m, accept_license: llama3.1",
    "qwen3-32b, variant: q4_k_m",
    "gpt-oss-20b, variant: q4_k_m",
)
USUAL = "replicas: 2, max_concurrency: 8, spread_by: [zone, rack], warm: true, pull: on_boot"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The spec of a bundle with one deployment of each model."""
    world = world_of(tmp_path_factory.mktemp("f"), *ROLES)
    more = "".join(f", {number}-of-a-usual-name: {{model: {model}, {USUAL}}}" for number, model in enumerate(MODELS))
    world.configure(text(more=more))
    spec = next(one.spec for one in world.desired() if one.address.kind == "bundle")
    return json.loads(json.dumps(spec))  # type: ignore[no-any-return]


def of_many(compiled: dict[str, Any], count: int) -> dict[str, Any]:
    kept = sorted(compiled["deployments"].items())
    many = {f"{kept[number % len(kept)][0]}-{number:04}": kept[number % len(kept)][1] for number in range(count)}
    return compiled | {"deployments": many}


def signed(spec: dict[str, Any], directory: Path) -> tuple[str, TrustSet]:
    world = ProviderWorld(directory)
    services = SimServices(directory, world.fleet.clock, world.key, lambda _scope: 1)
    payload = payload_of(spec, content_of(spec), digest_of(spec), 1, services)
    document = canonical_json(payload.model_dump(mode="json"))
    trust = TrustSet(lineage=LINEAGE, key_epoch=spec["key_epoch"], signers=world.signers)
    return sign_envelope(CLUSTER_BUNDLE_PAYLOAD_TYPE, document, world.key, "ops"), trust


@pytest.mark.flow
def test_two_thousand_deployments_are_published_verified_and_run_where_they_are_assigned(
    compiled: dict[str, Any], tmp_path: Path
) -> None:
    envelope, trust = signed(of_many(compiled, 2000), tmp_path)
    refuse_too_large(envelope, "the bundle")
    asked = ClusterPublish(envelope=envelope, wait_s=1).model_dump(mode="json")
    assert len(encode_frame({"method": "cluster.publish", "params": asked})) < FRAME_MAX_BYTES
    now = FleetSimulator().clock.now()
    verified = verify_cluster_bundle(envelope, trust=trust, cluster_id="prod", fence=None, now=now)
    content = verified.payload.content
    assert len(content.deployments) == 2000
    everything = AssignmentDocument(
        cluster_id="prod", node_id="gpu-1", lease_epoch=1, lease_holder="auth", counter=1, issued_at_unix_ms=1,
        identity_epoch=1, boot_epoch=1,
        bundle=bundle_mark(verified.payload),
        deployments={name: (_assigned(one),) for name, one in content.deployments.items()},
    )  # fmt: skip
    assert len(everything.model_dump_json()) < ASSIGNMENT_MAX_BYTES
    projected = node_content(content, everything, held={}, running={})
    assert (len(projected.content.deployments), projected.refused) == (2000, {})


def _assigned(one: ClusterDeployment) -> AssignedDeployment:
    return AssignedDeployment(
        generation=1, variant=one.variant, artifact_digest=one.artifact.artifact, phase="start",
        member_digest=replica_digest(replica_of(one, one.options[0])), replicas=(AssignedReplica(slot=0),),
    )  # fmt: skip


def test_more_than_a_bundle_holds_is_refused_on_the_way_and_says_what_to_do(
    compiled: dict[str, Any], tmp_path: Path
) -> None:
    envelope, _trust = signed(of_many(compiled, 1), tmp_path)
    with pytest.raises(SbctlError, match="a runtime takes") as caught:
        refuse_too_large(envelope + " " * BUNDLE_ENVELOPE_MAX_BYTES, "the bundle of cluster prod")
    assert (caught.value.code, bool(caught.value.next_step)) == ("bundle.too_large", True)
    one = ClusterContent.model_validate_json(json.dumps(content_of(compiled))).deployments
    deployments = {f"d{number}": next(iter(one.values())) for number in range(BUNDLE_DEPLOYMENTS_MAX + 1)}
    with pytest.raises(ValueError, match=str(BUNDLE_DEPLOYMENTS_MAX)):
        ClusterContent(deployments=deployments, origins={}, api_keys={}, public=False)


def test_whatever_carries_a_bundle_takes_the_largest() -> None:
    largest = BUNDLE_MAX_BYTES * 4 / 3 + 8 * KIB
    assert largest < BUNDLE_ENVELOPE_MAX_BYTES <= VALUE_MAX_BYTES[Bucket.DESIRED] < MESSAGE_MAX_BYTES
    assert max(VALUE_MAX_BYTES.values()) + 4 * KIB < MESSAGE_MAX_BYTES
    assert BUNDLE_ENVELOPE_MAX_BYTES + 64 * KIB < FRAME_MAX_BYTES
