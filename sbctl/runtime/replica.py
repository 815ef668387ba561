"""One replica: one engine process of one generation, owned by one task.

Only that task changes the replica's state; everybody else sends it requests and reads. Work that takes time (loading, watching, waiting
for the next attempt) goes on beside it and reports back by message, stamped with the launch it belongs to, so a late report of a former
launch changes nothing.

A start takes its room (`residency`) when its weights are there, and gives it back when the tree is gone. Without room nothing failed.

A failure is followed by what `restarts` says.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from sbctl.base.errors import SbctlError
from sbctl.node.records import EventKind
from sbctl.node.snapshot import ReplicaState
from sbctl.runtime.admission import Gate
from sbctl.runtime.engine_client import EngineClient
from sbctl.runtime.engine_host import EngineLabel, RunningEngine
from sbctl.runtime.launch import Launched, end_engine, launch_engine
from sbctl.runtime.log import get_log
from sbctl.runtime.place import Place
from sbctl.runtime.provision import Progress, quiet
from sbctl.runtime.replica_messages import (
    Evicted,
    Load,
    LoadedBy,
    Message,
    ReplicaPorts,
    Report,
    Reset,
    Stop,
    StoppedBy,
    as_engine_error,
    for_a_reset,
    refused,
    settle,
    why_stopped,
)
from sbctl.runtime.replica_states import ReplicaPhase, check_transition, told_state
from sbctl.runtime.replica_watch import watchers
from sbctl.runtime.restarts import Restarts
from sbctl.runtime.room import Room
from sbctl.trust.bundle import DeploymentMember

__all__ = ["Replica"]

_UNHEALTHY_GRACE_S: Final = 1.0


class Replica:
    """See the module. `phase`, `gate`, `error`, `state()` and `launched` may be read by anybody in the event loop."""

    def __init__(self, label: EngineLabel, member: DeploymentMember, ports: ReplicaPorts) -> None:
        self.label = label
        self.member = member
        """Its policy fields (queue, keep_alive) may be replaced while it runs; what the engine was started with may not."""
        self.gate = Gate(
            max_active=member.max_concurrency,
            max_queued=member.max_queue_depth,
            queue_timeout_ms=member.queue_timeout_ms,
        )
        self.phase = ReplicaPhase.CONFIGURED
        self.stopped_by: StoppedBy | None = None
        self.error: SbctlError | None = None
        self.launched: Launched | None = None
        """The engine while there is one that became ready."""
        self._ports = ports
        self._restarts = Restarts(ports.chance)
        self._launch = 0
        self._launch_began_s = 0.0
        self._launched_by: LoadedBy | None = None
        """None: a restart of our own."""
        self.place = Place(self, ports.residency)
        self._begun: RunningEngine | None = None
        """Of a start that is under way."""
        self.unended: Launched | None = None
        """An engine that did not end when it should."""
        self._token_seen = False
        self._waiters: list[asyncio.Future[None]] = []
        self._mailbox: asyncio.Queue[Message] = asyncio.Queue()
        self._launching: asyncio.Task[Launched] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._watchers: tuple[asyncio.Task[None], ...] = ()
        self._log = get_log("replica").bind(
            deployment=label.deployment, replica=label.replica, generation=label.generation
        )
        self._owner = asyncio.create_task(self._own(), name=f"replica-{label.deployment}-{label.replica}")

    # What others may ask or read

    async def load(self, by: LoadedBy, progress: Progress = quiet) -> None:
        """Returns when ready. Joins a start that is under way; leaving early does not stop it.

        Raises what the start raised; EngineError `crash_loop` and `stopped` (to requests only), `draining` when it was retired.
        """
        await self._ask(lambda waiter: Load(waiter, by, progress))

    async def stop(self, by: StoppedBy | None, *, drain_s: float) -> None:
        """Drain at most `drain_s`, stop the engine, return when its tree is gone. Raises EngineError `engine_shutdown_failed`."""
        await self._ask(lambda waiter: Stop(waiter, by, drain_s))

    async def reset(self) -> None:
        """Forget failures, the crash loop and an operator's stop: what failed or stopped is configured again. Starts nothing."""
        await self._ask(Reset)

    async def retire(self, *, drain_s: float, leave: bool = False) -> None:
        """Stop for good; afterwards every request is refused as `draining`. `leave`: its engine runs on, for the next daemon.

        Raises EngineError `engine_shutdown_failed`.
        """
        if not self._owner.done():
            await self._ask(lambda waiter: Stop(waiter, None, drain_s, last=True, leave=leave))
            await self._owner

    async def unload(self, why: str, reason: Evicted = "keep_alive") -> None:
        """Stop it if it is still idle; the next request starts it again."""
        await self._ask(lambda waiter: Stop(waiter, "idle", 0.0, only_if_idle=reason, why=why))

    async def end_what_is_left(self) -> None:
        """Try again to end an engine that did not. Raises EngineError `engine_shutdown_failed`."""
        if self.unended is not None:
            await end_engine(self._ports.launch, self.unended)
            self.unended = None
            self.place.give_back()

    def note_cached(self) -> None:
        """Its weights were verified, and nothing is to be started now."""
        if self.phase is ReplicaPhase.CONFIGURED:
            self._move(ReplicaPhase.CACHED)

    def note_stopped(self) -> None:
        """An operator stopped it before this daemon started."""
        if self.phase in (ReplicaPhase.CONFIGURED, ReplicaPhase.CACHED):
            self._move(ReplicaPhase.STOPPED)
            self.stopped_by = "operator"

    @property
    def is_ready(self) -> bool:
        return self.phase is ReplicaPhase.READY

    @property
    def restarts(self) -> int:
        """Those that nobody asked for, since the last reset."""
        return self._restarts.count

    @property
    def crash_looping(self) -> bool:
        return self._restarts.is_crash_loop

    @property
    def deployment(self) -> str:
        return self.label.deployment

    @property
    def has_waiters(self) -> bool:
        """Whether somebody waits for its start."""
        return any(not waiter.done() for waiter in self._waiters)

    @property
    def engine(self) -> RunningEngine | None:
        """Its process, as soon as there is one and until it is gone."""
        held = self.launched or self.unended
        return self._begun if held is None else held.engine

    def adopted_devices(self) -> tuple[str, ...] | None:
        """Of the engine of a former daemon that its next start takes over; None when there is none."""
        return self._ports.launch.host.adopted_devices(self.label.slot)

    @property
    def is_retired(self) -> bool:
        return self._owner.done()

    @property
    def client(self) -> EngineClient:
        """Of a ready replica. Raises EngineError `no_ready_replica`."""
        if self.launched is None:
            raise refused("no_ready_replica", "the model is not loaded")
        return self.launched.client

    @property
    def port(self) -> int | None:
        """The engine's loopback port, when it has one."""
        return None if self.launched is None else self.launched.engine.address.port

    def progressed(self) -> None:
        """Bytes of an answer arrived from the engine."""
        if self.launched is not None:
            self.launched.watch.progressed()

    def state(self) -> ReplicaState:
        pid = None if self.launched is None else self.launched.engine.pid
        return told_state(
            self.label.replica, self.phase, pid, self.restarts, self.gate, self.error, looping=self.crash_looping
        )

    async def _ask(self, make: Callable[[asyncio.Future[None]], Message]) -> None:
        if self._owner.done():
            raise refused("draining", "this generation was replaced")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._mailbox.put_nowait(make(waiter))
        await waiter

    # The owner: the only code that changes state once requests flow

    async def _own(self) -> None:
        last = False
        while not last:
            message = await self._mailbox.get()
            match message:
                case Load():
                    self._on_load(message)
                case Stop():
                    last = message.last
                    await self._on_stop(message)
                case Reset():
                    self._on_reset(message)
                case Report() if message.launch == self._launch:
                    await self._on_report(message)
        self.gate.close("draining")
        while not self._mailbox.empty():
            left = self._mailbox.get_nowait()
            if not isinstance(left, Report):
                settle(left.waiter, refused("draining", "this generation was replaced"))

    def _move(self, after: ReplicaPhase) -> None:
        if after is not self.phase:
            check_transition(self.phase, after)
            self._log.info("replica", before=self.phase.value, after=after.value)
            self._tell(EventKind.REPLICA_CHANGED, f"{self.phase.value} → {after.value}")
            self.phase = after

    def _tell(self, kind: EventKind, message: str) -> None:
        self._ports.events.tell(kind, message, **self.label.told())

    def _on_load(self, ask: Load) -> None:
        if self.is_ready:
            settle(ask.waiter)
            return
        if ask.by != "request":
            self._restarts.forgive()
        elif (refusal := for_a_reset(self.stopped_by, crash_looping=self.crash_looping)) is not None:
            settle(ask.waiter, refusal)
            return
        self._waiters.append(ask.waiter)
        if self._launching is None and (self._retry is None or ask.by != "request"):
            self._start_launch(ask.by, ask.progress)

    def _start_launch(self, by: LoadedBy | None, progress: Progress = quiet) -> None:
        self._cancel_retry()
        self._launch += 1
        self._launched_by = by
        self._launch_began_s = asyncio.get_running_loop().time()
        self.stopped_by = None
        self._move(ReplicaPhase.ASSIGNED)
        number = self._launch
        task = asyncio.create_task(self._launch_in_place(number, progress))
        task.add_done_callback(lambda done: self._mailbox.put_nowait(Report(number, finished=done)))
        self._launching = task

    async def _launch_in_place(self, number: int, progress: Progress) -> Launched:
        try:
            await self.end_what_is_left()
            return await launch_engine(
                self._ports.launch,
                self.label,
                self.member,
                token=not self._token_seen,
                entered=lambda phase: self._mailbox.put_nowait(Report(number, entered=phase)),
                take_room=self._take_room,
                begun=self._note_begun,
                progress=progress,
            )
        except BaseException:
            self._begun = None
            if self.unended is None:
                self.place.give_back()
            raise

    def _note_begun(self, engine: RunningEngine) -> None:
        self._begun = engine

    async def _take_room(self, room: Room) -> Room:
        return await self.place.take(room, waits=self._launched_by != "reconcile")

    async def _on_stop(self, ask: Stop) -> None:
        if ask.only_if_idle and (not self.is_ready or self.gate.active or self.gate.queued):
            settle(ask.waiter)
            return
        reason = "stopped" if ask.by == "operator" else "draining"
        try:
            self._cancel_retry()
            await self._abandon_launch()
            if self.is_ready:
                self._move(ReplicaPhase.DRAINING)
                await self.gate.drain(ask.drain_s, reason=reason)
            had_engine = self.launched is not None
            await self._end_engine(None, leave=ask.leave)
            if had_engine:
                self._tell(EventKind.ENGINE_STOPPED, why_stopped(ask))
                if ask.only_if_idle is not None:
                    self._ports.evicted(ask.only_if_idle)
            if ask.by == "operator" or self.phase is not ReplicaPhase.CONFIGURED:
                self._move(ReplicaPhase.STOPPED)
            self.stopped_by, self.error = ask.by, None
            settle(ask.waiter)
        except SbctlError as error:
            self._fail(error)
            settle(ask.waiter, error)
        finally:
            self._settle_waiters(refused(reason, "the model was stopped"))

    def _on_reset(self, ask: Reset) -> None:
        self._restarts.reset()
        if self.phase in (ReplicaPhase.FAILED, ReplicaPhase.STOPPED):
            self._cancel_retry()
            self._move(ReplicaPhase.CONFIGURED)
            self.stopped_by, self.error = None, None
        settle(ask.waiter)

    async def _on_report(self, report: Report) -> None:
        if report.entered is not None:
            self._move(report.entered)
        elif report.retry_due:
            self._retry = None
            self._start_launch(None)
        elif report.finished is not None:
            self._launching = None
            error = None if report.finished.cancelled() else report.finished.exception()
            if error is None:
                self._become_ready(report.finished.result())
            elif isinstance(error, SbctlError) and error.code == "insufficient_capacity":
                self._on_no_room(error)
            else:
                await self._on_broken(as_engine_error(error))
        elif report.broken is not None:
            await self._on_broken(report.broken)

    def _become_ready(self, launched: Launched) -> None:
        now_s = asyncio.get_running_loop().time()
        self._ports.launched(self.member.engine.engine, self.member.model, "ready", now_s - self._launch_began_s)
        self.launched = launched
        self._token_seen = True
        self._move(ReplicaPhase.READY)
        self.error = None
        self._restarts.note_ready(now_s)
        self.place.note_ready()
        self.gate.open()
        number = self._launch

        def tell(error: SbctlError) -> None:
            self._mailbox.put_nowait(Report(number, broken=error))

        self._watchers = watchers(self, launched.engine, self._ports.launch.times.interval_s, tell)
        self._settle_waiters(None)

    async def _on_broken(self, error: SbctlError) -> None:
        now_s = asyncio.get_running_loop().time()
        self._launch += 1  # what else reports this same end comes too late
        was_ready = self.is_ready
        if not was_ready:
            self._ports.launched(self.member.engine.engine, self.member.model, "failed", now_s - self._launch_began_s)
        self.gate.close("engine_unhealthy")
        self._tell(EventKind.ENGINE_CRASHED, f"{error.code}: {error.message}")
        self._fail(error)
        with contextlib.suppress(SbctlError):
            await self._end_engine(_UNHEALTHY_GRACE_S)
        self._settle_waiters(error)
        wait_s = self._restarts.after_failure(error, now_s, was_ready=was_ready)
        if wait_s is not None:
            self._try_again_in(wait_s)

    def _on_no_room(self, error: SbctlError) -> None:
        """Nothing is wrong with the engine. What is warm tries again when room may be there; the rest is asked for again by who wants it."""
        self._launch += 1
        if self.member.warm:
            self._fail(error)
            self._try_again_in(self._restarts.without_room_s())
        else:
            self._log.info("no room", reason=error.message)
            self._move(ReplicaPhase.STOPPED)
            self.stopped_by = "idle"
        self._settle_waiters(error)

    def _fail(self, error: SbctlError) -> None:
        self._log.warning(
            "replica failed", code=error.code, error=error.message, place=error.place, detail=dict(error.detail)
        )
        self.error = error
        self._move(ReplicaPhase.FAILED)

    async def _abandon_launch(self) -> None:
        """End a start that is under way, and the process it may have made, even one that became ready this moment."""
        task, self._launching = self._launching, None
        self._launch += 1
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and task.exception() is None:
                self.launched = task.result()

    async def _end_engine(self, grace_s: float | None, *, leave: bool = False) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        self._watchers = ()
        launched, self.launched, self._begun = self.launched, None, None
        self.place.stay()
        if launched is not None:
            try:
                if leave:
                    await self._ports.launch.host.leave(launched.engine)
                else:
                    await end_engine(self._ports.launch, launched, grace_s=grace_s)
            except SbctlError:
                self.unended = launched
                raise
            finally:
                await launched.client.close()
        else:
            await self.end_what_is_left()
        self.place.give_back()

    def _try_again_in(self, wait_s: float) -> None:
        due = Report(self._launch, retry_due=True)
        self._retry = asyncio.get_running_loop().call_later(wait_s, self._mailbox.put_nowait, due)

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _settle_waiters(self, error: SbctlError | None) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            settle(waiter, error)
