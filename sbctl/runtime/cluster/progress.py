"""How far the nodes are with a bundle, out of the directory and the plan. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from sbctl.node.cluster_documents import BundleMark, NodeSnapshotDocument
from sbctl.node.cluster_messages import NodeProgress
from sbctl.node.placement_document import PlacedDeployment, PlacedReplica, PlacementDocument
from sbctl.runtime.cluster.directory import DirectoryRow

__all__ = ["is_done", "progress_of", "unplaced_of"]

_ROLES: Final = frozenset({"worker", "gateway"})
_HEARD: Final = ("", "behind_active_generation", "deployment_digest_mismatch")
"""Of exclusions: the node says how it stands, and that is believed."""


def progress_of(
    mark: BundleMark,
    rows: Mapping[str, DirectoryRow],
    plan: PlacementDocument | None,
    expected: Collection[str] = (),
) -> dict[str, NodeProgress]:
    """Of every worker that is known or `expected`, of every gateway that is known, and of every node that the plan names."""
    current = plan if plan is not None and plan.bundle == mark else None
    placed = _by_node(current)
    names = {name for name, row in rows.items() if row.snapshot is not None and _ROLES & set(row.snapshot.node.roles)}
    return {
        name: _of_node(rows.get(name), mark, current, placed.get(name, []))
        for name in sorted({*names, *placed, *expected})
    }


def unplaced_of(mark: BundleMark, plan: PlacementDocument | None) -> dict[str, int]:
    """Replicas that no node can take, by deployment; empty before there is a plan for this bundle."""
    if plan is None or plan.bundle != mark:
        return {}
    return {name: one.unplaced_replicas for name, one in plan.deployments.items() if one.unplaced_replicas}


def is_done(
    mark: BundleMark,
    nodes: Mapping[str, NodeProgress],
    rows: Mapping[str, DirectoryRow],
    plan: PlacementDocument | None,
) -> bool:
    """Whether nothing is left to do: all is placed, every rollout has ended, each node with something to do says that it is ready, and every
    other worker and each gateway that is heard has taken the bundle."""
    if plan is None or plan.bundle != mark:
        return False
    if any(one.unplaced_replicas or not _is_settled(one) for one in plan.deployments.values()):
        return False
    if any(one.state == "behind" and name in rows and rows[name].exclusion in _HEARD for name, one in nodes.items()):
        return False
    involved = set(_by_node(plan))
    return all(nodes[name].state in ("ready", "idle") for name in involved if name in nodes) and involved <= set(nodes)


def _is_settled(one: PlacedDeployment) -> bool:
    return one.rollout.phase == "stable" and not one.draining and not one.retained


def _by_node(plan: PlacementDocument | None) -> dict[str, list[tuple[str, PlacedReplica]]]:
    found: dict[str, list[tuple[str, PlacedReplica]]] = {}
    for name, one in () if plan is None else plan.deployments.items():
        for replica in one.assignments:
            found.setdefault(replica.node_id, []).append((name, replica))
    return found


def _of_node(
    row: DirectoryRow | None,
    mark: BundleMark,
    plan: PlacementDocument | None,
    placed: list[tuple[str, PlacedReplica]],
) -> NodeProgress:
    if row is None or row.snapshot is None:
        return NodeProgress(state="unseen", detail="it has not reported")
    snapshot = row.snapshot
    if row.exclusion in ("snapshot_expired", "snapshot_missing", "identity_revoked"):
        return NodeProgress(state="unseen", detail=row.problem[:512] or row.exclusion)
    if snapshot.active_bundle != mark or plan is None:
        return NodeProgress(state="behind")
    if not placed:
        # A gateway with the bundle answers by its origins and keys.
        return NodeProgress(state="ready" if "gateway" in snapshot.node.roles else "idle")
    missing = [name for name, replica in placed if not _is_shown(snapshot, name, replica)]
    if not missing:
        return NodeProgress(state="ready")
    assignment = snapshot.assignment
    if assignment is None:
        return NodeProgress(state="behind", detail="it has no assignment yet")
    reasons = sorted(
        {
            f"{replica.deployment}: {replica.reason_code}"
            for replica in snapshot.replicas
            if replica.deployment in missing and replica.reason_code is not None
        }
    )
    if assignment.state == "failed" or reasons:
        return NodeProgress(state="failed", detail=", ".join(reasons)[:512] or assignment.reason_code or "")
    state = assignment.state if assignment.state in ("accepted", "prepared") else "accepted"
    return NodeProgress(state=state, detail=f"waits for {', '.join(sorted(set(missing)))}"[:512])


def _is_shown(snapshot: NodeSnapshotDocument, name: str, placed: PlacedReplica) -> bool:
    wanted = ("ready",) if placed.warm else ("ready", "configured", "assigned", "cached", "stopped")
    return any(
        (replica.deployment, replica.deployment_generation, replica.slot) == (name, placed.generation, placed.slot)
        and replica.state in wanted
        for replica in snapshot.replicas
    )
