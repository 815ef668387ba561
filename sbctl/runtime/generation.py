"""One generation of one deployment: an immutable way to run it, its replicas, and how requests get one of them.

What the engine was started with never changes inside a generation; what only the gate and the idle timer read may be replaced (`adjust`).
A generation that differs from the one before it in nothing but how many replicas there are, and on which devices, takes over those that stay
as they are: their engines and their requests go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Collection, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final

from sbctl.base.display import plural
from sbctl.base.errors import EngineError, RefusedError, SbctlError
from sbctl.node.snapshot import DeploymentState
from sbctl.runtime.admission import AdmissionError, Permit, Priority
from sbctl.runtime.engine_host import EngineLabel
from sbctl.runtime.provision import Progress, quiet
from sbctl.runtime.replica import Replica
from sbctl.runtime.replica_messages import LoadedBy, ReplicaPorts, StoppedBy
from sbctl.runtime.replica_states import ReplicaPhase
from sbctl.runtime.staying import AssignedAs, devices_of, launch_identity, staying
from sbctl.trust.bundle import DeploymentMember, member_digest

__all__ = ["Generation", "Lease"]

_STATE_ORDER: Final = (
    ReplicaPhase.READY,
    ReplicaPhase.FAILED,
    ReplicaPhase.DRAINING,
    ReplicaPhase.PREPARING,
    ReplicaPhase.CACHED,
    ReplicaPhase.ASSIGNED,
    ReplicaPhase.STOPPED,
    ReplicaPhase.CONFIGURED,
)
_DRAIN_LOOK_S: Final = 0.05


@dataclass(slots=True)
class Lease:
    """A request's hold on one ready replica. Release it when the answer's last byte is sent or the caller is gone."""

    replica: Replica
    permit: Permit

    def release(self) -> None:
        self.permit.release()


class Generation:
    """Replicas 0..n-1 of one deployment. The reconciler makes and retires it."""

    def __init__(
        self,
        deployment: str,
        number: int,
        member: DeploymentMember,
        ports: ReplicaPorts,
        *,
        assigned: AssignedAs | None = None,
        before: Generation | None = None,
    ) -> None:
        """`before`: whose replicas are taken over where they are what is wanted; nothing of it changes until `succeed`."""
        self.deployment = deployment
        self.number = number
        self.member = member
        self.identity = launch_identity(member)
        self.assigned = assigned
        """None: it is of a bundle of the host's own."""
        kept = staying(before, member, assigned)
        used = {replica.label.replica for replica in kept if replica is not None}
        numbers = (index for index in itertools.count() if index not in used)
        self.replicas = tuple(
            replica or Replica(EngineLabel(deployment, next(numbers), number), member, ports) for replica in kept
        )
        self.fresh = tuple(replica for replica, old in zip(self.replicas, kept, strict=True) if old is None)
        """Those that it did not take over."""
        self._give_devices(self.fresh)
        self._handed_over: frozenset[Replica] = frozenset()
        self.notice: str | None = None
        """What its row says while its replicas serve, and should not as they do."""
        self._ports = ports
        self._cold_waiters = 0
        self._waking: dict[Replica, asyncio.Task[None]] = {}
        self._admits = asyncio.Event()
        self._admits.set()

    @property
    def own(self) -> tuple[Replica, ...]:
        """Its replicas but for those that a successor took over."""
        return tuple(replica for replica in self.replicas if replica not in self._handed_over)

    @property
    def digest(self) -> str:
        return member_digest(self.member)

    @property
    def cold_waiters(self) -> int:
        """Requests that wait until a replica is loaded, or has its turn."""
        return self._cold_waiters

    @property
    def ready_replicas(self) -> int:
        return sum(replica.is_ready for replica in self.replicas)

    def runs(self, member: DeploymentMember, assigned: AssignedAs) -> bool:
        """Whether it is that, where it should be."""
        return self.digest == member_digest(member) and None not in staying(self, member, assigned)

    def succeed(self, before: Generation) -> None:
        """What it took over is its own from now on."""
        before._handed_over = frozenset(self.replicas) & frozenset(before.replicas)
        self.adjust(self.member)
        self._give_devices(self.replicas)

    def renamed(self, assigned: AssignedAs) -> None:
        """A cluster calls the same replicas otherwise now."""
        kept = staying(self, self.member, assigned)
        self.replicas = tuple(replica for replica in kept if replica is not None) if None not in kept else self.replicas
        self.assigned = assigned
        self._give_devices(self.replicas)

    def _give_devices(self, to: Collection[Replica]) -> None:
        for index, replica in enumerate(self.replicas):
            if replica in to:
                replica.place.given = devices_of(self.assigned, index)

    def selected_devices(self, replica: Replica) -> tuple[int, ...]:
        """What this host calls the devices that an engine lies on, or is to lie on."""
        numbers = self._ports.device_numbers
        return tuple(sorted(numbers[device] for device in replica.place.devices if device in numbers))

    def adjust(self, member: DeploymentMember) -> None:
        """Take over a member of the same launch identity, without touching an engine."""
        self.member = member
        for replica in self.replicas:
            replica.member = member
            replica.gate.adjust(max_queued=member.max_queue_depth, queue_timeout_ms=member.queue_timeout_ms)

    async def load(self, by: LoadedBy, progress: Progress = quiet) -> None:
        """All replicas ready, one after another: two engines that start on one device at once mis-measure each other.

        Raises what the first that failed raised.
        """
        for replica in self.replicas:
            await replica.load(by, progress)

    async def load_fresh(self, progress: Progress = quiet) -> None:
        """As `load`, those that it did not take over."""
        for replica in self.fresh:
            await replica.load("reconcile", progress)

    async def stop(self, by: StoppedBy | None, *, drain_s: float) -> None:
        await _all(replica.stop(by, drain_s=drain_s) for replica in self.replicas)

    async def drain(self, deadline_s: float) -> None:
        """Returns when nothing runs or waits at a gate; who comes meanwhile is up to `hold`. Raises EngineError `drain_timeout`."""
        try:
            async with asyncio.timeout(deadline_s):
                while any(replica.gate.active or replica.gate.queued for replica in self.replicas):  # noqa: ASYNC110 - several gates, rarely
                    await asyncio.sleep(_DRAIN_LOOK_S)
        except TimeoutError:
            active = sum(replica.gate.active for replica in self.replicas)
            raise EngineError(
                "drain_timeout",
                f"{plural(active, 'request')} still ran after {deadline_s:g} s, and is not cut off for a change",
                next_step="apply again later, raise handoff_timeout_ms, or stop the model first",
                retryable=True,
            ) from None

    @property
    def has_unended(self) -> bool:
        """Whether an engine of it did not end when it should."""
        return any(replica.unended is not None for replica in self.own)

    async def end_what_is_left(self) -> None:
        """Raises EngineError `engine_shutdown_failed`."""
        await _all(replica.end_what_is_left() for replica in self.own)

    async def prepare(self, progress: Progress = quiet) -> None:
        """Weights and build in place, no engine started. Raises what preparing raises."""
        await self._ports.launch.provisioner.prepare(self.member, progress)
        for replica in self.replicas:
            replica.note_cached()

    async def evict(self) -> None:
        """End engines that have no request. Raises RefusedError `deployment_busy` when one has."""
        await _all(replica.unload("an operator freed its memory", "manual") for replica in self.replicas)
        if self.ready_replicas:
            raise RefusedError("deployment_busy", "it has requests: only an idle engine is evicted", retryable=True)

    def hold(self) -> None:
        """Requests wait instead of starting a replica again: this generation is being replaced."""
        self._admits.clear()

    def release_hold(self) -> None:
        self._admits.set()

    async def reset(self) -> None:
        await _all(replica.reset() for replica in self.replicas)

    async def retire(self, *, drain_s: float, leave: bool = False) -> None:
        """Every tree gone when it returns, or left to the next daemon where `leave`; what a successor took over stays.

        Raises the first EngineError `engine_shutdown_failed`, after all were tried.
        """
        self.release_hold()
        await _all(replica.retire(drain_s=drain_s, leave=leave) for replica in self.own)

    async def give_up(self) -> None:
        """It does not come to be: what it made itself ends, what it would have taken over stays where it was. Raises as `retire`."""
        self.release_hold()
        self._handed_over = frozenset(self.replicas) - frozenset(self.fresh)
        await _all(replica.retire(drain_s=0) for replica in self.fresh)

    async def admit(self, priority: Priority, *, avoid: Collection[Replica] = ()) -> Lease:
        """A ready replica and a permit on it, within the queue timeout, a cold start included when `cold_start` is wait.

        `avoid`: replicas that failed this request; they are taken only where no other is ready.

        Raises AdmissionError with the gate's reasons, EngineError `stopped`, `crash_loop`, `no_ready_replica`, or why the start failed.
        """
        lease = self.admit_now(avoid)
        if lease is not None:
            return lease
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.member.queue_timeout_ms / 1000
        while True:
            await self._not_held(deadline_s - loop.time())
            replica = self._pick(avoid)
            if replica.place.is_giving_way:
                await self._wait_cold(replica.place.until_turn(), deadline_s - loop.time())
                continue
            if not replica.is_ready:
                try:
                    await self._activate(replica, deadline_s - loop.time())
                except EngineError as error:
                    if error.code == "draining" and not self._admits.is_set():
                        continue  # its start was given up for a successor, which is waited for
                    raise
            try:
                permit = await replica.gate.acquire(priority, timeout_s=max(0.0, deadline_s - loop.time()))
            except AdmissionError as error:
                # An idle unload or a restart may close the gate between the look and the acquire: look again.
                if error.code in ("draining", "engine_unhealthy") and not replica.is_ready and not replica.is_retired:
                    continue
                raise
            if replica.is_ready:
                return Lease(replica, permit)
            permit.release()

    def admit_now(self, avoid: Collection[Replica] = ()) -> Lease | None:
        """As `admit`, where nothing has to be waited for."""
        if not self._admits.is_set():
            return None
        replica = self._pick(avoid)
        if not replica.is_ready or replica.place.is_giving_way:
            return None
        permit = replica.gate.acquire_now()
        return None if permit is None else Lease(replica, permit)

    async def _not_held(self, remaining_s: float) -> None:
        if self._admits.is_set():
            return
        try:
            async with asyncio.timeout(max(0.0, remaining_s)):
                await self._admits.wait()
        except TimeoutError:
            raise AdmissionError("queue_timeout", "the model is being replaced", retry_after_s=1.0) from None

    def _pick(self, avoid: Collection[Replica]) -> Replica:
        """Ready before cold, one that did not fail before one that did, then the fewest requests, then the lowest index."""
        if len(self.replicas) == 1:
            return self.replicas[0]
        return min(
            self.replicas,
            key=lambda replica: (
                not replica.is_ready,
                replica.place.is_giving_way,
                replica in avoid,
                replica.gate.active + replica.gate.queued,
                replica.label.replica,
            ),
        )

    async def _activate(self, replica: Replica, remaining_s: float) -> None:
        if replica.stopped_by == "operator":
            raise EngineError("stopped", "an operator stopped this model", retryable=True)
        if self.member.cold_start == "fallback":
            self._wake(replica)
        if self.member.cold_start != "wait":
            raise EngineError("no_ready_replica", "the model is not loaded", retryable=True)
        await self._wait_cold(replica.load("request"), remaining_s)

    def _wake(self, replica: Replica) -> None:
        """Load it for the requests to come; this one is answered elsewhere. One such load a replica at a time."""
        if replica not in self._waking:
            task = self._waking[replica] = asyncio.create_task(_load_quietly(replica))
            task.add_done_callback(lambda _: self._waking.pop(replica, None))

    async def _wait_cold(self, ready: Coroutine[Any, Any, None], remaining_s: float) -> None:
        """No more of them than a ready replica would let run and wait."""
        if self._cold_waiters >= self.member.max_queue_depth + self.member.max_concurrency:
            ready.close()
            raise AdmissionError("queue_full", "too many requests wait for this model", retry_after_s=1.0)
        self._cold_waiters += 1
        try:
            async with asyncio.timeout(max(0.0, remaining_s)):
                await ready
        except TimeoutError:
            raise AdmissionError(
                "queue_timeout", "the model did not become ready in time; it goes on loading", retry_after_s=5.0
            ) from None
        finally:
            self._cold_waiters -= 1

    def state(self) -> DeploymentState:
        phases = {replica.phase for replica in self.replicas}
        stopped = {replica.stopped_by for replica in self.replicas} - {None}
        failed = next((replica.error for replica in self.replicas if replica.error is not None), None)
        return DeploymentState(
            deployment=self.deployment,
            generation=self.number,
            state=next(phase for phase in _STATE_ORDER if phase in phases).value,
            content_digest=self.digest,
            stopped_by="operator" if "operator" in stopped else "idle" if "idle" in stopped else None,
            replicas=tuple(replica.state() for replica in self.replicas),
            last_error=(self.notice or "")[:512] or None if failed is None else failed.message[:512],
            warm=self.member.warm,
            keep_alive_secs=self.member.keep_alive_secs,
        )


async def _load_quietly(replica: Replica) -> None:
    """What goes wrong is told by the replica's state."""
    with contextlib.suppress(SbctlError):
        await replica.load("request")


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all to their end, then raise the first error."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if result is not None:
            raise result
