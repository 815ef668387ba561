"""What is served, as callers may know it: /v1/models, /v1/models/{id} and the health routes. No topology.

`availability` is what a request under that name would meet now, whoever answers: the deployment, then those that stand in for it.

ready        somebody answers at once
cold         somebody has to be started for it, and a request waits for that or is refused meanwhile (`cold_start`)
unavailable  nobody could be started: stopped by an operator, in a crash loop, left alone after failures
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sbctl.runtime.gateway.surface import capabilities
from sbctl.runtime.generation import Generation
from sbctl.runtime.routes import Caller
from sbctl.trust.bundle import DeploymentMember, ExternalMember, OriginMember

__all__ = ["Availability", "Look", "cold_deployments", "look_at", "model_rows", "together"]

Availability = Literal["ready", "cold", "unavailable"]


@dataclass(frozen=True, slots=True)
class Look:
    """Of one that may answer. `waits`: a request that finds it cold waits until it is there. `ready` and `desired` count replicas."""

    state: Availability
    waits: bool = False
    ready: int = 0
    desired: int = 0


def together(looks: Iterable[Look]) -> Look:
    """In the order in which they are asked: the first that a request would stay with decides, and the replicas of all are counted."""
    seen = list(looks)
    stays = next((look.state for look in seen if look.state == "ready" or (look.state == "cold" and look.waits)), None)
    left: Availability = "cold" if any(look.state == "cold" for look in seen) else "unavailable"
    return Look(stays or left, ready=sum(look.ready for look in seen), desired=sum(look.desired for look in seen))


def model_rows(
    origin: OriginMember,
    caller: Caller,
    look: Callable[[str], tuple[DeploymentMember, Look] | None],
    external: Callable[[ExternalMember], bool],
) -> dict[str, dict[str, Any]]:
    """By public name, what this caller may use of an origin. `look`: a deployment as it is now, None for one that is not known here;
    `external`: whether such a provider would be asked for this caller now."""
    rows = {}
    for name, deployment in sorted(origin.models.items()):
        first = look(deployment) if caller.may_use(name) else None
        if first is None:
            continue
        looks = [first[1]]
        for member in origin.stand_ins:
            if name not in member.models:
                continue
            if isinstance(member, ExternalMember):
                looks.append(Look("ready" if external(member) else "unavailable"))
            elif (found := look(member.deployment)) is not None:
                looks.append(found[1])
        rows[name] = _described(name, first[0], together(looks))
    return rows


def look_at(generation: Generation | None) -> tuple[DeploymentMember, Look] | None:
    """One that this host runs."""
    if generation is None:
        return None
    ready, member = generation.ready_replicas, generation.member
    failed = all(replica.crash_looping or replica.stopped_by == "operator" for replica in generation.replicas)
    state: Availability = "ready" if ready else "unavailable" if failed else "cold"
    return member, Look(state, member.cold_start == "wait", ready, len(generation.replicas))


def cold_deployments(generations: Mapping[str, Generation]) -> list[str]:
    """Those that should be warm and have no ready replica."""
    return [
        name for name, generation in generations.items() if generation.member.warm and not generation.ready_replicas
    ]


def _described(name: str, member: DeploymentMember, look: Look) -> dict[str, Any]:
    """One model under its public name, as its own deployment serves it; `look` is of all that may answer."""
    row = {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "sbproxy",
        "availability": {"state": look.state, "ready_replicas": look.ready, "desired_replicas": look.desired},
        "capabilities": capabilities(member.mode),
        "context_window": member.context_length,
        "description": f"{member.artifact.model} ({member.artifact.variant})",
    }
    if member.mode == "chat":
        row["max_output_tokens"] = member.context_length
    if member.artifact.license:
        row["license"] = member.artifact.license
    return row
