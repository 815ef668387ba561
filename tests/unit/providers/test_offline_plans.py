"""A comparison of two files says of an edit what the plan against the host says: the same rows, leaves and radius."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from providers.registry import PROVIDERS
from sbctl.plan.build import PlanInputs, build_plan
from sbctl.plan.model import BlastRadius, Change, Plan
from tests.simulators.provider_world import QUICKSTART, ProviderWorld

KEY = hashlib.sha256(b"key").hexdigest()


def rows(plan: Plan) -> dict[str, tuple[str, dict[str, tuple[object, object]], BlastRadius]]:
    return {str(change.address): (change.action, _leaves(change), change.blast_radius) for change in plan.counted}


def _leaves(change: Change) -> dict[str, tuple[object, object]]:
    return {leaf.path: (leaf.before, leaf.after) for leaf in change.leaves if leaf.path != "revision"}


@pytest.mark.parametrize(
    ("before", "after", "radius"),
    [
        pytest.param("max_concurrency: 2", "max_concurrency: 4", "reload", id="a limit"),
        pytest.param("http_bind_port: 8080", "http_bind_port: 8081", "restart", id="a port"),
        pytest.param("models: [smollm2]", "models: [other]", "breaking", id="a public name"),
        pytest.param(
            "proxy:\n", f"fleet: {{api_keys: {{app: {{sha256: {KEY}}}}}}}\nproxy:\n", "breaking", id="the first key"
        ),
        pytest.param("proxy:\n", "fleet: {public: true}\nproxy:\n", "reload", id="public"),
    ],
)
def test_both_comparisons_say_the_same(tmp_path: Path, before: str, after: str, radius: str) -> None:
    world = ProviderWorld(tmp_path)
    world.configure(QUICKSTART)
    base = [*world.desired()]
    world.apply()
    world.configure(QUICKSTART.replace(before, after, 1))
    online = world.plan()
    inputs = PlanInputs.against(base, world.desired(), world.config, world.fleet.clock.now())
    offline = build_plan(replace(inputs, lineage=online.lineage), PROVIDERS)
    assert rows(offline) == rows(online)
    assert str(offline.blast_radius) == str(online.blast_radius) == radius
