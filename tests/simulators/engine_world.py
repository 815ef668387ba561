"""Engines without processes, and time without waiting: what a replica sees, scripted."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from sbctl.artifacts.model import ArtifactFacts, ArtifactFile, artifact_id
from sbctl.base.errors import EngineError, SbctlError
from sbctl.engines.driver import EngineDriver
from sbctl.engines.llama_cpp import LlamaCpp
from sbctl.engines.model import Canary, EngineAddress, EngineBuild, LaunchRequest, LaunchSpec
from sbctl.runtime.engine_client import EngineClient
from sbctl.runtime.engine_exit import EngineExit
from sbctl.runtime.engine_host import EngineLabel, RunningEngine, Slot
from sbctl.runtime.free_memory import FreeMemory
from sbctl.runtime.launch import LaunchPorts
from sbctl.runtime.processes import ProcessMemory
from sbctl.runtime.provision import Prepared, Progress
from sbctl.runtime.readiness import WatchTimes
from sbctl.runtime.replica_messages import ReplicaPorts
from sbctl.runtime.residency import Residency
from sbctl.runtime.room import Budget, Room
from sbctl.trust.bundle import DeploymentMember

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Where a loop would sleep, its clock jumps instead; only threads are waited for."""

    skipped_s = 0.0
    busy_threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self.busy_threads:
            ready = super().select(60.0)
            if not ready:
                raise AssertionError("a thread that the loop waits for does not end")
            return ready
        if timeout is None:
            ready = super().select(5.0)
            if not ready:
                raise AssertionError("nothing will ever happen: the test waits for something that nobody does")
            return ready
        self.skipped_s += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when everybody waits."""

    def __init__(self) -> None:
        self._jumping = _Selector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.skipped_s

    def pass_s(self, seconds: float) -> None:
        """Time that the process stood still."""
        self._jumping.skipped_s += seconds

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Time stands while a thread works for the loop, however slow the machine is."""
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self._jumping.busy_threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _future: asyncio.Future[Any]) -> None:
        self._jumping.busy_threads -= 1


def in_virtual_time(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run to the end; leftover tasks are cancelled."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work())


async def settle(turns: int = 20) -> None:
    """Let everybody run who can."""
    for _ in range(turns):
        await asyncio.sleep(0)


def facts(name: str = "tiny", source: str = "file:/weights.gguf") -> ArtifactFacts:
    files = (ArtifactFile(path=f"{name}.gguf", sha256="a" * 64, size_bytes=10),)
    return ArtifactFacts(
        artifact=artifact_id("gguf", files),
        format="gguf",
        files=files,
        source=source,
        model=name,
        variant="q4",
        context_length=2048,
    )


class FakeEngine:
    def __init__(self, label: EngineLabel, address: EngineAddress, pid: int) -> None:
        self.label = label
        self.pid = pid
        self.address = address
        self.is_stopped = False
        self.has: ProcessMemory | None = None
        self.said: tuple[str, ...] = ("last words",)
        self._exit: asyncio.Future[EngineExit] = asyncio.get_running_loop().create_future()

    async def prove_listener(self) -> None: ...

    async def last_lines(self, count: int) -> tuple[str, ...]:
        return self.said[-count:]

    def effort(self) -> int | None:
        return None

    async def memory(self) -> ProcessMemory | None:
        return self.has

    async def wait(self) -> EngineExit:
        return await asyncio.shield(self._exit)

    def die(self, returncode: int = -9) -> None:
        if not self._exit.done():
            self._exit.set_result(EngineExit.told(returncode))


class FakeClient:
    """The HTTP side: answers what its world says."""

    def __init__(self, world: EngineWorld) -> None:
        self._world = world
        self.is_closed = False

    async def status(self, _path: str, *, timeout_s: float = 2.0) -> int | None:
        return self._world.health

    async def text(self, _path: str, *, timeout_s: float = 2.0) -> str | None:
        return self._world.metrics

    async def json(self, _path: str) -> Any:
        return self._world.slots

    async def produce(self, _canary: Canary, *, timeout_s: float) -> None:
        self._world.canaries += 1
        if self._world.canary_fault is not None:
            raise self._world.canary_fault

    async def close(self) -> None:
        self.is_closed = True


@dataclass
class EngineWorld:
    """All engines of a test. `load_s` how long one loads; `faults` are raised by launches, first come first served."""

    load_s: float = 1.0
    health: int | None = 200
    metrics: str | None = None
    slots: Any = None
    canary_fault: EngineError | None = None
    canaries: int = 0
    devices: tuple[str, ...] = ()
    faults: list[SbctlError | None] = field(default_factory=list)
    prepare_fault: SbctlError | None = None
    stop_fault: SbctlError | None = None
    stop_s: float = 0.0
    engines: list[FakeEngine] = field(default_factory=list)
    clients: list[FakeClient] = field(default_factory=list)
    leases: frozenset[str] = frozenset()
    events: list[str] = field(default_factory=list)
    tokens_asked: int = 0
    outlives_daemon: bool = False
    adopted: dict[Slot, tuple[str, ...]] = field(default_factory=dict)
    free: Callable[[], FreeMemory] | None = None
    """What the machine says is free; None: it is not asked."""
    budget_devices: dict[str, int] = field(default_factory=dict)
    device_bytes: dict[str, int] = field(default_factory=dict)
    """What each model takes on devices."""

    @property
    def alive(self) -> list[FakeEngine]:
        return [engine for engine in self.engines if not engine.is_stopped]

    def ports(self, *, max_engines: int | None = None, memory_bytes: int | None = None, **times: float) -> ReplicaPorts:
        launch = LaunchPorts(self, self, WatchTimes(**times), self._connect, self._await_ready)  # type: ignore[arg-type]
        budget = Budget(memory_bytes, self.budget_devices, max_engines)
        numbers = {device: number for number, device in enumerate(self.budget_devices)}
        return ReplicaPorts(launch, Residency(budget, self.free), chance=lambda: 0.0, device_numbers=numbers)

    # EngineHost

    async def start(self, spec: LaunchSpec, label: EngineLabel) -> RunningEngine:
        engine = FakeEngine(label, spec.address, 1000 + len(self.engines))
        engine.has = None if self.free is None else ProcessMemory(0, 0)
        self.engines.append(engine)
        self.events.append(f"start {label.deployment}#{label.generation}")
        return engine

    def new_socket(self) -> Path:
        return Path("/engine.sock")

    async def adopt(self) -> frozenset[Slot]:
        return frozenset()

    def adopted_devices(self, slot: Slot) -> tuple[str, ...] | None:
        return self.adopted.get(slot)

    async def drop_unclaimed(self) -> None: ...

    async def leave(self, engine: RunningEngine) -> None:
        self.events.append(f"leave {cast('FakeEngine', engine).label.deployment}")

    async def close(self) -> None: ...

    async def stop(self, engine: RunningEngine, *, grace_s: float = 10.0) -> None:
        fake = cast("FakeEngine", engine)
        await asyncio.sleep(self.stop_s)
        self.events.append(f"stop {fake.label.deployment}#{fake.label.generation}")
        if self.stop_fault is not None:
            raise self.stop_fault
        fake.is_stopped = True
        fake.die(-15)

    # Provisioner

    async def check_engine(self, member: DeploymentMember) -> EngineBuild:
        if member.engine.path == "/missing":
            raise EngineError("engine_missing", "there is no such engine")
        return EngineBuild("llama_cpp", "binary", "b1", ("/engine",), Path("/engine"))

    async def prepare(self, member: DeploymentMember, progress: Progress) -> Prepared:
        build = await self.check_engine(member)
        if self.prepare_fault is not None:
            raise self.prepare_fault
        self.events.append(f"prepare {member.model}")
        return Prepared(Path("/weights"), build)

    def keep_only(self, artifacts: frozenset[str]) -> None:
        self.leases = artifacts

    async def room(self, member: DeploymentMember, prepared: Prepared) -> Room:
        if member.engine.computes_on_devices:
            return Room(0, member.memory_bytes or 0, span=member.tensor_parallel)
        return Room(member.memory_bytes or 0, self.device_bytes.get(member.model, 0))

    def launch(self, member: DeploymentMember, prepared: Prepared, *, deployment: str, room: Room) -> LaunchSpec:
        address = EngineAddress(port=4000 + len(self.engines))
        request = LaunchRequest(Path("/w"), address, deployment, 512, 1, 1, {})
        return LaunchSpec(("/engine",), {}, address, LlamaCpp().probe(request), devices=room.device_ids or self.devices)

    def driver(self, engine: str) -> LlamaCpp:
        return LlamaCpp()

    # The HTTP side

    def _connect(self, _address: EngineAddress) -> EngineClient:
        client = FakeClient(self)
        self.clients.append(client)
        return cast("EngineClient", client)

    async def _await_ready(
        self, engine: RunningEngine, client: EngineClient, spec: LaunchSpec, driver: EngineDriver, *, token: bool
    ) -> None:
        await asyncio.sleep(self.load_s)
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault
        self.tokens_asked += token


async def until(condition: Callable[[], bool], *, at_most_s: float = 3600.0) -> None:
    """Pass virtual time until it holds."""
    async with asyncio.timeout(at_most_s):
        while not condition():
            await asyncio.sleep(0.05)


async def outcome_of(work: Awaitable[Any]) -> str:
    """`ok`, or the code of the error."""
    try:
        await work
    except SbctlError as error:
        return error.code
    return "ok"
