"""One launch of one engine: weights, process, readiness. Whatever ends it early leaves no process behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from sbctl.base.errors import SbctlError
from sbctl.engines.driver import EngineDriver
from sbctl.engines.model import EngineAddress, LaunchSpec
from sbctl.runtime.device_lease import DeviceLeases
from sbctl.runtime.engine_client import EngineClient
from sbctl.runtime.engine_host import EngineHost, EngineLabel, RunningEngine
from sbctl.runtime.provision import Progress, Provisioner
from sbctl.runtime.readiness import ProgressWatch, WatchTimes, await_ready
from sbctl.runtime.replica_states import ReplicaPhase
from sbctl.runtime.room import Room
from sbctl.trust.bundle import DeploymentMember

__all__ = ["AwaitReady", "LaunchPorts", "Launched", "end_engine", "launch_engine"]


@dataclass(frozen=True, slots=True)
class Launched:
    """A ready engine, how to talk to it, and what watches it."""

    engine: RunningEngine
    client: EngineClient
    watch: ProgressWatch
    spec: LaunchSpec


class AwaitReady(Protocol):
    """As `readiness.await_ready`."""

    async def __call__(
        self, engine: RunningEngine, client: EngineClient, spec: LaunchSpec, driver: EngineDriver, *, token: bool
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class LaunchPorts:
    """What a launch needs of the world. `connect` and `await_ready` are the HTTP side of an engine."""

    host: EngineHost
    provisioner: Provisioner
    times: WatchTimes = field(default_factory=WatchTimes)
    connect: Callable[[EngineAddress], EngineClient] = EngineClient
    await_ready: AwaitReady = await_ready
    devices: DeviceLeases = field(default_factory=DeviceLeases)


async def launch_engine(
    ports: LaunchPorts,
    label: EngineLabel,
    member: DeploymentMember,
    *,
    token: bool,
    entered: Callable[[ReplicaPhase], None],
    take_room: Callable[[Room], Awaitable[Room]],
    begun: Callable[[RunningEngine], None],
    progress: Progress,
) -> Launched:
    """Returns a ready engine; `token` asks for one produced token. `entered` is told of cached and preparing; `take_room` returns when
    the host has room for it, with its devices, and the caller gives that back. `begun` is told of the process as soon as there is one.

    Raises SbctlError of whichever stage failed. Cancelled or failed: the process tree is gone before this returns.
    """
    prepared = await ports.provisioner.prepare(member, progress)
    entered(ReplicaPhase.CACHED)
    progress(0, None, f"room for {label.deployment}")
    room = await take_room(await ports.provisioner.room(member, prepared))
    spec = ports.provisioner.launch(member, prepared, deployment=label.deployment, room=room)
    entered(ReplicaPhase.PREPARING)
    driver = ports.provisioner.driver(member.engine.engine)
    async with ports.devices.starting(spec.devices):
        progress(0, None, f"starting {member.engine.engine} for {label.deployment}")
        engine = await ports.host.start(spec, label)
        begun(engine)
        client = ports.connect(engine.address)
        try:
            await ports.await_ready(engine, client, spec, driver, token=token)
            return Launched(engine, client, ProgressWatch(engine, client, spec.probe, ports.times), spec)
        except BaseException:
            await _uninterrupted(_end(ports.host, engine, client, spec.stop.loading_grace_s))
            raise


async def end_engine(ports: LaunchPorts, launched: Launched, *, grace_s: float | None = None) -> None:
    """Returns when its tree is gone and its devices have their memory back. `grace_s` None: the engine's own.

    Raises EngineError `engine_shutdown_failed`.
    """
    spec = launched.spec
    async with ports.devices.stopping(spec.devices):
        await ports.host.stop(launched.engine, grace_s=spec.stop.grace_s if grace_s is None else grace_s)


async def _end(host: EngineHost, engine: RunningEngine, client: EngineClient, grace_s: float) -> None:
    await client.close()
    with contextlib.suppress(SbctlError):
        await host.stop(engine, grace_s=grace_s)


async def _uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Finish `work` even when cancelled meanwhile; the cancellation is the caller's to re-raise."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task})
