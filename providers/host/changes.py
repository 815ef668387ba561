"""Compare: take a host in, keep it, give it up; never touch one that another fleet holds."""

from __future__ import annotations

from typing import Any

from providers.comparison import Blocked, Call, Comparison
from sbctl.base.truths import Desired, Recorded
from sbctl.node.messages import Method
from sbctl.plan.blast_radius import action_radius
from sbctl.plan.model import Change, DiffContext, Leaf, Observed

__all__ = ["diff"]


def diff(desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext) -> Change:
    comparison = Comparison(desired, recorded, observed, context)
    if observed.status == "unreachable":
        return comparison.unreachable()
    marker = observed.decisive["marker"]
    lineage = comparison.subject.spec["lineage"]
    if desired is None:
        return _given_up(comparison, marker, lineage)
    if marker is not None and marker["lineage"] != lineage:
        return comparison.change(
            "create", "another fleet holds this host", blocked=_other_lineage(marker, recorded is None)
        )
    if marker is not None and marker["host"] != desired.host:
        return comparison.change(
            "create", "this machine is already in the fleet", blocked=_other_host(marker["host"], desired.host)
        )
    if context.replace:
        blocked = Blocked(
            "host.not_replaceable",
            "a host is taken in and given up, never replaced",
            f"leave out --replace, or run destroy --target host.{desired.host} and apply",
        )
        return comparison.change("replace", "asked for by --replace", blocked=blocked)
    return _taken_in(comparison, desired, marker)


def _taken_in(comparison: Comparison, desired: Desired, marker: dict[str, Any] | None) -> Change:
    known = comparison.recorded is not None
    if marker is not None and comparison.recorded is not None:
        was, wanted = (bool(spec["keep_weights"]) for spec in (comparison.recorded.spec, desired.spec))
        if was == wanted:
            return comparison.unchanged()
        leaves = (Leaf("keep_weights", was, wanted),)
        return comparison.change("update", "what stays when the host is given up", leaves=leaves)
    params = {"lineage": desired.spec["lineage"], "host": desired.host}
    return comparison.change(
        "create",
        "the marker is gone from the host" if known else "a new host of this fleet",
        calls=[Call(Method.HOST_MARK, params, f"mark {desired.host} as a host of this fleet")],
        leaves=(Leaf("marker", None, desired.host),),
        blast_radius=action_radius("host", "create"),
        drifted=known,
        notes=_facts(comparison),
    )


def _facts(comparison: Comparison) -> tuple[str, ...]:
    known = comparison.observed.informative
    parts = [str(known[fact]) for fact in ("os", "arch") if known.get(fact)]
    if known.get("cpu_count"):
        parts.append(f"{known['cpu_count']} CPUs")
    return (", ".join(parts),) if parts else ()


def _given_up(comparison: Comparison, marker: dict[str, Any] | None, lineage: str) -> Change:
    recorded = comparison.recorded
    assert recorded is not None
    if marker is not None and marker["lineage"] != lineage:
        blocked = Blocked(
            "host.other_lineage",
            f"{recorded.host} carries the marker of fleet {marker['lineage']}, so nothing there is removed",
            f"if that is meant, let the state forget it: sbctl state rm '{recorded.address}'",
        )
        return comparison.change("delete", "another fleet holds this host now", blocked=blocked)
    if recorded.keep:
        return comparison.forgotten("kept: the host stays as it is")
    if marker is None and not comparison.snapshot.runtime.installed_versions:
        return comparison.forgotten("nothing of ours is on the host any more")
    keep_weights = bool(recorded.spec["keep_weights"])
    give_up = Call(
        Method.HOST_UNMARK,
        {"lineage": lineage, "keep_weights": keep_weights},
        f"give up {recorded.host}: remove our directories and the marker",
    )
    return comparison.change(
        "delete",
        "the host is not in sb.yml any more" if comparison.context.mode != "destroy" else "asked for",
        calls=[give_up],
        leaves=(Leaf("marker", recorded.host, None),),
        blast_radius=action_radius("host", "delete"),
        notes=("the weights in the cache are kept",) if keep_weights else (),
    )


def _other_lineage(marker: dict[str, Any], unrecorded: bool) -> Blocked:
    """B7 when the state is new: hosts that are marked prove that there was another one."""
    hint = (
        "restore that fleet's state (state directory, sbctl state push), or destroy it from there; "
        "a host belongs to one fleet at a time"
    )
    known = "this state knows nothing of the host, but it" if unrecorded else "the host"
    return Blocked(
        "host.other_lineage",
        f'{known} carries the marker of fleet {marker["lineage"]} (as host "{marker["host"]}")',
        hint,
    )


def _other_host(marked: str, wanted: str) -> Blocked:
    return Blocked(
        "host.other_host",
        f'this machine is already host "{marked}" of this fleet, not "{wanted}"',
        f'keep the name "{marked}" in sb.yml, or destroy it under that name first',
    )
