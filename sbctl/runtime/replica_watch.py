"""What is watched of a ready replica, beside its owner: each only reports, and ends when its task is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from sbctl.base.errors import SbctlError
from sbctl.runtime.admission import Gate
from sbctl.runtime.engine_host import RunningEngine
from sbctl.runtime.launch import Launched
from sbctl.runtime.readiness import exit_error
from sbctl.trust.bundle import DeploymentMember

__all__ = ["Watched", "watchers"]

_IDLE_TICK_S: Final = 1.0

Tell = Callable[[SbctlError], None]
"""Why the engine must go."""


class Watched(Protocol):
    """A replica as far as it is watched."""

    member: DeploymentMember
    gate: Gate
    launched: Launched | None

    async def unload(self, why: str) -> None: ...


def watchers(replica: Watched, engine: RunningEngine, interval_s: float, tell: Tell) -> tuple[asyncio.Task[None], ...]:
    """`tell` hears why its engine must go; whoever is idle for too long is unloaded."""
    works = (_watch_exit(engine, tell), _watch_health(replica, interval_s, tell), _watch_idle(replica))
    return tuple(asyncio.create_task(work) for work in works)


async def _watch_exit(engine: RunningEngine, tell: Tell) -> None:
    tell(await exit_error(await engine.wait(), engine, while_loading=False))


async def _watch_health(replica: Watched, interval_s: float, tell: Tell) -> None:
    while (launched := replica.launched) is not None:
        await asyncio.sleep(interval_s)
        if (error := await launched.watch.check(active=replica.gate.active)) is not None:
            tell(error)
            return


async def _watch_idle(replica: Watched) -> None:
    """As long as nobody asks, `keep_alive_secs` of the deployment; None keeps it."""
    while True:
        await asyncio.sleep(_IDLE_TICK_S)
        keep_s, idle_since_s = replica.member.keep_alive_secs, replica.gate.idle_since_s
        now_s = asyncio.get_running_loop().time()
        if keep_s is not None and idle_since_s is not None and now_s - idle_since_s >= keep_s:
            await replica.unload("")
