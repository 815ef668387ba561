"""What workers publish of themselves, as a verified directory hands it on."""

from __future__ import annotations

from typing import Any

from sbctl.node.cluster_documents import (
    CapacityReport,
    ClusterNode,
    DeviceReport,
    HealthReport,
    NodeSnapshotDocument,
    ReplicaReport,
)
from sbctl.runtime.peer.candidates import KnownNode
from sbctl.trust.identity import IdentityClaims
from sbctl.trust.peer_documents import Peer
from tests.simulators.cluster_trust import NOW

__all__ = ["node", "replica"]


def node(name: str, *replicas: ReplicaReport, **changes: Any) -> KnownNode:
    health = {"state": "ready", "peer_plane": "ready", **changes.pop("health", {})}
    values: dict[str, Any] = {
        "cluster_id": "prod",
        "identity_epoch": 1,
        "boot_epoch": 5,
        "node": ClusterNode(
            node_id=name,
            roles=changes.pop("roles", ("worker",)),
            labels={"topology.kubernetes.io/region": "eu"},
            peer_address=changes.pop("address", f"{name}:9443"),
        ),
        "counter": 1,
        "published_at_unix_ms": 0,
        "expires_at_unix_ms": 1,
        "health": HealthReport(**health),
        "capacity": CapacityReport(memory_bytes=1),
        "devices": (
            DeviceReport(index=0, accelerator="cuda", total_memory_bytes=9, available_memory_bytes=1, compute_utilization_millis=700, memory_occupancy_millis=900),
            DeviceReport(index=1, accelerator="cuda", total_memory_bytes=9, available_memory_bytes=9, compute_utilization_millis=10),
        ),
        "replicas": replicas,
    }  # fmt: skip
    claims = IdentityClaims(cluster_id="prod", node_id=name, roles=("worker",), server_name="mesh", identity_epoch=1)
    return KnownNode(NodeSnapshotDocument(**{**values, **changes}), Peer(claims, "f" * 64, NOW))


def replica(**changes: Any) -> ReplicaReport:
    values: dict[str, Any] = {
        "deployment": "q",
        "deployment_generation": 3,
        "model": "m",
        "variant": "v",
        "engine": "llama_cpp",
        "state": "ready",
        "artifact_digest": "a" * 64,
    }
    return ReplicaReport(**{**values, **changes})
