"""Carrying a plan out: the walk over hosts.

The calling thread starts host threads, at most `parallelism` at a time, and waits for their messages; so signals reach it at once and
heartbeats need no thread of their own. Host threads are daemons: a call that hangs after a hard stop cannot hold the process.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, Literal

from sbctl.apply.board import Board
from sbctl.apply.cancellation import Cancellation
from sbctl.apply.crash_points import CrashPoints
from sbctl.apply.emitter import Emitter
from sbctl.apply.events import CancelRequested, EventSink, RunFinished, RunStarted
from sbctl.apply.host_chain import HostChain
from sbctl.apply.journal import GuardedJournal, JournalFailedError, RunJournal
from sbctl.apply.outcome import ApplyOptions, ApplyResult, ChangeResult, HostResult, RunStatus
from sbctl.apply.schedule import refuse_blocked, units_by_host
from sbctl.apply.steps import RunContext
from sbctl.apply.verify import Verifier
from sbctl.base.errors import ExitCode, InterruptedBySignal
from sbctl.base.truths import Recorded
from sbctl.plan.model import Change, Plan
from sbctl.provider import NodeSession, Provider, Services

__all__ = ["execute"]

_TICK_S: Final = 0.25
"""How often the walk looks for a heartbeat; messages wake it at once."""


def execute(
    plan: Plan,
    *,
    sessions: Callable[[str], NodeSession],
    run: RunJournal,
    providers: Mapping[str, Provider],
    services: Services,
    options: ApplyOptions,
    sink: EventSink,
    cancel: Cancellation,
    given_up: Iterable[Recorded] = (),
    crash_points: CrashPoints | None = None,
) -> ApplyResult:
    """Carry out every actionable change of `plan` and finish `run`.

    `sessions` opens a session to a host; asked again for a host, it must open a new one, since the old one was closed as dead. All are
    closed at the end. `given_up` is what nothing wants any more on hosts that gave no answer: noted as `delete pending`. Raises RefusedError before anything starts when the plan holds a blocked change; everything that happens later is
    in the result, never an exception.
    """
    refuse_blocked(plan)
    clock = services.clock
    journal = GuardedJournal(run, crash_points or CrashPoints.from_environ(os.environ))
    board = Board(sessions, cancel, fail_fast=options.fail_fast, lease=options.lease, lease_wait_s=options.lease_wait_s)
    emitter = Emitter(sink, clock)
    verifier = Verifier(plan, providers)
    context = RunContext(providers, services, options, journal, verifier, board, emitter, cancel, clock)
    chains = {host: HostChain(host, units, context) for host, units in units_by_host(plan).items()}
    emitter.emit(
        RunStarted(
            serial=journal.serial,
            mode=plan.mode,
            hosts=tuple(sorted(plan.hosts.keys() | chains.keys())),
            changes=len(plan.counted),
            steps=sum(len(change.steps) for change in plan.actionable),
        )
    )
    try:
        for recorded in given_up:
            if not recorded.pending_delete:
                journal.record(replace(recorded, pending_delete=True))
        _Walk(chains, context).run()
    except JournalFailedError as failure:
        board.journal_error = failure.error
        for chain in chains.values():
            chain.give_up("the state could not be written")
    finally:
        board.drop_all_sessions()
    return _conclude(plan, chains, context)


class _Walk:
    """Starts host threads and receives their messages until every chain is finished, or a hard stop gives them up."""

    def __init__(self, chains: Mapping[str, HostChain], context: RunContext) -> None:
        self._context = context
        self._waiting = deque(chains.values())
        self._parked: list[HostChain] = []
        self._running: set[str] = set()
        self._inbox: queue.SimpleQueue[tuple[HostChain, bool, BaseException | None] | None] = queue.SimpleQueue()
        self._requests_told = 0
        self._give_up_s: float | None = None

    def run(self) -> None:
        stop_listening = self._context.cancel.listen(lambda: self._inbox.put(None))
        try:
            while self._waiting or self._running or self._parked:
                self._start()
                if not self._running:
                    self._release_parked()
                    continue
                self._receive()
                self._tell_requests()
                if self._given_up():
                    self._context.journal.shut()
                    return
        finally:
            stop_listening()

    def _start(self) -> None:
        while self._waiting and len(self._running) < max(1, self._context.options.parallelism):
            chain = self._waiting.popleft()
            self._running.add(chain.host)
            threading.Thread(target=self._work, args=(chain,), name=f"sbctl-apply-{chain.host}", daemon=True).start()

    def _work(self, chain: HostChain) -> None:
        try:
            finished = chain.advance()
        except BaseException as error:  # noqa: BLE001 - handed to the calling thread, which raises it
            self._inbox.put((chain, True, error))
        else:
            self._inbox.put((chain, finished, None))

    def _receive(self) -> None:
        try:
            message = self._inbox.get(timeout=_TICK_S)
        except queue.Empty:
            self._context.emitter.beat(self._context.options.heartbeat_s)
            return
        if message is None:
            return
        chain, finished, error = message
        if error is not None:
            raise error
        self._running.discard(chain.host)
        if not finished:
            self._parked.append(chain)
        else:
            # what a parked host waited for may be settled now
            self._waiting.extend(self._parked)
            self._parked.clear()

    def _release_parked(self) -> None:
        """Nobody runs who could end their waiting: the plan's edges go in a circle."""
        for chain in self._parked:
            chain.give_up("it waits for a change on another host that waits for this one")
        self._parked.clear()

    def _tell_requests(self) -> None:
        cancel = self._context.cancel
        while self._requests_told < min(cancel.requests, 2):
            self._requests_told += 1
            hard = self._requests_told > 1
            self._context.emitter.emit(CancelRequested(cancel.signal_name or "", hard))
            if hard:
                self._give_up_s = self._context.clock.monotonic_s() + self._context.options.hard_stop_wait_s
                self._context.board.drop_all_sessions()

    def _given_up(self) -> bool:
        return self._give_up_s is not None and self._context.clock.monotonic_s() >= self._give_up_s


def _conclude(plan: Plan, chains: Mapping[str, HostChain], context: RunContext) -> ApplyResult:
    """Close the books: rows that nobody settled, the status of the run, its end in the state, the last event."""
    board, cancel = context.board, context.cancel
    settled = board.close()
    changes = tuple(settled.get(change.address) or _given_up_row(change, cancel) for change in plan.actionable)
    unfinished = any(change.status != "done" for change in changes)
    interrupted = cancel.stopping and unfinished
    status = _run_status(changes, interrupted=interrupted)
    try:
        context.journal.finish(status)
    except JournalFailedError as failure:
        board.journal_error = board.journal_error or failure.error
        status = "partial" if status == "applied" else status
    by_host = {host: chain.result() for host, chain in chains.items()}
    hosts = tuple(by_host.get(host) or _idle_host(host, plan) for host in sorted(plan.hosts.keys() | by_host.keys()))
    result = ApplyResult(
        serial=context.journal.serial,
        mode=plan.mode,
        status=status,
        changes=changes,
        hosts=hosts,
        duration_s=context.emitter.elapsed_s,
        unreachable=dict(plan.unreachable),
        allow_unreachable=context.options.allow_unreachable,
        signal_name=cancel.signal_name if interrupted else None,
        interrupt_code=cancel.exit_code if interrupted else ExitCode.DONE,
        journal_error=board.journal_error,
    )
    context.emitter.emit(
        RunFinished(
            serial=result.serial,
            status=result.status,
            exit_code=int(result.exit_code),
            counts=dict(result.counts),
            hosts={host.host: host.status for host in result.hosts},
            duration_s=result.duration_s,
        )
    )
    context.emitter.close()
    return result


def _given_up_row(change: Change, cancel: Cancellation) -> ChangeResult:
    """A row whose thread did not come back in time after a hard stop."""
    error = InterruptedBySignal(
        "apply.interrupted",
        f"given up by a second signal ({cancel.signal_name}) while its host was busy",
        place=change.host,
        next_step="run apply again: it reads the host first",
    )
    return ChangeResult(
        change.address,
        change.action,
        change.host,
        "unknown",
        error,
        steps_total=len(change.steps),
        member_of=change.member_of,
        carries_only=change.carries_only,
    )


def _idle_host(host: str, plan: Plan) -> HostResult:
    status: Literal["unreachable", "unchanged"] = "unreachable" if host in plan.unreachable else "unchanged"
    return HostResult(host, status, {})


def _run_status(changes: tuple[ChangeResult, ...], *, interrupted: bool) -> RunStatus:
    if interrupted:
        return "interrupted"
    done = sum(change.status == "done" for change in changes)
    if done == len(changes):
        return "applied"
    return "partial" if done else "failed"
