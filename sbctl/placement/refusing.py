"""Why each node got no replica of a deployment: its filters, and the room that is left."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, get_args

from sbctl.base.limits import JSON_INT_MAX
from sbctl.placement.fleet import Fleet, refused_node, refused_way
from sbctl.placement.model import DeploymentDemand, Fact, Node, Place, Refusal, RefusalReason, Way
from sbctl.placement.room import Room, device_groups

__all__ = ["refusal_of", "refusals"]

_RANK: Final = {reason: rank for rank, reason in enumerate(get_args(RefusalReason))}


def refusals(fleet: Fleet, demand: DeploymentDemand, targets: Iterable[Place]) -> dict[str, Refusal]:
    """Of every node that could not take one more replica now. `targets`: of the deployment."""
    runs = {place.node_id: place.member_digest for place in targets}
    found = {node.node_id: refusal_of(fleet, node, demand, runs.get(node.node_id)) for node in fleet.nodes}
    return {name: refusal for name, refusal in found.items() if refusal is not None}


def refusal_of(fleet: Fleet, node: Node, demand: DeploymentDemand, runs: str | None) -> Refusal | None:
    """The refusal that got furthest, of all ways, and of several the one that is least short; None: one of them would do.

    `runs`: the member of the deployment that the node runs already, beside which it runs no other.
    """
    if refusal := refused_node(node, demand, fleet.losses.get(node.node_id)):
        return refusal
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
