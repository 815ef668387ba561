"""Which changes are carried out, in which order, and what each one waits for. Pure.

A unit is a change with the members that it carries: `bundle.gpu-a` with its deployments and origins. Units of one host run in plan order;
a unit that stands on a unit of another host waits for it without holding a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sbctl.base.errors import RefusedError
from sbctl.base.ids import Address
from sbctl.plan.model import BlastRadius, Change, Plan
from sbctl.plan.order import execution_graph

__all__ = ["Unit", "first_felt", "goes_out", "hosts_needed", "leaving_hosts", "refuse_blocked", "units_by_host"]


@dataclass(frozen=True, slots=True)
class Unit:
    """`members` change with it and are recorded with it; `kept_members` are no-op rows that must still hold afterwards."""

    change: Change
    members: tuple[Change, ...] = ()
    kept_members: tuple[Change, ...] = ()
    after: frozenset[Address] = frozenset()
    """Addresses on other hosts that this plan changes too."""
    behind: frozenset[Address] = frozenset()
    """Changes on other hosts that it comes after, however they end."""
    leaves: bool = False
    """Its host is taken out of its cluster: what runs there is placed elsewhere before the first change."""

    @property
    def rows(self) -> tuple[Change, ...]:
        """What the summary lists: the change and its members."""
        return (self.change, *self.members)

    @property
    def only_forgets(self) -> bool:
        """Nothing is asked of the host: memory is dropped, of things given up or already gone."""
        change = self.change
        return change.action == "forget" or (change.action == "delete" and not change.steps)


def refuse_blocked(plan: Plan) -> None:
    """Raises RefusedError before anything starts: `plan.not_applicable` for a mere comparison, else the code of the first change that must
    not be applied, naming all of them."""
    if plan.offline or plan.mode in ("drift", "against"):
        raise RefusedError(
            "plan.not_applicable",
            "this plan compares without asking the hosts" if plan.offline else f"this is a plan of mode {plan.mode}",
            next_step="run sbctl apply, which makes a plan of its own",
        )
    blocked = [change for change in plan.changes if change.blocked is not None]
    if not blocked:
        return
    first = blocked[0]
    more = f" ({len(blocked) - 1} more)" if len(blocked) > 1 else ""
    raise RefusedError(
        first.blocked_code or "plan.blocked",
        f"{first.blocked}{more}",
        place=str(first.address),
        next_step="nothing was changed; remove what blocks it, or leave it out with --exclude",
        detail={"blocked": [{"address": str(change.address), "reason": change.blocked} for change in blocked]},
    )


def leaving_hosts(plan: Plan) -> frozenset[str]:
    """Hosts that are no workers of their cluster after this plan, while an authority of it stays: one that decides where their replicas go."""
    gone = {change.host for change in plan.actionable if change.address.kind == "runtime" and change.action == "delete"}
    return frozenset(change.host for change in plan.actionable if set(change.leaves_cluster) - gone)


def units_by_host(plan: Plan) -> Mapping[str, tuple[Unit, ...]]:
    """The actionable part of a plan. A member whose bundle does not change is a unit of its own: read back and recorded.

    What concerns all hosts comes behind what is done on each, but for hosts that leave their cluster: those come behind it, since what runs
    there moves by what is published.
    """
    leaving = leaving_hosts(plan)
    actionable = {change.address: change for change in plan.actionable}
    members: dict[Address, list[Change]] = {}
    kept: dict[Address, list[Change]] = {}
    for change in plan.changes:
        owner = change.member_of
        if owner in actionable:
            if change.address in actionable:
                members.setdefault(owner, []).append(change)
            elif change.action == "no-op":
                kept.setdefault(owner, []).append(change)
    graph = execution_graph(actionable)
    own = [change for change in actionable.values() if not change.is_fleet_wide and change.member_of is None]
    on_hosts = frozenset(change.address for change in own if change.host not in leaving)
    of_all = frozenset(change.address for change in actionable.values() if change.is_fleet_wide)
    units: dict[str, list[Unit]] = {}
    for address, change in actionable.items():
        if change.member_of in actionable:
            continue
        elsewhere = frozenset(other for other in graph[address] if actionable[other].host != change.host)
        first = on_hosts if change.is_fleet_wide else of_all if change.host in leaving else frozenset()
        behind = frozenset(other for other in first if actionable[other].host != change.host)
        leaves = change.host in leaving and not change.is_fleet_wide
        unit = Unit(change, tuple(members.get(address, ())), tuple(kept.get(address, ())), elsewhere, behind, leaves)
        units.setdefault(change.host, []).append(unit)
    return {host: tuple(listed) for host, listed in units.items()}


def goes_out(units: Iterable[Unit]) -> bool:
    """Whether users of the host may notice its changes: one of them restarts something or breaks something."""
    own = (unit for unit in units if not unit.change.is_fleet_wide)
    return any(row.blast_radius >= BlastRadius.RESTART for unit in own for row in unit.rows)


def first_felt(unit: Unit) -> int:
    """Which of its steps users of the host may be the first to notice: the first with a downtime of its own; where none says so, any may be."""
    return next((number for number, step in enumerate(unit.change.steps) if step.downtime != "none"), 0)


def hosts_needed(units: Mapping[str, tuple[Unit, ...]]) -> Mapping[str, frozenset[str]]:
    """Host → the other hosts that a change of it waits for."""
    home = {row.address: host for host, listed in units.items() for unit in listed for row in unit.rows}
    return {
        host: frozenset(home[address] for unit in listed for address in unit.after | unit.behind if address in home)
        - {host}
        for host, listed in units.items()
    }
