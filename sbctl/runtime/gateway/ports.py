"""What the gateway needs of everything else, each as small as it gets: who may ask, what is served, and who counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sbctl.base.errors import SbctlError
from sbctl.runtime.gateway.answers import Answer
from sbctl.runtime.gateway.events import Usage
from sbctl.runtime.generation import Generation
from sbctl.runtime.replica import Replica
from sbctl.runtime.routes import RouteTable
from sbctl.trust.bundle import ApiKeyEntry, DeploymentMember

__all__ = ["Client", "Desired", "Heard", "Keys", "Meter", "Outcome", "Served", "Source", "Work"]


class Desired(Protocol):
    """What is served. The table is immutable; a commit swaps it."""

    @property
    def routes(self) -> RouteTable: ...

    @property
    def generations(self) -> Mapping[str, Generation]: ...


class Served(Protocol):
    """A deployment that answers requests, on this host or on others. `replicas`: those of this host."""

    @property
    def deployment(self) -> str: ...

    @property
    def member(self) -> DeploymentMember: ...

    @property
    def replicas(self) -> Sequence[Replica]: ...


class Client(Protocol):
    """One caller's connection while one of its requests runs. Calls after it is gone do nothing."""

    def answer(self, answer: Answer) -> None:
        """The whole answer; the request is over."""
        ...

    def begin(self, status: int, lines: bytes) -> None:
        """An answer of unknown length, with these lines in its head, which goes out with the first `write`."""
        ...

    def write(self, data: bytes) -> None: ...

    def finish(self, *, broken: bool = False, told: bool = True) -> None:
        """The answer is over; `broken`: the connection closes behind it. Unless `told` in it that it broke, it ends without its last chunk,
        so that nobody takes it for whole."""
        ...

    def feed_from(self, source: Source | None) -> None:
        """Whom to ask to wait while this caller does not read; None: nobody any more."""
        ...


class Work(Protocol):
    """A request that is being answered."""

    def cancel(self) -> object:
        """Its caller is gone."""
        ...


class Source(Protocol):
    """Where an answer comes from, and can be told to wait."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Heard(Protocol):
    """What is known of an engine's answer. `first_byte_s`: loop time; `problem`: why it broke once it had begun."""

    @property
    def first_byte_s(self) -> float | None: ...

    @property
    def usage(self) -> Usage | None: ...

    @property
    def problem(self) -> SbctlError | None: ...


@dataclass(slots=True)
class Outcome:
    """How one request went. Times are seconds; None: it did not come so far."""

    deployment: str
    status: int
    queued_s: float
    first_byte_s: float | None
    total_s: float
    usage: Usage | None
    broke: bool
    elsewhere: bool = False
    """An external provider answered."""

    @classmethod
    def of(
        cls,
        deployment: str,
        status: int,
        heard: Heard | None,
        *,
        began_s: float,
        admitted_s: float | None,
        ended_s: float,
        elsewhere: bool = False,
    ) -> Outcome:
        """From loop times. Who was never admitted queued to the end; `heard` None: no engine was asked."""
        first_s = None if heard is None else heard.first_byte_s
        return cls(
            deployment,
            status,
            (ended_s if admitted_s is None else admitted_s) - began_s,
            None if first_s is None else first_s - began_s,
            ended_s - began_s,
            None if heard is None else heard.usage,
            heard is not None and heard.problem is not None,
            elsewhere,
        )


class Meter(Protocol):
    """Counts. Called once for each request that had a deployment."""

    def rejected(self, deployment: str, priority: str, reason: str) -> None:
        """Refused at the gate."""
        ...

    def fell_back(self, deployment: str, provider: str, reason: str) -> None:
        """Another deployment or an external provider, called `provider`, is asked instead."""
        ...

    def finished(self, outcome: Outcome) -> None: ...


class Keys(Protocol):
    """Limits of a caller's key, by the key's name."""

    def take(self, name: str, entry: ApiKeyEntry, *, now_s: float) -> None:
        """One request. Raises SbctlError `rate_limited`."""
        ...

    def reserve(self, name: str, entry: ApiKeyEntry, estimate: int, *, now_s: float) -> int:
        """Tokens of one request; returns what is to be settled. Raises SbctlError `rate_limited`."""
        ...

    def settle(self, name: str, entry: ApiKeyEntry, *, reserved: int, used: int, now_s: float) -> None: ...

    def lines(self, name: str, entry: ApiKeyEntry, *, now_s: float) -> str:
        """What the caller is told of its limits, as it stands in a head; nothing where it has none."""
        ...
