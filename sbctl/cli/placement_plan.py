"""Where an apply would lead a cluster: placement by the lease-holder's own rules, over what hosts told the command line. Pure.

It is a forecast. The lease-holder places by what nodes sign; a host that gave no answer is taken to keep what it has, and engines that this apply
installs are taken to be there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, get_args

from pydantic import ValidationError

from sbctl.base.display import plural
from sbctl.base.truths import Desired
from sbctl.config.compiled import CompiledConfig, CompiledHost
from sbctl.engines.memory import usable_device_bytes, usable_host_bytes
from sbctl.node.placement_document import PlacementDocument
from sbctl.node.snapshot import NodeSnapshot
from sbctl.placement.changes import PlaceChange, change_text, changes
from sbctl.placement.demands import demands_of
from sbctl.placement.documents import plan_of
from sbctl.placement.explain import NodeRow, explain, refusal_text, rollout_text
from sbctl.placement.model import (
    ClusterView,
    DeploymentDemand,
    DeploymentPlacement,
    Device,
    EngineOffer,
    Mark,
    Node,
    ObservedReplica,
    PlacementPlan,
    PlacementPolicy,
    Refusal,
    RefusalReason,
    Way,
)
from sbctl.placement.reconcile import reconcile
from sbctl.plan.model import Change, Plan
from sbctl.trust.bundle import DeploymentMember
from sbctl.trust.cluster_bundle import ClusterDeployment, replica_digest

__all__ = ["with_placement"]

_POLICY: Final = PlacementPolicy()
_FILTERS: Final = get_args(RefusalReason)


def with_placement(plan: Plan, config: CompiledConfig | None, snapshots: Mapping[str, NodeSnapshot | None]) -> Plan:
    """The plan with the placement that its bundle leads to. Nothing changes without a cluster, or where hosts were not asked."""
    if config is None or config.cluster is None or plan.mode != "apply" or plan.offline:
        return plan
    bundle = _bundle(plan, config)
    if bundle is None:
        return plan
    now_ms = int(plan.created_at.timestamp() * 1000)
    prior, mark = _prior(config, snapshots)
    demands = _demands(config, bundle)
    view = _view(plan, config, snapshots, prior, now_ms)
    after = reconcile(view, demands, prior, now_ms=now_ms, mark=mark, policy=_POLICY)
    known = {demand.deployment: demand for demand in demands}
    moved = changes(prior, after, view, known)
    document = {
        "cluster_id": config.cluster.cluster_id,
        "workers": len(config.cluster.workers),
        "deployments": [_placed(view, demands, after, name) for name in sorted(known)],
        "changes": [_change(one) for one in moved],
        "deferred_moves": after.deferred_moves,
    }
    return replace(
        plan,
        changes=tuple(_weighed(change, known, after) for change in plan.changes),
        placement=document,
        notes=(*plan.notes, *_store_notes(config, snapshots)),
        unfit=(*plan.unfit, *_unplaced(demands, after)),
    )


def _weighed(change: Change, demands: Mapping[str, DeploymentDemand], after: PlacementPlan) -> Change:
    """A row of a deployment tells the memory that it is placed by, not the catalog's figure, which knows nothing of context or requests."""
    demand = demands.get(change.address.name or "") if change.address.kind == "deployment" else None
    if demand is None or not change.memory_bytes:
        return change
    return replace(change, memory_bytes=_replica_bytes(_way_of(demand, after.deployments.get(demand.deployment))))


def _way_of(demand: DeploymentDemand, placed: DeploymentPlacement | None) -> Way:
    """How the first replica lies; the preferred way where none has a place."""
    first = next(iter(placed.target), None) if placed is not None else None
    lies = (way for way in demand.ways if first and (way.variant, way.devices) == (first.variant, len(first.devices)))
    return next(lies, demand.ways[0])


def _replica_bytes(way: Way) -> int:
    return way.host_bytes + way.device_bytes * way.devices


def _store_notes(config: CompiledConfig, snapshots: Mapping[str, NodeSnapshot | None]) -> Iterator[str]:
    """What an apply can do while nodes share nothing."""
    assert config.cluster is not None
    told = {name: snapshots.get(name) for name in config.cluster.authorities}
    deaf = [
        name
        for name, one in told.items()
        if one is not None
        and one.cluster is not None
        and one.cluster.bundle is not None
        and one.cluster.store_reachable is False
    ]
    if deaf:
        yield (
            f"the store of the cluster is not heard by {', '.join(deaf)}: what runs goes on, and a bundle reaches no node before it is back "
            "(sbctl cluster status says since when and why)"
        )


def _bundle(plan: Plan, config: CompiledConfig) -> Desired | None:
    """What the first authority would publish, or has published."""
    assert config.cluster is not None
    rows = (row for row in plan.changes if row.address.kind == "bundle" and row.host in config.cluster.authorities)
    return next((row.desired for row in rows if row.desired is not None), None)


def _demands(config: CompiledConfig, bundle: Desired) -> tuple[DeploymentDemand, ...]:
    assert config.cluster is not None
    host = config.hosts[config.cluster.authorities[0]].model_host
    deployments = {
        name: ClusterDeployment.model_validate_json(json.dumps(spec))
        for name, spec in bundle.spec["deployments"].items()
    }
    return demands_of(
        deployments,
        safety_margin=host.safety_margin,
        handoff_timeout_ms=host.handoff_timeout_ms,
        drain_timeout_ms=host.shutdown_deadline_ms,
    )


def _prior(config: CompiledConfig, snapshots: Mapping[str, NodeSnapshot | None]) -> tuple[PlacementPlan, Mark]:
    """The newest plan that an authority knows, and the number of the one to come."""
    assert config.cluster is not None
    found: list[PlacementDocument] = []
    for name in config.cluster.authorities:
        snapshot = snapshots.get(name)
        told = None if snapshot is None or snapshot.cluster is None else snapshot.cluster.placement
        if told is not None:
            try:
                found.append(PlacementDocument.model_validate_json(json.dumps(told)))
            except ValidationError:
                continue
    if not found:
        return PlacementPlan(), (1, 1)
    newest = max(found, key=lambda one: (one.lease_epoch, one.counter))
    return plan_of(newest), (newest.lease_epoch, newest.counter + 1)


def _view(
    plan: Plan,
    config: CompiledConfig,
    snapshots: Mapping[str, NodeSnapshot | None],
    prior: PlacementPlan,
    now_ms: int,
) -> ClusterView:
    assert config.cluster is not None
    placed = {place.node_id for one in prior.deployments.values() for place in one.target}
    nodes: dict[str, Node] = {}
    for name in config.cluster.workers:
        snapshot, host = snapshots.get(name), config.hosts[name]
        if snapshot is not None and name not in plan.unreachable:
            replicas = (*_own_replicas(plan, name, snapshot), *_placed_replicas(prior, name))
            nodes[name] = _node(host, snapshot, replicas, now_ms)
        elif name not in placed:
            nodes[name] = Node(name, heard_at_ms=now_ms, labels=dict(host.labels), exclusion="host_unreachable")
    return ClusterView(nodes, watching_since_ms=now_ms - _POLICY.unreachable_after_ms)


def _node(host: CompiledHost, snapshot: NodeSnapshot, replicas: tuple[ObservedReplica, ...], now_ms: int) -> Node:
    facts = snapshot.host
    kinds = sorted({deployment.engine for deployment in host.deployments.values()})
    return Node(
        node_id=host.name,
        heard_at_ms=now_ms,
        labels=dict(host.labels),
        drain="cordon" if snapshot.drain is not None and snapshot.drain.persistent else "",
        memory_bytes=usable_host_bytes(facts.memory_total_bytes, facts.memory_limit_bytes),
        max_engines=host.model_host.cache.max_resident_models,
        devices=tuple(
            Device(int(gpu.get("number", index)), "cuda", usable_device_bytes((gpu,)), str(gpu.get("name", "")))
            for index, gpu in enumerate(facts.gpus)
            if not gpu.get("withheld")
        ),
        engines=tuple(EngineOffer("llama_cpp", any_version=True) for kind in kinds if kind == "llama_cpp"),
        ready_artifacts=frozenset(one.artifact for one in snapshot.artifacts if one.state == "ready"),
        replicas=replicas,
        acknowledged=(2**53 - 1, 2**53 - 1),
    )


def _own_replicas(plan: Plan, host: str, snapshot: NodeSnapshot) -> Iterator[ObservedReplica]:
    """What the host runs by a bundle of its own, as the state recorded it."""
    if snapshot.cluster is not None:
        return
    served = {state.deployment: state for state in snapshot.deployments}
    for change in plan.changes:
        name = change.address.name or ""
        if change.address.kind != "deployment" or change.host != host or change.recorded is None or name not in served:
            continue
        try:
            member = DeploymentMember.model_validate_json(json.dumps(change.recorded.spec))
        except ValidationError:
            continue
        yield ObservedReplica(
            deployment=name,
            generation=served[name].generation,
            variant=member.variant,
            artifact_digest=member.artifact.artifact,
            state="ready",
            engine=member.engine.engine,
            member_digest=replica_digest(member),
        )


def _placed_replicas(prior: PlacementPlan, host: str) -> Iterator[ObservedReplica]:
    for name, one in prior.deployments.items():
        for place in (*one.target, *(held.place for held in one.held)):
            if place.node_id == host:
                yield ObservedReplica(
                    deployment=name,
                    generation=place.generation,
                    variant=place.variant,
                    artifact_digest=place.artifact_digest,
                    state="ready",
                    engine=place.engine,
                    slot=place.slot,
                    member_digest=place.member_digest,
                    devices=place.devices,
                )


# --- as data


def _placed(
    view: ClusterView, demands: tuple[DeploymentDemand, ...], after: PlacementPlan, name: str
) -> dict[str, Any]:
    demand = next(one for one in demands if one.deployment == name)
    one = after.deployments.get(name) or DeploymentPlacement(name, demand.digest, 0, demand.replicas)
    explained = explain(view, demands, after, name)
    way = _way_of(demand, one)
    return {
        "deployment": name,
        "replicas": demand.replicas,
        "unplaced": one.unplaced,
        "memory_bytes": _replica_bytes(way),
        "devices": way.devices,
        "device_bytes": way.device_bytes,
        "assignments": [
            {"slot": place.slot, "node": place.node_id, "variant": place.variant, "devices": list(place.devices)}
            for place in one.target
        ],
        "rollout": {"phase": one.rollout.phase, "message": rollout_text(one.rollout)},
        "nodes": [
            _row(row, row.refusal or one.refusals.get(row.node_id))
            for row in (explained.rows if explained is not None else ())
        ],
    }


def _row(row: NodeRow, refusal: Refusal | None) -> dict[str, Any]:
    """`refusal`: why it gets none, or no more."""
    return {
        "node": row.node_id,
        "standing": row.standing,
        "variant": row.variant,
        "score": round(row.score, 6),
        "has_weights": row.has_weights,
        "slots": list(row.slots),
        "domains": list(row.domains),
        "reason": refusal.reason if refusal is not None else "",
        "message": refusal_text(refusal) if refusal is not None else "",
        "facts": dict(refusal.facts) if refusal is not None else {},
    }


def _change(one: PlaceChange) -> dict[str, Any]:
    return {
        "deployment": one.deployment,
        "slot": one.slot,
        "from_node": None if one.before is None else one.before.node_id,
        "to_node": None if one.after is None else one.after.node_id,
        "why": one.why,
        "message": change_text(one),
    }


def _unplaced(demands: tuple[DeploymentDemand, ...], after: PlacementPlan) -> Iterator[str]:
    for demand in demands:
        one = after.deployments.get(demand.deployment)
        missing = demand.replicas if one is None else one.unplaced
        if not missing:
            continue
        nearest = max(one.refusals.items(), key=_nearness, default=None) if one is not None else None
        why = f"; nearest: {nearest[0]} {refusal_text(nearest[1])}" if nearest is not None else ""
        yield (
            f"{demand.deployment} has no place for {missing} of {plural(demand.replicas, 'replica')}{why}; "
            "sbctl plan --explain tells of every worker"
        )


def _nearness(found: tuple[str, Refusal]) -> tuple[int, int, str]:
    """Who got furthest through the filters, and of these the one that is least short."""
    name, refusal = found
    short = dict(refusal.facts).get("short_bytes", 0)
    return _FILTERS.index(refusal.reason), -short if isinstance(short, int) else 0, name
