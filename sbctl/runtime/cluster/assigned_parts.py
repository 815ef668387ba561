"""What an assignment says of one deployment, and what of a bundle concerns a node that runs nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from sbctl.node.cluster_documents import AssignedDeployment
from sbctl.runtime.generation import AssignedAs
from sbctl.trust.bundle import BundleContent

__all__ = ["assigned_as", "reason_of", "wish_of", "without_deployments"]


def assigned_as(parts: Iterable[AssignedDeployment]) -> AssignedAs:
    """By what is to start, else by what is to be kept."""
    several = tuple(parts)
    chosen = [part for part in several if part.phase == "start"] or [part for part in several if part.phase == "retain"]
    slots = tuple(replica.slot for part in chosen for replica in part.replicas)
    return AssignedAs(chosen[0].generation, slots or (0,))


def wish_of(parts: Iterable[AssignedDeployment]) -> int:
    """The number of the newest wish to try it again."""
    return max((part.tried_again for part in parts), default=0)


def without_deployments(content: BundleContent) -> BundleContent:
    """For a gateway alone: origins and keys."""
    fields = {name: getattr(content, name) for name in BundleContent.model_fields if name != "deployments"}
    return BundleContent(**fields, deployments={})


def reason_of(code: str) -> str:
    """A dotted code as documents of the cluster have them."""
    return "".join(char if char.isalnum() and char.isascii() else "_" for char in code.lower())[:64] or "failed"
