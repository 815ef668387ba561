"""Doors of a cluster: what nodes sign for each other, the cluster's bundle, revocation lists, and what a node keeps of its starts."""

from __future__ import annotations

import base64
import json
import ssl
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from sbctl.node.cluster_documents import (
    AssignedDeployment,
    AssignedReplica,
    AssignmentDocument,
    BundleMark,
    CapacityReport,
    ClusterDocument,
    ClusterNode,
    DispatchEnvelope,
    HealthReport,
    LeaseDocument,
    NodeSnapshotDocument,
    ReplicaReport,
)
from sbctl.node.placement_document import PlacedDeployment, PlacementDocument, RolloutState
from sbctl.runtime.cluster.boot_epoch import take_boot_epoch
from sbctl.trust.cluster_bundle import CLUSTER_BUNDLE_PAYLOAD_TYPE, bundle_mark, node_content, verify_cluster_bundle
from sbctl.trust.cluster_fences import admit_assignment, admit_placement, check_epoch
from sbctl.trust.envelope import sign_envelope, sign_with
from sbctl.trust.node_keys import node_signs
from sbctl.trust.peer_documents import PeerVerifier
from sbctl.trust.peer_kinds import ASSIGNMENT, DISPATCH, LEASE, PLACEMENT, SNAPSHOT, DocumentKind
from sbctl.trust.revocation import REVOCATION_PAYLOAD_TYPE, newer_revocations
from tests.fuzz.door import Door, Knock
from tests.fuzz.file_doors import pure
from tests.simulators.cluster_bundles import OPS, TRUST, cluster_payload, facts
from tests.simulators.cluster_trust import NOW, ClusterAuthority, NodeKit

__all__ = ["CLUSTER_DOORS"]

NOW_MS: Final = int(NOW.timestamp() * 1000)
BUNDLE: Final = BundleMark(key_epoch=3, revision=7, content_digest="a" * 64)
SELF: Final[dict[str, Any]] = {"cluster_id": "prod", "identity_epoch": 1, "boot_epoch": 2}
HOLDER: Final[dict[str, Any]] = {
    **SELF,
    "lease_epoch": 4,
    "lease_holder": "node-a",
    "counter": 9,
    "issued_at_unix_ms": NOW_MS,
    "bundle": BUNDLE,
}


@cache
def world() -> tuple[ClusterAuthority, NodeKit, PeerVerifier]:
    """One node that may say everything, so that what lies behind the signature is reached for each kind."""
    authority = ClusterAuthority()
    kit = authority.node("node-a", "authority", "gateway", "worker")
    return authority, kit, authority.verifier()


def signed(kind: DocumentKind[Any], payload: bytes) -> str:
    _authority, kit, _verifier = world()
    envelope = sign_with(kind.payload_type, payload, {"node-a": node_signs(kit.key)})
    proof = {"certificate_chain": kit.files.certificate, "identity": kit.files.identity}
    return json.dumps({"schema_version": 1, "envelope": envelope, "proof": proof})


def knock_signed(data: bytes) -> None:
    verified = world()[2].open(data.decode("utf-8", "surrogateescape"), SNAPSHOT, now=NOW, marks={})
    assert verified.document.signer == verified.peer.claims.node_id == "node-a"


def knock_certificate(data: bytes) -> None:
    """As DER, so that what is behind the text form is reached."""
    _authority, kit, verifier = world()
    text = base64.encodebytes(data).decode()
    chain = f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n"
    proof = {"certificate_chain": chain, "identity": kit.files.identity}
    good = json.loads(signed_seeds()[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library warns of serial numbers that are refused
        verified = verifier.open(json.dumps({**good, "proof": proof}), SNAPSHOT, now=NOW, marks={})
    assert data == certificate_seeds()[0], verified


def certificate_seeds() -> list[bytes]:
    return [ssl.PEM_cert_to_DER_cert(world()[1].files.certificate)]


def knocks(kind: DocumentKind[Any], then: Callable[[Any], object]) -> Callable[[Path], Any]:
    """Signed by a trusted node, and what a reader of this kind does next."""

    def knock(data: bytes) -> None:
        verified = world()[2].open(signed(kind, data), kind, now=NOW, marks={}, publisher="node-a")
        assert verified.document.signer == "node-a"
        then(verified)

    return pure(knock)


def obey(verified: Any) -> None:
    admit_assignment(verified, node_id="node-a", held=BUNDLE, fence=None, lease_epoch_seen=3, now=NOW)


def knock_bundle(data: bytes) -> None:
    text = sign_envelope(CLUSTER_BUNDLE_PAYLOAD_TYPE, data, OPS, "ops")
    payload = verify_cluster_bundle(text, trust=TRUST, cluster_id="prod", fence=None, now=NOW).payload
    start = AssignmentDocument(**{**HOLDER, "bundle": bundle_mark(payload)}, node_id="node-a", deployments={})
    assert node_content(payload.content, start, held={}, running={}).content.deployments == {}


def knock_revocations(data: bytes) -> None:
    authority = world()[0]
    text = sign_envelope(REVOCATION_PAYLOAD_TYPE, data, authority.key, "authority")
    newest = newer_revocations(authority.revocations, text, authority.keys, cluster_id="prod")
    assert newest is None or newest.revision > authority.revocations.revision


@contextmanager
def boot_epoch_door(folder: Path) -> Iterator[Knock]:
    """Whatever the file holds, there is a number, and the next one is higher."""

    def knock(data: bytes) -> None:
        (folder / "boot-epoch.json").write_bytes(data)
        first = take_boot_epoch(folder, NOW)
        assert int(NOW.timestamp()) <= first < take_boot_epoch(folder, NOW)

    yield knock


def seed(document: ClusterDocument) -> Callable[[], list[bytes]]:
    return lambda: [document.model_dump_json().encode()]


SNAPSHOT_SEED: Final = NodeSnapshotDocument(
    **SELF,
    node=ClusterNode(node_id="node-a", roles=("authority", "gateway", "worker"), peer_address="10.0.0.1:19443"),
    counter=1,
    published_at_unix_ms=NOW_MS,
    expires_at_unix_ms=NOW_MS + 30_000,
    health=HealthReport(state="ready", peer_plane="ready", reason_codes=("no_usable_model_engine",)),
    capacity=CapacityReport(memory_bytes=1 << 30),
    replicas=(
        ReplicaReport(
            deployment="chat",
            deployment_generation=1,
            slot=0,
            model="m",
            variant="v",
            engine="llama_cpp",
            state="ready",
            artifact_digest="a" * 64,
        ),
    ),
    active_bundle=BUNDLE,
)
ASSIGNMENT_SEED: Final = AssignmentDocument(
    **HOLDER,
    node_id="node-a",
    deployments={
        "chat": (
            AssignedDeployment(
                generation=1,
                phase="start",
                variant="q4_k_m",
                artifact_digest=facts().artifact,
                member_digest="b" * 64,
                replicas=(AssignedReplica(slot=0, devices=(0, 1)),),
            ),
        )
    },
)
PLACEMENT_SEED: Final = PlacementDocument(
    **HOLDER,
    directory_digest="d" * 64,
    deployments={
        "chat": PlacedDeployment(
            model="m",
            member_digest="b" * 64,
            generation=1,
            desired_replicas=2,
            rollout=RolloutState(phase="stable", target_ready=True),
        )
    },
)
LEASE_SEED: Final = LeaseDocument(
    **SELF, holder="node-a", epoch=4, acquired_at_unix_ms=NOW_MS, renewed_at_unix_ms=NOW_MS, ttl_secs=15
)
DISPATCH_SEED: Final = DispatchEnvelope(
    **SELF,
    issuer_node_id="node-a",
    issuer_certificate_sha256="c" * 64,
    audience_node_id="node-a",
    audience_boot_epoch=2,
    request_id="r",
    nonce="n" * 22,
    issued_at_unix_ms=NOW_MS,
    expires_at_unix_ms=NOW_MS + 10_000,
    policy_revision="1",
    deployment="chat",
    deployment_generation=1,
    logical_model="chat",
    priority="standard",
    path="/v1/chat/completions",
    body_sha256="e" * 64,
)


@cache
def signed_seeds() -> list[bytes]:
    return [signed(SNAPSHOT, SNAPSHOT_SEED.model_dump_json().encode()).encode()]


def admit_plan(verified: Any) -> None:
    admit_placement(verified, fence=None, lease_epoch_seen=0)


def admit_holder(verified: Any) -> None:
    check_epoch(verified.document.epoch, verified.document.holder, seen=0)


CLUSTER_DOORS: Final = (
    Door("signed document", pure(knock_signed), ("corpus/signed_document/*",), signed_seeds),
    Door("peer certificate", pure(knock_certificate), ("corpus/peer_certificate/*",), certificate_seeds),
    Door("node snapshot", knocks(SNAPSHOT, id), ("corpus/node_snapshot/*",), seed(SNAPSHOT_SEED)),
    Door("assignment", knocks(ASSIGNMENT, obey), ("corpus/assignment/*",), seed(ASSIGNMENT_SEED)),
    Door("placement plan", knocks(PLACEMENT, admit_plan), ("corpus/placement/*",), seed(PLACEMENT_SEED)),
    Door("cluster lease", knocks(LEASE, admit_holder), ("corpus/cluster_lease/*",), seed(LEASE_SEED)),
    Door("dispatch", knocks(DISPATCH, id), ("corpus/dispatch/*",), seed(DISPATCH_SEED)),
    Door(
        "cluster bundle",
        pure(knock_bundle),
        ("corpus/cluster_bundle/*",),
        lambda: [json.dumps(cluster_payload()).encode()],
    ),
    Door(
        "revocation list",
        pure(knock_revocations),
        ("corpus/revocations/*",),
        lambda: [world()[0].revocations.model_copy(update={"revision": 3}).model_dump_json().encode()],
    ),
    Door("boot epoch", boot_epoch_door, ("corpus/boot_epoch/*",), lambda: [b'{"schema_version":1,"boot_epoch":7}'], 60),
)
