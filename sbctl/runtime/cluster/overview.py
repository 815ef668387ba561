"""What the admin API tells of a whole cluster beside its status: memory of devices, weights, load, one deployment's placement. Pure.

All of it is what nodes signed of themselves at their last word; none is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from sbctl.node.cluster_documents import DeviceReport, NodeSnapshotDocument
from sbctl.node.placement_document import PlacementDocument
from sbctl.runtime.cluster.directory import DirectoryRow, DirectoryView

__all__ = ["artifacts_document", "metrics_document", "placement_document", "vram_document"]


def _eligible(view: DirectoryView) -> Iterator[tuple[str, NodeSnapshotDocument]]:
    for name, row in sorted(view.rows.items()):
        if row.snapshot is not None and not row.exclusion and "worker" in row.snapshot.node.roles:
            yield name, row.snapshot


def vram_document(view: DirectoryView, *, now_ms: int) -> dict[str, Any]:
    """Of workers that count."""
    nodes = [(name, snapshot.devices) for name, snapshot in _eligible(view)]
    devices = [device for _, listed in nodes for device in listed]
    return {
        "schema_version": 1,
        "generated_at_unix_ms": now_ms,
        "directory_collected_at_unix_ms": view.collected_at_ms,
        "cluster": {**_sizes(devices), "device_count": len(devices), "node_count": len(nodes)},
        "nodes": [
            {"node_id": name, "vram": {**_sizes(listed), "devices": [_device(one) for one in listed]}}
            for name, listed in nodes
        ],
    }


def _sizes(devices: tuple[DeviceReport, ...] | list[DeviceReport]) -> dict[str, int]:
    total = sum(one.total_memory_bytes for one in devices)
    free = sum(min(one.available_memory_bytes, one.total_memory_bytes) for one in devices)
    return {"total_bytes": total, "used_bytes": total - free, "free_bytes": free}


def _device(one: DeviceReport) -> dict[str, Any]:
    return {"index": one.index, "name": one.name, "accelerator": one.accelerator, **_sizes([one])}


def artifacts_document(view: DirectoryView) -> dict[str, Any]:
    """`partial`: a worker is left out, since it does not count or was never heard."""
    nodes = dict(_eligible(view))
    holders: dict[tuple[str, str, str], list[str]] = {}
    for name, snapshot in nodes.items():
        for one in snapshot.artifacts:
            found = holders.setdefault((one.model, one.variant, one.artifact_digest), [])
            if one.state == "ready":
                found.append(name)
    return {
        "schema_version": 1,
        "nodes": [
            {"node_id": name, "artifacts": [one.model_dump(mode="json") for one in snapshot.artifacts]}
            for name, snapshot in nodes.items()
        ],
        "models": [
            {"model": model, "variant": variant, "artifact_digest": digest, "ready_on": ready}
            for (model, variant, digest), ready in sorted(holders.items())
        ],
        "partial": any(_is_missing(row) for name, row in view.rows.items() if name not in nodes),
    }


def _is_missing(row: DirectoryRow) -> bool:
    return not row.removed and (row.snapshot is None or "worker" in row.snapshot.node.roles)


def metrics_document(view: DirectoryView) -> dict[str, Any]:
    """Sums over workers that count, by the names of /metrics."""
    sums: Counter[str] = Counter(
        {
            "sbproxy_model_host_active_requests": 0,
            "sbproxy_model_host_queued_requests": 0,
            "sbproxy_model_host_resident_models": 0,
        }
    )
    nodes = 0
    for _, snapshot in _eligible(view):
        nodes += 1
        for replica in snapshot.replicas:
            sums["sbproxy_model_host_active_requests"] += replica.active_requests
            sums["sbproxy_model_host_queued_requests"] += replica.queue_depth
            sums["sbproxy_model_host_resident_models"] += replica.state == "ready"
    return {"schema_version": 1, "nodes": nodes, "metrics": dict(sums)}


def placement_document(plan: PlacementDocument | None, deployment: str) -> dict[str, Any] | None:
    """One deployment as the lease-holder placed it; None when it is in no plan."""
    placed = None if plan is None else plan.deployments.get(deployment)
    if plan is None or placed is None:
        return None
    return {
        "schema_version": 1,
        "deployment_id": deployment,
        "lease_holder": plan.lease_holder,
        "lease_epoch": plan.lease_epoch,
        "placed_at_unix_ms": plan.issued_at_unix_ms,
        "bundle": plan.bundle.model_dump(mode="json"),
        "placement": placed.model_dump(mode="json"),
    }
