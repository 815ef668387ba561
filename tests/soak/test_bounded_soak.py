"""A runtime under steady load and constant change: no request is lost, and nothing of it grows.

Three minutes with `make test`, beside everything else (tests/run.py); half an hour with `make soak`. A failed run prints its seed, which
SBCTL_KILL_SEED draws again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sbctl.base.limits import MIB
from tests.simulators.kill_loop import fresh_seed
from tests.simulators.soak_world import SoakWorld, Told, growth

SEED = fresh_seed()
GROWTH_MAX = {"memory_bytes": 6 * MIB, "descriptors": 4, "threads": 2}
"""Of the floor, from the second third of a run to the last. What leaks with each request or each edit is far above that in half an hour."""
WAL_MAX_BYTES = 16 * MIB

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("how", "duration_s"),
    [
        pytest.param("bundles", 90, marks=pytest.mark.timeout(600)),
        pytest.param("file", 90, marks=pytest.mark.timeout(600)),
        pytest.param("bundles", 900, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
        pytest.param("file", 900, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_under_load_and_change_no_request_is_lost_and_nothing_grows(tmp_path: Path, how: Told, duration_s: int) -> None:
    world = SoakWorld(tmp_path, how, seed=SEED)
    world.run(duration_s)
    grown = {name: growth(world.samples, name) for name in GROWTH_MAX}
    told = f"seed {SEED}: {dict(world.answers)}, {world.edits} edits, {world.refused} refused, {world.swaps} turns, grown {grown}"
    print(told)
    assert not world.problems, (world.problems, told)
    lost = {key: count for key, count in world.answers.items() if not key[1].startswith("200 ")}
    assert not lost, told
    asked = {model for model, _how in world.answers}
    assert asked == {"a", "b", "f", "r"}, told
    assert world.answers["f", "200 external"] > 0, told
    assert min(world.edits, world.swaps) >= duration_s // 10, told
    over = {name: by for name, by in grown.items() if by > GROWTH_MAX[name]}
    assert not over, (told, world.samples[:: max(1, len(world.samples) // 40)])
    assert not list((tmp_path / "state" / "engines").glob("*.json")), "an engine outlived the daemon"
    for log in (tmp_path / "state").glob("*.db-wal"):
        assert log.stat().st_size <= WAL_MAX_BYTES
