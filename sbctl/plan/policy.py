"""What may not be applied, why, and with which code `plan` exits. Pure: a plan and the user's limits in, reasons out.

A blocked change says so itself, and so does what waits for it; the rest of the plan is not marked. Any refusal stops an apply before it
starts; leaving the blocked changes out (--exclude) lets the rest go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sbctl.base.display import plural
from sbctl.base.errors import ExitCode, RefusedError, worst_exit
from sbctl.base.ids import Address
from sbctl.base.patterns import any_of
from sbctl.plan.model import BlastRadius, Change, Plan
from sbctl.plan.order import Graph, dependants_of

__all__ = ["Limits", "Refusal", "applyable", "complete", "plan_exit_code", "refusals", "with_blocks"]

_HOLDS_NOTHING = ("no-op", "unreachable", "forget")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user allows."""

    max_blast_radius: BlastRadius | None = None
    allow_empty: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a plan, or one change of it, must not be applied."""

    code: str
    message: str
    next_step: str
    place: str | None = None
    only_apply: bool = False
    """`plan` says it and still exits 2: the changes are what was asked for, carrying them out needs one more word."""

    def error(self) -> RefusedError:
        return RefusedError(self.code, self.message, place=self.place, next_step=self.next_step)


_NO_LIMITS = Limits()


def with_blocks(changes: Mapping[Address, Change], graph: Graph, patterns: Iterable[str]) -> dict[Address, Change]:
    """`changes` with `blocked` set on what prevent_destroy protects and on everything that waits for a blocked change."""
    patterns = tuple(patterns)
    result = dict(changes)
    for address, change in changes.items():
        if change.blocked is None and change.action in ("delete", "replace") and _protected(change, patterns):
            verb = "removed" if change.action == "delete" else "replaced"
            result[address] = replace(
                change,
                blocked=f"{address} would be {verb}, but prevent_destroy protects it; to allow that, take it out of prevent_destroy in sb.yml",
                blocked_code="plan.prevent_destroy",
            )
    roots = [address for address, change in result.items() if change.blocked is not None]
    for address, root in dependants_of(roots, graph, result).items() if roots else ():
        change = result[address]
        if change.blocked is None and change.action not in _HOLDS_NOTHING:
            result[address] = replace(
                change, blocked=f"waits for {root}, which is blocked", blocked_code="plan.waits_for_blocked"
            )
    return result


def refusals(plan: Plan, limits: Limits = _NO_LIMITS) -> tuple[Refusal, ...]:
    """Every reason against applying the plan as a whole or a change of it, the whole first. A drift report is refused by the radius only."""
    if plan.mode == "drift":
        return tuple(_against_the_whole(plan, limits))
    return (*_against_the_whole(plan, limits), *_against_changes(plan))


def applyable(plan: Plan, limits: Limits = _NO_LIMITS) -> bool:
    """Whether an apply would do something and may: it asks hosts, every host answered or may be left out, nothing is refused."""
    if plan.mode in ("drift", "against") or plan.offline or (plan.unreachable and not plan.allow_unreachable):
        return False
    return bool(plan.actionable) and not refusals(plan, limits)


def complete(plan: Plan) -> bool:
    """Whether applying the plan would make everything as desired: nothing left out, unreachable or blocked."""
    return not (plan.targets or plan.excludes or plan.unreachable or any(change.blocked for change in plan.actionable))


def plan_exit_code(plan: Plan, limits: Limits = _NO_LIMITS) -> ExitCode:
    """Of `plan` and `drift`: by base.errors.EXIT_PRECEDENCE the worst of refused, unreachable, changes and nothing."""
    codes = {ExitCode.DONE}
    if plan.actionable:
        codes.add(ExitCode.CHANGES)
    if plan.unreachable and not plan.allow_unreachable:
        codes.add(ExitCode.UNREACHABLE)
    if plan.unfit or plan.taken or any(not refusal.only_apply for refusal in refusals(plan, limits)):
        codes.add(ExitCode.REFUSED)
    return worst_exit(codes)


def _against_the_whole(plan: Plan, limits: Limits) -> Iterable[Refusal]:
    limit = limits.max_blast_radius
    if limit is not None and plan.blast_radius > limit:
        worst = [change for change in plan.actionable if change.blast_radius > limit]
        yield Refusal(
            "plan.blast_radius",
            f"the blast radius is {plan.blast_radius}, at most {limit} is allowed; {plural(len(worst), 'change')} beyond it",
            f"leave them out (--exclude), or allow it: --max-blast-radius {plan.blast_radius}",
            str(worst[0].address),
        )
    if plan.removes_every_deployment and not limits.allow_empty:
        count = sum(change.address.kind == "deployment" and change.action == "delete" for change in plan.changes)
        yield Refusal(
            "plan.empties_fleet",
            f"sb.yml names no deployment any more; this would remove every one ({plural(count, 'deployment')})",
            "if that is meant: sbctl apply --allow-empty",
            only_apply=True,
        )


def _against_changes(plan: Plan) -> Iterable[Refusal]:
    for change in plan.actionable:
        if change.blocked is not None and change.blocked_code != "plan.waits_for_blocked":
            yield Refusal(
                change.blocked_code or "plan.blocked",
                change.blocked,
                _way_around(plan, change),
                str(change.address),
            )


def _way_around(plan: Plan, change: Change) -> str:
    """Without its host nothing on it can be planned, so a blocked host is left out whole; the only host has no way around."""
    if change.address.kind != "host":
        return f"leave it out: --exclude '{change.address}'"
    return f"leave this host out: --exclude '*.{change.host}'" if len(plan.hosts) > 1 else ""


def _protected(change: Change, patterns: tuple[str, ...]) -> bool:
    source = change.desired or change.recorded
    marked = source is not None and source.prevent_destroy
    return marked or any_of(patterns)(change.address)
