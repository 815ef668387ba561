"""F13, F24 on a node: its daemon is killed at the n-th boundary of whatever it does, and the next one knows all that was acknowledged.

A sample here, every boundary in the soak. A failed round prints its seed: SBCTL_KILL_SEED=<seed> draws the same ones again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulators.kill_loop import every_nth, fresh_seed
from tests.simulators.runtime_kills import OPERATIONS, Operation, RuntimeKills, runtime_kills
from tests.simulators.state_world import fast_directory

SEED = fresh_seed()
FIRST, STRIDE = every_nth()
SAMPLED = 4
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture
def node() -> Iterator[Path]:
    with fast_directory() as path:
        yield path


def begun(kills: RuntimeKills) -> RuntimeKills:
    """A daemon that has its first bundle."""
    kills.start()
    kills.runtime.await_healthy(60)
    kills.bring("start")
    return kills


def test_F24_killed_at_a_boundary_of_anything_the_next_daemon_knows_all_that_was_acknowledged(node: Path) -> None:
    draw = random.Random(SEED)
    drawn = [*draw.sample([name for name in OPERATIONS if name != "put"], SAMPLED)]
    with runtime_kills(node) as kills:
        kills.story.append(f"seed {SEED}")
        begun(kills)
        for operation in drawn:
            kills.round(operation, draw.randint(1, OPERATIONS[operation]))
        assert kills.kills >= SAMPLED - 2, kills.story


def test_F24_killed_at_a_boundary_of_a_put_the_store_has_the_old_or_the_new(node: Path) -> None:
    draw = random.Random(SEED)
    with runtime_kills(node, owned=True) as kills:
        kills.story.append(f"seed {SEED}")
        begun(kills)
        assert kills.round("put", draw.randint(1, OPERATIONS["put"] // 2)), kills.story


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_F24_a_runtime_killed_at_every_boundary(node: Path, operation: Operation) -> None:
    with runtime_kills(node, owned=operation == "put") as kills:
        begun(kills)
        number = FIRST
        while kills.round(operation, number):
            number += STRIDE
        assert kills.kills >= (OPERATIONS[operation] - FIRST) // STRIDE, kills.story
