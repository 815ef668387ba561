"""What is served, as callers may know it: /v1/models, /v1/models/{id} and the health routes. No topology."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sbctl.runtime.gateway.surface import capabilities
from sbctl.runtime.generation import Generation
from sbctl.runtime.routes import Caller, RouteTable
from sbctl.trust.bundle import DeploymentMember, OriginMember

__all__ = ["Availability", "cold_deployments", "described_model", "model_rows"]

Availability = Literal["ready", "cold", "unavailable"]


def model_rows(table: RouteTable, origin: OriginMember, caller: Caller) -> dict[str, dict[str, Any]]:
    """By public name, what this caller may use of an origin."""
    return {
        name: _row(name, table.generations[deployment])
        for name, deployment in sorted(origin.models.items())
        if deployment in table.generations and caller.may_use(name)
    }


def cold_deployments(generations: Mapping[str, Generation]) -> list[str]:
    """Those that should be warm and have no ready replica."""
    return [
        name for name, generation in generations.items() if generation.member.warm and not generation.ready_replicas
    ]


def _row(name: str, generation: Generation) -> dict[str, Any]:
    ready = generation.ready_replicas
    failed = all(replica.crash_looping or replica.stopped_by == "operator" for replica in generation.replicas)
    state: Availability = "ready" if ready else "unavailable" if failed else "cold"
    return described_model(name, generation.member, state=state, ready=ready, desired=len(generation.replicas))


def described_model(
    name: str, member: DeploymentMember, *, state: Availability, ready: int, desired: int
) -> dict[str, Any]:
    """One model under its public name. `ready` and `desired` count replicas."""
    row = {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "sbproxy",
        "availability": {"state": state, "ready_replicas": ready, "desired_replicas": desired},
        "capabilities": capabilities(member.mode),
        "context_window": member.context_length,
        "description": f"{member.artifact.model} ({member.artifact.variant})",
    }
    if member.mode == "chat":
        row["max_output_tokens"] = member.context_length
    if member.artifact.license:
        row["license"] = member.artifact.license
    return row
