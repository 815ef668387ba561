"""How an apply rolls over hosts by `fleet.update`."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from typing import Any

import pytest

from sbctl.apply.cancellation import Cancellation
from sbctl.apply.events import HostStarted, RolloutPaused
from sbctl.base.errors import ExitCode, InputError
from sbctl.base.update_policy import UpdatePolicy
from sbctl.node.lease import LeaseClaim
from sbctl.plan.model import BlastRadius, Change, Plan
from tests.simulators.small_kinds import Wanted, member_of
from tests.simulators.small_world import SmallWorld

HOSTS = ("a", "b", "c", "d")
LEASE = LeaseClaim("ops@laptop", "apply serial 12", "lineage", "12-a")


def _plan(world: SmallWorld, radius: BlastRadius = BlastRadius.RESTART) -> Plan:
    plan = world.plan({name: Wanted("1.0") for name in world.fleet.hosts})
    return replace(plan, changes=tuple(replace(change, blast_radius=radius) for change in plan.changes))


def _order(world: SmallWorld) -> list[str]:
    return [event.host for event in world.events.of(HostStarted)]


def _statuses(result: Any) -> dict[str, str]:
    return {host.host: host.status for host in result.hosts}


@pytest.mark.parametrize(
    ("policy", "hosts", "words"),
    [
        (UpdatePolicy(), 4, "one host at a time, stops after 1 failed host"),
        (
            UpdatePolicy(1, "gpu-a", 30, 1),
            4,
            "one host at a time, gpu-a first, 30 s pause, stops after 1 failed host",
        ),
        (UpdatePolicy("25%", None, 0, 2), 9, "up to 2 hosts at a time, stops after 2 failed hosts"),
        (UpdatePolicy("25%"), 3, "one host at a time, stops after 1 failed host"),
    ],
)
def test_a_policy_is_told_in_words(policy: UpdatePolicy, hosts: int, words: str) -> None:
    assert policy.described(hosts) == words


@pytest.mark.parametrize(("max_unavailable", "most"), [(1, 1), (2, 2), ("50%", 2), (9, 4)])
def test_never_more_hosts_are_out_than_allowed(max_unavailable: int | str, most: int) -> None:
    world = SmallWorld(*HOSTS)
    out: set[str] = set()
    seen: list[int] = []
    lock = threading.Lock()

    def call(host: str, _method: str) -> None:
        with lock:
            out.add(host)
            seen.append(len(out))

    world.fleet.break_call("run", method="engine.install", times=99, hook=call)
    emit = world.fleet.note

    def note(one: Any) -> Any:
        if one.method == "snapshot":
            with lock:
                out.discard(one.host)
        return emit(one)

    world.fleet.note = note  # type: ignore[method-assign]
    result = world.execute(_plan(world), update=UpdatePolicy(max_unavailable))
    assert set(_statuses(result).values()) == {"done"}
    assert max(seen) <= most


def test_the_canary_is_first_and_its_failure_stops_the_rest() -> None:
    world = SmallWorld(*HOSTS)
    world.fleet.break_call("fail", host="c", method="engine.install")
    result = world.execute(_plan(world), update=UpdatePolicy(4, "c", max_failures=4))
    assert _statuses(result) == {"a": "not_started", "b": "not_started", "c": "failed", "d": "not_started"}
    assert _order(world) == ["c"]
    assert result.exit_code == ExitCode.FAILED
    row = next(change for change in result.changes if change.host == "a")
    assert row.because == "the canary c did not come through, and fleet.update.canary goes first"


def test_after_max_failures_nobody_new_starts() -> None:
    world = SmallWorld(*HOSTS)
    world.fleet.break_call("fail", host="a", method="engine.install")
    result = world.execute(_plan(world), update=UpdatePolicy(1))
    assert _statuses(result) == {"a": "failed", "b": "not_started", "c": "not_started", "d": "not_started"}
    rows = {change.because for change in result.changes if change.host != "a"}
    assert rows == {"1 host failed, fleet.update.max_failures is 1"}


def test_batches_are_apart_by_the_pause_and_the_pause_is_told() -> None:
    world = SmallWorld(*HOSTS)
    world.execute(_plan(world), update=UpdatePolicy(2, "d", 30))
    assert _order(world)[0] == "d"
    pauses = world.events.of(RolloutPaused)
    assert [round(event.seconds) for event in pauses] == [30, 30]
    assert [event.waiting for event in pauses] == [("a", "b", "c"), ("c",)]
    assert world.fleet.clock.monotonic_s() >= 60


def test_a_pause_can_be_interrupted() -> None:
    world = SmallWorld(*HOSTS)
    cancel = Cancellation()
    sleep = world.fleet.clock.sleep_s

    def interrupted(seconds: float) -> None:
        cancel.request(signal.SIGINT)
        sleep(seconds)

    world.fleet.clock.sleep_s = interrupted  # type: ignore[method-assign]
    result = world.execute(_plan(world), update=UpdatePolicy(1, pause_secs=86_400), cancel=cancel)
    assert result.exit_code == ExitCode.INTERRUPTED
    assert _statuses(result) == {"a": "done", "b": "not_started", "c": "not_started", "d": "not_started"}
    assert world.fleet.clock.monotonic_s() < 60


def test_changes_that_nobody_notices_do_not_wait_for_each_other() -> None:
    world = SmallWorld(*HOSTS)
    together = threading.Barrier(4)
    world.fleet.break_call("run", method="engine.install", times=9, hook=lambda _h, _m: together.wait(30) and None)
    result = world.execute(_plan(world, BlastRadius.RELOAD), update=UpdatePolicy(1, pause_secs=600))
    assert set(_statuses(result).values()) == {"done"}
    assert world.events.of(RolloutPaused) == []


class TestDrain:
    """A host whose engines are to restart turns new requests away first, while others answer."""

    CHANGED = {name: Wanted("2.0", ("m",), {"chat": member_of("m")}) for name in ("a", "b")}  # noqa: RUF012
    SERVING = {name: Wanted("1.0", ("m",), {"chat": member_of("m")}) for name in ("a", "b")}  # noqa: RUF012

    def _changed(self, radius: BlastRadius = BlastRadius.RESTART, **options: Any) -> tuple[SmallWorld, Any]:
        world = SmallWorld("a", "b")
        world.apply(self.SERVING)
        plan = world.plan(self.CHANGED)
        plan = replace(plan, changes=tuple(replace(change, blast_radius=radius) for change in plan.changes))
        world.fleet.calls.clear()
        return world, world.execute(plan, **options)

    def test_it_comes_before_the_first_change_and_ends_after_the_last(self) -> None:
        world, result = self._changed(update=UpdatePolicy(), lease=LEASE)
        assert result.exit_code == ExitCode.DONE
        methods = world.fleet.methods("a")
        assert (methods[0], methods[-1]) == ("host.drain", "host.resume")
        assert methods.count("host.drain") == 1
        assert world.fleet.hosts["a"].drained_by == set()

    def test_it_waits_until_what_a_change_only_brings_is_there(self) -> None:
        world = SmallWorld("a")
        world.apply({"a": self.SERVING["a"]})
        plan = world.plan({"a": self.CHANGED["a"]})

        def noticed_at_the_end(change: Change) -> Change:
            steps = (*change.steps[:-1], *(replace(step, downtime="queue") for step in change.steps[-1:]))
            return replace(change, blast_radius=BlastRadius.RESTART, steps=steps)

        world.fleet.calls.clear()
        changed = replace(plan, changes=tuple(map(noticed_at_the_end, plan.changes)))
        assert world.execute(changed, update=UpdatePolicy()).exit_code == ExitCode.DONE
        assert world.fleet.methods("a") == ["engine.install", "host.drain", "engine.remove", "host.resume"]

    def test_a_host_is_in_service_again_after_a_failure(self) -> None:
        world = SmallWorld("a")
        world.apply({"a": self.SERVING["a"]})
        plan = world.plan({"a": self.CHANGED["a"]})
        plan = replace(plan, changes=tuple(replace(one, blast_radius=BlastRadius.RESTART) for one in plan.changes))
        world.fleet.break_call("fail", method="engine.install")
        assert world.execute(plan, update=UpdatePolicy()).exit_code == ExitCode.FAILED
        assert world.fleet.methods("a")[-1] == "host.resume"

    def test_nothing_is_turned_away_for_what_nobody_notices_or_without_a_policy(self) -> None:
        for world, _ in (self._changed(BlastRadius.RELOAD, update=UpdatePolicy()), self._changed()):
            assert "host.drain" not in world.fleet.methods()

    def test_a_runtime_that_cannot_drain_is_changed_all_the_same(self) -> None:
        world = SmallWorld("a")
        world.apply({"a": self.SERVING["a"]})
        plan = world.plan({"a": self.CHANGED["a"]})
        plan = replace(plan, changes=tuple(replace(one, blast_radius=BlastRadius.RESTART) for one in plan.changes))
        unknown = InputError("node.unknown_method", "this host answers no method 'host.drain'")
        world.fleet.break_call("fail", method="host.drain", error=unknown)
        assert world.execute(plan, update=UpdatePolicy()).exit_code == ExitCode.DONE
