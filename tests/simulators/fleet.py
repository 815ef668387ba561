"""A fleet in memory: hosts that answer the whole node interface, sessions that break where a test says.

    fleet = FleetSimulator()
    fleet.add("gpu-a")
    fleet.break_call("lose", host="gpu-a", method="artifact.pull")       # does the work, loses the answer
    session = fleet.session("gpu-a")                                     # a sbctl.provider.NodeSession

Effects of a fault:

    fail         the host says no (`error`), nothing is done
    lose         the work is done, the answer is lost: HostError `host.outcome_unknown`; the session is dead
    cut          nothing is done, but nobody can tell: HostError `host.outcome_unknown`; the session is dead
    unreachable  the call was never sent: UnreachableError; the session is dead
    run          only `hook(host, method)` runs, before the work: slow calls, drift in between, signals
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

from sbctl.base.clock import Clock
from sbctl.base.connection import Connection
from sbctl.base.digests import sha256_file
from sbctl.base.errors import HostError, LockedError, SbctlError, UnreachableError
from sbctl.base.secret import Secret
from sbctl.node.lease import LeaseClaim
from sbctl.node.snapshot import HostFacts, NodeSnapshot
from sbctl.provider import Progress
from tests.simulators.sim_cluster import SimCluster
from tests.simulators.sim_host import DEFAULT_FACTS, SimHost

__all__ = ["Call", "Effect", "Fault", "FleetSimulator", "ManualClock", "SimSession"]

_T = TypeVar("_T")

Effect = Literal["fail", "lose", "cut", "unreachable", "run"]


class ManualClock:
    """Time that passes only by `sleep_s` and `advance`."""

    def __init__(self, start: datetime = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed_s = 0.0

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_s)

    def monotonic_s(self) -> float:
        return self._elapsed_s

    def sleep_s(self, seconds: float) -> None:
        self._elapsed_s += seconds

    def advance(self, seconds: float) -> None:
        self._elapsed_s += seconds


@dataclass(frozen=True, slots=True)
class Call:
    """One call that reached a session, also when it failed."""

    host: str
    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    secret_names: tuple[str, ...] = ()


@dataclass(slots=True)
class Fault:
    """Strikes the calls number `nth` … `nth + times - 1` among those that match."""

    effect: Effect
    host: str | None = None
    method: str | None = None
    nth: int = 1
    times: int = 1
    error: SbctlError | None = None
    hook: Callable[[str, str], None] | None = None
    seen: int = 0

    def strikes(self, host: str, method: str) -> bool:
        if self.host not in (None, host) or self.method not in (None, method):
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times


class FleetSimulator:
    """All hosts of a test. `unreachable` names hosts that give no answer; `calls` lists what was asked, in order."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or ManualClock()
        self.hosts: dict[str, SimHost] = {}
        self.unreachable: set[str] = set()
        self.faults: list[Fault] = []
        self.calls: list[Call] = []
        self.opened: list[str] = []
        self.sessions: list[SimSession] = []
        self.before_call: Callable[[], None] = lambda: None
        """Runs before every call; a test that simulates the death of the control side raises here."""
        self.cluster = SimCluster()
        self.leases: dict[str, LeaseClaim] = {}
        """Who holds which host; a test puts another operator's claim in."""
        self.while_waiting: Callable[[], None] = lambda: None
        """Runs after every pause of who waits for a lease."""
        self._lock = threading.Lock()

    def add(self, name: str, *, facts: HostFacts = DEFAULT_FACTS, bootstrapped: bool = False) -> SimHost:
        host = SimHost(name, self.clock, facts)
        host.cluster = self.cluster
        if bootstrapped:
            host.bootstrap()
        self.hosts[name] = host
        return host

    def connections(self) -> dict[str, Connection]:
        return {
            name: Connection("ssh", f"10.0.0.{number % 250 + 1}", user="ops", host_keys=("SHA256:sim",))
            for number, name in enumerate(self.hosts)
        }

    def session(self, host: str) -> SimSession:
        """Open a session. Raises UnreachableError for an unreachable host."""
        with self._lock:
            self.opened.append(host)
        self._require_reachable(host)
        session = SimSession(host, self)
        with self._lock:
            self.sessions.append(session)
        return session

    def snapshots(self) -> dict[str, NodeSnapshot | None]:
        """What planning would see now, outside every fault and log."""
        return {
            name: None if name in self.unreachable else host.snapshot() for name, host in sorted(self.hosts.items())
        }

    def break_call(
        self,
        effect: Effect,
        *,
        host: str | None = None,
        method: str | None = None,
        nth: int = 1,
        times: int = 1,
        error: SbctlError | None = None,
        hook: Callable[[str, str], None] | None = None,
    ) -> Fault:
        fault = Fault(effect, host, method, nth, times, error, hook)
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        """No more faults, every host reachable."""
        self.faults.clear()
        self.unreachable.clear()

    def methods(self, host: str | None = None) -> list[str]:
        """Mutating methods in call order."""
        return [
            call.method for call in self.calls if call.method not in ("snapshot", "put") and host in (None, call.host)
        ]

    # For sessions

    def note(self, call: Call) -> Fault | None:
        """Log a call and find the fault that strikes it; every fault counts the call."""
        self.before_call()
        with self._lock:
            self.calls.append(call)
            struck = [fault for fault in self.faults if fault.strikes(call.host, call.method)]
        return struck[0] if struck else None

    def _require_reachable(self, host: str) -> None:
        if host in self.unreachable or host not in self.hosts:
            raise UnreachableError(
                "host.unreachable", f"{host} gave no answer", place=host, next_step="check the network"
            )

    def require_reachable(self, host: str) -> None:
        self._require_reachable(host)


class SimSession:
    """A NodeSession. Two threads at once in one session is a defect of the caller and raises AssertionError."""

    def __init__(self, host: str, fleet: FleetSimulator) -> None:
        self.host = host
        self.closed = False
        self._fleet = fleet
        self._busy = threading.Lock()
        self._claim: LeaseClaim | None = None

    def snapshot(self, deadline_s: float) -> NodeSnapshot:
        del deadline_s
        sim = self._fleet.hosts[self.host]
        return self._through(Call(self.host, "snapshot"), sim.snapshot)

    def call(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        secrets: Mapping[str, Secret],
        deadline_s: float,
        progress: Progress,
    ) -> Mapping[str, Any]:
        del deadline_s
        assert all(isinstance(secret, Secret) for secret in secrets.values())
        sim = self._fleet.hosts[self.host]
        call = Call(self.host, str(method), dict(params), tuple(sorted(secrets)))
        return self._through(call, lambda: sim.call(method, params, secrets, progress))

    def put(self, sha256: str, source: Path, *, deadline_s: float, progress: Progress) -> None:
        del deadline_s
        size = source.stat().st_size

        def work() -> None:
            if sha256_file(source) != sha256:
                raise HostError("blob.digest_mismatch", "the file changed while it was sent", place=self.host)
            self._fleet.hosts[self.host].put(sha256, size)
            progress(size, size)

        self._through(Call(self.host, "put", {"sha256": sha256}), work)

    def take_lease(self, claim: LeaseClaim, *, wait_s: float, deadline_s: float, cancelled: Callable[[], bool]) -> None:
        del deadline_s
        end_s = self._fleet.clock.monotonic_s() + wait_s
        self._fleet.require_reachable(self.host)
        if self.closed:
            raise UnreachableError("host.unreachable", "this session is closed", place=self.host)
        while (holder := self._fleet.leases.setdefault(self.host, claim)).run != claim.run:
            if self._fleet.clock.monotonic_s() >= end_s or cancelled():
                raise LockedError("host.leased", f"{holder.owner} is changing this host ({holder.purpose})")
            self._fleet.clock.sleep_s(0.5)
            self._fleet.while_waiting()
        self._claim = claim

    def close(self) -> None:
        self.closed = True
        if self._claim is not None and self._fleet.leases.get(self.host) == self._claim:
            del self._fleet.leases[self.host]
        self._claim = None

    def _through(self, call: Call, work: Callable[[], _T]) -> _T:
        assert self._busy.acquire(blocking=False), f"two threads use one session of {self.host}"
        try:
            fault = self._fleet.note(call)
            if self.closed:
                raise UnreachableError("host.unreachable", "this session is closed", place=self.host)
            self._fleet.require_reachable(self.host)
            if fault is not None and fault.hook is not None:
                fault.hook(call.host, call.method)
                if self.closed:
                    raise self._lost()
            if fault is not None:
                self._strike_before(fault)
            result = work()
            if fault is not None and fault.effect == "lose":
                raise self._lost()
            return result
        finally:
            self._busy.release()

    def _strike_before(self, fault: Fault) -> None:
        if fault.effect == "fail":
            raise fault.error or HostError("host.injected", "the host said no", place=self.host)
        if fault.effect == "cut":
            raise self._lost()
        if fault.effect == "unreachable":
            self.closed = True
            raise UnreachableError("host.unreachable", f"{self.host} gave no answer", place=self.host)

    def _lost(self) -> HostError:
        self.closed = True
        return HostError(
            "host.outcome_unknown", "the connection broke before the answer", place=self.host, retryable=True
        )
