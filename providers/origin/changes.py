"""Compare: one row of the bundle, with the routes that appear, move or go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from providers.comparison import Comparison, gone_leaves, new_leaves
from providers.members import superseded
from sbctl.base.field_types import is_loopback
from sbctl.base.ids import Address
from sbctl.base.truths import Desired, Recorded
from sbctl.plan.blast_radius import action_radius, radius_of
from sbctl.plan.leaves import leaf_changes
from sbctl.plan.model import Change, DiffContext, Leaf, Observed

__all__ = ["diff"]

_NARROWS: Final = (
    "until now the only origin answered every Host on this machine; with two, each answers its own name only"
)


def diff(desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext) -> Change:
    comparison = Comparison(desired, recorded, observed, context)
    if observed.status == "unreachable":
        return comparison.unreachable()
    if desired is None:
        return comparison.held_by_others() or superseded(comparison) or _removed(comparison)
    lost = recorded is not None and _gone(observed)
    if recorded is None or lost:
        narrows = recorded is None and _ends_any_host(comparison)
        return comparison.change(
            "create",
            "the runtime does not serve it any more" if lost else "a new hostname",
            leaves=new_leaves(desired.spec),
            blast_radius=radius_of("origin", "any_host", before=narrows, after=False),
            notes=(*((_NARROWS,) if narrows else ()), *_leaving(comparison, desired)),
            drifted=lost,
        )
    drift = _drift(observed, recorded)
    if desired.fingerprint == recorded.fingerprint and not drift:
        return comparison.unchanged()
    leaves = leaf_changes(recorded.spec, desired.spec) if desired.fingerprint != recorded.fingerprint else ()
    return comparison.change(
        "update",
        "sb.yml asks for something else" if leaves else drift[0].reason,
        leaves=(*leaves, *drift),
        blast_radius=action_radius("origin", "update", (*leaves, *drift)),
        notes=tuple(_leaving(comparison, desired)),
        drifted=bool(drift),
    )


def _leaving(comparison: Comparison, desired: Desired) -> Iterator[str]:
    """Where prompts go that the host cannot answer itself: nobody should learn that later."""
    for external in desired.spec.get("stand_ins", ()):
        if "base_url" not in external:
            continue
        models = ", ".join(sorted(external["models"]))
        trains = ", said not to train on them" if external["no_prompt_training"] else ""
        yield (
            f"prompts can leave this host: {comparison.address.name} → {_host_of(external['base_url'])} "
            f"(provider {external['name']}{trains}), when {models} cannot be answered here"
        )


def _host_of(base_url: str) -> str:
    return base_url.partition("://")[2].partition("/")[0]


def _ends_any_host(comparison: Comparison) -> bool:
    """A sole origin answers any Host on loopback; the second one ends that."""
    host = comparison.address.scope
    origins = [address for address in comparison.context.recorded_specs if address.kind == "origin"]
    runtime = comparison.context.recorded_specs.get(Address("runtime", host))
    return (
        len(origins) == 1
        and origins[0] in comparison.context.desired_specs
        and runtime is not None
        and is_loopback(runtime["config"]["http_bind_address"])
    )


def _gone(observed: Observed) -> bool:
    return observed.status == "not_bootstrapped" or (observed.status == "absent" and observed.decisive["known"])


def _drift(observed: Observed, recorded: Recorded) -> tuple[Leaf, ...]:
    found = observed.decisive.get("content_digest")
    if found in (None, recorded.fingerprint):
        return ()
    return (Leaf("content", found[:12], recorded.fingerprint[:12], "the runtime routes something else"),)


def _removed(comparison: Comparison) -> Change:
    recorded = comparison.recorded
    assert recorded is not None
    if _gone(comparison.observed):
        return comparison.forgotten("the runtime does not serve it any more")
    return comparison.change(
        "delete",
        "asked for" if comparison.context.mode == "destroy" else "not in sb.yml any more",
        leaves=gone_leaves(recorded.spec),
        blast_radius=action_radius("origin", "delete"),
        downtime="refuse",
    )
