"""One step on one host: intent, act, and, when the answer is lost, one look at the host to learn what became of it.

act ─answered──► done | not_done
 └─answer lost─► read the host again ─it is done─► done; a `safe` step is asked once more for its answer
                                    ├─it is not──► a `safe` step is tried once more, any other is not_done
                                    └─no answer──► unknown: the next plan reads the host
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sbctl.apply.board import Board
from sbctl.apply.cancellation import Cancellation
from sbctl.apply.emitter import Emitter
from sbctl.apply.events import StepFinished, StepStarted
from sbctl.apply.journal import GuardedJournal, HardStopped, StepResult
from sbctl.apply.outcome import ApplyOptions
from sbctl.apply.schedule import Unit
from sbctl.apply.verify import Verifier
from sbctl.base.clock import Clock
from sbctl.base.defects import where_it_failed
from sbctl.base.errors import DurabilityUnknownError, InterruptedBySignal, SbctlError, UnreachableError
from sbctl.base.limits import SETTLE_DEADLINE_S
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Step
from sbctl.provider import PerformContext, Provider, Services

__all__ = ["RunContext", "StepFailedError", "StepRunner", "internal_error"]

_OUTCOME_UNKNOWN: Final = "host.outcome_unknown"
_SETTLE_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class RunContext:
    """What every host of one run works with."""

    providers: Mapping[str, Provider]
    services: Services
    options: ApplyOptions
    journal: GuardedJournal
    verifier: Verifier
    board: Board
    emitter: Emitter
    cancel: Cancellation
    clock: Clock


class StepFailedError(Exception):
    """A step did not work, or nobody knows; its outcome is in the journal."""

    def __init__(self, step: Step, result: StepResult, error: SbctlError) -> None:
        super().__init__(str(error))
        self.step = step
        self.result = result
        self.error = error


def internal_error(error: Exception, place: str) -> SbctlError:
    """A defect of ours, without values that might be secret; the cause stays attached."""
    wrapped = SbctlError(
        "internal.error",
        f"a defect in sbctl: {where_it_failed(error)}",
        place=place,
        next_step="report it with this message; the next apply reads the host before it acts",
    )
    wrapped.__cause__ = error
    return wrapped


def _is_lost(error: SbctlError) -> bool:
    return isinstance(error, (UnreachableError, DurabilityUnknownError)) or error.code == _OUTCOME_UNKNOWN


class StepRunner:
    """Carries out the steps of one host, one after the other."""

    def __init__(self, host: str, run: RunContext) -> None:
        self._host = host
        self._run = run

    def observe(self, what: str) -> NodeSnapshot:
        """A fresh snapshot; a dead session is opened once more, a runtime at work on a bundle whose answer was lost is waited for.

        Raises SbctlError.
        """
        run = self._run
        end_s = run.clock.monotonic_s() + SETTLE_DEADLINE_S
        with run.emitter.busy(self._host, what):
            while True:
                snapshot = self._snapshot()
                if not snapshot.runtime.changing or run.cancel.hard or run.clock.monotonic_s() >= end_s:
                    return snapshot
                run.clock.sleep_s(_SETTLE_PAUSE_S)

    def take_lease(self) -> None:
        """Hold the host; a lease that was lost on the way is taken anew. Raises LockedError `host.leased`, HardStopped, SbctlError."""
        run = self._run
        try:
            with run.emitter.busy(self._host, "taking the host's lease"):
                run.board.take_lease(self._host)
        except SbctlError:
            self.stop_if_hard()
            raise

    def _snapshot(self) -> NodeSnapshot:
        run = self._run
        try:
            return run.board.session(self._host).snapshot(run.options.snapshot_deadline_s)
        except SbctlError as error:
            self.stop_if_hard()
            if not _is_lost(error):
                raise
        run.board.drop_session(self._host)
        return run.board.session(self._host).snapshot(run.options.snapshot_deadline_s)

    def stop_if_hard(self) -> None:
        """Raises HardStopped after a second signal: what fails from then on says nothing about the host."""
        if self._run.cancel.hard:
            raise HardStopped

    def perform(self, unit: Unit, number: int) -> Mapping[str, Any]:
        """Intent and act of step `number` (from 0). The caller writes the outcome `done`, after reading back where it is the last.

        Raises StepFailedError with its outcome written, HardStopped with the intent left open.
        """
        run, change = self._run, unit.change
        step = change.steps[number]
        started_s = run.clock.monotonic_s()
        run.journal.intent(step, change)
        run.emitter.emit(
            StepStarted(self._host, change.address, step.key, step.method, step.title, number + 1, len(change.steps))
        )
        try:
            with run.emitter.busy(self._host, step.title):
                return self._act_until_known(unit, step)
        except SbctlError as error:
            result: StepResult = "unknown" if _is_lost(error) else "not_done"
            raise self.failed(unit, step, result, error, started_s) from error

    def failed(
        self, unit: Unit, step: Step, result: StepResult, error: SbctlError, started_s: float
    ) -> StepFailedError:
        """Writes the outcome and tells it; the error to raise."""
        run = self._run
        run.journal.outcome(step.key, result, error)
        self.tell_finished(unit, step, result, started_s, error)
        return StepFailedError(step, result, error)

    def tell_finished(
        self, unit: Unit, step: Step, result: StepResult, started_s: float, error: SbctlError | None = None
    ) -> None:
        run = self._run
        duration_s = run.clock.monotonic_s() - started_s
        run.emitter.emit(StepFinished(self._host, unit.change.address, step.key, step.title, result, duration_s, error))

    def _act_until_known(self, unit: Unit, step: Step) -> Mapping[str, Any]:
        """The step's answer; empty when it was lost for good but the host shows that the work is done."""
        for last_try in (step.retry != "safe", True):
            try:
                return self._act(unit, step)
            except SbctlError as error:
                if not _is_lost(error):
                    raise
                lost = error
            if not self._still_to_do(unit, step, lost):
                return {} if last_try else self._ask_again(unit, step)
            if last_try:
                break
        raise _known_not_done(lost, self._host) from lost

    def _ask_again(self, unit: Unit, step: Step) -> Mapping[str, Any]:
        """The answer that was lost: a `safe` step called again finds its work done. Without it the work is still done."""
        try:
            return self._act(unit, step)
        except SbctlError:
            return {}

    def _act(self, unit: Unit, step: Step) -> Mapping[str, Any]:
        """One attempt, under the host's lease. Raises SbctlError, also for a defect of the provider; HardStopped when sessions were closed under it."""
        run, change = self._run, unit.change
        try:
            self.take_lease()
            context = PerformContext(
                node=run.board.session(self._host),
                services=run.services,
                change=change,
                progress=run.emitter.progress(self._host, change.address, step),
                cancelled=lambda: run.cancel.hard,
            )
            result = run.providers[change.address.kind].perform(step, context)
        except InterruptedBySignal as error:
            raise HardStopped from error
        except SbctlError:
            self.stop_if_hard()
            raise
        except Exception as error:
            self.stop_if_hard()
            raise internal_error(error, str(change.address)) from error
        finally:
            run.journal.acted()
        return result

    def _still_to_do(self, unit: Unit, step: Step, lost: SbctlError) -> bool:
        """Whether the host, read again, still lacks what the step should have done. Raises `lost` when it cannot be read."""
        run = self._run
        run.board.drop_session(self._host)
        try:
            snapshot = self.observe("reading the host again after a lost answer")
        except SbctlError as error:
            raise lost from error
        return run.verifier.still_asks_for(unit, step, snapshot, run.clock.now())


def _known_not_done(lost: SbctlError, host: str) -> SbctlError:
    """The answer was lost, but the host was read and lacks the work: no longer a question, so no longer a lost-answer code."""
    return SbctlError(
        "apply.step_lost",
        f"the connection broke during the step and the host shows that it was not done: {lost.message}",
        place=host,
        next_step=lost.next_step or "run apply again",
        retryable=True,
    )
