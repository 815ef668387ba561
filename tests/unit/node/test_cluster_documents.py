"""The documents of a cluster: what they hold at most, and that nothing else gets in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from sbctl.node import cluster_documents, placement_document
from sbctl.node.cluster_documents import (
    AssignmentDocument,
    CapacityReport,
    ClusterDocument,
    ClusterNode,
    DispatchEnvelope,
    HealthReport,
    LeaseDocument,
    NodeSnapshotDocument,
)
from sbctl.node.placement_document import PlacementDocument

SNAPSHOT = NodeSnapshotDocument(
    cluster_id="prod",
    identity_epoch=1,
    boot_epoch=1,
    node=ClusterNode(node_id="gpu-a", roles=("worker",)),
    counter=1,
    published_at_unix_ms=0,
    expires_at_unix_ms=1,
    health=HealthReport(state="ready", peer_plane="ready"),
    capacity=CapacityReport(memory_bytes=1),
).model_dump(mode="json")
DEVICE = {"index": 0, "accelerator": "cuda", "total_memory_bytes": 1, "available_memory_bytes": 1}
ENGINE = {"engine": "llama_cpp", "availability": "available"}
ARTIFACT = {"artifact_digest": "a" * 64, "model": "m", "variant": "v", "state": "ready"}
REPLICA = {
    "deployment": "chat",
    "deployment_generation": 1,
    "model": "m",
    "variant": "v",
    "engine": "llama_cpp",
    "state": "ready",
    "artifact_digest": "a" * 64,
}


def is_taken(document: dict[str, Any]) -> bool:
    try:
        NodeSnapshotDocument.model_validate_json(json.dumps(document))
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(
    ("field", "item", "most"),
    [
        ("engines", ENGINE, 16),
        ("devices", DEVICE, 64),
        ("artifacts", ARTIFACT, 512),
        ("replicas", REPLICA, 1024),
    ],
)
def test_a_snapshot_lists_so_many_and_no_more(field: str, item: dict[str, Any], most: int) -> None:
    assert is_taken(SNAPSHOT | {field: [item] * most})
    assert not is_taken(SNAPSHOT | {field: [item] * (most + 1)})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"health": SNAPSHOT["health"] | {"reason_codes": ["x"] * 17}}, id="17 reasons"),
        pytest.param({"health": SNAPSHOT["health"] | {"reason_codes": ["Not a code"]}}, id="a sentence as a reason"),
        pytest.param({"replicas": [REPLICA | {"adapters": ["a"] * 65}]}, id="65 adapters"),
        pytest.param({"replicas": [REPLICA | {"state": "warm"}]}, id="a state that is none"),
        pytest.param({"replicas": [REPLICA | {"endpoint": "/run/x.sock"}]}, id="the address of an engine"),
        pytest.param({"artifacts": [ARTIFACT | {"path": "/var/cache/x"}]}, id="a path"),
        pytest.param({"artifacts": [ARTIFACT | {"artifact_digest": "A" * 64}]}, id="a digest in capitals"),
        pytest.param({"devices": [DEVICE | {"compute_utilization_millis": 1001}]}, id="more than all of a device"),
        pytest.param({"node": SNAPSHOT["node"] | {"roles": []}}, id="no role"),
        pytest.param({"node": SNAPSHOT["node"] | {"node_id": ".."}}, id="a name that is a path"),
        pytest.param({"node": SNAPSHOT["node"] | {"labels": {"zone\n": "a"}}}, id="a label on two lines"),
        pytest.param({"counter": 0}, id="number 0"),
        pytest.param({"counter": "1"}, id="a number as text"),
        pytest.param({"surprise": 1}, id="an unknown field"),
    ],
)
def test_what_a_snapshot_may_not_say(change: dict[str, Any]) -> None:
    assert is_taken(SNAPSHOT)
    assert not is_taken(SNAPSHOT | change)


def test_every_document_says_who_signs_it_and_has_a_kind_of_its_own() -> None:
    documents = (NodeSnapshotDocument, AssignmentDocument, LeaseDocument, DispatchEnvelope, PlacementDocument)
    assert all(document.signer is not ClusterDocument.signer for document in documents)
    types = {
        value
        for module in (cluster_documents, placement_document)
        for name, value in vars(module).items()
        if name.endswith("_PAYLOAD_TYPE")
    }
    assert len(types) == len(documents)
