"""What every kind's `diff` is made of: the truths of one resource, and the Change that comes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from sbctl.base.errors import SbctlError
from sbctl.base.ids import Address
from sbctl.base.limits import NODE_CALL_DEADLINE_S
from sbctl.base.truths import Desired, Recorded
from sbctl.node.messages import Method
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.blast_radius import action_radius
from sbctl.plan.leaves import leaf_changes
from sbctl.plan.model import UNMANAGED, Action, BlastRadius, Change, DiffContext, Leaf, Observed, Step

__all__ = [
    "Blocked",
    "Call",
    "Comparison",
    "Downtime",
    "Retry",
    "gone_leaves",
    "new_leaves",
    "result_of",
    "transfer_deadline_s",
    "worst_downtime",
]

Downtime = Literal["none", "queue", "refuse"]
Retry = Literal["safe", "read_first", "never"]

_DOWNTIMES: tuple[Downtime, ...] = ("none", "queue", "refuse")
_SLOWEST_TRANSFER_BYTES_S = 256 * 1024


class Call(NamedTuple):
    """One node call of a change, before it has its key."""

    method: Method
    params: Mapping[str, Any]
    title: str
    downtime: Downtime = "none"
    retry: Retry = "safe"
    deadline_s: float = NODE_CALL_DEADLINE_S


class Blocked(NamedTuple):
    """Why a change must not be applied: a stable code, one sentence, and what to do about it."""

    code: str
    message: str
    next_step: str = ""

    @classmethod
    def by(cls, error: SbctlError) -> Blocked:
        return cls(error.code, error.message, error.next_step or "")

    @property
    def sentence(self) -> str:
        return f"{self.message}; {self.next_step}" if self.next_step else self.message


@dataclass(frozen=True, slots=True)
class Comparison:
    """One resource in one plan. At least one of `desired` and `recorded` is there."""

    desired: Desired | None
    recorded: Recorded | None
    observed: Observed
    context: DiffContext

    @property
    def subject(self) -> Desired | Recorded:
        subject = self.desired or self.recorded
        assert subject is not None, "a comparison without desired and recorded"
        return subject

    @property
    def address(self) -> Address:
        return self.subject.address

    @property
    def snapshot(self) -> NodeSnapshot:
        """The host's answer; only asked for when there was one."""
        assert self.context.snapshot is not None, "an unreachable host has no snapshot"
        return self.context.snapshot

    @property
    def bootstrapped(self) -> bool:
        """Whether the node interface answered, so that all facts are there."""
        return self.snapshot.bootstrapped

    @property
    def runtime_stays(self) -> bool:
        """Where the host's runtime goes too, its removal takes all that stands beside it along, and nothing answers there afterwards."""
        return Address("runtime", self.address.scope) in self.context.desired_specs

    def edited(self, files: Mapping[str, tuple[str, str]]) -> Iterator[Leaf]:
        """What was changed on the host since it was installed. `files`: digest in record and facts → path and reason of its leaf."""
        assert self.recorded is not None
        for name, (path, reason) in files.items():
            wanted = self.recorded.record.get(name)
            if wanted is not None and (shown := self.observed.decisive[name]) != wanted:
                yield Leaf(path, "edited" if shown else "missing", "as desired", reason)

    def steps(self, calls: Iterable[Call]) -> tuple[Step, ...]:
        return tuple(
            Step(
                key=f"{self.address}#{number}:{call.method}",
                method=str(call.method),
                params=call.params,
                title=call.title,
                downtime=call.downtime,
                retry=call.retry,
                deadline_s=call.deadline_s,
            )
            for number, call in enumerate(calls, start=1)
        )

    def change(
        self,
        action: Action,
        reason: str,
        *,
        calls: Iterable[Call] = (),
        leaves: tuple[Leaf, ...] = (),
        blast_radius: BlastRadius = BlastRadius.HITLESS,
        downtime: Downtime | None = None,
        download_bytes: int | None = None,
        memory_bytes: int | None = None,
        notes: tuple[str, ...] = (),
        drifted: bool = False,
        blocked: Blocked | None = None,
    ) -> Change:
        """`downtime` defaults to the worst of the calls. A blocked change has no steps. A leaf does not repeat the reason of the change."""
        steps = () if blocked else self.steps(calls)
        return Change(
            address=self.address,
            action=action,
            reason=reason,
            host=self.subject.host,
            connection=self.subject.connection,
            leaves=tuple(replace(leaf, reason="") if leaf.reason == reason else leaf for leaf in leaves),
            blast_radius=blast_radius,
            download_bytes=download_bytes,
            memory_bytes=memory_bytes,
            downtime=downtime or worst_downtime(step.downtime for step in steps),
            steps=steps,
            after=self.subject.after,
            member_of=self.subject.member_of,
            desired=self.desired,
            recorded=self.recorded,
            decisive=self.observed.decisive,
            notes=notes,
            drifted=drifted,
            blocked=blocked.sentence if blocked else None,
            blocked_code=blocked.code if blocked else None,
        )

    def unchanged(self) -> Change:
        return self.change("no-op", "nothing to change")

    def unmanaged(self) -> Change | None:
        """For a deployment of a host whose admin API owns the deployments and holds some: sb.yml only seeded it. None where sb.yml decides."""
        if not self.is_admin_managed or self.context.mode == "destroy":
            return None
        if self.desired is None:
            return self.forgotten(UNMANAGED)
        return self.change("no-op", UNMANAGED)

    def kept_for_others(self) -> Change | None:
        """For an engine or weights that sb.yml does not name any more: what the admin API, or the cluster, runs may need them. None where
        sb.yml decides."""
        if self.desired is not None or self.context.mode == "destroy":
            return None
        if self.is_cluster_node:
            return self.change("no-op", "kept: what the cluster still runs here may need it")
        return (
            self.change("no-op", "kept: what the admin API of its host serves may need it")
            if self.is_admin_managed
            else None
        )

    @property
    def is_cluster_node(self) -> bool:
        """Whether the host goes on as a node of a cluster, which says what it runs."""
        runtime = self.context.desired_specs.get(Address("runtime", self.address.scope))
        return runtime is not None and runtime["config"].get("cluster") is not None

    def left_to_cluster(self, reason: str) -> Change | None:
        """For what sb.yml does not want on a host any more because a cluster took over: the state lets go of it. None on other hosts."""
        if self.desired is not None or self.context.mode == "destroy" or not self.is_cluster_node:
            return None
        return self.forgotten(reason)

    def goes_with_host(self) -> Change | None:
        """For weights and engines of a node of a cluster whose runtime goes too: they are in use until that ends, which ends the engines, and the
        host's marker takes the directories with it. None on other hosts."""
        runtime = Address("runtime", self.address.scope)
        was = self.context.recorded_specs.get(runtime)
        if self.desired is not None or runtime in self.context.desired_specs or was is None:
            return None
        return None if was["config"].get("cluster") is None else self.forgotten("it goes with the runtime")

    @property
    def is_admin_managed(self) -> bool:
        """Whether the admin API goes on owning the deployments of this host: it has some, and sb.yml leaves them to it."""
        runtime = self.context.desired_specs.get(Address("runtime", self.address.scope))
        held = self.snapshot.bundle
        return (
            runtime is not None
            and runtime["config"]["authority"] == "admin_managed"
            and held is not None
            and held.deployments_revision is not None
        )

    def removed(self, call: Call, fields: Mapping[str, Any], *, gone: str, why: str) -> Change:
        """Delete what stands beside the runtime by one call, or by none where the runtime goes too.

        `fields` are what the reader is shown; `gone` says that it is not there any more, `why` it goes outside of a destroy.
        """
        if self.observed.status != "present":
            return self.forgotten(gone)
        return self.change(
            "delete",
            "asked for" if self.context.mode == "destroy" else why,
            calls=[call] if self.runtime_stays else [],
            leaves=gone_leaves(fields),
            blast_radius=action_radius(self.address.kind, "delete"),
        )

    def unreachable(self) -> Change:
        return self.change("unreachable", "the host gave no answer")

    def held_by_others(self) -> Change | None:
        """For what would be removed: refused, when another fleet's marker stands on the host now. None when the host is ours.

        Whose host it should be is what `host.H` says, which every plan that removes something of a host knows.
        """
        marker, address = self.snapshot.marker, Address("host", self.address.scope)
        host = self.context.recorded_specs.get(address) or self.context.desired_specs.get(address)
        if marker is None or host is None or host["lineage"] == marker.lineage:
            return None
        return self.change(
            "delete",
            "another fleet holds this host now",
            blocked=Blocked(
                "host.other_lineage",
                f"{self.subject.host} carries the marker of fleet {marker.lineage}, so nothing there is removed",
                f"if that is meant, let the state forget it: sbctl state rm '{self.address}'",
            ),
        )

    def forgotten(self, reason: str) -> Change:
        """The state lets go of it; the host is not touched."""
        return self.change("forget", reason)


def new_leaves(fields: Mapping[str, Any]) -> tuple[Leaf, ...]:
    """Every value of something that appears; what is unset or empty is not news."""
    return leaf_changes(None, _set(fields))


def gone_leaves(fields: Mapping[str, Any]) -> tuple[Leaf, ...]:
    """Every value of something that disappears."""
    return leaf_changes(_set(fields), None)


def _set(fields: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: _set(value) if isinstance(value, Mapping) else value for name, value in fields.items()}
    return {name: value for name, value in kept.items() if value is not None and value not in ({}, [])}


def worst_downtime(downtimes: Iterable[Downtime]) -> Downtime:
    """The worst for callers: `refuse` over `queue` over `none`."""
    return max(downtimes, key=_DOWNTIMES.index, default="none")


def transfer_deadline_s(size_bytes: int) -> float:
    """Time for this many bytes over a slow line (256 KiB/s), and one call's deadline on top."""
    return NODE_CALL_DEADLINE_S + size_bytes / _SLOWEST_TRANSFER_BYTES_S


def result_of(results: Mapping[str, Mapping[str, Any]], method: Method) -> Mapping[str, Any] | None:
    """What the last step with this method answered; None when no step had it."""
    found = None
    for key, result in results.items():
        if key.endswith(f":{method}"):
            found = result
    return found
