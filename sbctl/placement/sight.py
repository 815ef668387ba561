"""What the nodes show of places. A node that is not heard of shows nothing, so what ran there is taken to run on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from sbctl.node.cluster_documents import ReplicaPhase
from sbctl.placement.model import (
    FOREIGN_SLOTS,
    NO_DIGEST,
    ClusterView,
    DeploymentDemand,
    Held,
    Loss,
    ObservedReplica,
    Place,
    Way,
)

__all__ = ["Shown", "Sight", "place_of"]

Shown = ReplicaPhase | Literal["absent", "unknown", "gone"]
"""`absent`: the node is heard of and has no such engine. `unknown`: nobody hears the node. `gone`: nobody waits for the node any more."""

_LIVE: Final = frozenset({"preparing", "ready", "draining", "unknown"})
_COLD: Final = frozenset({"configured", "ready", "assigned", "cached", "stopped"})
"""What a deployment that is loaded on demand may be at, to be asked: its node has it, with or without the weights."""


class Sight:
    """The replicas of one view by deployment, generation, node and slot."""

    def __init__(self, view: ClusterView, losses: Mapping[str, Loss]) -> None:
        self._view, self._losses = view, losses
        self._shown: dict[tuple[str, str, int, int | None], ObservedReplica] = {}
        self._by_deployment: dict[str, list[tuple[str, ObservedReplica]]] = {}
        for name in sorted(view.nodes):
            for replica in view.nodes[name].replicas:
                self._shown[name, replica.deployment, replica.generation, replica.slot] = replica
                self._by_deployment.setdefault(replica.deployment, []).append((name, replica))

    def replicas(self, deployment: str) -> Iterator[tuple[str, ObservedReplica]]:
        """Those with an engine, of nodes that are heard of, with the node's id."""
        for name, replica in self._by_deployment.get(deployment, ()):
            if self._is_heard(name) and replica.state in _LIVE:
                yield name, replica

    def deployments(self) -> set[str]:
        return set(self._by_deployment)

    def generations(self, deployment: str) -> Iterator[ObservedReplica]:
        """All that nodes last told of a deployment, whether they are heard of now or not."""
        return (replica for _, replica in self._by_deployment.get(deployment, ()))

    def shown(self, deployment: str, place: Place) -> Shown:
        loss = self._losses.get(place.node_id)
        if place.node_id in self._view.removed or (loss is not None and loss.state == "lost"):
            return "gone"
        if not self._is_heard(place.node_id):
            return "unknown"
        replica = self._shown.get((place.node_id, deployment, place.generation, place.slot))
        if replica is None and place.slot in FOREIGN_SLOTS:
            replica = self._shown.get((place.node_id, deployment, place.generation, None))
        return "absent" if replica is None else replica.state

    def is_live(self, deployment: str, place: Place) -> bool:
        """Whether an engine of it may be running."""
        return self.shown(deployment, place) in _LIVE

    def is_ready(self, deployment: str, place: Place, *, warm: bool) -> bool:
        """Whether the node shows exactly this generation, variant and weights in the state that is asked for."""
        replica = self._shown.get((place.node_id, deployment, place.generation, place.slot))
        if replica is None or not self._is_heard(place.node_id) or self.shown(deployment, place) == "gone":
            return False
        exact = (replica.variant, replica.artifact_digest) == (place.variant, place.artifact_digest)
        same = not replica.member_digest or not place.member_digest or replica.member_digest == place.member_digest
        return exact and same and (replica.state == "ready" if warm else replica.state in _COLD)

    def is_in_service(self, place: Place) -> bool:
        """Whether gateways ask its node: it was not taken out of service. One that is evacuated serves on."""
        return self._is_heard(place.node_id) and self._view.nodes[place.node_id].admits

    def is_ended(self, deployment: str, held: Held) -> bool:
        """Whether what was told to drain is over: its node obeys an assignment that said so, or a later one, and shows no engine."""
        shown = self.shown(deployment, held.place)
        if shown == "gone":
            return True
        if not held.draining or shown in _LIVE:
            return False
        return self._view.nodes[held.place.node_id].acknowledged >= held.drained_at

    def _is_heard(self, node_id: str) -> bool:
        return node_id in self._view.nodes and node_id not in self._losses and node_id not in self._view.removed


def place_of(node_id: str, replica: ObservedReplica, demand: DeploymentDemand | None, slot: int) -> Place:
    """An engine that nodes show, as a place: with the room that the demand counts for its way, else what the node says it reserved."""
    way = next((way for way in demand.ways if _runs(way, replica)), None) if demand else None
    on_devices = bool(replica.devices)
    each = replica.reserved_bytes // len(replica.devices) if on_devices else 0
    return Place(
        slot=slot,
        node_id=node_id,
        generation=replica.generation,
        variant=replica.variant,
        artifact_digest=replica.artifact_digest,
        member_digest=replica.member_digest or (way.member_digest if way else NO_DIGEST),
        engine=replica.engine,
        accelerator=way.accelerator if way else "cuda" if on_devices else "cpu",
        devices=replica.devices,
        host_bytes=way.host_bytes if way else 0 if on_devices else replica.reserved_bytes,
        device_bytes=way.device_bytes if way and on_devices else each,
        warm=demand is None or demand.warm,
    )


def _runs(way: Way, replica: ObservedReplica) -> bool:
    return (way.variant, way.artifact_digest, way.devices) == (
        replica.variant,
        replica.artifact_digest,
        len(replica.devices),
    ) and (not replica.member_digest or replica.member_digest == way.member_digest)
