"""The cluster as this node knows it: SBproxy's fields of GET /admin/cluster/status, and what plans need of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sbctl.base.clock import rfc3339
from sbctl.node.cluster_documents import NodeSnapshotDocument
from sbctl.node.placement_document import PlacedDeployment, PlacementDocument
from sbctl.node.snapshot import BundleState
from sbctl.placement.operator_actions import NO_ACTIONS, OperatorActions
from sbctl.runtime.cluster.directory import DirectoryRow, DirectoryView, has_left
from sbctl.runtime.cluster.fences import KeptBundle
from sbctl.runtime.cluster.publication import key_id
from sbctl.runtime.cluster.store import StoreStatus
from sbctl.trust.bundle import TrustSet, member_digest

__all__ = ["Facts", "actions_document", "plans_document", "status_document"]

_UNHEALTHY_EXCLUSIONS = frozenset({"snapshot_expired", "snapshot_missing", "reported_unhealthy", "identity_revoked"})
_NEVER_HEARD = "its runtime has not reached the store: sbctl status says how it is, sbctl logs why"


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the document is made of, at one moment."""

    cluster_id: str
    node_id: str
    is_authority: bool
    now_ms: int
    held: KeptBundle | None
    trust: TrustSet | None
    plan: PlacementDocument | None
    view: DirectoryView
    store: StoreStatus
    problem: str | None
    problems: Mapping[str, str]
    leads: bool
    actions: OperatorActions = NO_ACTIONS
    """What operators asked; nodes that are no authority do not know it."""
    expected: frozenset[str] = frozenset()
    """Workers that sb.yml names; authorities alone know them."""

    @property
    def rows(self) -> Mapping[str, DirectoryRow]:
        """The complete roster: also who belongs to the cluster, by sb.yml or by the plan, and was never heard here."""
        named = self.expected | (frozenset() if self.plan is None else _named_by(self.plan))
        unheard = {name: DirectoryRow(name, problem=_NEVER_HEARD) for name in named - self.view.rows.keys()}
        return {**self.view.rows, **unheard}

    def is_out(self, row: DirectoryRow) -> bool:
        """It said farewell, its place in the store is empty, or an authority that knows all workers of sb.yml does not miss one that was
        revoked. Nobody is alarmed for such a one."""
        is_given_up = row.exclusion == "identity_revoked" and self.is_authority and row.node_id not in self.expected
        return row.removed or has_left(row) or is_given_up

    @property
    def absent(self) -> tuple[str, ...]:
        """Workers of sb.yml that nothing was ever heard of."""
        rows = self.view.rows
        return tuple(sorted(name for name in self.expected if name not in rows or rows[name].snapshot is None))


def status_document(facts: Facts) -> dict[str, Any]:
    """As JSON."""
    rows = {name: _node(row, facts) for name, row in sorted(facts.rows.items())}
    ready = _ready(rows)
    deployments = [_deployment(name, one, ready) for name, one in _placed(facts)]
    unhealthy = [row for row in rows.values() if row["unhealthy"] and not row["removed"]]
    view = facts.view
    return {
        "schema_version": 1,
        "configured": True,
        "mode": "distributed",
        "cluster_id": facts.cluster_id,
        "local_node_id": facts.node_id,
        "generated_at_unix_ms": facts.now_ms,
        "directory_collected_at_unix_ms": view.collected_at_ms,
        "directory_age_ms": max(0, facts.now_ms - view.collected_at_ms) if view.collected_at_ms else None,
        "directory_stale_since_unix_ms": view.stale_since_ms,
        "summary": _summary({name: row for name, row in rows.items() if not row["removed"]}, deployments),
        "deployment_authority": _authority(facts),
        "deployments": deployments,
        "nodes": list(rows.values()),
        "unhealthy_nodes": [_alert(row) for row in unhealthy],
        "store": {
            "state": facts.store.state,
            "since": rfc3339(facts.store.since),
            "server": facts.store.server,
            "problem": facts.store.problem,
        },
        "actions": actions_document(facts),
        "local_problems": dict(facts.problems),
        "is_authority": facts.is_authority,
        "is_lease_holder": facts.leads,
        "lease_epoch": None if facts.plan is None else facts.plan.lease_epoch,
        "placed_at_unix_ms": None if facts.plan is None else facts.plan.issued_at_unix_ms,
        "brake": None if facts.plan is None else facts.plan.brake or None,
        "problem": facts.problem,
    }


def plans_document(facts: Facts) -> dict[str, Any]:
    """What a plan compares and begins from: the fields of `ClusterState`."""
    held, plan = facts.held, facts.plan
    members = {} if held is None else held.payload.content.deployments
    return {
        "cluster_id": facts.cluster_id,
        "is_authority": facts.is_authority,
        "problem": facts.problem,
        "bundle": _bundle(held),
        "members": {name: member_digest(one) for name, one in members.items()},
        "placement": None if plan is None else plan.model_dump(mode="json"),
        "store_reachable": facts.store.state == "connected",
        "absent": list(facts.absent) if facts.leads else [],
    }


def actions_document(facts: Facts) -> list[dict[str, Any]]:
    """Those in force, in the order in which they were asked."""
    placed = dict(_placed(facts))
    rows = [("evacuate", name, one) for name, one in facts.actions.evacuations.items() if not one.is_over]
    rows += [("confirm_lost", name, one) for name, one in facts.actions.losses.items() if not one.is_over]
    rows += [
        ("retry", name, one)
        for name, one in facts.actions.retries.items()
        if name in placed and one.number > placed[name].tried_again
    ]
    return [
        {"action": action, "subject": name, **one.model_dump(mode="json", exclude={"is_over", "outcome"})}
        for action, name, one in sorted(rows, key=lambda row: (row[2].number, row[0], row[1]))
    ]


def _placed(facts: Facts) -> list[tuple[str, PlacedDeployment]]:
    return [] if facts.plan is None else sorted(facts.plan.deployments.items())


def _named_by(plan: PlacementDocument) -> frozenset[str]:
    """Nodes where something has its place."""
    return frozenset(
        replica.node_id
        for one in plan.deployments.values()
        for replica in (*one.assignments, *one.retained, *one.draining)
    )


def _bundle(held: KeptBundle | None) -> dict[str, Any] | None:
    if held is None:
        return None
    payload = held.payload
    return BundleState(
        revision=payload.revision,
        content_digest=payload.content_digest,
        key_epoch=payload.key_epoch,
        signer=held.signer,
        origins={name: member_digest(origin) for name, origin in payload.content.origins.items()},
    ).model_dump(mode="json")


def _authority(facts: Facts) -> dict[str, Any]:
    held, trust = facts.held, facts.trust
    key = None if held is None or trust is None else trust.signers.get(held.signer)
    return {
        "configured": True,
        "read_only": not facts.is_authority,
        "verifying_key_id": None if key is None else key_id(key),
        "active_revision": None if held is None else held.payload.revision,
        "active_content_digest": None if held is None else held.payload.content_digest,
        "signer_node_id": None if facts.plan is None else facts.plan.lease_holder,
    }


def _ready(rows: Mapping[str, Mapping[str, Any]]) -> Counter[tuple[str, int]]:
    """How many engines are ready on nodes that count, by deployment and generation."""
    return Counter(
        (replica["deployment"], replica["deployment_generation"])
        for row in rows.values()
        if row["model_eligible"]
        for replica in row["replicas"]
        if replica["state"] == "ready"
    )


def _deployment(name: str, one: PlacedDeployment, ready: Mapping[tuple[str, int], int]) -> dict[str, Any]:
    told = one.model_dump(mode="json")
    return {
        "deployment_id": name,
        "model": one.model,
        "generation": one.generation,
        "desired_replicas": one.desired_replicas,
        "placed_replicas": len(one.assignments),
        "ready_replicas": min(len(one.assignments), ready.get((name, one.generation), 0)),
        "unplaced_replicas": one.unplaced_replicas,
        "phase": one.rollout.phase,
        "target_ready": one.rollout.target_ready,
        "timed_out": one.rollout.timed_out,
        "handoff_deadline_unix_ms": one.rollout.handoff_deadline_unix_ms,
        "assignments": told["assignments"],
        "retained": told["retained"],
        "draining": told["draining"],
        "rejections": told["rejections"],
        "rejections_left_out": one.rejections_left_out,
    }


def _node(row: DirectoryRow, facts: Facts) -> dict[str, Any]:
    snapshot, plan = row.snapshot, facts.plan
    lost = None if plan is None else plan.lost_nodes.get(row.node_id)
    unhealthy = row.exclusion in _UNHEALTHY_EXCLUSIONS or snapshot is None
    reasons = ([row.exclusion] if row.exclusion else []) + (list(snapshot.health.reason_codes) if snapshot else [])
    degraded = bool(row.exclusion) or (snapshot is not None and snapshot.health.state == "degraded")
    if snapshot is not None and snapshot.authority_stale:
        reasons, degraded = [*reasons, "authority_stale"], True
    # Of a process before this one only when the snapshot was made is known.
    age = None if snapshot is None else max(0, facts.now_ms - (row.heard_at_ms or snapshot.published_at_unix_ms))
    return {
        "node_id": row.node_id,
        "local": row.node_id == facts.node_id,
        "membership_state": "alive"
        if lost is None and not unhealthy
        else "dead"
        if lost and lost.state == "lost"
        else "unreachable",
        "last_ack_age_ms": age,
        "health": "unhealthy" if unhealthy else "degraded" if degraded else "healthy",
        "unhealthy": unhealthy,
        "unhealthy_reasons": reasons,
        "exclusion_reason": row.exclusion or None,
        "problem": row.problem or None,
        "snapshot_age_ms": age,
        "model_eligible": snapshot is not None and not row.exclusion and "worker" in snapshot.node.roles,
        "removed": facts.is_out(row),
        "evacuating": row.node_id in facts.actions.evacuated,
        **(_untold(row, facts) if snapshot is None else _told(snapshot)),
    }


def _untold(row: DirectoryRow, facts: Facts) -> dict[str, Any]:
    """The same fields as `_told`, of a node that said nothing yet."""
    fields = ("address", "model_endpoint", "identity_epoch", "incarnation", "snapshot_generation")
    counts = ("engine_count", "device_count", "ready_artifact_count")
    return {
        **dict.fromkeys(fields),
        **dict.fromkeys(counts, 0),
        "roles": ["worker"] if row.node_id in facts.expected else [],
        "labels": {},
        "observed_schema_version": None,
        "normalized_schema_version": None,
        "reported_health": None,
        "active_bundle": None,
        "assignment": None,
        "authority_stale": False,
        "runtime_version": "",
        "replicas": [],
    }


def _told(snapshot: NodeSnapshotDocument) -> dict[str, Any]:
    told = snapshot.model_dump(mode="json")
    return {
        "address": snapshot.node.peer_address,
        "model_endpoint": snapshot.node.peer_address,
        "identity_epoch": snapshot.identity_epoch,
        "incarnation": snapshot.boot_epoch,
        "roles": list(snapshot.node.roles),
        "labels": dict(snapshot.node.labels),
        "snapshot_generation": snapshot.counter,
        "observed_schema_version": snapshot.schema_version,
        "normalized_schema_version": 1,
        "reported_health": told["health"],
        "engine_count": len(snapshot.engines),
        "device_count": len(snapshot.devices),
        "ready_artifact_count": sum(one.state == "ready" for one in snapshot.artifacts),
        "active_bundle": told["active_bundle"],
        "assignment": told["assignment"],
        "authority_stale": snapshot.authority_stale,
        "runtime_version": snapshot.runtime_version,
        "replicas": told["replicas"],
    }


def _alert(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "node_id": row["node_id"],
        "health": row["health"],
        "reasons": row["unhealthy_reasons"],
        "membership_state": row["membership_state"],
        "last_ack_age_ms": row["last_ack_age_ms"],
        "snapshot_age_ms": row["snapshot_age_ms"],
        "model_endpoint": row.get("model_endpoint"),
    }


def _summary(rows: Mapping[str, Mapping[str, Any]], deployments: list[dict[str, Any]]) -> dict[str, int]:
    def count(health: str) -> int:
        return sum(row["health"] == health for row in rows.values())

    eligible = [row for row in rows.values() if row["model_eligible"]]
    return {
        "total_nodes": len(rows),
        "healthy_nodes": count("healthy"),
        "degraded_nodes": count("degraded"),
        "unhealthy_nodes": count("unhealthy"),
        "eligible_workers": len(eligible),
        "eligible_replicas": sum(replica["state"] == "ready" for row in eligible for replica in row["replicas"]),
        "deployment_digest_mismatch": sum(
            row["exclusion_reason"] == "deployment_digest_mismatch" for row in rows.values()
        ),
        "deployments": len(deployments),
        "ready_deployments": sum(bool(one["target_ready"]) for one in deployments),
        "rollouts_in_progress": sum(one["phase"] != "stable" for one in deployments),
        "unplaced_replicas": sum(one["unplaced_replicas"] for one in deployments),
    }
