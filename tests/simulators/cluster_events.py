"""What is written down of a cluster: requests, what nodes say of themselves and of each other, processes, publications, faults.

Times are seconds of one monotonic clock, that of who records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

__all__ = [
    "Asked",
    "Engines",
    "Event",
    "Fault",
    "History",
    "Limits",
    "Mark",
    "Published",
    "Revoked",
    "Slot",
    "Told",
    "View",
]

Mark = tuple[int, str]
"""Revision and content digest of a bundle."""
Slot = tuple[str, int, int]
"""Deployment, generation and number of a replica in the cluster."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that is over. `status` 0: no head of an answer. `code`: of an error, also of one inside a stream. `done`: the answer was whole,
    and a stream ended with [DONE]. `terminated`: it ended with [DONE]. `node`: who computed it, where that is known."""

    at_s: float
    ended_s: float
    gateway: str
    status: int = 0
    first_byte_s: float | None = None
    code: str = ""
    retry_after: bool = False
    stream: bool = False
    done: bool = False
    terminated: bool = False
    node: str = ""
    problem: str = ""

    @property
    def outcome(self) -> str:
        """ok, refused (503), cut (after a byte of its answer), or failed."""
        if self.status == 200:
            return "ok" if self.done else "cut"
        return "refused" if self.status == 503 else "failed"


@dataclass(frozen=True, slots=True)
class Told:
    """A node by its own signed word, heard at `heard_s`, as `observer` shows it. `counted`: gateways ask it and placement offers it replicas."""

    at_s: float
    observer: str
    node: str
    heard_s: float
    identity_epoch: int
    boot_epoch: int
    counter: int
    mark: Mark | None = None
    assignment: tuple[int, int] | None = None
    live: frozenset[Slot] = frozenset()
    counted: bool = True

    @property
    def number(self) -> tuple[int, int, int]:
        return self.identity_epoch, self.boot_epoch, self.counter


@dataclass(frozen=True, slots=True)
class View:
    """What an observer itself holds. `plan`: lease epoch and holder of the plan it has. `assigned`: nodes that this plan starts replicas on.
    `handing`: deployments that are between two states. `absent`: nodes that it takes for silent. `settled`: everything is as it should be; None:
    it does not look at others."""

    at_s: float
    observer: str
    mark: Mark | None = None
    plan: tuple[int, str] | None = None
    assigned: frozenset[str] = frozenset()
    handing: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    settled: bool | None = None
    failovers: int | None = None
    """Times that this gateway asked another replica instead, since it started."""


@dataclass(frozen=True, slots=True)
class Engines:
    """Processes that run on a node, by what they run: deployment, generation of the node, replica. Read from the machine, not from the node."""

    at_s: float
    node: str
    running: tuple[Slot, ...] = ()


@dataclass(frozen=True, slots=True)
class Published:
    """A publication that `by` acknowledged."""

    at_s: float
    by: str
    mark: Mark


@dataclass(frozen=True, slots=True)
class Revoked:
    """Acknowledged; what the node is by a higher identity epoch is somebody else."""

    at_s: float
    node: str
    identity_epoch: int = 1


@dataclass(frozen=True, slots=True)
class Fault:
    """From `at_s` to `ended_s`. `nodes`: whose work may break off, with what runs through them. `refuses`: callers may get the documented 503."""

    at_s: float
    ended_s: float
    name: str
    nodes: frozenset[str] = frozenset()
    refuses: bool = True


Event = Asked | Told | View | Engines | Published | Revoked | Fault
_E = TypeVar("_E", bound=Event)


@dataclass(frozen=True, slots=True)
class Limits:
    """`propagation_s`: a revocation list reaches a node with the store's next word and ends connections within a second of that; a node
    that does not hear the store is out of its reach until it does. `waits_s`: a request may be decided by what was so long before its end."""

    converge_s: float = 60.0
    propagation_s: float = 5.0
    waits_s: float = 1.0


@dataclass(frozen=True, slots=True)
class History:
    """`nodes`: all of the cluster; `exclusive`: deployments of which two generations never run side by side (`rollout: recreate`)."""

    events: Sequence[Event]
    nodes: frozenset[str]
    exclusive: frozenset[str] = frozenset()
    limits: Limits = field(default_factory=Limits)

    def of(self, kind: type[_E]) -> list[_E]:
        return sorted((event for event in self.events if isinstance(event, kind)), key=lambda event: event.at_s)
