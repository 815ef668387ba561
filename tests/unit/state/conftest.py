"""One state directory for each test, in memory where possible."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulators.state_world import StateWorld, fast_directory


@pytest.fixture
def world() -> Iterator[StateWorld]:
    with fast_directory() as root:
        yield StateWorld(root)
