"""Numbers of generations: a change makes one, and no number ever names two versions."""

from __future__ import annotations

import pytest

from sbctl.placement.generations import HIGH_WATERS_MAX, forget_oldest, generation_for
from sbctl.placement.model import DeploymentPlacement, ObservedReplica
from tests.simulators.placement_world import demand_of

DEMAND = demand_of("a")
MINE, OTHER = DEMAND.ways[0].member_digest, "f" * 64


def _prior(generation: int, digest: str = DEMAND.digest) -> DeploymentPlacement:
    return DeploymentPlacement("a", digest, generation, 1)


def _shown(generation: int, member: str = MINE, slot: int | None = 0) -> ObservedReplica:
    return ObservedReplica("a", generation, "v1", MINE, "ready", slot=slot, member_digest=member)


@pytest.mark.parametrize(
    ("prior", "high_water", "shown", "generation"),
    [
        (None, 0, [], 1),
        (None, 7, [], 8),
        (_prior(3), 3, [], 3),
        (_prior(3), 3, [_shown(3), _shown(2, OTHER)], 3),
        (_prior(3, OTHER), 3, [_shown(3, OTHER)], 4),
        (_prior(3, OTHER), 9, [], 10),
        (_prior(3), 3, [_shown(5)], 5),
        (_prior(3), 3, [_shown(5, OTHER)], 6),
        (_prior(3), 4, [], 5),
        (None, 0, [_shown(5), _shown(4, OTHER)], 5),
        (None, 0, [_shown(5, OTHER), _shown(4)], 6),
        (None, 8, [_shown(5)], 9),
        (None, 0, [_shown(5, slot=None)], 6),
        (None, 0, [_shown(5), _shown(5, OTHER)], 6),
        (_prior(3), 3, [_shown(9, slot=None)], 3),
        (_prior(3), 3, [_shown(9, OTHER, slot=4096)], 3),
        (_prior(3, OTHER), 3, [_shown(9, slot=None)], 10),
    ],
)
def test_the_number_of_what_is_asked_for(
    prior: DeploymentPlacement | None, high_water: int, shown: list[ObservedReplica], generation: int
) -> None:
    assert generation_for(DEMAND, prior, high_water, shown) == generation


def test_what_is_forgotten_leaves_a_floor() -> None:
    many = {f"d{number:05d}": number + 1 for number in range(HIGH_WATERS_MAX + 10)}
    kept, floor = forget_oldest(many, {"d00000"}, 2)
    assert len(kept) == HIGH_WATERS_MAX
    assert "d00000" in kept
    assert floor == 11
    assert forget_oldest(kept, set(), floor) == (kept, floor)
