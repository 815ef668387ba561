"""A replica as far as places go: what `residency.Residency` asks of who has one or wants one. Times are of the loop."""

from __future__ import annotations

from typing import Final, Protocol

from sbctl.runtime.engine_host import RunningEngine

__all__ = ["Resident", "worth_a_start_s"]

_STAY_LEAST_S: Final = 2.0
_STAY_MOST_S: Final = 10.0


def worth_a_start_s(start_s: float) -> float:
    """How long an engine that took so long to start keeps its place."""
    return min(max(start_s, _STAY_LEAST_S), _STAY_MOST_S)


class Resident(Protocol):
    """See the module."""

    @property
    def deployment(self) -> str: ...

    @property
    def engine(self) -> RunningEngine | None:
        """Its process, from when it begins until it is gone."""
        ...

    @property
    def adopted_devices(self) -> tuple[str, ...] | None:
        """Where the engine lies that runs already and that its start only takes over; None: it starts one."""
        ...

    @property
    def is_pinned(self) -> bool:
        """It never makes room for others."""
        ...

    @property
    def is_leaving(self) -> bool:
        """Its engine ends, whatever others want."""
        ...

    @property
    def is_wanted(self) -> bool:
        """Somebody waits for its start."""
        ...

    @property
    def evictable_since_s(self) -> float | None:
        """Since when it could be unloaded; None while it may not be."""
        ...

    @property
    def stays_until_s(self) -> float | None:
        """Until when others leave it its place; None while it is not ready."""
        ...

    @property
    def can_give_way(self) -> bool:
        """It is ready, and its requests would wait for its next turn."""
        ...

    def give_way(self) -> None:
        """Take nothing new until `stay`."""
        ...

    def stay(self) -> None: ...

    async def unload(self, why: str) -> None:
        """Stop it if it is still idle."""
        ...
