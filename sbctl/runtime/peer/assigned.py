"""What this host runs, by the numbers that its cluster gave to generations."""

from __future__ import annotations

from sbctl.base.errors import RefusedError
from sbctl.runtime.gateway.ports import Desired
from sbctl.runtime.generation import Generation
from sbctl.runtime.peer.worker import other_generation

__all__ = ["RuntimeAssigned"]


class RuntimeAssigned:
    """As `worker.Assigned`. What runs by a bundle of the host's own, until its cluster assigns something, has the number that its snapshot tells."""

    def __init__(self, desired: Desired) -> None:
        self._desired = desired

    def serving(self, deployment: str, generation: int) -> Generation:
        found = self._desired.generations.get(deployment)
        if found is None:
            raise RefusedError("deployment_not_assigned", "this deployment is not assigned to this host")
        serves = found.number if found.assigned is None else found.assigned.generation
        if serves != generation:
            raise other_generation(serves)
        return found
