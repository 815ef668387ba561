"""A state in memory with the methods of `sbctl.state`'s run, whose journal can be read as a list."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from sbctl.base.errors import SbctlError, StateError
from sbctl.base.ids import Address
from sbctl.base.truths import Recorded
from sbctl.plan.model import Change, Step

__all__ = ["Killed", "MemoryRun", "MemoryState"]


@dataclass
class MemoryState:
    """What a state store keeps, with its journal in order."""

    resources: dict[Address, Recorded] = field(default_factory=dict)
    journal: list[tuple[str, ...]] = field(default_factory=list)
    open_intents: dict[str, Address] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    serial: int = 0

    def begin_run(self) -> MemoryRun:
        """Closes what a dead run left open."""
        for key in self.open_intents:
            self.journal.append(("outcome", key, "unknown"))
        self.open_intents.clear()
        self.serial += 1
        return MemoryRun(self)


class Killed(BaseException):
    """The process died here. Not an Exception, so that no code under test catches it."""


class MemoryRun:
    """A run over MemoryState. `fail_at`: from the n-th write on the disk is full. `dead`: the process was killed, nothing is written."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state
        self._lock = threading.Lock()
        self.serial = state.serial
        self.fail_at: int | None = None
        self.dead = False
        self.writes = 0
        self.status: str | None = None

    def intent(self, step: Step, change: Change) -> None:
        def write() -> None:
            self._state.open_intents[step.key] = change.address
            self._state.journal.append(("intent", step.key))

        self._write(write)

    def outcome(self, step_key: str, result: str, error: SbctlError | None) -> None:
        def write() -> None:
            if self._state.open_intents.pop(step_key, None) is None:
                raise StateError("state.no_intent", "an outcome without an intent", place=step_key)
            self._state.journal.append(("outcome", step_key, result))

        self._write(write)

    def record(self, recorded: Recorded) -> None:
        def write() -> None:
            self._state.resources[recorded.address] = recorded
            self._state.journal.append(("attempt" if recorded.attempted else "record", str(recorded.address)))

        self._write(write)

    def forget(self, address: Address) -> None:
        def write() -> None:
            self._state.resources.pop(address, None)
            self._state.journal.append(("forget", str(address)))

        self._write(write)

    def allocate_revision(self, scope: str) -> int:
        def write() -> None:
            self._state.revisions[scope] = self._state.revisions.get(scope, 0) + 1

        self._write(write)
        return self._state.revisions[scope]

    def finish(self, status: Literal["applied", "partial", "failed", "interrupted"]) -> None:
        self._write(lambda: self._state.journal.append(("finish", status)))
        self.status = status

    def _write(self, write: Callable[[], None]) -> None:
        with self._lock:
            if self.dead:
                raise Killed
            self.writes += 1
            if self.fail_at is not None and self.writes >= self.fail_at:
                raise SbctlError("disk.full", "the disk is full", next_step="free space, then run the command again")
            write()
