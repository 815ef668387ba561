"""Taking a host out of service around the changes that its users would notice, when the fleet's update is to roll.

Without `fleet.update` nobody says that other hosts answer meanwhile, so requests are not turned away: then the runtime's own rollout and
shutdown see them off.
"""

from __future__ import annotations

import contextlib

from sbctl.apply.schedule import Unit, goes_out
from sbctl.apply.steps import RunContext
from sbctl.base.errors import InputError, SbctlError
from sbctl.node.messages import Method
from sbctl.node.snapshot import NodeSnapshot

__all__ = ["HostDrain"]

_ANSWER_S = 30.0


class HostDrain:
    """Of one host in one run. A drain that nobody takes back ends on the host when the run's lease does."""

    def __init__(self, host: str, run: RunContext) -> None:
        self._host = host
        self._run = run
        self._serves = False
        self._drained = False

    def observed(self, snapshot: NodeSnapshot) -> None:
        """What the host says before its first change."""
        self._serves = snapshot.runtime.healthy and (snapshot.bundle is not None or snapshot.cluster is not None)

    def before(self, unit: Unit) -> None:
        """Drain once, before the first change that restarts something. Raises SbctlError."""
        run = self._run
        if run.options.update is None or self._drained or not self._serves or not goes_out((unit,)):
            return
        deadline_s = run.options.drain_deadline_s
        self._drained = True
        with run.emitter.busy(self._host, "draining: running requests finish"), contextlib.suppress(InputError):
            # A runtime that does not know how is one that this run replaces.
            self._call(Method.HOST_DRAIN, {"deadline_s": deadline_s}, deadline_s + _ANSWER_S)

    def end(self) -> None:
        """Into service again, whatever became of the changes. Never raises."""
        if self._drained:
            self._drained = False
            with contextlib.suppress(SbctlError):
                self._call(Method.HOST_RESUME, {"persistent": False}, _ANSWER_S)

    def _call(self, method: Method, params: dict[str, object], deadline_s: float) -> None:
        session = self._run.board.session(self._host)
        session.call(method, params, secrets={}, deadline_s=deadline_s, progress=lambda _done, _total: None)
