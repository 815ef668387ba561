"""The nouns of planning.

Four truths, and a name always says which one it holds: *desired* (sb.yml), *recorded* (the state's memory of the last apply),
*observed* (what the host reports now), *planned* (what apply would do).

Lifecycle of one resource in a plan: Provider.desired ─► Desired; state ─► Recorded; Provider.interpret ─► Observed;
Provider.diff(Desired?, Recorded?, Observed) ─► Change. Changes are ordered by `after` edges and never touched again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Any, Final, Literal

from sbctl.base.connection import Connection
from sbctl.base.ids import Address
from sbctl.base.truths import Desired, Recorded
from sbctl.node.snapshot import NodeSnapshot

__all__ = [
    "UNKNOWN",
    "UNMANAGED",
    "Action",
    "BlastRadius",
    "Change",
    "Desired",
    "DiffContext",
    "Leaf",
    "Observed",
    "Plan",
    "PlanMode",
    "Recorded",
    "Step",
    "Unknown",
]

Action = Literal["create", "update", "replace", "delete", "forget", "no-op", "unreachable"]
"""One vocabulary in text, JSON and events. `unreachable`: nothing can be said, the host gave no answer."""

UNMANAGED: Final = "unmanaged: the admin API of its host owns it"
"""Reason of a no-op row whose resource somebody else decides about."""

PlanMode = Literal["apply", "destroy", "drift", "rollback", "against"]


class BlastRadius(IntEnum):
    """What users of the fleet notice, in rising order."""

    HITLESS = 0
    RELOAD = 1
    RESTART = 2
    BREAKING = 3

    def __str__(self) -> str:
        return self.name.lower()

    @classmethod
    def parse(cls, text: str) -> BlastRadius:
        """Raises KeyError for anything but the four names."""
        return cls[text.upper()]


class Unknown:
    """A value that cannot be known yet; `why` completes the sentence "known …" ("after bootstrap")."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why

    def __repr__(self) -> str:
        return f"(known {self.why})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unknown) and other.why == self.why

    def __hash__(self) -> int:
        return hash(("Unknown", self.why))


UNKNOWN: Final = Unknown("after bootstrap")


@dataclass(frozen=True, slots=True)
class Observed:
    """What the host reports of one resource.

    `decisive` facts are sealed into a saved plan and checked again before the host's first step; `informative` ones are shown and never compared.
    """

    status: Literal["present", "absent", "unreachable", "not_bootstrapped"]
    owner: Literal["ours", "other_lineage", "unmarked"] = "ours"
    decisive: Mapping[str, Any] = field(default_factory=dict)
    informative: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One differing value. `before` and `after` are JSON values, absent ones None; `after` may be Unknown. `path` is dotted."""

    path: str
    before: Any
    after: Any
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One node call. The executor writes an intent under `key` before it and an outcome after it."""

    key: str
    """Idempotency key, unique in the plan: `<address>#<n>:<method>`."""
    method: str
    params: Mapping[str, Any]
    """JSON; secrets only by reference."""
    title: str
    """In words, for the live view: `install engine llama_cpp 2026.10.11549`."""
    downtime: Literal["none", "queue", "refuse"] = "none"
    retry: Literal["safe", "read_first", "never"] = "safe"
    deadline_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Change:
    """What would happen to one resource, and what it costs."""

    address: Address
    action: Action
    reason: str
    host: str
    connection: Connection
    leaves: tuple[Leaf, ...] = ()
    blast_radius: BlastRadius = BlastRadius.HITLESS
    download_bytes: int | None = None
    """None: nothing to fetch or not known; the view tells by `notes`."""
    memory_bytes: int | None = None
    """What one replica needs, as well as that is known."""
    downtime: Literal["none", "queue", "refuse"] = "none"
    steps: tuple[Step, ...] = ()
    after: frozenset[Address] = frozenset()
    member_of: Address | None = None
    desired: Desired | None = None
    recorded: Recorded | None = None
    decisive: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Further facts for the reader, one sentence each: licence, source, what will not survive a reboot."""
    drifted: bool = False
    """Observed differs from recorded: it was changed behind our back."""
    blocked: str | None = None
    """A sentence when this change must not be applied (prevent_destroy, other lineage, missing engine); apply exits 4."""
    blocked_code: str | None = None
    is_fleet_wide: bool = False
    """It concerns all hosts, so it waits for what this plan does on each of them, however that ends."""
    leaves_cluster: tuple[str, ...] = ()
    """By it the host is no worker of its cluster any more; the authorities of that cluster."""

    @property
    def carries_only(self) -> bool:
        """An update that asks for nothing of its own: only its number is new, or a member of it was stopped."""
        return self.action == "update" and all(
            leaf.path == "revision" or leaf.path.startswith("stopped.") for leaf in self.leaves
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes in an order in which they can run, with what they were made from. Never holds a secret value."""

    mode: PlanMode
    lineage: str | None
    """None: no state yet."""
    serial: int
    config_digest: str
    catalog_digest: str
    changes: tuple[Change, ...]
    created_at: datetime
    hosts: Mapping[str, Connection]
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Host → one sentence why."""
    targets: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    """Targets or excludes not empty: the plan is partial."""
    replaces: tuple[str, ...] = ()
    allow_unreachable: bool = False
    """The user accepts a plan without the hosts that gave no answer."""
    offline: bool = False
    """Hosts were not asked: specs are compared, there are no steps, nothing can be applied."""
    removes_every_deployment: bool = False
    """sb.yml names no deployment any more while the state has some."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """JSON carried for the one who plans again (`rollback_serial`); never used to decide."""
    notes: tuple[str, ...] = ()
    unfit: tuple[str, ...] = ()
    """Hosts that cannot hold what they are to serve, one sentence each: `plan` exits 4. An apply looks again, and can be told to go on."""
    taken: tuple[str, ...] = ()
    """Ports that a runtime is to have and somebody else has, one sentence each: as `unfit`."""
    placement: Mapping[str, Any] | None = None
    """Where the bundle of a cluster leads: JSON as `PlacementPart` of the document. A forecast for the view, never used to decide."""
    header: Mapping[str, str] = field(default_factory=dict)
    """For the view only, never used to decide: `fleet` its name, `state` the serial and who applied it when, `observed` how many hosts
    answered how fast."""

    @property
    def actionable(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.action not in ("no-op", "unreachable"))

    @property
    def counted(self) -> tuple[Change, ...]:
        """`actionable` as a reader counts: a bundle that is signed anew only because a member of it changed is that member's change."""
        carrying = {change.member_of for change in self.actionable if change.member_of is not None}
        return tuple(change for change in self.actionable if not (change.address in carrying and change.carries_only))

    @property
    def blast_radius(self) -> BlastRadius:
        return max((change.blast_radius for change in self.actionable), default=BlastRadius.HITLESS)


@dataclass(frozen=True, slots=True)
class DiffContext:
    """What a comparison may know beside the three truths. Pure data."""

    now: datetime
    mode: str
    snapshot: NodeSnapshot | None
    """None: the host gave no answer."""
    member_changes: tuple[Change, ...] = ()
    """For a bundle: the changes of its members, already planned."""
    replace: bool = False
    """The user asked by --replace."""
    recorded_specs: Mapping[Address, Mapping[str, Any]] = field(default_factory=dict)
    """The recorded spec of everything on this host: which origins route to a deployment, which deployments use an artifact."""
    desired_specs: Mapping[Address, Mapping[str, Any]] = field(default_factory=dict)
    """The desired spec of everything on this host, after --target and --exclude."""
