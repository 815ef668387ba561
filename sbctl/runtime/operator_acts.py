"""What an operator does to one deployment now, whatever is desired of it:

    load   every replica ready                       pull   its weights verified in the cache
    stop   what runs has the shutdown deadline       evict  engines without a request end; the next request starts them again
    drain  what runs has its time, else a day        reset  a crash loop ends; refused while every replica is ready

A stop and a drain are remembered across restarts until a load, a reset or the next bundle; a disk that takes no write does not hold them up,
and the state says that a restart would forget them.
"""

from __future__ import annotations

import asyncio
from typing import Final, Literal

from sbctl.base.errors import RefusedError
from sbctl.runtime.generation import Generation
from sbctl.runtime.provision import Progress
from sbctl.runtime.store import RuntimeStore

__all__ = ["Action", "carry_out"]

Action = Literal["load", "stop", "drain", "evict", "pull", "reset"]
_STOPS: Final = ("stop", "drain")
_LONG_DRAIN_S: Final = 24 * 3600.0


async def carry_out(
    action: Action,
    generation: Generation,
    store: RuntimeStore,
    progress: Progress,
    *,
    stop_s: float,
    drain_s: float | None,
) -> None:
    """Returns when it is done. `stop_s` is the shutdown deadline.

    Raises RefusedError `deployment_busy`, `deployment_healthy`; what loading and fetching raise; EngineError `engine_shutdown_failed`.
    """
    if action == "pull":
        await generation.prepare(progress)
        return
    if action == "evict":
        await generation.evict()
        return
    if action == "reset" and generation.ready_replicas == len(generation.replicas):
        raise RefusedError("deployment_healthy", "every replica is ready: there is nothing to reset")
    stops = action in _STOPS
    await asyncio.to_thread(store.set_stopped, generation.deployment, stops, may_owe=stops)
    if action == "stop":
        await generation.stop("operator", drain_s=stop_s)
    elif action == "drain":
        await generation.stop("operator", drain_s=_LONG_DRAIN_S if drain_s is None else drain_s)
    elif action == "load":
        await generation.load("operator", progress)
    else:
        await generation.reset()
