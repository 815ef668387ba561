"""What `apply` refuses to begin with: doctor's blockers, on the hosts that it would change and for what it would change there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sbctl.base.errors import RefusedError
from sbctl.cli.fitness import clock_check, filesystem_checks, need_checks, program_disk_check
from sbctl.cli.planning import Planned
from sbctl.cli.port_plan import taken_ports
from sbctl.plan.model import Plan
from sbctl.views.host_views import Check

__all__ = ["blockers", "refuse_unfit"]

_MAKES: Final = ("create", "update", "replace")
_SHOWN_MAX: Final = 5
_WEIGHTS: Final = "disk for weights"


def refuse_unfit(found: Planned, *, has_file: bool = True) -> None:
    """Raises RefusedError `doctor.blocked`, which names every blocker, and `cluster.no_place`, before anything is begun."""
    blocking = list(blockers(found))
    if not blocking:
        _refuse_unplaced(found)
        return
    said = [f"{check.host}: {check.name}: {check.detail}" for check in blocking[:_SHOWN_MAX]]
    said += [f"and {len(blocking) - _SHOWN_MAX} more"] if len(blocking) > _SHOWN_MAX else []
    first = blocking[0]
    blocked = sorted({check.host for check in blocking})
    without = " ".join(f"--exclude '*.{host}'" for host in blocked)
    leave = f"leave out what is blocked ({without}), " if len(found.plan.hosts) > len(blocked) else ""
    raise RefusedError(
        "doctor.blocked",
        f"nothing was begun, since this cannot go well: {'; '.join(said)}",
        place=f"host.{first.host}",
        next_step=f"{first.next_step}; sbctl doctor shows all of it; {leave}or go on all the same (--accept-blockers)"
        if has_file
        else first.next_step,
    )


def _refuse_unplaced(found: Planned) -> None:
    """In a cluster what fits is a matter of all workers together."""
    if found.plan.placement is not None and found.plan.unfit:
        raise RefusedError(
            "cluster.no_place",
            f"nothing was begun, since not all replicas would have a place: {'; '.join(found.plan.unfit[:_SHOWN_MAX])}",
            next_step="ask for fewer replicas or less memory, add workers, or go on all the same (--accept-blockers)",
        )


def blockers(found: Planned) -> Iterator[Check]:
    """Host by host. Pure, over what planning observed."""
    yield from taken_ports(found.config, found.observation.snapshots, found.holders)
    for name in sorted(_made(found.plan)):
        host = found.config.hosts.get(name) if found.config is not None else None
        snapshot = found.inputs.snapshots.get(name)
        if host is None or snapshot is None:
            continue
        kinds = _made(found.plan)[name]
        checks = [*filesystem_checks(name, snapshot)]
        if "runtime" in kinds or "engine" in kinds:
            checks += program_disk_check(host, snapshot)
        if host.connection.kind != "local":
            checks += clock_check(name, snapshot.host, found.inputs.now, found.observation.seconds)
        placed = found.config is not None and found.config.cluster is not None
        for check in () if placed else need_checks(host, snapshot):
            if ("artifact" if check.name == _WEIGHTS else "deployment") in kinds:
                checks.append(check)
        yield from (check for check in checks if check.verdict == "fail")


def _made(plan: Plan) -> dict[str, set[str]]:
    """Host → kinds of what would be made or changed there; a host that only loses something needs nothing."""
    made: dict[str, set[str]] = {}
    for change in plan.changes:
        if change.action in _MAKES:
            made.setdefault(change.host, set()).add(change.address.kind)
    return made
