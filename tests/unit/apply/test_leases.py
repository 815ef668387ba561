"""E13 in an apply: a host that another operator changes is left alone, named, and no reason for the other hosts to wait."""

from __future__ import annotations

from typing import Any

import pytest

from sbctl.base.errors import ExitCode
from sbctl.node.lease import LeaseClaim
from tests.simulators.small_kinds import Wanted
from tests.simulators.small_world import SmallWorld

OURS = LeaseClaim("ops@laptop", "apply serial 12", "lineage", "12-a")
THEIRS = LeaseClaim("ci@runner", "apply serial 13", "lineage", "13-b")


def _apply(world: SmallWorld, **options: Any) -> Any:
    return world.apply({name: Wanted("1.0", ("m",)) for name in world.fleet.hosts}, lease=OURS, **options)


def test_E13_a_leased_host_is_not_begun_and_the_others_go_on() -> None:
    world = SmallWorld("a", "b")
    world.fleet.leases["a"] = THEIRS
    result = _apply(world)
    assert {host.host: host.status for host in result.hosts} == {"a": "leased", "b": "done"}
    assert result.exit_code == ExitCode.LOCKED
    assert world.fleet.methods("a") == []
    row = next(change for change in result.changes if change.host == "a")
    assert row.status == "not_started"
    assert "ci@runner is changing this host" in row.because
    assert world.fleet.leases == {"a": THEIRS}


def test_a_lease_is_held_through_every_step_and_given_back() -> None:
    world = SmallWorld("a")
    held: list[LeaseClaim | None] = []
    world.fleet.before_call = lambda: held.append(world.fleet.leases.get("a"))
    assert _apply(world).exit_code == ExitCode.DONE
    assert set(held) == {OURS}
    assert world.fleet.leases == {}


def test_who_waits_goes_on_when_the_other_is_done() -> None:
    world = SmallWorld("a")
    world.fleet.leases["a"] = THEIRS
    world.fleet.while_waiting = world.fleet.leases.clear
    assert _apply(world, lease_wait_s=30.0).exit_code == ExitCode.DONE


def test_who_waits_in_vain_is_told_after_the_time() -> None:
    world = SmallWorld("a")
    world.fleet.leases["a"] = THEIRS
    assert _apply(world, lease_wait_s=30.0).exit_code == ExitCode.LOCKED
    assert world.fleet.clock.monotonic_s() >= 30.0


@pytest.mark.parametrize("effect", ["lose", "cut"])
def test_after_a_lost_answer_the_lease_is_taken_anew_before_anything_else_is_done(effect: Any) -> None:
    world = SmallWorld("a")
    world.fleet.break_call(effect, host="a", method="engine.install")
    held: list[LeaseClaim | None] = []
    world.fleet.before_call = lambda: held.append(world.fleet.leases.get("a"))
    result = _apply(world)
    assert result.exit_code in (ExitCode.DONE, ExitCode.FAILED)
    steps = [claim for claim, call in zip(held, world.fleet.calls, strict=True) if call.method != "snapshot"]
    assert set(steps) == {OURS}
    assert world.fleet.leases == {}


def test_only_forgetting_takes_no_lease() -> None:
    world = SmallWorld("a")
    _apply(world)
    world.fleet.hosts["a"].artifacts.clear()
    world.fleet.hosts["a"].engines.clear()
    world.fleet.leases["a"] = THEIRS
    assert world.execute(world.plan({}), lease=OURS).exit_code == ExitCode.DONE
