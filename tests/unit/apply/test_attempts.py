"""A creation that was begun: in the state from its first step on, and a plan counts it only where it is to be removed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sbctl.base.truths import ATTEMPTED
from sbctl.plan.inputs import PlanInputs
from tests.simulators.small_kinds import PROVIDERS, Wanted, small_plan
from tests.simulators.small_world import SmallWorld


@pytest.mark.parametrize(
    ("mode", "wanted", "kept"),
    [
        ("apply", True, False),
        ("apply", False, True),
        ("rollback", True, False),
        ("destroy", True, True),
        ("destroy", False, True),
        ("drift", True, False),
        ("drift", False, False),
    ],
)
def test_an_attempt_counts_only_where_it_is_to_be_removed(mode: Any, wanted: bool, kept: bool) -> None:
    world = SmallWorld("a")
    world.apply({"a": Wanted("1.0", ("m",))})
    desired = world.desired({"a": Wanted("1.0", ("m",))})
    attempted = next(address for address in world.state.resources if address.kind == "artifact")
    world.state.resources[attempted] = replace(world.state.resources[attempted], fingerprint=ATTEMPTED)
    inputs = PlanInputs(
        mode=mode,
        desired=tuple(one for one in desired.values() if wanted or one.address != attempted),
        recorded=world.state.resources,
        lineage=None,
        serial=1,
        config_digest="",
        catalog_digest="",
        now=datetime(2026, 11, 29, tzinfo=UTC),
    )
    assert (attempted in inputs.recorded) is kept
    assert len(inputs.recorded) == (2 if kept else 1)


def test_a_finished_creation_is_no_attempt_any_more() -> None:
    world = SmallWorld("a")
    world.apply({"a": Wanted("1.0", ("m",))})
    assert not any(recorded.attempted for recorded in world.state.resources.values())
    assert world.state.journal.index(("attempt", "engine.a/llama_cpp")) < world.state.journal.index(
        ("intent", "engine.a/llama_cpp#1:engine.install")
    )


def test_an_update_keeps_its_record_until_it_is_done() -> None:
    world = SmallWorld("a")
    world.apply({"a": Wanted("1.0")})
    world.fleet.break_call("fail", method="engine.install")
    world.apply({"a": Wanted("2.0")})
    (recorded,) = world.state.resources.values()
    assert (recorded.attempted, recorded.spec["version"]) == (False, "1.0")
    plan = small_plan(world.fleet, world.desired({"a": Wanted("2.0")}), world.state, providers=PROVIDERS)
    assert [change.action for change in plan.actionable] == ["update"]
