"""What is served, as callers may know it: /v1/models, /v1/models/{id} and the health routes. No topology."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sbctl.runtime.gateway.surface import capabilities
from sbctl.runtime.generation import Generation
from sbctl.runtime.routes import Caller, RouteTable
from sbctl.trust.bundle import OriginMember

__all__ = ["cold_deployments", "model_rows"]


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
    member, ready = generation.member, generation.ready_replicas
    failed = all(replica.crash_looping or replica.stopped_by == "operator" for replica in generation.replicas)
    row = {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "sbproxy",
        "availability": {
            "state": "ready" if ready else "unavailable" if failed else "cold",
            "ready_replicas": ready,
            "desired_replicas": len(generation.replicas),
        },
        "capabilities": capabilities(member.mode),
        "context_window": member.context_length,
        "description": f"{member.artifact.model} ({member.artifact.variant})",
    }
    if member.mode == "chat":
        row["max_output_tokens"] = member.context_length
    if member.artifact.license:
        row["license"] = member.artifact.license
    return row
