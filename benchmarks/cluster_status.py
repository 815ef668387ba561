"""What does the status of a large cluster cost its node, and what do those who read it wait for?

    python benchmarks/cluster_status.py [--nodes 1000] [--deployments 200]

One gateway's memory of a cluster is made (a snapshot of each node with a device, ten artifacts and two replicas, a plan that places them), then
the body of GET /admin/cluster/status is made, written as JSON, read again and shown as text, each several times; the best is printed, since
whatever is above it is the machine's. Nothing is verified here: that was done when the snapshots arrived.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from typing import TypeVar

from rich.console import Console

from sbctl.node.cluster_documents import (
    ArtifactReport,
    BundleMark,
    CapacityReport,
    ClusterNode,
    DeviceReport,
    HealthReport,
    NodeSnapshotDocument,
    ReplicaReport,
)
from sbctl.node.cluster_status import ClusterStatus
from sbctl.node.placement_document import PlacedDeployment, PlacedReplica, PlacementDocument, RolloutState
from sbctl.runtime.cluster.directory import DirectoryRow, DirectoryView
from sbctl.runtime.cluster.status import Facts, status_document
from sbctl.runtime.cluster.store import StoreStatus
from sbctl.views.cluster_live_views import live_text

NOW = datetime(2026, 11, 30, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
GIB = 1 << 30
MARK_MS = 300
_ROUNDS = 5
_Made = TypeVar("_Made")


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


BUNDLE = BundleMark(revision=12, content_digest=digest("bundle"))


def snapshot(name: str, replicas: tuple[ReplicaReport, ...]) -> NodeSnapshotDocument:
    artifacts = tuple(
        ArtifactReport(artifact_digest=digest(f"m{number}"), model=f"m{number}", variant="q4", state="ready")
        for number in range(10)
    )
    return NodeSnapshotDocument(
        cluster_id="big",
        identity_epoch=1,
        boot_epoch=1,
        node=ClusterNode(node_id=name, roles=("worker",), labels={"zone": "a"}, peer_address="10.0.0.1:9443"),
        counter=1,
        published_at_unix_ms=NOW_MS,
        expires_at_unix_ms=NOW_MS + 30_000,
        health=HealthReport(state="ready", peer_plane="ready"),
        capacity=CapacityReport(memory_bytes=64 * GIB, device_memory_bytes=24 * GIB),
        devices=(
            DeviceReport(index=0, accelerator="cuda", total_memory_bytes=24 * GIB, available_memory_bytes=8 * GIB),
        ),
        artifacts=artifacts,
        replicas=replicas,
        active_bundle=BUNDLE,
    )


def cluster(nodes: int, deployments: int) -> Facts:
    """Replica `n` of the cluster runs on node `n` modulo the nodes: two on each."""
    placed: dict[str, list[PlacedReplica]] = {f"d{number}": [] for number in range(deployments)}
    shown: dict[str, list[ReplicaReport]] = {f"w{number:04d}": [] for number in range(nodes)}
    for number in range(2 * nodes):
        deployment, node = f"d{number % deployments}", f"w{number % nodes:04d}"
        slot, artifact = len(placed[deployment]), digest("m0")
        placed[deployment].append(
            PlacedReplica(
                slot=slot, node_id=node, generation=1, variant="q4", artifact_digest=artifact, member_digest=artifact,
                engine="llama_cpp", accelerator="cuda",
            )
        )  # fmt: skip
        shown[node].append(
            ReplicaReport(
                deployment=deployment, deployment_generation=1, slot=slot, model="m0", variant="q4", engine="llama_cpp",
                state="ready", artifact_digest=artifact,
            )
        )  # fmt: skip
    rows = {
        name: DirectoryRow(name, snapshot(name, tuple(replicas)), heard_at_ms=NOW_MS, exclusion="")
        for name, replicas in shown.items()
    }
    plan = PlacementDocument(
        cluster_id="big",
        identity_epoch=1,
        boot_epoch=1,
        lease_epoch=1,
        lease_holder="a",
        counter=1,
        issued_at_unix_ms=NOW_MS,
        bundle=BUNDLE,
        directory_digest=digest("directory"),
        deployments={
            name: PlacedDeployment(
                model="m0",
                member_digest=digest(name),
                generation=1,
                desired_replicas=len(assignments),
                assignments=tuple(assignments),
                rollout=RolloutState(phase="stable", target_ready=True),
            )
            for name, assignments in placed.items()
        },
    )
    view = DirectoryView(rows, NOW_MS, digest("directory"))
    return Facts("big", "a", True, NOW_MS, None, None, plan, view, StoreStatus("connected", NOW, "a"), None, {}, True)


def best_ms(work: Callable[[], _Made]) -> tuple[float, _Made]:
    found: list[float] = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        made = work()
        found.append((time.perf_counter() - began) * 1000)
    return min(found), made


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--nodes", type=int, default=1000)
    options.add_argument("--deployments", type=int, default=200)
    asked = options.parse_args()
    facts = cluster(asked.nodes, asked.deployments)
    made_ms, document = best_ms(lambda: status_document(facts))
    written_ms, text = best_ms(lambda: json.dumps(document))
    read_ms, status = best_ms(lambda: ClusterStatus.model_validate_json(text))
    shown_ms, _ = best_ms(lambda: Console(file=io.StringIO(), width=80).print(live_text("a", status, {}, width=80)))
    print(f"status of {asked.nodes} nodes and {asked.deployments} deployments, {len(text) / 1e6:.2f} MB of JSON")
    for what, took_ms in (("made", made_ms), ("written", written_ms), ("read", read_ms), ("shown", shown_ms)):
        print(f"  {what:8} {took_ms:7.1f} ms")
    print(f"  the node: {made_ms + written_ms:.0f} ms, mark {MARK_MS} ms")


if __name__ == "__main__":
    main()
