"""Why each node got no replica of a deployment: its filters, and the room that is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, get_args

from sbctl.base.limits import JSON_INT_MAX
from sbctl.node.cluster_documents import ASSIGNED_REPLICAS_MAX, SNAPSHOT_REPLICAS_MAX
from sbctl.placement.fleet import Fleet, refused_node, refused_way
from sbctl.placement.model import DeploymentDemand, Fact, Node, Place, Refusal, RefusalReason, Way
from sbctl.placement.room import Room, device_groups

__all__ = ["refusal_of", "refusals"]

_RANK: Final = {reason: rank for rank, reason in enumerate(get_args(RefusalReason))}


def refusals(fleet: Fleet, demand: DeploymentDemand, targets: Iterable[Place]) -> dict[str, Refusal]:
    """Of every node that could not take one more replica now. `targets`: of the deployment."""
    here: dict[str, list[Place]] = {}
    for place in targets:
        here.setdefault(place.node_id, []).append(place)
    found = {node.node_id: refusal_of(fleet, node, demand, here.get(node.node_id, ())) for node in fleet.nodes}
    return {name: refusal for name, refusal in found.items() if refusal is not None}


def refusal_of(fleet: Fleet, node: Node, demand: DeploymentDemand, here: Sequence[Place]) -> Refusal | None:
    """The refusal that got furthest, of all ways, and of several the one that is least short; None: one of them would do.

    `here`: the replicas of the deployment that the node has already; it runs no other member beside them.
    """
    runs = here[0].member_digest if here else None
    if refusal := refused_node(node, demand, fleet.losses.get(node.node_id)):
        return refusal
    if len(here) >= ASSIGNED_REPLICAS_MAX:
        return Refusal("no_room", here[0].variant, (("place", "replicas"), ("max_replicas", ASSIGNED_REPLICAS_MAX)))
    furthest: Refusal | None = None
    for way in demand.ways:
        if runs is not None and way.member_digest != runs:
            continue
        refusal = refused_way(node, demand, way) or _no_room(fleet.room, node, way, warm=demand.warm)
        if refusal is None:
            return None
        if furthest is None or _distance(refusal) < _distance(furthest):
            furthest = refusal
    return furthest or Refusal("no_capacity")


def _distance(refusal: Refusal) -> tuple[int, int]:
    short = dict(refusal.facts).get("short_bytes")
    return -_RANK[refusal.reason], short if isinstance(short, int) else JSON_INT_MAX


def _no_room(room: Room, node: Node, way: Way, *, warm: bool) -> Refusal | None:
    if room.devices_for(node.node_id, way, warm=warm) is not None:
        return None
    if (engines := room.free(node.node_id, "engines", warm=warm)) < 1:
        told = (("place", "engines"), ("max_engines", node.max_engines or 0), ("short_engines", 1 - engines))
        return Refusal("no_room", way.variant, told)
    if room.free(node.node_id, "replicas", warm=warm) < 1:
        return Refusal("no_room", way.variant, (("place", "replicas"), ("max_replicas", SNAPSHOT_REPLICAS_MAX)))
    host = room.free(node.node_id, "host", warm=warm)
    if host < way.host_bytes:
        return Refusal("no_room", way.variant, _short("host", way.host_bytes, host))
    groups = device_groups(node, way)
    free = max(
        sorted((room.free(node.node_id, device.index, warm=warm) for device in group), reverse=True)[way.devices - 1]
        for group in groups
    )
    facts = _short("device", way.device_bytes, free)
    return Refusal("no_room", way.variant, (*facts, ("needed_devices", way.devices)))


def _short(place: str, needed: int, free: int) -> tuple[tuple[str, Fact], ...]:
    free = max(0, free)
    return (("place", place), ("needed_bytes", needed), ("free_bytes", free), ("short_bytes", needed - free))
