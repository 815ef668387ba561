"""Members and replicas of scripted engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sbctl.trust.bundle import DeploymentMember
from tests.simulators.engine_world import facts
from tests.simulators.runtime_world import member


@pytest.fixture
def make_member() -> Callable[..., DeploymentMember]:
    """A warm deployment of one replica on a scripted engine, with changes."""

    def make(model: str = "tiny", **changes: Any) -> DeploymentMember:
        program = changes.pop("program", "/engine")
        return member(facts(model), program, **changes)

    return make
