"""What an engine may come to have: more than was planned, never the machine, and no guess where nothing is known."""

from __future__ import annotations

from typing import Any

import pytest

from sbctl.base.limits import GIB, MIB
from sbctl.engines.memory import Figure, ceiling_bytes
from sbctl.runtime.replica_room import room_of
from tests.simulators.engine_world import facts
from tests.simulators.runtime_world import member


@pytest.mark.parametrize(
    ("figure", "planned", "machine", "ceiling"),
    [
        (Figure(8 * GIB, 0, "estimate", "upper_bound"), 8 * GIB, 64 * GIB, 10 * GIB),
        (Figure(100 * MIB, 0, "observed", "exact"), 100 * MIB, 64 * GIB, 612 * MIB),
        (Figure(GIB, 8 * GIB, "estimate", "upper_bound"), GIB, 64 * GIB, 5 * GIB),
        (Figure(0, 8 * GIB, "declared", "exact"), 0, 64 * GIB, 4 * GIB),
        (Figure(9 * GIB, 0, "estimate", "exact"), 9 * GIB, 10 * GIB, 9 * GIB),
        (Figure(GIB, 0, "catalog", "unknown"), GIB, 10 * GIB, 9 * GIB),
        (Figure(GIB, 0, "estimate", "unknown"), GIB, 10 * GIB, 9 * GIB),
        (Figure(GIB, 0, "declared", "exact"), GIB, 0, None),
    ],
)
def test_the_ceiling(figure: Figure, planned: int, machine: int, ceiling: int | None) -> None:
    assert ceiling_bytes(figure, planned, machine) == ceiling


def _room(observed: dict[str, int], **changes: Any) -> Any:
    one = member(facts(), "/e", **changes)
    return room_of(one, "1", shape=None, observed=observed, devices=(), safety_margin=0.1, machine_bytes=64 * GIB)


def test_what_was_seen_of_a_leak_does_not_raise_the_ceiling_of_the_next() -> None:
    from sbctl.runtime.replica_room import kind_of_process

    key = kind_of_process(member(facts(), "/e"), "1")
    assert _room({key: 30 * GIB}).host_bytes == 33 * GIB
    assert _room({key: 30 * GIB}).ceiling_bytes == _room({}).ceiling_bytes
    assert _room({key: 30 * GIB}, memory_bytes=2 * GIB).ceiling_bytes == int(2.5 * GIB)


@pytest.mark.parametrize(("acceleration", "devices"), [("cuda", ()), ("vulkan", ("a", "b"))])
def test_a_vulkan_build_cannot_be_told_to_take_one_device(acceleration: str, devices: tuple[str, ...]) -> None:
    one = member(facts(), "/e", memory_bytes=GIB)
    policy = one.engine.model_copy(
        update={"launch": "binary", "path": None, "version": "b1", "acceleration": acceleration}
    )
    one = one.model_copy(update={"engine": policy})
    room = room_of(one, "1", shape=None, observed={}, devices=("a", "b"), safety_margin=0.1)
    assert (room.device_bytes, room.device_ids) == (GIB, devices)
