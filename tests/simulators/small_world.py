"""A fleet, its state and the executor in one hand: plan and apply as the command line would, in one process."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sbctl.apply.cancellation import Cancellation
from sbctl.apply.crash_points import CrashPoints
from sbctl.apply.events import Event, Stamped
from sbctl.apply.executor import execute
from sbctl.apply.outcome import ApplyOptions, ApplyResult
from sbctl.base.ids import Address
from sbctl.base.truths import Desired
from sbctl.plan.model import Plan, PlanMode
from tests.simulators.fleet import FleetSimulator
from tests.simulators.memory_state import Killed, MemoryRun, MemoryState
from tests.simulators.small_kinds import PROVIDERS, SmallServices, Wanted, prepare_host, small_plan, wanted

__all__ = ["Recorder", "SmallWorld"]


class Recorder:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.stamped: list[Stamped] = []

    def emit(self, stamped: Stamped) -> None:
        self.stamped.append(stamped)

    @property
    def types(self) -> list[str]:
        return [entry.event.type for entry in self.stamped]

    def of(self, kind: type[Any]) -> list[Any]:
        return [entry.event for entry in self.stamped if isinstance(entry.event, kind)]

    @property
    def events(self) -> list[Event]:
        return [entry.event for entry in self.stamped]


class SmallWorld:
    """`apply` plans against the hosts as they are and carries the plan out; `last_run` and `events` are of the last one."""

    def __init__(self, *hosts: str) -> None:
        self.fleet = FleetSimulator()
        for host in hosts:
            prepare_host(self.fleet, host)
        self.state = MemoryState()
        self.providers: Mapping[str, Any] = PROVIDERS
        self.events = Recorder()
        self.cancel = Cancellation()
        self.last_run: MemoryRun | None = None

    def desired(self, hosts: Mapping[str, Wanted]) -> dict[Address, Desired]:
        return wanted(hosts, self.fleet.connections())

    def plan(self, hosts: Mapping[str, Wanted], *, mode: PlanMode = "apply") -> Plan:
        return small_plan(self.fleet, self.desired(hosts), self.state, mode=mode, providers=self.providers)

    def apply(self, hosts: Mapping[str, Wanted], **options: Any) -> ApplyResult:
        return self.execute(self.plan(hosts), **options)

    def kill_at(self, plan: Plan, boundary: int, **options: Any) -> bool:
        """Carry out `plan` in a process that dies at the n-th boundary; False when it ended before that."""

        def die() -> None:
            assert self.last_run is not None
            self.last_run.dead = True
            raise Killed

        def alive() -> None:
            if self.last_run is not None and self.last_run.dead:
                raise Killed

        self.fleet.before_call = alive
        try:
            self.execute(plan, crash_points=CrashPoints(boundary, crash=die), **options)
        except Killed:
            for thread in threading.enumerate():
                if thread.name.startswith("sbctl-apply-"):
                    thread.join(30)
            return True
        finally:
            self.fleet.before_call = lambda: None
        return False

    def execute(
        self,
        plan: Plan,
        *,
        cancel: Cancellation | None = None,
        crash_points: CrashPoints | None = None,
        fail_write_at: int | None = None,
        **options: Any,
    ) -> ApplyResult:
        gone = [
            recorded
            for address, recorded in self.state.resources.items()
            if recorded.host in plan.unreachable
            and all(change.desired is None for change in plan.changes if change.address == address)
        ]
        run = self.last_run = self.state.begin_run()
        run.fail_at = fail_write_at
        self.events = Recorder()
        self.cancel = cancel or Cancellation()
        return execute(
            plan,
            sessions=self.fleet.session,
            run=run,
            providers=self.providers,
            services=SmallServices(self.fleet.clock, run.allocate_revision),
            options=replace(ApplyOptions(), **options),
            sink=self.events,
            cancel=self.cancel,
            given_up=gone,
            crash_points=crash_points,
        )
