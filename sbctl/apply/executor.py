"""Carrying a plan out: what is set up before the walk over hosts, and the books that are closed after it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Literal

from sbctl.apply.board import Board
from sbctl.apply.cancellation import Cancellation
from sbctl.apply.crash_points import CrashPoints
from sbctl.apply.emitter import Emitter
from sbctl.apply.events import EventSink, RunFinished, RunStarted
from sbctl.apply.host_chain import HostChain
from sbctl.apply.journal import GuardedJournal, JournalFailedError, RunJournal
from sbctl.apply.outcome import ApplyOptions, ApplyResult, ChangeResult, HostResult, RunStatus
from sbctl.apply.rollout import Rollout
from sbctl.apply.schedule import goes_out, hosts_needed, refuse_blocked, units_by_host
from sbctl.apply.steps import RunContext
from sbctl.apply.verify import Verifier
from sbctl.apply.walk import Walk
from sbctl.base.errors import ExitCode, InterruptedBySignal
from sbctl.base.truths import Recorded
from sbctl.plan.model import Change, Plan
from sbctl.provider import NodeSession, Provider, Services

__all__ = ["execute"]


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
    units = units_by_host(plan)
    chains = {host: HostChain(host, listed, context) for host, listed in units.items()}
    outs = [host for host, listed in units.items() if goes_out(listed)]
    rollout = Rollout(options.update, outs, fleet_size=len(plan.hosts))
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
        _note_given_up(given_up, journal)
        Walk(chains, hosts_needed(units), rollout, context).run()
    except JournalFailedError as failure:
        board.journal_error = failure.error
        for chain in chains.values():
            chain.give_up("the state could not be written")
    finally:
        board.drop_all_sessions()
    return _conclude(plan, chains, context)


def _note_given_up(given_up: Iterable[Recorded], journal: GuardedJournal) -> None:
    for recorded in given_up:
        if not recorded.pending_delete:
            journal.record(replace(recorded, pending_delete=True))


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
