"""Taking a host out of service around the changes that its users would notice, when the fleet's update is to roll; and a worker out of its
cluster before anything on it is changed.

Without `fleet.update` nobody says that other hosts answer meanwhile, so requests are not turned away: then the runtime's own rollout and
shutdown see them off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from sbctl.apply.schedule import Unit, first_felt, goes_out
from sbctl.apply.steps import RunContext
from sbctl.base.display import format_duration_s
from sbctl.base.errors import HostError, InputError, SbctlError
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
        self._left = False

    def observed(self, snapshot: NodeSnapshot) -> None:
        """What the host says before its first change."""
        self._serves = snapshot.runtime.healthy and (snapshot.bundle is not None or snapshot.cluster is not None)

    def before_unit(self, unit: Unit) -> None:
        """Leave the cluster once, before any change. Raises SbctlError, with HostError `cluster.evacuation_unfinished` where what runs here is
        not ready elsewhere in time."""
        if unit.leaves and not self._left:
            self._leave()
            self._left = True

    def before_step(self, unit: Unit, number: int) -> None:
        """Drain once, before the first step that users of the host may notice: bringing a new version is none. Raises SbctlError."""
        run = self._run
        if run.options.update is None or self._drained or not self._serves or not goes_out((unit,)):
            return
        if number < first_felt(unit):
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

    def _leave(self) -> None:
        run, deadline_s = self._run, self._run.options.leave_deadline_s
        with run.emitter.busy(self._host, "its replicas move to other workers of the cluster"):
            try:
                told = self._call(Method.HOST_LEAVE, {"deadline_s": deadline_s}, deadline_s + _ANSWER_S)
            except InputError:
                # Of a version that does not know how to leave: it goes as it always did.
                return
        left = told.get("left")
        if left and not run.options.leave_anyway:
            names = ", ".join(str(name) for name in left) if isinstance(left, list) else str(left)
            raise HostError(
                "cluster.evacuation_unfinished",
                f"after {format_duration_s(deadline_s)} {self._host} still runs {names}, so nothing was removed from it",
                place=self._host,
                next_step="sbctl cluster status says what is short elsewhere; make room, or accept the outage with --accept-blockers, then apply again",
                retryable=True,
            )

    def _call(self, method: Method, params: dict[str, object], deadline_s: float) -> Mapping[str, object]:
        session = self._run.board.session(self._host)
        return session.call(method, params, secrets={}, deadline_s=deadline_s, progress=lambda _done, _total: None)
