"""What the admin API tells of a whole cluster beside its status: memory of devices, weights, load, one deployment's placement. Pure.

All of it is what nodes signed of themselves at their last word; none is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from sbctl.base.limits import JSON_INT_MAX
from sbctl.node.cluster_documents import DeviceReport, NodeSnapshotDocument
from sbctl.node.placement_document import PlacementDocument
from sbctl.runtime.cluster.directory import DirectoryRow, DirectoryView
from sbctl.runtime.fleet_figures import FLEET_COUNTERS

__all__ = ["artifacts_document", "metrics_document", "placement_document", "vram_document"]

_ACTIVE: Final = "sbproxy_model_host_active_requests"
_QUEUED: Final = "sbproxy_model_host_queued_requests"
_LOADING: Final = "sbproxy_model_host_load_queue_depth"
_RESIDENT: Final = "sbproxy_model_host_resident_models"
_GAUGES: Final = (_ACTIVE, _QUEUED, _LOADING, _RESIDENT)


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
    return {"total_bytes": _sum(total), "used_bytes": _sum(total - free), "free_bytes": _sum(free)}


def _sum(number: int) -> int:
    """What nodes say may be anything; a sum that no reader of ours takes is the largest that one does."""
    return min(number, JSON_INT_MAX)


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
    """Sums by the names of /metrics: counters of all nodes that count, since each of their runtimes started, and gauges of workers."""
    sums: Counter[str] = Counter(dict.fromkeys((*FLEET_COUNTERS, *_GAUGES), 0))
    nodes = [row.snapshot for row in view.rows.values() if row.snapshot is not None and not row.exclusion]
    for snapshot in nodes:
        sums.update({name: value for name, value in snapshot.figures.items() if name in sums})
    for _, snapshot in _eligible(view):
        for replica in snapshot.replicas:
            is_ready = replica.state == "ready"
            sums[_ACTIVE] += replica.active_requests
            sums[_QUEUED] += replica.queue_depth
            sums[_LOADING] += 0 if is_ready else replica.queue_depth
            sums[_RESIDENT] += is_ready
    return {"schema_version": 1, "nodes": len(nodes), "metrics": {name: _sum(number) for name, number in sums.items()}}


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
