"""The changes of one host, in plan order, by one thread at a time.

    leased, facts as planned? ─► unit ─► unit ─► … ─► finished
                          └─ first failure: the rest is skipped; other hosts go on

A unit is true when its steps are done and the host, read back, shows it; only then the state records it, members first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sbctl.apply.draining import HostDrain
from sbctl.apply.events import ChangeDone, ChangeFailed, ChangeSkipped, HostFinished, HostStarted
from sbctl.apply.journal import HardStopped, JournalFailedError, StepResult
from sbctl.apply.outcome import ChangeResult, HostResult, host_status, status_counts
from sbctl.apply.schedule import Unit, goes_out
from sbctl.apply.steps import RunContext, StepFailedError, StepRunner, internal_error
from sbctl.apply.verify import attempt_of, degraded_replicas, recorded_of
from sbctl.base.errors import HostError, InterruptedBySignal, SbctlError
from sbctl.base.ids import Address
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Change, Recorded, Step

__all__ = ["HostChain"]

_FORGETS: Final = ("delete", "forget")


class _Interrupted(Exception):  # noqa: N818 - it is an event, not a fault
    """A soft stop between two steps of one change."""


class HostChain:
    """One host's walk. `advance` goes as far as it can; it is called again when a unit waited for another host."""

    def __init__(self, host: str, units: tuple[Unit, ...], run: RunContext) -> None:
        self.host = host
        self._units = units
        self._run = run
        self._steps = StepRunner(host, run)
        self._next = 0
        self._started = False
        self._facts_checked = False
        self._drain = HostDrain(host, run)

    def advance(self) -> bool:
        """True when every row of the host is settled; False when the next unit waits for a unit of another host."""
        while self._next < len(self._units):
            unit = self._units[self._next]
            reason = self._run.board.stop_reason
            if reason is not None:
                self._settle_rest("not_started", reason)
                break
            self._tell_started()
            failed = self._failed_elsewhere(unit)
            if failed is not None:
                self._settle_rest("skipped", f"{failed} is not done")
                break
            if any(self._run.board.result_of(address) is None for address in unit.after | unit.behind):
                self._drain.end()
                return False
            self._next += 1
            if not self._carry_out(unit):
                break
        self.finish()
        return True

    def _tell_started(self) -> None:
        if self._started:
            return
        self._started = True
        changes = sum(len(unit.rows) for unit in self._units)
        steps = sum(len(unit.change.steps) for unit in self._units)
        self._run.emitter.emit(HostStarted(self.host, changes, steps))

    @property
    def is_through(self) -> bool:
        """Whether users of the host notice nothing of what is left to do here."""
        return not goes_out(self._units[self._next :])

    def give_up(self, reason: str) -> None:
        """Settle what is left without running it."""
        self._settle_rest("not_started", reason)
        self.finish()

    def result(self) -> HostResult:
        """This host's line of the summary; rows that nobody settled count as not started."""
        board = self._run.board
        rows = [
            result for unit in self._units for row in unit.rows if (result := board.result_of(row.address)) is not None
        ]
        error = board.host_errors.get(self.host)
        return HostResult(
            self.host, host_status(rows, error), status_counts(rows), error, board.degraded.get(self.host, ())
        )

    def finish(self) -> None:
        """Tell that the host is done, in service again, and close its session."""
        self._drain.end()
        self._run.board.drop_session(self.host)
        result = self.result()
        self._run.emitter.emit(HostFinished(self.host, result.status, dict(result.counts), result.degraded))

    # One unit

    def _carry_out(self, unit: Unit) -> bool:
        """Whether the chain may go on."""
        started_s = self._run.clock.monotonic_s()
        done: dict[str, Mapping[str, Any]] = {}
        try:
            if not unit.only_forgets:
                if not self._ready(unit):
                    return False
                self._drain.before_unit(unit)
                self._run_steps(unit, done)
            else:
                self._forget(unit)
        except _Interrupted:
            self._settle_stopped(unit, "interrupted", len(done))
        except HardStopped:
            self._settle_stopped(unit, "unknown", len(done))
        except JournalFailedError as failure:
            self._run.board.journal_error = failure.error
            self._settle_failed(unit, "failed", failure.error, None, len(done))
        except StepFailedError as failure:
            status = "unknown" if failure.result == "unknown" else "failed"
            self._settle_failed(unit, status, failure.error, failure.step, len(done))
        except SbctlError as error:
            self._settle_failed(unit, "failed", error, None, len(done))
        except Exception as error:  # noqa: BLE001 - a defect in one change must not hide the results of the others
            self._settle_failed(unit, "failed", internal_error(error, str(unit.change.address)), None, len(done))
        else:
            duration_s = self._run.clock.monotonic_s() - started_s
            for row in unit.rows:
                self._settle(row, "done", duration_s=duration_s, steps_done=len(row.steps))
                self._run.emitter.emit(ChangeDone(self.host, row.address, row.action, duration_s))
            return True
        return False

    def _ready(self, unit: Unit) -> bool:
        """Before the host's first unit: it answers, nobody else changes it, and its decisive facts are those of the plan. Else its rows are
        not started."""
        if self._facts_checked:
            return True
        try:
            self._steps.take_lease()
            snapshot = self._steps.observe("comparing the host with the plan")
            self._run.verifier.check_facts(self.host, snapshot, self._run.clock.now())
            self._drain.observed(snapshot)
        except HardStopped:
            self._settle_rest("not_started", "interrupted", first=unit)
            return False
        except SbctlError as error:
            self._run.board.host_errors[self.host] = error
            self._settle_rest("not_started", error.message, cause=error, first=unit)
            return False
        self._facts_checked = True
        return True

    def _run_steps(self, unit: Unit, done: dict[str, Mapping[str, Any]]) -> None:
        run, steps = self._run, unit.change.steps
        attempt = attempt_of(unit.change, run.providers[unit.change.address.kind])
        if attempt is not None:
            run.journal.record(attempt)
        for number, step in enumerate(steps[:-1]):
            self._drain.before_step(unit, number)
            started_s = run.clock.monotonic_s()
            done[step.key] = self._steps.perform(unit, number)
            run.journal.outcome(step.key, "done", None)
            self._steps.tell_finished(unit, step, "done", started_s)
            if run.cancel.stopping:
                raise _Interrupted
        if steps:
            self._drain.before_step(unit, len(steps) - 1)
        started_s = run.clock.monotonic_s()
        results = dict(done)
        if steps:
            results[steps[-1].key] = self._steps.perform(unit, len(steps) - 1)
        try:
            recorded = self._recorded(unit, results)
            self._read_back(unit, recorded)
        except HardStopped:
            raise
        except Exception as error:
            self._steps.stop_if_hard()
            problem = error if isinstance(error, SbctlError) else internal_error(error, str(unit.change.address))
            if not steps:
                raise problem from error
            result: StepResult = "not_done" if problem.code == "apply.not_converged" else "unknown"
            raise self._steps.failed(unit, steps[-1], result, problem, started_s) from error
        run.journal.read_back()
        if steps:
            run.journal.outcome(steps[-1].key, "done", None)
            self._steps.tell_finished(unit, steps[-1], "done", started_s)
            done.update(results)
        self._remember(unit, recorded)

    def _recorded(self, unit: Unit, results: Mapping[str, Mapping[str, Any]]) -> dict[Address, Recorded]:
        kept = (row for row in unit.rows if row.action not in _FORGETS)
        return {row.address: recorded_of(row, self._run.providers[row.address.kind], results) for row in kept}

    def _read_back(self, unit: Unit, recorded: Mapping[Address, Recorded]) -> None:
        """Raises SbctlError unless the host shows the unit, at once or within the settling delays."""
        run = self._run
        for delay_s in (*run.options.settle_delays_s, None):
            snapshot = self._steps.observe(f"reading back {unit.change.address}")
            self._note_degraded(snapshot)
            try:
                run.verifier.check_converged(unit, snapshot, recorded, run.clock.now())
            except HostError:
                if delay_s is None or run.cancel.hard:
                    raise
                run.clock.sleep_s(delay_s)
            else:
                return

    def _note_degraded(self, snapshot: NodeSnapshot) -> None:
        self._run.board.degraded[self.host] = degraded_replicas(snapshot)

    def _remember(self, unit: Unit, recorded: Mapping[Address, Recorded]) -> None:
        """Members first: a crash in between leaves the bundle's record behind, and the next apply takes up the rest."""
        for row in (*unit.members, unit.change):
            if row.action in _FORGETS:
                self._run.journal.forget(row.address)
            else:
                self._run.journal.record(recorded[row.address])

    def _forget(self, unit: Unit) -> None:
        for row in (*unit.members, unit.change):
            self._run.journal.forget(row.address)

    # Results

    def _failed_elsewhere(self, unit: Unit) -> Address | None:
        for address in sorted(unit.after):
            result = self._run.board.result_of(address)
            if result is not None and result.status != "done":
                return address
        return None

    def _settle(self, row: Change, status: Any, **details: Any) -> bool:
        details.setdefault("steps_total", len(row.steps))
        result = ChangeResult(
            row.address,
            row.action,
            self.host,
            status,
            member_of=row.member_of,
            carries_only=row.carries_only,
            **details,
        )
        return self._run.board.settle(result)

    def _settle_failed(self, unit: Unit, status: Any, error: SbctlError, step: Step | None, steps_done: int) -> None:
        title = step.title if step is not None else None
        for row in unit.rows:
            own = row is unit.change
            told = self._settle(row, status, cause=error, step=title, steps_done=steps_done if own else 0)
            if told:
                self._run.emitter.emit(ChangeFailed(self.host, row.address, row.action, status, title, error))
        self._settle_rest("skipped", f"{unit.change.address} is not done")

    def _settle_stopped(self, unit: Unit, status: Any, steps_done: int) -> None:
        cancel = self._run.cancel
        name = cancel.signal_name or "a signal"
        sentence = {
            "interrupted": f"stopped by {name} after {steps_done} of {len(unit.change.steps)} steps",
            "unknown": f"given up by a second signal ({name}); the step may or may not have happened",
        }[status]
        error = InterruptedBySignal(
            "apply.interrupted", sentence, place=self.host, next_step="run apply again to continue"
        )
        for row in unit.rows:
            if self._settle(row, status, cause=error, steps_done=steps_done if row is unit.change else 0):
                self._run.emitter.emit(ChangeFailed(self.host, row.address, row.action, status, None, error))
        self._settle_rest("not_started", "interrupted")

    def _settle_rest(
        self, status: Any, because: str, *, cause: SbctlError | None = None, first: Unit | None = None
    ) -> None:
        """Settle every unit that was not begun, `first` among them."""
        left = self._units[self._next :] if first is None else (first, *self._units[self._next :])
        self._next = len(self._units)
        for unit in left:
            for row in unit.rows:
                if self._settle(row, status, because=because, cause=cause):
                    self._run.emitter.emit(ChangeSkipped(self.host, row.address, row.action, status, because))
