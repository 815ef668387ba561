"""One open run: the executor's pen. Every call is durable before it returns; threads may call at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from sbctl.base.clock import Clock
from sbctl.base.display import display_safe
from sbctl.base.errors import SbctlError, StateError
from sbctl.base.ids import Address
from sbctl.base.secret import redact
from sbctl.base.truths import Recorded
from sbctl.state.codec import decode, encode, intent_to_json
from sbctl.state.journal import close_open_run, drop_resource, note, put_resource
from sbctl.state.model import OpenIntent, PlannedChange, PlannedStep, RunStatus, StepResult
from sbctl.state.rows import Rows
from sbctl.state.writer import Writer

__all__ = ["Run"]


class Run:
    """From `StateStore.begin_run` to `finish`. Raises SbctlError `disk.*`, LockedError `state.busy`: nothing happened;
    DurabilityUnknownError: it may have, and the run takes nothing more; StateError `state.run_finished` after its end."""

    def __init__(self, writer: Writer, serial: int, clock: Clock, on_finish: Callable[[], None]) -> None:
        self.serial = serial
        self._writer = writer
        self._clock = clock
        self._on_finish = on_finish

    def _now(self) -> datetime:
        return self._clock.now()

    def _require_open(self, rows: Rows) -> None:
        if rows.head.open_serial != self.serial:
            raise StateError("state.run_finished", f"run {self.serial} has ended; nothing more can be recorded in it")

    def intent(self, step: PlannedStep, change: PlannedChange) -> None:
        """Before a step: what will be done where. The same key again replaces the intent (a retry)."""
        at = self._now()
        intent = OpenIntent(
            step.key, change.address, change.action, change.host, step.method, step.title, self.serial, at
        )
        body = encode(intent_to_json(intent), what=step.key)
        with self._writer.transaction() as rows:
            self._require_open(rows)
            rows.put("intents", step.key, body)
            note(
                rows,
                "intent",
                step.key,
                at,
                {"address": str(change.address), "action": change.action, "host": change.host},
            )

    def outcome(self, step_key: str, result: StepResult, error: SbctlError | None = None) -> None:
        """After a step. Raises StateError `state.no_intent` when the step was never begun."""
        detail: dict[str, object] = {"result": result}
        if error is not None:
            message = display_safe(redact(error.message), max_chars=500)
            detail["error"] = {"code": error.code, "message": message, "place": error.place}
        with self._writer.transaction() as rows:
            self._require_open(rows)
            if not rows.drop("intents", step_key):
                raise StateError(
                    "state.no_intent", "an outcome was given for a step that was not begun", place=step_key
                )
            note(rows, "outcome", step_key, self._now(), detail, count=result)

    def record(self, recorded: Recorded) -> None:
        """The resource is so now: add or replace what is kept of it."""
        with self._writer.transaction() as rows:
            self._require_open(rows)
            put_resource(rows, recorded, self._now())

    def forget(self, address: Address) -> None:
        """The resource is gone; forgetting one that is not recorded changes nothing."""
        with self._writer.transaction() as rows:
            self._require_open(rows)
            drop_resource(rows, address, self._now())

    def allocate_revision(self, scope: str, *, above: int = 0) -> int:
        """A bundle revision that was never given out before for this scope, higher than `above` (what the node says it has)."""
        with self._writer.transaction() as rows:
            self._require_open(rows)
            known = {str(name): int(decode(body)) for name, body in rows.scan("revisions")}
            revision = max(known.get(scope, 0), above) + 1
            rows.put("revisions", scope, encode(revision, what=scope))
            note(rows, "revision", scope, self._now(), {"revision": revision})
        return revision

    def finish(self, status: RunStatus) -> None:
        """Close the run: intents still open become unknown, the snapshot of this serial is written, then the backup document."""
        with self._writer.transaction() as rows:
            self._require_open(rows)
            close_open_run(rows, status, self._now())
        self._on_finish()
