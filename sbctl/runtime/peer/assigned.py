"""Which generation a dispatch reaches, by the numbers that its cluster gave to those of this host."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sbctl.base.errors import RefusedError
from sbctl.runtime.generation import Generation
from sbctl.runtime.peer.worker import other_generation

__all__ = ["served"]


def served(
    running: Mapping[str, Generation], deployment: str, generation: int, *, kept: Collection[int] = ()
) -> Generation:
    """What runs of `deployment`, also by a former number of it that is `kept`. What runs by a bundle of the host's own, until its cluster
    assigns something, has the number that its snapshot tells.

    Raises RefusedError `deployment_not_assigned`, and what `other_generation` makes of the number that counts.
    """
    found = running.get(deployment)
    if found is None:
        raise RefusedError("deployment_not_assigned", "this node does not serve that deployment", retryable=True)
    serves = found.number if found.assigned is None else found.assigned.generation
    if generation != serves and generation not in kept:
        raise other_generation(serves)
    return found
