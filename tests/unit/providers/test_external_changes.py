"""An external provider over a life of a fleet: the plan says where prompts go, its key is sent and exchanged, and nothing is left of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbctl.config.external import key_file
from sbctl.plan.model import BlastRadius, Change
from tests.simulators.provider_world import QUICKSTART, ProviderWorld

LOCAL = "- {name: local, provider_type: managed_model, deployment: chat, models: [smollm2]}"
OTHER = '- {name: other, base_url: "https://api.example.com/v1", api_key: "env:OTHER", models: [smollm2]}'
CHAINED = QUICKSTART.replace("type: ai_proxy\n", "type: ai_proxy\n      routing: fallback_chain\n").replace(
    LOCAL, f"{LOCAL}\n        {OTHER}"
)
FILE = key_file("env:OTHER")


def changed(world: ProviderWorld) -> dict[str, Change]:
    return {str(change.address): change for change in world.plan().actionable}


@pytest.fixture
def world(tmp_path: Path) -> ProviderWorld:
    """The quickstart is applied; now it gets a provider behind its model."""
    world = ProviderWorld(tmp_path)
    world.configure(QUICKSTART)
    assert world.apply().status == "applied"
    world.environ["OTHER"] = "sk-canary-1"
    world.configure(CHAINED)
    return world


def test_a_plan_says_where_prompts_can_go(world: ProviderWorld) -> None:
    change = changed(world)["origin.local/localhost"]
    (note,) = change.notes
    assert note.startswith("prompts can leave this host: localhost → api.example.com (provider other), when smollm2 ")
    assert change.blast_radius is BlastRadius.RELOAD
    runtime = changed(world)["runtime.local"]
    assert [leaf.path for leaf in runtime.leaves] == ['provider_keys."env:OTHER"']


def test_H1_the_key_is_sent_exchanged_and_taken_away_and_is_nowhere_else(world: ProviderWorld) -> None:
    assert world.apply().status == "applied"
    assert world.settled()
    assert FILE in world.host().secret_names
    world.environ["OTHER"] = "sk-canary-2"
    world.configure(CHAINED)
    (exchanged,) = changed(world).values()
    assert (str(exchanged.address), exchanged.blast_radius) == ("runtime.local", BlastRadius.RELOAD)
    assert [step.method for step in exchanged.steps] == ["runtime.keys"], "nothing restarts"
    assert [step.downtime for step in exchanged.steps] == ["none"]
    held = json.dumps([dict(one.spec) for one in world.state.resources.values()], default=str)
    held += repr(world.plan()) + repr([dict(one.record) for one in world.state.resources.values()])
    assert "canary" not in held
    assert world.apply().status == "applied"
    assert world.settled()
    del world.environ["OTHER"]
    world.configure(CHAINED)
    assert world.settled(), "who only plans need not have the key"
    world.configure(QUICKSTART)
    assert set(changed(world)) >= {"runtime.local", "origin.local/localhost"}
    assert world.apply().status == "applied"
    assert world.settled()
