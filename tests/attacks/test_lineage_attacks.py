"""Hosts that belong to somebody else (docs/threats.md, B7 and B8): no plan ever touches them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbctl.base.errors import RefusedError
from sbctl.plan.policy import refusals
from tests.simulators.provider_world import LINEAGE, QUICKSTART, ProviderWorld

ELSEWHERE = "0e0e0e0e-0000-4000-8000-00000000000e"


def test_B7_state_deleted_while_hosts_still_have_resources_is_refused_by_name(tmp_path: Path) -> None:
    world = ProviderWorld(tmp_path)
    world.configure(QUICKSTART)
    world.apply()
    world.state.resources.clear()
    world.lineage = ELSEWHERE
    world.configure(QUICKSTART)
    calls = len(world.fleet.methods())
    plan = world.plan()
    blocked = next(change for change in plan.changes if change.address.kind == "host")
    assert blocked.blocked_code == "host.other_lineage"
    assert LINEAGE in (blocked.blocked or "")
    assert "restore that fleet's state" in (blocked.blocked or "")
    assert [refusal.next_step for refusal in refusals(plan) if refusal.code == "host.other_lineage"] == [""]
    with pytest.raises(RefusedError) as caught:
        world.execute(plan)
    assert caught.value.exit_code == 4
    assert len(world.fleet.methods()) == calls


def test_B8_a_host_taken_over_by_another_fleet_is_neither_changed_nor_destroyed(tmp_path: Path) -> None:
    world = ProviderWorld(tmp_path)
    world.configure(QUICKSTART)
    world.apply()
    world.claim(ELSEWHERE, "theirs")
    world.configure(QUICKSTART.replace("8080", "8081"))
    calls = len(world.fleet.methods())
    with pytest.raises(RefusedError) as caught:
        world.execute(world.plan())
    assert caught.value.code == "host.other_lineage"
    plan = world.plan(mode="destroy", desired=())
    assert {change.blocked_code for change in plan.actionable} == {"host.other_lineage"}
    assert all("sbctl state rm" in (change.blocked or "") for change in plan.actionable)
    with pytest.raises(RefusedError):
        world.execute(plan)
    assert len(world.fleet.methods()) == calls
