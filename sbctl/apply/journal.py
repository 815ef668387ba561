"""The apply journal as the executor uses it: `sbctl.state`'s `Run` behind a gate.

Rule: intent ► act ► read back ► outcome ► record, each durable before the next. An intent without an outcome means *read the host first*.
When one write fails nothing is started any more, on any host: what cannot be remembered must not be done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from sbctl.apply.crash_points import CrashPoints
from sbctl.base.errors import SbctlError, StateError
from sbctl.base.ids import Address
from sbctl.plan.model import Change, Recorded, Step

__all__ = ["GuardedJournal", "HardStopped", "JournalFailedError", "RunJournal", "StepResult"]

StepResult = Literal["done", "not_done", "unknown"]


class RunJournal(Protocol):
    """What `execute` needs of a state run. Every call is durable when it returns, and may come from several threads at once."""

    @property
    def serial(self) -> int: ...

    def intent(self, step: Step, change: Change) -> None: ...

    def outcome(self, step_key: str, result: StepResult, error: SbctlError | None) -> None: ...

    def record(self, recorded: Recorded) -> None: ...

    def forget(self, address: Address) -> None: ...

    def finish(self, status: Literal["applied", "partial", "failed", "interrupted"]) -> None: ...


class HardStopped(Exception):  # noqa: N818 - it is an event, not a fault
    """The run was given up while this thread was busy; it must write nothing any more."""


class JournalFailedError(Exception):
    """A fact could not be made durable. Not an SbctlError, so that nobody takes it for something the host said."""

    def __init__(self, error: SbctlError) -> None:
        super().__init__(str(error))
        self.error = error


class GuardedJournal:
    """Writes through to the run, passes the crash points, and lets nothing through once `shut`."""

    def __init__(self, run: RunJournal, crash_points: CrashPoints) -> None:
        self._run = run
        self._crash_points = crash_points
        self._shut = False

    @property
    def serial(self) -> int:
        return self._run.serial

    def shut(self) -> None:
        """From now on every write raises HardStopped; `finish` alone still works."""
        self._shut = True

    def intent(self, step: Step, change: Change) -> None:
        self._crash_points.reached("before_intent")
        self._write(lambda: self._run.intent(step, change))
        self._crash_points.reached("after_intent")

    def acted(self) -> None:
        """The host was asked and answered, or may have acted without an answer."""
        self._crash_points.reached("after_act")

    def read_back(self) -> None:
        self._crash_points.reached("after_read_back")

    def outcome(self, step_key: str, result: StepResult, error: SbctlError | None) -> None:
        self._write(lambda: self._run.outcome(step_key, result, error))
        self._crash_points.reached("after_outcome")

    def record(self, recorded: Recorded) -> None:
        self._write(lambda: self._run.record(recorded))
        self._crash_points.reached("after_record")

    def forget(self, address: Address) -> None:
        self._write(lambda: self._run.forget(address))
        self._crash_points.reached("after_record")

    def finish(self, status: Literal["applied", "partial", "failed", "interrupted"]) -> None:
        self._crash_points.reached("before_finish")
        self._through(lambda: self._run.finish(status))
        self._crash_points.reached("after_finish")

    def _write(self, write: Callable[[], None]) -> None:
        if self._shut:
            raise HardStopped
        self._through(write)

    def _through(self, write: Callable[[], None]) -> None:
        try:
            write()
        except SbctlError as error:
            raise JournalFailedError(error) from error
        except Exception as error:
            reason = StateError(
                "state.write_failed",
                f"the state could not be written: {type(error).__name__}: {error}",
                next_step="look at the disk that holds .sbctl, then run the command again: it reads the hosts before it acts",
            )
            raise JournalFailedError(reason) from error
