"""Planning: one pure function from the truths to an ordered list of changes.

1. `selection` says what is desired, after mode and targets.
2. Each host that answered: every kind's planner reads the snapshot and compares; members first, then their bundle, which sees them.
   A host that gave no answer is one row, `unreachable`; nothing is said of what is on it.
3. `order` sorts the changes so that they can run; a cycle is an error that names it.
4. `policy.with_blocks` marks what must not be applied, and what waits for it.

The same inputs give the same plan, byte for byte in every view, whatever the order of dicts, sets and PYTHONHASHSEED.
Cost is linear in resources.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sbctl.base.display import plural
from sbctl.base.errors import InputError
from sbctl.base.ids import Address
from sbctl.base.patterns import any_of
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.blast_radius import action_radius, routed_deployments
from sbctl.plan.inputs import PlanInputs, Planner, Planners, ShowsSpecs
from sbctl.plan.leaves import leaf_changes
from sbctl.plan.model import (
    UNMANAGED,
    Action,
    BlastRadius,
    Change,
    Desired,
    DiffContext,
    Leaf,
    Observed,
    Plan,
    Recorded,
)
from sbctl.plan.order import address_key, execution_graph, run_order
from sbctl.plan.paths import split_path
from sbctl.plan.policy import with_blocks
from sbctl.plan.remembered import outdated
from sbctl.plan.selection import Selection, effective_desired, nearest_pattern

__all__ = ["PlanInputs", "Planner", "Planners", "build_plan"]

_MEMBER_LEAVES: Final = frozenset({("deployments",), ("origins",)})
_NOT_BOOTSTRAPPED: Final = NodeSnapshot(bootstrapped=False)


def build_plan(inputs: PlanInputs, planners: Planners) -> Plan:
    """The plan for `inputs`. Raises InputError `plan.cycle`, `plan.unmatched_pattern`, `plan.duplicate_address`, `plan.unknown_kind`."""
    selection = effective_desired(inputs, planners)
    by_host = _planned_by_host(inputs, selection)
    changes: dict[Address, Change] = {}
    unreachable: dict[str, str] = {}
    for host, addresses in sorted(by_host.items()):
        snapshot = _NOT_BOOTSTRAPPED if inputs.offline else inputs.snapshots.get(host)
        if snapshot is None or (host in inputs.unreachable and not inputs.offline):
            unreachable[host] = inputs.unreachable.get(host) or "the host was not observed"
            row = _unreachable_row(host, addresses, inputs, selection, unreachable[host])
            changes[row.address] = row
        else:
            changes.update(_HostPlan(inputs, selection, planners, host, addresses, snapshot).changes())
    graph = execution_graph(changes)
    blocked = with_blocks(changes, graph, inputs.prevent_destroy)
    ordered = run_order(blocked, graph)
    return Plan(
        mode=inputs.mode,
        lineage=inputs.lineage,
        serial=inputs.serial,
        config_digest=inputs.config_digest,
        catalog_digest=inputs.catalog_digest,
        changes=ordered,
        created_at=inputs.now,
        hosts=dict(sorted(inputs.hosts.items())),
        unreachable=unreachable,
        targets=inputs.targets,
        excludes=inputs.excludes,
        replaces=inputs.replaces,
        allow_unreachable=inputs.allow_unreachable,
        offline=inputs.offline,
        removes_every_deployment=_removes_every_deployment(inputs, selection),
        options=dict(inputs.options),
        notes=(*inputs.notes, *selection.notes, *_notes(inputs, ordered)),
        header=dict(inputs.header),
    )


@dataclass(frozen=True, slots=True)
class _HostPlan:
    """Comparing everything on one host that answered."""

    inputs: PlanInputs
    selection: Selection
    planners: Planners
    host: str
    addresses: tuple[Address, ...]
    snapshot: NodeSnapshot

    def changes(self) -> dict[Address, Change]:
        context = self._context()
        members: defaultdict[Address, list[Change]] = defaultdict(list)
        found: dict[Address, Change] = {}
        bundles: list[Address] = []
        for address in self.addresses:
            desired, recorded = self._truths(address)
            bundle = desired.member_of if desired else recorded.member_of if recorded else None
            if bundle is None and address.kind == "bundle":
                bundles.append(address)
                continue
            found[address] = change = self._change(address, desired, recorded, context)
            if bundle is not None:
                members[bundle].append(change)
        for address in bundles:
            seen = replace(context, member_changes=tuple(members[address]))
            found[address] = self._change(address, *self._truths(address), seen)
        return found

    def _truths(self, address: Address) -> tuple[Desired | None, Recorded | None]:
        return self.selection.desired.get(address), self.inputs.recorded.get(address)

    def _context(self) -> DiffContext:
        pairs = [(address, *self._truths(address)) for address in self.addresses]
        return DiffContext(
            now=self.inputs.now,
            mode=self.inputs.mode,
            snapshot=self.snapshot,
            recorded_specs={address: recorded.spec for address, _, recorded in pairs if recorded},
            desired_specs={address: desired.spec for address, desired, _ in pairs if desired},
        )

    def _change(
        self, address: Address, desired: Desired | None, recorded: Recorded | None, context: DiffContext
    ) -> Change:
        planner = self.planners.get(address.kind)
        if planner is None:
            raise InputError(
                "plan.unknown_kind",
                f'nothing here knows the kind "{address.kind}" of {address}',
                next_step="use the sbctl that recorded it, or a newer one",
            )
        if self._stays_behind(desired, recorded):
            assert recorded is not None
            return _forgotten(recorded)
        if address in self.selection.replaced:
            context = replace(context, replace=True)
        if self.inputs.offline and recorded is not None:
            return _compared_offline(desired, recorded, context, planner)
        observed = planner.interpret(self.snapshot, address, recorded)
        return self._settled(planner.diff(desired, recorded, observed, context), desired, recorded, observed)

    def _stays_behind(self, desired: Desired | None, recorded: Recorded | None) -> bool:
        """Marked `keep`, on a host that is given up."""
        gone = Address("host", self.host) not in self.selection.desired
        return desired is None and recorded is not None and recorded.keep and gone

    def _settled(
        self, change: Change, desired: Desired | None, recorded: Recorded | None, observed: Observed
    ) -> Change:
        """What the core owns in every change: edges, truths, decisive facts; and that only an applied plan has steps."""
        source = desired or recorded
        assert source is not None
        nothing_to_do = change.action == "no-op"
        refused = (
            ("host.other_lineage", f'host "{self.host}" belongs to another fleet')
            if observed.owner == "other_lineage" and not nothing_to_do and change.blocked is None
            else (change.blocked_code, change.blocked)
        )
        return replace(
            change,
            host=source.host,
            connection=source.connection,
            steps=() if source.member_of or self.inputs.offline or self.inputs.mode == "drift" else change.steps,
            after=source.after,
            member_of=source.member_of,
            desired=desired,
            recorded=recorded,
            decisive=change.decisive or observed.decisive,
            drifted=change.drifted or (self.inputs.mode == "drift" and not nothing_to_do),
            blocked_code=refused[0],
            blocked=refused[1],
        )


def _compared_offline(desired: Desired | None, recorded: Recorded, context: DiffContext, planner: object) -> Change:
    """What two specs alone can tell: no observation, so no drift, no steps and no costs."""
    address = recorded.address
    source = desired or recorded
    action: Action
    leaves: tuple[Leaf, ...] = ()
    if desired is None:
        action, reason = "delete", "not in sb.yml any more"
    elif context.replace:
        action, reason = "replace", "asked for by --replace"
    elif desired.fingerprint != recorded.fingerprint or any(
        member.action != "no-op" for member in context.member_changes
    ):
        action, reason = "update", "sb.yml asks for something else"
    else:
        action, reason = "no-op", ""
    if desired is not None and desired.fingerprint != recorded.fingerprint:
        leaves = leaf_changes(_shown(planner, recorded.spec), _shown(planner, desired.spec))
        if context.member_changes:
            # Each member has a row of its own.
            leaves = tuple(leaf for leaf in leaves if split_path(leaf.path)[:1] not in _MEMBER_LEAVES)
    routed = routed_deployments(
        spec
        for other, spec in context.recorded_specs.items()
        if other.kind == "origin" and other.scope == address.scope
    )
    members_worst = max((member.blast_radius for member in context.member_changes), default=None)
    radius = action_radius(
        address.kind, action, leaves, rollout=str(source.spec.get("rollout", "rolling")), routed=address.name in routed
    )
    return Change(
        address, action, reason, source.host, source.connection, leaves,
        blast_radius=radius if members_worst is None else max(radius, members_worst),
        after=source.after, member_of=source.member_of, desired=desired, recorded=recorded,
    )  # fmt: skip


def _shown(planner: object, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return planner.shown_spec(spec) if isinstance(planner, ShowsSpecs) else spec


def _forgotten(recorded: Recorded) -> Change:
    return Change(
        recorded.address, "forget", "kept on the host, no longer managed", recorded.host, recorded.connection,
        after=recorded.after, member_of=recorded.member_of, recorded=recorded,
    )  # fmt: skip


def _planned_by_host(inputs: PlanInputs, selection: Selection) -> Mapping[str, tuple[Address, ...]]:
    by_host: defaultdict[str, list[Address]] = defaultdict(list)
    for address in selection.planned:
        source = selection.desired.get(address) or inputs.recorded[address]
        by_host[source.host].append(address)
    return {host: tuple(sorted(addresses, key=address_key)) for host, addresses in by_host.items()}


def _unreachable_row(
    host: str, addresses: Iterable[Address], inputs: PlanInputs, selection: Selection, why: str
) -> Change:
    listed = tuple(addresses)
    source = selection.desired.get(listed[0]) or inputs.recorded[listed[0]]
    connection = inputs.hosts.get(host, source.connection)
    known = connection.kind == "ssh" and any(each.host == host for each in inputs.recorded.values())
    lost = f"; if the machine is gone for good: sbctl host forget {host} --lost" if known else ""
    advice = (
        f"repair that, or plan without it (--allow-unreachable){lost}"
        if not inputs.allow_unreachable
        else f"left out of this plan with {plural(len(listed), 'resource')}"
    )
    return Change(Address("host", host), "unreachable", why, host, connection, notes=(advice,))


def _removes_every_deployment(inputs: PlanInputs, selection: Selection) -> bool:
    """sb.yml names no deployment, the state has some, and this plan takes them all away."""
    return (
        inputs.mode == "apply"
        and any(address.kind == "deployment" for address in inputs.recorded)
        and not any(address.kind == "deployment" for address in selection.desired)
    )


def _restarts_its_host(change: Change) -> bool:
    return change.action == "update" and not change.is_fleet_wide and change.blast_radius >= BlastRadius.RESTART


def _notes(inputs: PlanInputs, ordered: Sequence[Change]) -> Iterator[str]:
    if inputs.update is not None and any(change.action not in ("no-op", "unreachable") for change in ordered):
        yield f"update: {inputs.update.described(len(inputs.hosts))}"
        if any(_restarts_its_host(change) for change in ordered):
            meanwhile = (
                "the others serve"
                if len(inputs.hosts) > 1
                else "and no other serves (without fleet.update requests wait)"
            )
            yield f"a host that restarts is drained first: it answers new requests with 503 and Retry-After until it is back, {meanwhile}"
        if inputs.update.canary in inputs.unreachable:
            yield f"the canary {inputs.update.canary} gave no answer, so no host proves this change before the others get it"
    for host, snapshot in sorted(inputs.snapshots.items()):
        lease = snapshot.lease if snapshot is not None else None
        if lease is not None:
            yield f"host {host} is being changed by {lease.owner} ({lease.purpose}) since {lease.since}"
        drain = snapshot.drain if snapshot is not None else None
        if drain is not None and drain.persistent:
            since = f" ({drain.since})" if drain.since else ""
            yield f"host {host} was taken out of service by {drain.by}{since}: sbctl host resume {host}"
    yield from _unmanaged(ordered)
    yield from _idle_protection(inputs)
    if not inputs.refresh and inputs.mode != "against":
        yield "hosts were not asked (--no-refresh): what changed on them is not seen, and nothing can be applied"
    if inputs.mode == "apply":
        drifted = sum(change.drifted and change.action == "no-op" for change in ordered)
        if drifted:
            yield f"{plural(drifted, 'resource')} changed behind our back without effect on this plan: sbctl drift"
        noted = sum(1 for _ in outdated(ordered))
        if noted:
            yield f"apply also records how {plural(noted, 'resource')} {'is' if noted == 1 else 'are'} reached, kept or protected now"


def _unmanaged(ordered: Sequence[Change]) -> Iterator[str]:
    """By host, so that nobody wonders why an edit of sb.yml does nothing."""
    hosts: dict[str, list[str]] = {}
    for change in ordered:
        if change.reason == UNMANAGED:
            hosts.setdefault(change.host, []).append(change.address.name or "")
    for host, names in hosts.items():
        listed = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
        yield f"unmanaged on {host}: deployments ({listed}) belong to its admin API (authority: admin_managed)"


def _idle_protection(inputs: PlanInputs) -> Iterator[str]:
    """Not an error, since what is protected may be gone already; a typo must not pass for protection."""
    known = inputs.recorded.keys() | {one.address for one in inputs.desired}
    for text in inputs.prevent_destroy if known else ():
        if not any(any_of((text,))(address) for address in known):
            near = nearest_pattern(text, known)
            hint = f'; did you mean "{near}"?' if near else ""
            yield f'prevent_destroy "{text}" matches no resource, so it protects nothing{hint}'
