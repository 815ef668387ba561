"""Who may answer for a deployment, out of the snapshots that nodes published. Pure.

Every replica that is left out is counted under the stage that left it out: its generation, its node's health, the node's address, its own
state, its adapters. Snapshots are believed here: whoever hands them over has checked signatures, fences and age. An address that nobody could
connect to is none.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sbctl.node.cluster_documents import NodeSnapshotDocument, ReplicaReport
from sbctl.runtime.peer.choice import Candidate, ReplicaKind
from sbctl.trust.peer_documents import Peer

__all__ = ["ExclusionStage", "KnownNode", "Selection", "Serving", "endpoint_of", "region_of", "select"]

ExclusionStage = Literal["generation", "health", "endpoint", "state", "adapter"]
_REGION_LABELS: Final = ("region", "topology.kubernetes.io/region")
_KINDS: Final[Mapping[str, ReplicaKind]] = {
    "ready": "ready",
    "preparing": "starting",
    "configured": "cold",
    "assigned": "cold",
    "cached": "cold",
    "stopped": "cold",
}
_KIND_ORDER: Final[tuple[ReplicaKind, ...]] = ("ready", "starting", "cold")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")
_PORT_CHARS_MAX: Final = 5
_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node's newest verified snapshot, and who signed it, by which certificate. `is_silent`: its time is over, so it is asked only where nobody
    else is left."""

    snapshot: NodeSnapshotDocument
    peer: Peer
    is_silent: bool = False


@dataclass(frozen=True, slots=True)
class Serving:
    """Which generations of a deployment may get requests, the current one first, and on which nodes; `nodes` None: on any that has it."""

    generations: tuple[int, ...]
    nodes: Mapping[int, frozenset[str]] | None = None

    def on(self, generation: int, node_id: str) -> bool:
        if generation not in self.generations:
            return False
        return self.nodes is None or node_id in self.nodes.get(generation, ())


@dataclass(frozen=True, slots=True)
class Selection:
    """What is left, and how many replicas each stage left out."""

    candidates: tuple[Candidate, ...]
    excluded: Mapping[ExclusionStage, int]


def region_of(labels: Mapping[str, str]) -> str:
    """Empty when a node says nothing of it."""
    return next((labels[name] for name in _REGION_LABELS if name in labels), "")


def endpoint_of(address: str) -> tuple[str, int] | None:
    """Host and port of `host:port`, an IPv6 address in brackets; None for anything else, whatever a node says of itself."""
    host, _, digits = address.rpartition(":")
    if (
        not digits.isascii()
        or not digits.isdigit()
        or len(digits) > _PORT_CHARS_MAX
        or not 0 < int(digits) <= _PORT_MAX
    ):
        return None
    if not (host.startswith("[") and host.endswith("]")):
        return (host, int(digits)) if _NAME.fullmatch(host) else None
    try:
        return str(ipaddress.IPv6Address(host[1:-1])), int(digits)
    except ValueError:
        return None


def select(
    nodes: Iterable[KnownNode],
    deployment: str,
    *,
    serving: Serving,
    here: str,
    adapters: Collection[str] = (),
) -> Selection:
    """Candidates of a deployment; of generations that are not the current one only ready replicas count. `here`: this node."""
    excluded: Counter[ExclusionStage] = Counter()
    newest = next(iter(serving.generations), 0)
    found: list[Candidate] = []
    last: list[Candidate] = []
    for node in nodes:
        snapshot = node.snapshot
        is_local = snapshot.node.node_id == here
        grouped: dict[int, list[ReplicaReport]] = {}
        out_of_reach = _node_stage(snapshot, is_local=is_local)
        for replica in snapshot.replicas:
            if replica.deployment != deployment:
                continue
            number = replica.deployment_generation
            if not serving.on(number, snapshot.node.node_id) or (number != newest and replica.state != "ready"):
                stage: ExclusionStage | None = "generation"
            else:
                stage = out_of_reach or _replica_stage(replica, adapters)
            if stage is None:
                grouped.setdefault(replica.deployment_generation, []).append(replica)
            else:
                excluded[stage] += 1
        made = [_candidate(node, replicas, is_local=is_local) for replicas in grouped.values()]
        (last if node.is_silent else found).extend(made)
    return Selection(tuple(found or last), excluded)


def _node_stage(snapshot: NodeSnapshotDocument, *, is_local: bool) -> ExclusionStage | None:
    health = snapshot.health
    if health.state == "unhealthy" or health.draining or (health.peer_plane == "unavailable" and not is_local):
        return "health"
    address = snapshot.node.peer_address
    if "worker" not in snapshot.node.roles or not (is_local or (address is not None and endpoint_of(address))):
        return "endpoint"
    return None


def _replica_stage(replica: ReplicaReport, adapters: Collection[str]) -> ExclusionStage | None:
    if replica.state not in _KINDS:
        return "state"
    return None if set(adapters) <= set(replica.adapters) else "adapter"


def _candidate(node: KnownNode, replicas: list[ReplicaReport], *, is_local: bool) -> Candidate:
    """One node's replicas of one generation: its best state, and those that are in it."""
    snapshot = node.snapshot
    kinds = {_KINDS[replica.state] for replica in replicas}
    state = next(kind for kind in _KIND_ORDER if kind in kinds)
    counted = [replica for replica in replicas if _KINDS[replica.state] == state]
    used = {index for replica in counted for index in replica.selected_devices}
    devices = [device for device in snapshot.devices if device.index in used]
    return Candidate(
        node_id=snapshot.node.node_id,
        generation=replicas[0].deployment_generation,
        state=state,
        is_local=is_local,
        plane_is_ready=is_local or snapshot.health.peer_plane == "ready",
        region=region_of(snapshot.node.labels),
        replicas=len(counted),
        queue_depth=sum(replica.queue_depth for replica in counted),
        active=sum(replica.active_requests for replica in counted),
        compute_utilization_millis=max((device.compute_utilization_millis or 0 for device in devices), default=0),
        memory_occupancy_millis=max((device.memory_occupancy_millis or 0 for device in devices), default=0),
        address=snapshot.node.peer_address or "",
        certificate_sha256=node.peer.certificate_sha256,
        peer=node.peer,
        boot_epoch=snapshot.boot_epoch,
    )
