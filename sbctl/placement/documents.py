"""Placement's nouns as the documents of a cluster, and back: what comes out of `plan_of` is what went into `plan_document`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypedDict

from sbctl.node.cluster_documents import (
    ASSIGNED_PARTS_MAX,
    ASSIGNED_REPLICAS_MAX,
    AssignedDeployment,
    AssignedReplica,
    AssignmentDocument,
    BundleMark,
    NodeSnapshotDocument,
)
from sbctl.node.placement_document import (
    LostNode,
    PlacedDeployment,
    PlacedReplica,
    PlacementDocument,
    Rejection,
    RolloutState,
)
from sbctl.placement.assignments import Assignment
from sbctl.placement.explain import brake_text
from sbctl.placement.model import (
    NO_MARK,
    ClusterView,
    DeploymentPlacement,
    Device,
    EngineOffer,
    Held,
    Loss,
    Mark,
    Node,
    ObservedReplica,
    Place,
    PlacementPlan,
    Refusal,
    Rollout,
)

__all__ = ["LEAVES", "REJECTIONS_MAX", "Head", "assignment_document", "node_of", "plan_document", "plan_of"]

REJECTIONS_MAX: Final = 64
"""Refusals of one deployment that a document carries."""
_TEXT_MAX: Final = 256
_PHASES: Final = ("start", "retain", "drain")
LEAVES: Final = "leaves_cluster"
"""Reason code of a node that is taken out of the cluster: what it runs is placed elsewhere, and serves until then. A drain is short: such a node
takes no requests and keeps what it has."""


class Head(TypedDict):
    """What all documents of a lease-holder begin with."""

    cluster_id: str
    identity_epoch: int
    boot_epoch: int
    lease_epoch: int
    lease_holder: str
    counter: int
    issued_at_unix_ms: int
    bundle: BundleMark


def node_of(snapshot: NodeSnapshotDocument, *, heard_at_ms: int, exclusion: str = "") -> Node:
    """A node by its verified snapshot. `exclusion`: the directory's reason to offer it nothing new; that it says so itself is none."""
    health, mark = snapshot.health, snapshot.assignment
    return Node(
        node_id=snapshot.node.node_id,
        heard_at_ms=heard_at_ms,
        is_worker="worker" in snapshot.node.roles,
        labels=dict(snapshot.node.labels),
        has_endpoint=snapshot.node.peer_address is not None and health.peer_plane != "unavailable",
        health=health.state,
        health_reasons=health.reason_codes,
        exclusion=(exclusion if exclusion != "reported_unhealthy" else "")
        or ("authority_stale" if snapshot.authority_stale else ""),
        drain="evacuate" if LEAVES in health.reason_codes else "cordon" if health.draining else "",
        admits=not health.draining,
        memory_bytes=snapshot.capacity.memory_bytes,
        max_engines=snapshot.capacity.max_engines,
        devices=tuple(
            Device(d.index, d.accelerator, d.usable_memory_bytes or d.total_memory_bytes, d.name)
            for d in snapshot.devices
            if d.withheld is None
        ),
        engines=tuple(
            EngineOffer(
                engine=offer.engine,
                version=offer.version,
                launch=offer.launch,
                any_version=offer.version is None and offer.availability == "acquirable" and offer.reason_code is None,
                usable=offer.availability in {"available", "acquirable"},
                accelerators=frozenset(offer.accelerators),
                formats=frozenset(offer.artifact_formats),
                reason_code=offer.reason_code or "",
            )
            for offer in snapshot.engines
        ),
        ready_artifacts=frozenset(one.artifact_digest for one in snapshot.artifacts if one.state == "ready"),
        replicas=tuple(_observed(snapshot)),
        acknowledged=(mark.lease_epoch, mark.counter) if mark is not None else NO_MARK,
    )


def _observed(snapshot: NodeSnapshotDocument) -> Iterable[ObservedReplica]:
    for told in snapshot.replicas:
        yield ObservedReplica(
            deployment=told.deployment,
            generation=told.deployment_generation,
            variant=told.variant,
            artifact_digest=told.artifact_digest,
            state=told.state,
            engine=told.engine,
            slot=told.slot,
            member_digest=told.member_digest or "",
            devices=told.selected_devices,
            reserved_bytes=told.reserved_memory_bytes,
        )


def assignment_document(node_id: str, parts: Iterable[Assignment], head: Head) -> AssignmentDocument:
    """As much as a document holds: of engines that a node made up it leaves out what is too much, which ends all the same."""
    deployments: dict[str, list[Assignment]] = {}
    for part in parts:
        deployments.setdefault(part.deployment, []).append(part)
    found = {name: tuple(_assigned(several)) for name, several in sorted(deployments.items())}
    return AssignmentDocument(**head, node_id=node_id, deployments={name: told for name, told in found.items() if told})


def _assigned(parts: Iterable[Assignment]) -> Iterator[AssignedDeployment]:
    """What starts first, then what stays, then what ends; each replica once."""
    seen: set[tuple[int, int]] = set()
    told: list[tuple[int, AssignedDeployment]] = []
    for place, part in sorted(enumerate(parts), key=lambda one: (_PHASES.index(one[1].phase), one[0])):
        by_slot = {one.slot: one for one in part.places if (part.generation, one.slot) not in seen}
        places = list(by_slot.values())[:ASSIGNED_REPLICAS_MAX]
        if not places or len(told) >= ASSIGNED_PARTS_MAX:
            continue
        seen.update((part.generation, one.slot) for one in places)
        told.append((place, _part(part, places)))
    return (part for _, part in sorted(told, key=lambda one: one[0]))


def _part(part: Assignment, places: Iterable[Place]) -> AssignedDeployment:
    return AssignedDeployment(
        generation=part.generation,
        phase=part.phase,
        variant=part.variant,
        artifact_digest=part.artifact_digest,
        member_digest=part.member_digest,
        replicas=tuple(
            AssignedReplica(
                slot=place.slot,
                devices=place.devices,
                memory_bytes=place.host_bytes + place.device_bytes * len(place.devices),
            )
            for place in places
        ),
        handoff_deadline_unix_ms=part.deadline_ms,
        tried_again=part.tried,
    )


# --- the plan, out


def plan_document(
    plan: PlacementPlan,
    view: ClusterView,
    head: Head,
    *,
    directory_digest: str,
    spread_by: Mapping[str, tuple[str, ...]],
) -> PlacementDocument:
    """`spread_by`: of each deployment, the labels whose values status shows."""
    known = _Known(tuple(sorted(plan.known)))
    deployments = {
        name: _placed(one, view, spread_by.get(name, ()), known) for name, one in sorted(plan.deployments.items())
    }
    losses = {name: LostNode(state=loss.state, since_unix_ms=loss.since_ms) for name, loss in plan.losses.items()}
    return PlacementDocument(
        **head,
        directory_digest=directory_digest,
        deployments=deployments,
        lost_nodes=losses,
        brake=brake_text(plan.brake)[:_TEXT_MAX] if plan.brake else "",
        known_nodes=known.names,
        high_waters=dict(sorted(plan.high_waters.items())),
        generation_floor=plan.generation_floor,
    )


class _Known:
    """Sets of nodes as numbers and back. A plan has few different ones."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._texts: dict[frozenset[str], str] = {}
        self._sets: dict[str, frozenset[str]] = {}

    def text(self, nodes: frozenset[str]) -> str:
        """Empty for nobody; a node that is not known is left out."""
        if nodes not in self._texts:
            number = sum(1 << bit for bit, name in enumerate(self.names) if name in nodes)
            self._texts[nodes] = f"{number:x}" if number else ""
        return self._texts[nodes]

    def nodes(self, text: str) -> frozenset[str]:
        if text not in self._sets:
            number = int(text or "0", 16)
            self._sets[text] = frozenset(name for bit, name in enumerate(self.names) if number >> bit & 1)
        return self._sets[text]


def _placed(one: DeploymentPlacement, view: ClusterView, spread_by: tuple[str, ...], known: _Known) -> PlacedDeployment:
    shown = sorted(one.refusals.items())[:REJECTIONS_MAX]
    rollout = one.rollout
    return PlacedDeployment(
        model=one.model[:_TEXT_MAX],
        member_digest=one.digest,
        generation=one.generation,
        desired_replicas=one.desired,
        assignments=tuple(_replica(place, view, spread_by) for place in one.target),
        retained=tuple(_replica(h.place, view, spread_by, h) for h in one.held if not h.draining),
        draining=tuple(_replica(h.place, view, spread_by, h) for h in one.held if h.draining),
        fallback=tuple(_replica(place, view, spread_by) for place in one.fallback),
        unplaced_replicas=one.unplaced,
        rejections={name: _rejection(refusal) for name, refusal in shown},
        rejections_left_out=len(one.refusals) - len(shown),
        weighed=known.text(one.weighed),
        tried_again=one.tried,
        rollout=RolloutState(
            phase=rollout.phase,
            target_ready=rollout.target_ready,
            timed_out=rollout.timed_out,
            since_unix_ms=rollout.since_ms,
            handoff_deadline_unix_ms=rollout.deadline_ms,
            waiting_slots=tuple(sorted(rollout.waiting_slots)),
        ),
    )


def _replica(place: Place, view: ClusterView, spread_by: tuple[str, ...], held: Held | None = None) -> PlacedReplica:
    node = view.nodes.get(place.node_id)
    return PlacedReplica(
        slot=place.slot,
        node_id=place.node_id,
        generation=place.generation,
        variant=place.variant,
        artifact_digest=place.artifact_digest,
        member_digest=place.member_digest,
        engine=place.engine,
        accelerator=place.accelerator,
        devices=place.devices,
        host_memory_bytes=place.host_bytes,
        device_memory_bytes=place.device_bytes,
        warm=place.warm,
        artifact_cached=node is not None and place.artifact_digest in node.ready_artifacts,
        failure_domains={label: node.labels[label] for label in spread_by if label in node.labels} if node else {},
        deadline_unix_ms=held.deadline_ms if held else None,
        drained_at=held.drained_at if held and held.draining else None,
    )


def _rejection(refusal: Refusal) -> Rejection:
    facts = {name: value if isinstance(value, int) else value[:_TEXT_MAX] for name, value in refusal.facts}
    return Rejection(reason=refusal.reason, variant=refusal.variant[:_TEXT_MAX], facts=facts)


# --- the plan, in


def plan_of(document: PlacementDocument) -> PlacementPlan:
    """What the next evaluation starts from. Refusals stay behind: each evaluation makes its own."""
    known = _Known(document.known_nodes)
    return PlacementPlan(
        deployments={name: _deployment(name, one, known) for name, one in document.deployments.items()},
        losses={name: Loss(lost.state, lost.since_unix_ms) for name, lost in document.lost_nodes.items()},
        known=frozenset(document.known_nodes),
        high_waters=dict(document.high_waters),
        generation_floor=document.generation_floor,
    )


def _deployment(name: str, one: PlacedDeployment, known: _Known) -> DeploymentPlacement:
    rollout = one.rollout
    return DeploymentPlacement(
        deployment=name,
        digest=one.member_digest,
        generation=one.generation,
        desired=one.desired_replicas,
        model=one.model,
        target=tuple(_place(replica) for replica in one.assignments),
        held=(
            *(Held(_place(replica), deadline_ms=replica.deadline_unix_ms) for replica in one.retained),
            *(
                Held(_place(r), draining=True, deadline_ms=r.deadline_unix_ms, drained_at=_mark(r.drained_at))
                for r in one.draining
            ),
        ),
        fallback=tuple(_place(replica) for replica in one.fallback),
        weighed=known.nodes(one.weighed),
        tried=one.tried_again,
        rollout=Rollout(
            phase=rollout.phase,
            target_ready=rollout.target_ready,
            timed_out=rollout.timed_out,
            since_ms=rollout.since_unix_ms,
            deadline_ms=rollout.handoff_deadline_unix_ms,
            waiting_slots=frozenset(rollout.waiting_slots),
        ),
    )


def _place(replica: PlacedReplica) -> Place:
    return Place(
        slot=replica.slot,
        node_id=replica.node_id,
        generation=replica.generation,
        variant=replica.variant,
        artifact_digest=replica.artifact_digest,
        member_digest=replica.member_digest,
        engine=replica.engine,
        accelerator=replica.accelerator,
        devices=replica.devices,
        host_bytes=replica.host_memory_bytes,
        device_bytes=replica.device_memory_bytes,
        warm=replica.warm,
    )


def _mark(told: tuple[int, int] | None) -> Mark:
    return told or NO_MARK
