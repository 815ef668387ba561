"""Compare: one row of the bundle, with the routes that appear, move or go."""

from __future__ import annotations

from providers.comparison import Comparison, gone_leaves, new_leaves
from sbctl.base.truths import Desired, Recorded
from sbctl.plan.blast_radius import action_radius
from sbctl.plan.leaves import leaf_changes
from sbctl.plan.model import Change, DiffContext, Observed

__all__ = ["diff"]


def diff(desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext) -> Change:
    comparison = Comparison(desired, recorded, observed, context)
    if observed.status == "unreachable":
        return comparison.unreachable()
    if desired is None:
        return _removed(comparison)
    lost = recorded is not None and _gone(comparison)
    if recorded is None or lost:
        return comparison.change(
            "create",
            "the runtime has no bundle any more" if lost else "a new hostname",
            leaves=new_leaves(desired.spec),
            blast_radius=action_radius("origin", "create"),
            drifted=lost,
        )
    if desired.fingerprint == recorded.fingerprint:
        return comparison.unchanged()
    leaves = leaf_changes(recorded.spec, desired.spec)
    return comparison.change(
        "update",
        "sb.yml asks for something else",
        leaves=leaves,
        blast_radius=action_radius("origin", "update", leaves),
    )


def _gone(comparison: Comparison) -> bool:
    """A runtime that is down says nothing of its bundle."""
    status = comparison.observed.status
    return status == "not_bootstrapped" or (status == "absent" and comparison.snapshot.runtime.healthy)


def _removed(comparison: Comparison) -> Change:
    recorded = comparison.recorded
    assert recorded is not None
    if _gone(comparison):
        return comparison.forgotten("the runtime has no bundle any more")
    return comparison.change(
        "delete",
        "asked for" if comparison.context.mode == "destroy" else "not in sb.yml any more",
        leaves=gone_leaves(recorded.spec),
        blast_radius=action_radius("origin", "delete"),
        downtime="refuse",
    )
