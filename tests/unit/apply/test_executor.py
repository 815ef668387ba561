"""Promises of an apply: what is done, what is left, what is remembered, and in which order the facts become durable."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sbctl.apply.cancellation import Cancellation
from sbctl.apply.events import ChangeFailed, ChangeSkipped, Heartbeat, HostFinished, HostStarted, StepProgress
from sbctl.base.errors import (
    EngineError,
    ExitCode,
    HostError,
    LockedError,
    RefusedError,
    SbctlError,
    StalePlanError,
    UnreachableError,
)
from sbctl.base.ids import Address
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import BlastRadius, Change
from tests.simulators.small_kinds import EngineKind, Wanted, facts_of, member_of
from tests.simulators.small_world import SmallWorld

FULL = Wanted("1.0", ("m",), {"chat": member_of("m")})


def statuses(result: Any) -> dict[str, str]:
    return {str(change.address): change.status for change in result.changes}


def test_a_plan_is_carried_out_recorded_and_then_there_is_nothing_to_do() -> None:
    world = SmallWorld("a", "b")
    result = world.apply({"a": FULL, "b": FULL})
    assert (result.status, result.exit_code) == ("applied", ExitCode.DONE)
    assert set(statuses(result).values()) == {"done"}
    assert {str(address) for address in world.state.resources} == set(statuses(result))
    assert world.plan({"a": FULL, "b": FULL}).actionable == ()
    assert [host.status for host in result.hosts] == ["done", "done"]


def test_every_fact_is_durable_before_the_next_begins() -> None:
    world = SmallWorld("a")
    world.apply({"a": Wanted("1.0", ("m",), {"chat": member_of("m")})})
    assert world.state.journal == [
        ("attempt", "engine.a/llama_cpp"),
        ("intent", "engine.a/llama_cpp#1:engine.install"),
        ("outcome", "engine.a/llama_cpp#1:engine.install", "done"),
        ("record", "engine.a/llama_cpp"),
        ("attempt", "artifact.a/m"),
        ("intent", "artifact.a/m#1:artifact.pull"),
        ("outcome", "artifact.a/m#1:artifact.pull", "done"),
        ("record", "artifact.a/m"),
        ("attempt", "bundle.a"),
        ("intent", "bundle.a#1:bundle.apply"),
        ("outcome", "bundle.a#1:bundle.apply", "done"),
        ("record", "deployment.a/chat"),
        ("record", "bundle.a"),
        ("finish", "applied"),
    ]


def test_a_host_is_read_before_its_first_step_and_after_each_change() -> None:
    world = SmallWorld("a")
    world.apply({"a": Wanted("1.0", ("m",))})
    asked = [call.method for call in world.fleet.calls]
    assert asked == ["snapshot", "engine.install", "snapshot", "artifact.pull", "snapshot"]


def test_deletes_forget_and_a_forget_asks_the_host_nothing() -> None:
    world = SmallWorld("a")
    world.apply({"a": Wanted("1.0", ("m",))})
    world.fleet.hosts["a"].artifacts.clear()
    plan = world.plan({})
    assert {str(change.address): change.action for change in plan.actionable} == {
        "artifact.a/m": "forget",
        "engine.a/llama_cpp": "delete",
    }
    result = world.execute(plan)
    assert result.status == "applied"
    assert world.state.resources == {}
    assert world.fleet.methods()[-1] == "engine.remove"


def test_only_forgetting_opens_no_session() -> None:
    world = SmallWorld("a")
    world.apply({"a": Wanted(artifacts=("m",))})
    world.fleet.hosts["a"].artifacts.clear()
    plan = world.plan({})
    world.fleet.opened.clear()
    assert world.execute(plan).exit_code == ExitCode.DONE
    assert world.fleet.opened == []


def test_the_first_failure_stops_its_host_and_no_other() -> None:
    world = SmallWorld("a", "b")
    cause = EngineError("engine.broken", "it does not start", place="a", next_step="repair it")
    world.fleet.break_call("fail", host="a", method="engine.install", error=cause)
    result = world.apply({"a": FULL, "b": FULL})
    assert statuses(result) == {
        "engine.a/llama_cpp": "failed",
        "artifact.a/m": "skipped",
        "bundle.a": "skipped",
        "deployment.a/chat": "skipped",
        "engine.b/llama_cpp": "done",
        "artifact.b/m": "done",
        "bundle.b": "done",
        "deployment.b/chat": "done",
    }
    failed = result.changes[0]
    assert (failed.cause, failed.step) == (cause, "engine.install engine.a/llama_cpp")
    assert result.changes[1].because == "engine.a/llama_cpp is not done"
    assert (result.status, result.exit_code) == ("partial", ExitCode.FAILED)
    assert ("outcome", "engine.a/llama_cpp#1:engine.install", "not_done") in world.state.journal
    assert {host.host: host.status for host in result.hosts} == {"a": "failed", "b": "done"}


def test_after_a_failure_only_the_rest_is_applied() -> None:
    world = SmallWorld("a")
    world.fleet.break_call("fail", method="artifact.pull")
    world.apply({"a": FULL})
    world.fleet.calls.clear()
    assert world.apply({"a": FULL}).status == "applied"
    assert world.fleet.methods() == ["artifact.pull", "bundle.apply"]


def test_fail_fast_starts_nothing_after_the_first_failure() -> None:
    world = SmallWorld("a", "b", "c")
    world.fleet.break_call("fail", host="a", method="engine.install")
    result = world.apply({host: Wanted("1.0") for host in "abc"}, fail_fast=True, parallelism=1)
    assert statuses(result) == {
        "engine.a/llama_cpp": "failed",
        "engine.b/llama_cpp": "not_started",
        "engine.c/llama_cpp": "not_started",
    }
    assert "first failure, engine.a/llama_cpp" in result.changes[1].because
    assert (result.status, result.exit_code) == ("failed", ExitCode.FAILED)
    assert world.fleet.opened == ["a"]


def test_at_most_parallelism_hosts_run_at_once_each_in_a_thread_of_its_name() -> None:
    hosts = [f"h{number}" for number in range(6)]
    world = SmallWorld(*hosts)
    running, peak, names = set[str](), list[int](), set[str]()
    together = threading.Barrier(3, timeout=120)

    def hook(host: str, method: str) -> None:
        running.add(host)
        peak.append(len(running))
        names.add(threading.current_thread().name)
        together.wait()
        running.discard(host)

    world.fleet.break_call("run", method="engine.install", times=6, hook=hook)
    result = world.apply({host: Wanted("1.0") for host in hosts}, parallelism=3)
    assert result.status == "applied"
    assert max(peak) <= 3
    assert names == {f"sbctl-apply-{host}" for host in hosts}


def test_every_session_is_closed_at_the_end() -> None:
    world = SmallWorld("a", "b")
    world.fleet.break_call("fail", host="a", method="engine.install")
    world.apply({"a": FULL, "b": FULL})
    assert all(session.closed for session in world.fleet.sessions)


# Blocked, stale, unreachable


def test_a_blocked_change_is_refused_before_anything_starts() -> None:
    world = SmallWorld("a")
    plan = world.plan({"a": Wanted("1.0", ("m", "n"))})
    blocked = tuple(
        replace(change, blocked="it is protected", blocked_code="plan.prevent_destroy")
        if change.address.kind == "artifact"
        else change
        for change in plan.changes
    )
    with pytest.raises(RefusedError) as caught:
        world.execute(replace(plan, changes=blocked))
    assert caught.value.code == "plan.prevent_destroy"
    assert caught.value.exit_code == ExitCode.REFUSED
    assert [entry["address"] for entry in caught.value.detail["blocked"]] == ["artifact.a/m", "artifact.a/n"]
    assert "(1 more)" in caught.value.message
    assert world.state.journal == []
    assert world.fleet.calls == []


def test_facts_that_changed_since_the_plan_stop_that_host_before_its_first_step() -> None:
    world = SmallWorld("a", "b")
    plan = world.plan({"a": FULL, "b": FULL})
    world.fleet.hosts["a"].put("x", 1)
    world.fleet.hosts["a"].call(
        "artifact.pull", {"artifact": facts_of("m").model_dump(mode="json")}, {}, lambda d, t: None
    )
    result = world.execute(plan)
    assert {statuses(result)[name] for name in ("engine.a/llama_cpp", "artifact.a/m", "bundle.a")} == {"not_started"}
    assert statuses(result)["bundle.b"] == "done"
    error = result.hosts[0].error
    assert isinstance(error, StalePlanError)
    assert error.code == "plan.facts_changed"
    assert (error.detail["address"], error.detail["fact"]) == ("artifact.a/m", "state")
    assert "artifact.a/m" in error.message
    assert "state" in error.message
    assert (result.hosts[0].status, result.exit_code) == ("stale", ExitCode.STALE)
    assert not [call for call in world.fleet.calls if call.host == "a" and call.method != "snapshot"]


@pytest.mark.parametrize(
    ("radius", "code"), [(BlastRadius.HITLESS, ExitCode.DONE), (BlastRadius.RESTART, ExitCode.STALE)]
)
def test_what_came_back_by_itself_is_no_stale_plan_where_nobody_notices_the_repair(
    radius: BlastRadius, code: ExitCode
) -> None:
    world = SmallWorld("a")
    world.apply({"a": Wanted("1.0", ("m",))})
    world.fleet.hosts["a"].artifacts.clear()
    plan = world.plan({"a": Wanted("1.0", ("m",))})
    (repair,) = (change for change in plan.changes if change.steps)
    repair = replace(repair, drifted=True, blast_radius=radius)
    plan = replace(plan, changes=tuple(repair if one.address == repair.address else one for one in plan.changes))
    pull = {"artifact": facts_of("m").model_dump(mode="json")}
    world.fleet.hosts["a"].call("artifact.pull", pull, {}, lambda d, t: None)
    assert world.execute(plan).exit_code == code


def test_a_row_that_does_not_change_is_checked_too() -> None:
    world = SmallWorld("a")
    world.apply({"a": Wanted("1.0", ("m",))})
    plan = world.plan({"a": Wanted("2.0", ("m",))})
    world.fleet.hosts["a"].artifacts.clear()
    result = world.execute(plan)
    assert result.exit_code == ExitCode.STALE
    assert world.fleet.hosts["a"].engines.keys() == {("llama_cpp", "1.0")}


def test_a_host_that_went_away_after_planning_is_not_started_and_the_exit_code_says_so() -> None:
    world = SmallWorld("a", "b")
    plan = world.plan({"a": FULL, "b": FULL})
    world.fleet.unreachable.add("a")
    result = world.execute(plan)
    assert statuses(result)["engine.a/llama_cpp"] == "not_started"
    assert result.hosts[0].status == "unreachable"
    assert (result.status, result.exit_code) == ("partial", ExitCode.UNREACHABLE)


@pytest.mark.parametrize(("allowed", "code"), [(False, ExitCode.UNREACHABLE), (True, ExitCode.DONE)])
def test_a_host_unreachable_while_planning_counts_unless_allowed(allowed: bool, code: ExitCode) -> None:
    world = SmallWorld("a", "b")
    world.fleet.unreachable.add("a")
    result = world.apply({"a": FULL, "b": FULL}, allow_unreachable=allowed)
    assert result.exit_code == code
    assert {host.host: host.status for host in result.hosts} == {"a": "unreachable", "b": "done"}
    assert all(change.host == "b" for change in result.changes)


def test_what_was_given_up_on_an_unreachable_host_is_delete_pending() -> None:
    world = SmallWorld("a", "b")
    world.apply({"a": Wanted("1.0"), "b": Wanted("1.0")})
    world.fleet.unreachable.add("a")
    engine = Address("engine", "a", "llama_cpp")
    for _ in range(2):
        world.apply({"b": Wanted("1.0")}, allow_unreachable=True)
        assert world.state.resources[engine].pending_delete
    assert world.state.journal.count(("record", str(engine))) == 2
    world.fleet.heal()
    world.apply({"b": Wanted("1.0")})
    assert engine not in world.state.resources


def test_an_idle_session_that_died_since_planning_is_opened_again() -> None:
    world = SmallWorld("a")
    plan = world.plan({"a": FULL})
    world.fleet.break_call("unreachable", method="snapshot")
    assert world.execute(plan).status == "applied"
    assert world.fleet.opened == ["a", "a"]


def test_a_host_that_refuses_the_session_is_not_started() -> None:
    world = SmallWorld("a")
    world.fleet.break_call("fail", method="snapshot", error=LockedError("host.locked", "another apply runs"))
    result = world.apply({"a": FULL})
    assert result.exit_code == ExitCode.LOCKED
    assert set(statuses(result).values()) == {"not_started"}
    assert result.hosts[0].status == "failed"


# Lost answers


def safe_to(retry: str) -> Callable[[Change], Change]:
    def change_retry(change: Change) -> Change:
        return replace(change, steps=tuple(replace(step, retry=retry) for step in change.steps))  # type: ignore[arg-type]

    return change_retry


@pytest.mark.parametrize(
    ("effect", "retry", "status", "calls", "code"),
    [
        pytest.param("lose", "safe", "done", 2, None, id="done without an answer: a safe step is asked again for it"),
        pytest.param("lose", "read_first", "done", 1, None, id="done without an answer: the host shows it"),
        pytest.param("cut", "safe", "done", 2, None, id="not done: a safe step is tried again"),
        pytest.param("unreachable", "safe", "done", 2, None, id="never sent: a safe step is tried again"),
        pytest.param("cut", "read_first", "failed", 1, "apply.step_lost", id="not done: others are not repeated"),
        pytest.param("cut", "never", "failed", 1, "apply.step_lost", id="not done: never repeated"),
    ],
)
def test_a_lost_answer_is_decided_by_reading_the_host(
    effect: Any, retry: str, status: str, calls: int, code: str | None
) -> None:
    world = SmallWorld("a")
    plan = world.plan({"a": Wanted("1.0")})
    plan = replace(plan, changes=tuple(map(safe_to(retry), plan.changes)))
    world.fleet.break_call(effect, method="engine.install")
    result = world.execute(plan)
    assert result.changes[0].status == status
    assert world.fleet.methods() == ["engine.install"] * calls
    cause = result.changes[0].cause
    assert (None if cause is None else cause.code) == code
    outcome = "done" if status == "done" else "not_done"
    assert ("outcome", "engine.a/llama_cpp#1:engine.install", outcome) in world.state.journal


def test_a_runtime_that_still_works_on_a_step_whose_answer_was_lost_is_waited_for() -> None:
    world = SmallWorld("a")
    world.apply({"a": Wanted("1.0")})
    host = world.fleet.hosts["a"]
    shown = host.snapshot
    looks = 0

    def working() -> NodeSnapshot:
        nonlocal looks
        looks += 1
        found = shown()
        return found.model_copy(update={"runtime": found.runtime.model_copy(update={"changing": 1 < looks < 5})})

    plan = world.plan({"a": Wanted("2.0")})
    host.__dict__["snapshot"] = working
    world.fleet.break_call("lose", method="engine.install")
    result = world.execute(plan)
    assert result.status == "applied"
    assert looks >= 6


def test_a_safe_step_is_repeated_once_only() -> None:
    world = SmallWorld("a")
    world.fleet.break_call("cut", method="engine.install", times=9)
    result = world.apply({"a": Wanted("1.0")})
    assert world.fleet.methods() == ["engine.install"] * 2
    assert (result.changes[0].status, result.exit_code) == ("failed", ExitCode.FAILED)


def test_a_repeat_whose_answer_is_lost_too_is_done_when_the_host_shows_it() -> None:
    world = SmallWorld("a")
    world.fleet.break_call("cut", method="engine.install", nth=1)
    world.fleet.break_call("lose", method="engine.install", nth=2)
    assert world.apply({"a": Wanted("1.0")}).status == "applied"


def test_an_answer_that_cannot_be_had_does_not_undo_what_is_done() -> None:
    world = SmallWorld("a")
    world.fleet.break_call("lose", method="engine.install")
    world.fleet.break_call("fail", method="engine.install", nth=2)
    assert world.apply({"a": Wanted("1.0")}).status == "applied"


@pytest.mark.parametrize("effect", ["lose", "cut"])
def test_a_host_that_stays_away_after_a_lost_answer_is_unknown(effect: Any) -> None:
    world = SmallWorld("a", "b")
    world.fleet.break_call("run", host="a", method="engine.install", hook=lambda *_: world.fleet.unreachable.add("a"))
    world.fleet.break_call(effect, host="a", method="engine.install")
    fault = world.fleet.faults[0]
    world.fleet.faults = [replace(fault, effect=effect)]
    result = world.apply({"a": FULL, "b": Wanted("1.0")})
    assert statuses(result)["engine.a/llama_cpp"] == "unknown"
    assert statuses(result)["artifact.a/m"] == "skipped"
    assert statuses(result)["engine.b/llama_cpp"] == "done"
    assert ("outcome", "engine.a/llama_cpp#1:engine.install", "unknown") in world.state.journal
    assert (result.hosts[0].status, result.exit_code) == ("unknown", ExitCode.FAILED)
    world.fleet.heal()
    assert world.apply({"a": FULL, "b": Wanted("1.0")}).status == "applied"


def test_a_lost_first_step_of_two_is_known_from_what_is_still_asked_for() -> None:
    world = SmallWorld("a")
    world.apply({"a": Wanted("1.0")})
    plan = world.plan({"a": Wanted("2.0")})
    plan = replace(plan, changes=tuple(map(safe_to("read_first"), plan.changes)))
    world.fleet.break_call("lose", method="engine.install")
    assert world.execute(plan).status == "applied"
    assert world.fleet.methods() == ["engine.install", "engine.install", "engine.remove"]
    assert set(world.fleet.hosts["a"].engines) == {("llama_cpp", "2.0")}


@pytest.mark.parametrize("effect", ["lose", "cut", "fail"])
def test_a_creation_that_was_begun_is_never_lost_even_when_nobody_wants_it_any_more(effect: Any) -> None:
    world = SmallWorld("a")
    world.fleet.break_call("run", method="artifact.pull", hook=lambda *_: None)
    world.fleet.faults[0].effect = effect
    world.fleet.break_call("fail", method="snapshot", nth=2, times=9)
    result = world.apply({"a": Wanted(artifacts=("m",))})
    assert result.changes[0].status in ("unknown", "failed")
    attempt = world.state.resources[Address("artifact", "a", "m")]
    assert attempt.attempted
    assert attempt.spec["facts"]["model"] == "m"
    world.fleet.heal()
    assert world.apply({}).status == "applied"
    assert (world.state.resources, world.fleet.hosts["a"].artifacts) == ({}, {})


# Reading back


class HalfEngine(EngineKind):
    """Says that it removed the old version, and does not."""

    def perform(self, step: Any, context: Any) -> Any:
        return {} if step.method == "engine.remove" else super().perform(step, context)


def test_a_change_that_the_host_does_not_show_names_leaf_expected_and_got() -> None:
    world = SmallWorld("a")
    world.apply({"a": Wanted("1.0")})
    world.providers = {**world.providers, "engine": HalfEngine()}
    result = world.apply({"a": Wanted("2.0")})
    cause = result.changes[0].cause
    assert isinstance(cause, HostError)
    assert cause.code == "apply.not_converged"
    assert cause.place == "a"
    assert cause.detail == {
        "address": "engine.a/llama_cpp",
        "leaf": "versions",
        "expected": '["2.0"]',
        "got": '["1.0", "2.0"]',
    }
    assert result.changes[0].steps_done == 1
    assert world.state.journal[-2:] == [
        ("outcome", "engine.a/llama_cpp#2:engine.remove", "not_done"),
        ("finish", "failed"),
    ]
    assert world.state.resources[Address("engine", "a", "llama_cpp")].spec["version"] == "1.0"


def test_a_delete_that_leaves_the_thing_behind_is_not_converged_and_not_forgotten() -> None:
    world = SmallWorld("a")
    world.apply({"a": Wanted("1.0")})
    world.providers = {**world.providers, "engine": HalfEngine()}
    result = world.apply({})
    assert result.changes[0].cause is not None
    assert result.changes[0].cause.code == "apply.not_converged"
    assert "gone" in result.changes[0].cause.message
    assert len(world.state.resources) == 1


def test_a_host_that_needs_a_moment_is_read_back_again() -> None:
    world = SmallWorld("a")

    class Slow(EngineKind):
        def interpret(self, snapshot: Any, address: Any, recorded: Any) -> Any:
            observed = super().interpret(snapshot, address, recorded)
            early = world.fleet.clock.monotonic_s() < 1.0
            return replace(observed, decisive={"versions": []}) if early else observed

    world.providers = {**world.providers, "engine": Slow()}
    assert world.apply({"a": Wanted("1.0")}).status == "applied"
    assert world.fleet.clock.monotonic_s() == pytest.approx(1.0)


def test_a_member_that_does_not_show_fails_its_bundle() -> None:
    world = SmallWorld("a")
    original = world.fleet.hosts["a"]._commit

    def commit(payload: Any) -> None:
        original(payload)
        original.__self__.deployments.pop("chat")

    world.fleet.hosts["a"]._commit = commit  # type: ignore[method-assign]
    result = world.apply({"a": FULL})
    assert statuses(result)["bundle.a"] == statuses(result)["deployment.a/chat"] == "failed"
    cause = result.changes[-1].cause
    assert cause is not None
    assert cause.detail["address"] == "deployment.a/chat"


def test_an_unreachable_host_during_the_read_back_is_unknown() -> None:
    world = SmallWorld("a")
    world.fleet.break_call("unreachable", method="snapshot", nth=2, times=2)
    result = world.apply({"a": Wanted("1.0")})
    assert (result.changes[0].status, result.exit_code) == ("unknown", ExitCode.UNREACHABLE)
    assert ("outcome", "engine.a/llama_cpp#1:engine.install", "unknown") in world.state.journal
    assert world.apply({"a": Wanted("1.0")}).status == "applied"


def test_a_replica_that_fails_makes_the_node_degraded() -> None:
    world = SmallWorld("a", "b")
    world.fleet.hosts["a"].failing_deployments.add("chat")
    result = world.apply({"a": FULL, "b": FULL})
    assert (result.status, result.exit_code) == ("applied", ExitCode.DEGRADED)
    assert result.degraded == {"a": ("deployment chat: replica 0 failed: exit status 1",)}


# Members


def test_members_change_with_their_bundle_and_are_forgotten_with_it() -> None:
    world = SmallWorld("a")
    two = Wanted("1.0", ("m",), {"chat": member_of("m"), "code": member_of("m", replicas=2)})
    world.apply({"a": two})
    one = Wanted("1.0", ("m",), {"chat": member_of("m")})
    result = world.apply({"a": one})
    assert statuses(result) == {"bundle.a": "done", "deployment.a/code": "done"}
    assert Address("deployment", "a", "code") not in world.state.resources
    assert Address("deployment", "a", "chat") in world.state.resources


def test_a_member_whose_record_was_lost_in_a_crash_is_taken_up_without_touching_the_bundle() -> None:
    world = SmallWorld("a")
    world.apply({"a": FULL})
    member = Address("deployment", "a", "chat")
    plan = world.plan({"a": FULL})
    alone = next(change for change in plan.changes if change.address == member)
    del world.state.resources[member]
    result = world.execute(replace(plan, changes=(replace(alone, action="create", recorded=None),)))
    assert statuses(result) == {"deployment.a/chat": "done"}
    assert member in world.state.resources


def test_an_unchanged_member_must_still_hold_after_its_bundle_changed() -> None:
    world = SmallWorld("a")
    world.apply({"a": FULL})
    two = Wanted("1.0", ("m",), {"chat": member_of("m"), "code": member_of("m")})
    original = world.fleet.hosts["a"]._commit

    def commit(payload: Any) -> None:
        original(payload)
        original.__self__.deployments.pop("chat")

    world.fleet.hosts["a"]._commit = commit  # type: ignore[method-assign]
    result = world.apply({"a": two})
    assert statuses(result)["bundle.a"] == "failed"


# The state


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_when_the_state_cannot_be_written_nothing_more_is_started_anywhere(nth: int) -> None:
    world = SmallWorld("a", "b")
    result = world.apply({"a": FULL, "b": FULL}, fail_write_at=nth, parallelism=1)
    assert statuses(result)["engine.a/llama_cpp"] == "failed"
    assert statuses(result)["engine.b/llama_cpp"] == "not_started"
    assert "state could not be written" in {change.because for change in result.changes if change.host == "b"}.pop()
    assert len(world.fleet.methods()) == (0 if nth <= 2 else 1)
    assert result.journal_error is not None
    assert result.journal_error.code == "disk.full"
    assert result.exit_code == ExitCode.FAILED


def test_a_run_whose_end_cannot_be_written_says_so() -> None:
    world = SmallWorld("a")
    result = world.apply({"a": Wanted("1.0")}, fail_write_at=5)
    assert (result.status, result.exit_code) == ("partial", ExitCode.FAILED)


def test_a_state_that_cannot_note_a_pending_delete_starts_nothing() -> None:
    world = SmallWorld("a", "b")
    world.apply({"a": Wanted("1.0")})
    world.fleet.unreachable.add("a")
    result = world.apply({"b": Wanted("1.0")}, fail_write_at=1)
    assert statuses(result) == {"engine.b/llama_cpp": "not_started"}
    assert world.fleet.opened == ["a"]
    assert result.journal_error is not None


# Defects


class Broken(EngineKind):
    def __init__(self, where: str) -> None:
        self.where = where

    def perform(self, step: Any, context: Any) -> Any:
        if self.where == "perform":
            raise KeyError("hunter2")
        return super().perform(step, context)

    def record(self, desired: Any, results: Any) -> Any:
        if self.where == "record":
            raise KeyError("hunter2")
        return super().record(desired, results)


@pytest.mark.parametrize(("where", "status"), [("perform", "failed"), ("record", "unknown")])
def test_a_defect_of_a_provider_is_one_failed_change_and_shows_no_value(where: str, status: str) -> None:
    world = SmallWorld("a", "b")
    world.providers = {**world.providers, "engine": Broken(where)}
    result = world.apply({"a": Wanted("1.0"), "b": Wanted(artifacts=("m",))})
    assert statuses(result) == {"engine.a/llama_cpp": status, "artifact.b/m": "done"}
    cause = result.changes[0].cause
    assert cause is not None
    assert cause.code == "internal.error"
    assert "hunter2" not in str(cause)
    assert isinstance(cause.__cause__, KeyError)


def test_a_defect_in_a_comparison_does_not_hide_other_hosts() -> None:
    world = SmallWorld("a", "b")
    plan = world.plan({"a": Wanted("1.0"), "b": Wanted("1.0")})

    class Blind(EngineKind):
        def interpret(self, snapshot: Any, address: Any, recorded: Any) -> Any:
            if address.scope == "a":
                raise ZeroDivisionError
            return super().interpret(snapshot, address, recorded)

    world.providers = {**world.providers, "engine": Blind()}
    result = world.execute(plan)
    assert statuses(result) == {"engine.a/llama_cpp": "failed", "engine.b/llama_cpp": "done"}


def test_a_defect_of_the_state_stops_everything_like_a_full_disk() -> None:
    world = SmallWorld("a")
    plan = world.plan({"a": Wanted("1.0")})
    world.state.begin_run = _sick(world.state.begin_run)  # type: ignore[method-assign]
    result = world.execute(plan)
    assert result.journal_error is not None
    assert result.journal_error.code == "state.write_failed"


def _sick(begin_run: Callable[[], Any]) -> Callable[[], Any]:
    def begin() -> Any:
        run = begin_run()

        def broken(*_: Any) -> None:
            raise RuntimeError

        run.intent = broken
        return run

    return begin


# Edges between hosts


def crossing(world: SmallWorld, hosts: dict[str, Wanted], edges: dict[str, str]) -> Any:
    plan = world.plan(hosts)
    changes = tuple(
        replace(change, after=change.after | {Address.parse(edges[str(change.address)])})
        if str(change.address) in edges
        else change
        for change in plan.changes
    )
    return replace(plan, changes=changes)


def test_a_change_waits_for_a_change_on_another_host_without_holding_a_thread() -> None:
    world = SmallWorld("a", "b")
    hosts = {"a": Wanted("1.0"), "b": Wanted("1.0")}
    plan = crossing(world, hosts, {"engine.a/llama_cpp": "engine.b/llama_cpp"})
    result = world.execute(plan, parallelism=1)
    assert result.status == "applied"
    assert [call.host for call in world.fleet.calls if call.method == "engine.install"] == ["b", "a"]


def test_a_change_is_skipped_when_what_it_waits_for_on_another_host_failed() -> None:
    world = SmallWorld("a", "b")
    world.fleet.break_call("fail", host="b", method="engine.install")
    plan = crossing(world, {"a": Wanted("1.0"), "b": Wanted("1.0")}, {"engine.a/llama_cpp": "engine.b/llama_cpp"})
    result = world.execute(plan, parallelism=1)
    assert statuses(result) == {"engine.a/llama_cpp": "skipped", "engine.b/llama_cpp": "failed"}
    assert result.hosts[0].status == "not_started"


def test_hosts_that_wait_for_each_other_end_without_starting() -> None:
    world = SmallWorld("a", "b")
    edges = {"engine.a/llama_cpp": "engine.b/llama_cpp", "engine.b/llama_cpp": "engine.a/llama_cpp"}
    result = world.execute(crossing(world, {"a": Wanted("1.0"), "b": Wanted("1.0")}, edges))
    assert set(statuses(result).values()) == {"not_started"}


# Being asked to stop


def test_one_signal_lets_running_steps_finish_and_starts_no_other() -> None:
    world = SmallWorld("a", "b")
    cancel = Cancellation()
    world.fleet.break_call("run", host="a", method="engine.install", hook=lambda *_: cancel.request())
    result = world.execute(world.plan({"a": FULL, "b": FULL}), cancel=cancel, parallelism=1)
    assert statuses(result)["engine.a/llama_cpp"] == "done"
    assert set(list(statuses(result).values())[1:]) == {"not_started"}
    assert (result.status, result.exit_code, result.signal_name) == ("interrupted", ExitCode.INTERRUPTED, "SIGINT")
    assert world.last_run is not None
    assert world.last_run.status == "interrupted"
    assert world.state.open_intents == {}
    assert world.fleet.methods() == ["engine.install"]


def test_a_signal_between_two_steps_of_a_change_leaves_it_interrupted() -> None:
    world = SmallWorld("a")
    world.apply({"a": Wanted("1.0")})
    cancel = Cancellation()
    world.fleet.break_call("run", method="engine.install", hook=lambda *_: cancel.request(15))
    result = world.execute(world.plan({"a": Wanted("2.0", ("m",))}), cancel=cancel)
    assert statuses(result) == {"engine.a/llama_cpp": "interrupted", "artifact.a/m": "not_started"}
    assert result.changes[0].steps_done == 1
    assert result.exit_code == ExitCode.TERMINATED
    assert world.apply({"a": Wanted("2.0", ("m",))}).status == "applied"


def test_a_signal_when_all_is_done_changes_nothing() -> None:
    world = SmallWorld("a")
    cancel = Cancellation()
    world.fleet.break_call("run", method="engine.install", hook=lambda *_: cancel.request())
    result = world.execute(world.plan({"a": Wanted("1.0")}), cancel=cancel)
    assert (result.status, result.exit_code, result.signal_name) == ("applied", ExitCode.DONE, None)


def _until(condition: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(2000):
        if condition():
            return
        waited.wait(0.005)
    raise AssertionError("waited in vain")


def test_the_second_signal_closes_sessions_leaves_intents_open_and_loses_nothing() -> None:
    world = SmallWorld("a")
    cancel = Cancellation()

    def hook(host: str, method: str) -> None:
        cancel.request()
        cancel.request()
        _until(lambda: world.fleet.sessions[-1].closed)

    world.fleet.break_call("run", method="engine.install", hook=hook)
    result = world.execute(world.plan({"a": FULL}), cancel=cancel)
    assert statuses(result)["engine.a/llama_cpp"] == "unknown"
    assert statuses(result)["artifact.a/m"] == "not_started"
    assert result.exit_code == ExitCode.INTERRUPTED
    assert list(world.state.open_intents) == ["engine.a/llama_cpp#1:engine.install"]
    world.fleet.heal()
    assert world.apply({"a": FULL}).status == "applied"


def test_a_second_signal_while_the_host_is_compared_with_the_plan_begins_nothing() -> None:
    world = SmallWorld("a")
    cancel = Cancellation()

    def hook(host: str, method: str) -> None:
        cancel.request()
        cancel.request()
        _until(lambda: world.fleet.sessions[-1].closed)

    plan = world.plan({"a": FULL})
    world.fleet.break_call("run", method="snapshot", hook=hook)
    result = world.execute(plan, cancel=cancel)
    assert set(statuses(result).values()) == {"not_started"}
    assert result.exit_code == ExitCode.INTERRUPTED
    assert (world.state.open_intents, world.state.resources) == ({}, {})


def test_hosts_that_a_signal_came_before_are_not_said_to_have_started() -> None:
    world = SmallWorld("a", "b", "c")
    cancel = Cancellation()
    world.fleet.break_call("run", host="a", method="engine.install", hook=lambda *_: cancel.request())
    world.execute(world.plan(dict.fromkeys("abc", FULL)), cancel=cancel, parallelism=1)
    assert [event.host for event in world.events.of(HostStarted)] == ["a"]
    assert len(world.events.of(HostFinished)) == 3


def test_a_call_that_hangs_after_the_second_signal_is_given_up_and_writes_nothing_later() -> None:
    world = SmallWorld("a")
    cancel = Cancellation()
    release = threading.Event()
    finished = threading.Event()

    def hook(host: str, method: str) -> None:
        cancel.request()
        cancel.request()
        release.wait(30)

    class Noted(EngineKind):
        def perform(self, step: Any, context: Any) -> Any:
            try:
                return super().perform(step, context)
            finally:
                finished.set()

    world.providers = {**world.providers, "engine": Noted()}
    world.fleet.break_call("run", method="engine.install", hook=hook)
    result = world.execute(world.plan({"a": FULL}), cancel=cancel, hard_stop_wait_s=0.0)
    assert statuses(result)["engine.a/llama_cpp"] == "unknown"
    journal, told = list(world.state.journal), len(world.events.stamped)
    release.set()
    assert finished.wait(30)
    _until(lambda: not any(thread.name == "sbctl-apply-a" for thread in threading.enumerate()))
    assert world.state.journal == journal
    assert len(world.events.stamped) == told


def test_a_provider_that_stops_between_two_files_leaves_its_intent_open() -> None:
    world = SmallWorld("a")
    cancel = Cancellation()

    class Careful(EngineKind):
        def perform(self, step: Any, context: Any) -> Any:
            cancel.request()
            assert not context.cancelled()
            cancel.request()
            assert context.cancelled()
            raise SystemExitLike

    class SystemExitLike(SbctlError):
        def __init__(self) -> None:
            super().__init__("apply.interrupted", "stopped between two files")

    world.providers = {**world.providers, "engine": Careful()}
    result = world.execute(world.plan({"a": Wanted("1.0")}), cancel=cancel)
    assert statuses(result)["engine.a/llama_cpp"] == "unknown"
    assert len(world.state.open_intents) == 1


# Events


def test_events_tell_the_story_of_each_host_in_order_without_gaps() -> None:
    world = SmallWorld("a")
    world.fleet.break_call("fail", method="artifact.pull")
    world.apply({"a": FULL})
    assert [entry.sequence for entry in world.events.stamped] == list(range(1, len(world.events.stamped) + 1))
    assert [name for name in world.events.types if name != "step_progress"] == [
        "run_started",
        "host_started",
        "step_started",
        "step_finished",
        "change_done",
        "step_started",
        "step_finished",
        "change_failed",
        "change_skipped",
        "change_skipped",
        "host_finished",
        "run_finished",
    ]
    assert world.events.of(ChangeFailed)[0].error.code == "host.injected"
    assert world.events.of(ChangeSkipped)[0].because == "artifact.a/m is not done"


def test_silence_is_broken_by_a_heartbeat_that_says_who_is_busy() -> None:
    world = SmallWorld("a")

    def hook(host: str, method: str) -> None:
        world.fleet.clock.sleep_s(10.5)
        _until(lambda: "heartbeat" in world.events.types)

    world.fleet.break_call("run", method="engine.install", hook=hook)
    world.fleet.break_call("run", method="snapshot", hook=hook)
    assert world.apply({"a": Wanted("1.0")}).status == "applied"
    beats = world.events.of(Heartbeat)
    assert [(beat.running[0].host, beat.running[0].what) for beat in beats[:1]] == [
        ("a", "comparing the host with the plan")
    ]
    assert beats[0].running[0].since_s == pytest.approx(10.5)


def test_progress_is_thinned_but_its_end_is_told() -> None:
    world = SmallWorld("a")
    world.apply({"a": Wanted(artifacts=("m",))})
    told = [(event.done, event.total) for event in world.events.of(StepProgress)]
    assert told == [(1024, 4096), (4096, 4096)]


def test_a_sink_that_cannot_write_does_not_stop_the_apply() -> None:
    world = SmallWorld("a")

    class Closed:
        def emit(self, stamped: Any) -> None:
            raise BrokenPipeError

    plan = world.plan({"a": FULL})
    world.events.emit = Closed().emit  # type: ignore[method-assign]
    assert world.execute(plan).status == "applied"


def test_an_unexpected_stop_of_a_thread_reaches_the_caller() -> None:
    world = SmallWorld("a")

    class Dying(EngineKind):
        def perform(self, step: Any, context: Any) -> Any:
            raise KeyboardInterrupt

    world.providers = {**world.providers, "engine": Dying()}
    with pytest.raises(KeyboardInterrupt):
        world.apply({"a": Wanted("1.0")})


def test_nothing_to_do_is_applied_at_once() -> None:
    world = SmallWorld("a")
    result = world.apply({})
    assert (result.status, result.exit_code, result.changes) == ("applied", ExitCode.DONE, ())
    assert [(host.host, host.status) for host in result.hosts] == [("a", "unchanged")]


def test_errors_of_the_connection_keep_their_kind() -> None:
    assert UnreachableError.exit_code == ExitCode.UNREACHABLE
