"""Everything a plan is made from, and what planning asks of the resource kinds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from sbctl.base.connection import Connection
from sbctl.base.ids import Address
from sbctl.base.update_policy import UpdatePolicy
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Change, Desired, DiffContext, Observed, PlanMode, Recorded

__all__ = [
    "MergesSpecs",
    "PlanInputs",
    "Planner",
    "Planners",
    "ProposedConfig",
    "RestoresSpecs",
    "SharesDocument",
    "ShowsSpecs",
    "recorded_from",
]


class Planner(Protocol):
    """The pure half of a provider."""

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        """One host's snapshot read for one address."""
        ...

    def diff(
        self, desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext
    ) -> Change:
        """At least one of desired and recorded is given; desired None: delete."""
        ...


Planners = Mapping[str, Planner]
"""By kind."""


@runtime_checkable
class MergesSpecs(Protocol):
    """A kind that can be planned in part, because it has members. Without this method `selection.merge_member_maps` does it."""

    def merge_spec(
        self,
        recorded_spec: Mapping[str, Any] | None,
        desired_spec: Mapping[str, Any] | None,
        selected_members: Collection[Address],
        own_fields: bool,
    ) -> Mapping[str, Any]:
        """The recorded spec with the selected members as desired: changed, added or gone. `own_fields`: so is everything that belongs to
        no member. At least one spec is given."""
        ...


@runtime_checkable
class SharesDocument(Protocol):
    """A kind of which several hosts may hold one and the same document."""

    def document_of(self, full_spec: Mapping[str, Any]) -> str | None:
        """Its name; None: it is the host's own."""
        ...

    def revision_of(self, record: Mapping[str, Any]) -> int:
        """Which of its revisions was recorded; a higher one is newer."""
        ...


@runtime_checkable
class RestoresSpecs(Protocol):
    """A kind whose old spec must not come back whole: a rollback brings back no removed key."""

    def restore_spec(self, snapshot_spec: Mapping[str, Any], recorded_spec: Mapping[str, Any]) -> Mapping[str, Any]:
        """The spec that a rollback wants: the snapshot's, less what was revoked since."""
        ...


@runtime_checkable
class ShowsSpecs(Protocol):
    """A kind whose spec holds more than a reader wants to see, or in another form."""

    def shown_spec(self, full_spec: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values of which leaves are made, as the kind's own `diff` names them."""
        ...


class ProposedConfig(Protocol):
    """What `PlanInputs.against` reads of a compiled configuration."""

    @property
    def fleet_name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def catalog_digest(self) -> str: ...
    @property
    def prevent_destroy(self) -> tuple[str, ...]: ...


def recorded_from(base: Iterable[Desired]) -> dict[Address, Recorded]:
    """Desired state as if it had been applied: every spec is recorded, nothing is known of any host."""
    return {
        one.address: Recorded(
            address=one.address,
            record={},
            record_version=0,
            fingerprint=one.fingerprint,
            spec=one.spec,
            host=one.host,
            connection=one.connection,
            after=one.after,
            member_of=one.member_of,
            keep=one.keep,
            prevent_destroy=one.prevent_destroy,
        )
        for one in base
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """What `build_plan` may know. Every collection may come in any order; the plan does not depend on it."""

    mode: PlanMode
    desired: Collection[Desired]
    """apply: of sb.yml. rollback: of the snapshot. against: of the proposed file. destroy and drift do not look at it."""
    recorded: Mapping[Address, Recorded]
    """Of the state. against: `recorded_from(desired of the base file)`."""
    snapshots: Mapping[str, NodeSnapshot | None] = field(default_factory=dict)
    """By host. A host without one counts as unreachable."""
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Host → one sentence why."""
    hosts: Mapping[str, Connection] = field(default_factory=dict)
    """Every host that exists for this run: of sb.yml and of the state."""
    lineage: str | None
    serial: int
    config_digest: str
    catalog_digest: str
    now: datetime
    targets: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    """Address patterns, as in a shell: `*` matches also `/` and `.`."""
    allow_unreachable: bool = False
    prevent_destroy: tuple[str, ...] = ()
    """Address patterns of sb.yml."""
    update: UpdatePolicy | None = None
    """How an apply would roll over hosts; for the reader."""
    refresh: bool = True
    """False: hosts were not asked; specs are compared and nothing can be applied."""
    options: Mapping[str, Any] = field(default_factory=dict)
    header: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def against(
        cls, base: Collection[Desired], proposed: Collection[Desired], config: ProposedConfig, now: datetime
    ) -> PlanInputs:
        """Two files compared: `base` counts as applied, no host and no state is known."""
        return cls(
            mode="against",
            desired=proposed,
            recorded=recorded_from(base),
            hosts={one.host: one.connection for one in (*base, *proposed)},
            lineage=None,
            serial=0,
            config_digest=config.digest,
            catalog_digest=config.catalog_digest,
            now=now,
            prevent_destroy=config.prevent_destroy,
            header={"fleet": config.fleet_name},
        )

    def __post_init__(self) -> None:
        """A creation that was begun and not finished counts as recorded only where it is to be removed."""
        attempted = {address for address, recorded in self.recorded.items() if recorded.attempted}
        if attempted and self.mode != "destroy":
            dropped = attempted if self.mode == "drift" else attempted & {one.address for one in self.desired}
            kept = {address: recorded for address, recorded in self.recorded.items() if address not in dropped}
            object.__setattr__(self, "recorded", kept)

    @property
    def offline(self) -> bool:
        return self.mode == "against" or not self.refresh
