"""A replica as GET status shows it: what is set aside for it, how that is known, what it has."""

from __future__ import annotations

from typing import Any

import pytest

from sbctl.artifacts.formats.architectures import model_shape
from sbctl.artifacts.formats.gguf import parse_gguf
from sbctl.base.limits import GIB, MIB
from sbctl.runtime.admin_rows import replica_row
from sbctl.runtime.engine_host import RunningEngine
from sbctl.runtime.generation import Generation
from sbctl.runtime.processes import ProcessMemory
from sbctl.runtime.provision import Prepared
from sbctl.runtime.replica_room import kind_of_process, room_of
from sbctl.runtime.room import Room
from sbctl.trust.bundle import DeploymentMember
from tests.simulators.engine_world import EngineWorld, facts, in_virtual_time
from tests.simulators.gguf_files import tiny_gguf
from tests.simulators.runtime_world import member

SHAPE = model_shape([parse_gguf(tiny_gguf())])
KNOWN = {kind_of_process(member(facts(), "/e"), "1"): 2 * GIB}


def room(one: DeploymentMember, *, observed: dict[str, int], shape: Any = None) -> Room:
    return room_of(one, "1", shape=shape, observed=observed, devices=(), safety_margin=0.1, machine_bytes=64 * GIB)


class World(EngineWorld):
    """Each engine takes `reckoned`."""

    reckoned: Room

    async def room(self, member: DeploymentMember, prepared: Prepared) -> Room:
        return self.reckoned


def shown(reckoned: Room, has: ProcessMemory | None) -> list[dict[str, Any] | None]:
    """Its memory before it is started, while it runs, and when it is stopped."""
    told: list[dict[str, Any] | None] = []

    async def work() -> None:
        world = World()
        world.reckoned = reckoned
        generation = Generation("q", 1, member(facts(), "/e", warm=False), world.ports())
        (replica,) = generation.replicas

        def seen(engine: RunningEngine) -> ProcessMemory | None:
            assert engine is world.engines[0]
            return has

        def look() -> None:
            told.append(replica_row(generation, replica, None, seen)["memory"])

        look()
        await generation.load("operator")
        look()
        await generation.stop("operator", drain_s=1)
        look()

    in_virtual_time(work)
    return told


def test_what_is_set_aside_is_told_with_its_parts_and_what_the_engine_has() -> None:
    reckoned = room(member(facts(), "/e"), observed={}, shape=SHAPE)
    before, running, after = shown(reckoned, ProcessMemory(300 * MIB, 400 * MIB))
    assert before is None, "nothing is set aside for what does not run"
    assert after is None
    assert running is not None
    assert (running["basis"], running["observed_bytes"], running["observed_peak_bytes"]) == (
        "estimate",
        300 * MIB,
        400 * MIB,
    )
    parts = ("weight_bytes", "kv_bytes", "runtime_overhead_bytes", "safety_margin_bytes")
    assert all(running[part] > 0 for part in parts)
    assert sum(running[part] for part in parts) == running["total_bytes"] == reckoned.host_bytes


@pytest.mark.parametrize(
    ("reckoned", "basis", "certainty", "margin"),
    [
        (room(member(facts(), "/e", memory_bytes=GIB), observed=KNOWN), "declared", "exact", 0),
        (room(member(facts(), "/e"), observed=KNOWN, shape=SHAPE), "observed", "exact", 2 * GIB // 10),
        (room(member(facts(), "/e"), observed={}), "catalog", "unknown", 0),
    ],
)
def test_the_basis_is_named_and_parts_are_told_only_where_they_are_known(
    reckoned: Room, basis: str, certainty: str, margin: int
) -> None:
    running = shown(reckoned, None)[1]
    assert running is not None
    assert (running["basis"], running["certainty"]) == (basis, certainty)
    assert (running["weight_bytes"], running["kv_bytes"], running["observed_bytes"]) == (None, None, None)
    assert running["total_bytes"] == reckoned.host_bytes
    assert abs(running["safety_margin_bytes"] - margin) <= 1
