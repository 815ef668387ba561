"""Generations: one number for each immutable version of a deployment. Only a change of that deployment's own digest makes a new one.

The highest number of each deployment is kept, also when it left the bundle, so a number never names two versions. When more deployments were
seen than are remembered, the oldest are forgotten in favour of a floor: no deployment that is not remembered ever had a higher number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from sbctl.placement.model import FOREIGN_SLOTS, DeploymentDemand, DeploymentPlacement, ObservedReplica

__all__ = ["HIGH_WATERS_MAX", "forget_oldest", "generation_for"]

HIGH_WATERS_MAX: Final = 4096


def generation_for(
    demand: DeploymentDemand, prior: DeploymentPlacement | None, high_water: int, observed: Iterable[ObservedReplica]
) -> int:
    """The generation of what is asked for.

    The same digest keeps its number, unless nodes show a higher one, which somebody else gave out: then a number above both, except where
    that one is for the same member. Without a plan to start from, what nodes already run of this very member is adopted, unless they
    numbered it themselves (without a slot of the cluster's): a new number is above such ones, and else they count for nothing.
    """
    members = {way.member_digest for way in demand.ways if way.member_digest}
    shown = list(observed)
    numbered = [replica for replica in shown if replica.slot is not None and replica.slot not in FOREIGN_SLOTS]
    highest = max((replica.generation for replica in numbered), default=0)
    same = {replica.member_digest for replica in numbered if replica.generation == highest} <= members
    known = max(high_water, prior.generation if prior else 0)
    if prior is not None and prior.digest == demand.digest:
        if highest <= known:
            return prior.generation if prior.generation == known else known + 1
        return highest if same else highest + 1
    if prior is None and highest and highest >= known and same:
        return highest
    return max([known, *(replica.generation for replica in shown)]) + 1


def forget_oldest(high_waters: Mapping[str, int], in_use: Collection[str], floor: int) -> tuple[dict[str, int], int]:
    """At most `HIGH_WATERS_MAX` of them, those in use always, and the floor that the others leave."""
    spare = sorted((name for name in high_waters if name not in in_use), key=lambda name: (high_waters[name], name))
    forgotten = spare[: max(0, len(high_waters) - HIGH_WATERS_MAX)]
    kept = {name: number for name, number in high_waters.items() if name not in set(forgotten)}
    return kept, max([floor, *(high_waters[name] for name in forgotten)])
