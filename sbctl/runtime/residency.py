"""How many engines may be resident at once, and who makes room: whatever was idle longest and nobody asked to keep warm.

A place is taken before an engine starts and given back when its tree is gone, so the bound holds at every moment. Warm, busy and queued
replicas are never sent away, nor is one of the same deployment, which a rollout replaces.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from sbctl.base.errors import EngineError

__all__ = ["Residency", "Resident"]


class Resident(Protocol):
    """A replica as far as places go."""

    @property
    def deployment(self) -> str: ...

    @property
    def evictable_since_s(self) -> float | None:
        """Loop time since when it could be unloaded; None while it may not be."""
        ...

    async def unload(self) -> None:
        """Stop it if it is still idle."""
        ...


class Residency:
    """Places of one daemon. `max_engines` None: as many as are asked for."""

    def __init__(self, max_engines: int | None = None) -> None:
        self._max_engines = max_engines
        self._holders: set[Resident] = set()
        self._lock = asyncio.Lock()

    async def take(self, resident: Resident) -> None:
        """A place, after unloading others when that is needed and possible. Raises EngineError `insufficient_capacity`."""
        async with self._lock:
            while self._max_engines is not None and len(self._holders - {resident}) >= self._max_engines:
                victim = self._longest_idle(resident)
                if victim is None:
                    raise EngineError(
                        "insufficient_capacity",
                        f"{self._max_engines} models are loaded, which is all that max_resident_models allows, and none is idle",
                        next_step="raise it, use rollout: recreate, or give other deployments keep_alive_secs",
                        retryable=True,
                    )
                await victim.unload()
            self._holders.add(resident)

    def give_back(self, resident: Resident) -> None:
        """Its engine is gone. Twice is the same as once."""
        self._holders.discard(resident)

    def _longest_idle(self, asking: Resident) -> Resident | None:
        candidates = [
            (since_s, holder)
            for holder in self._holders
            if holder.deployment != asking.deployment and (since_s := holder.evictable_since_s) is not None
        ]
        return min(candidates, key=lambda candidate: candidate[0])[1] if candidates else None
