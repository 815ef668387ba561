"""When the store went away and came back, for the event log: an election or a restart of a server is no event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from sbctl.base.clock import rfc3339
from sbctl.node.records import EventKind
from sbctl.runtime.cluster.store import StoreStatus
from sbctl.runtime.event_log import EventSink

__all__ = ["watch_store"]

_LOOK_S: Final = 1.0
_PATIENCE_S: Final = 10.0
_WORDS: Final[Mapping[str, str]] = {
    "no_quorum": "has no quorum",
    "no_writes": "takes no writes",
    "lost": "is not heard",
}


async def watch_store(status: Callable[[], StoreStatus], events: EventSink) -> None:
    """Until cancelled. What is away for ten seconds is told once, with what it lacks and since when; so is that it is back."""
    loop = asyncio.get_running_loop()
    away_s: float | None = None
    told: StoreStatus | None = None
    while True:
        await asyncio.sleep(_LOOK_S)
        now = status()
        if now.state == "connected":
            if told is not None:
                by = f" by {now.server}" if now.server else ""
                events.tell(
                    EventKind.CLUSTER_STORE_BACK,
                    f"the store answers again{by}; it was away since {rfc3339(told.since)}",
                )
            away_s, told = None, None
            continue
        away_s = loop.time() if away_s is None else away_s
        if told is None and loop.time() - away_s >= _PATIENCE_S:
            told = now
            word = _WORDS[now.state]
            why = f": {now.problem}" if now.problem else ""
            events.tell(
                EventKind.CLUSTER_STORE_LOST,
                f"the store {word} since {rfc3339(now.since)}{why}; what runs goes on, nothing is placed or published",
            )
