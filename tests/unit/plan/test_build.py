from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from sbctl.base.connection import Connection
from sbctl.base.errors import InputError
from sbctl.base.ids import Address
from sbctl.base.update_policy import UpdatePolicy
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.build import build_plan
from sbctl.plan.inputs import PlanInputs
from sbctl.plan.model import Change, Desired, DiffContext, Observed, Plan
from tests.simulators.planners import (
    FAKE_PLANNERS,
    LINEAGE,
    NOW,
    FakePlanner,
    address,
    desired,
    host_resources,
    inputs,
    recorded,
    snapshot,
)

OTHER_CHAT = {"model": "m", "max_concurrency": 8, "rollout": "rolling", "artifact": "d1"}


def actions(plan: Plan) -> dict[str, str]:
    return {str(change.address): change.action for change in plan.changes}


def acting(plan: Plan) -> list[str]:
    return [f"{change.action} {change.address}" for change in plan.actionable]


def test_a_new_host_is_created_bottom_up_and_members_stand_behind_their_bundle() -> None:
    plan = build_plan(inputs(host_resources("a")), FAKE_PLANNERS)
    assert acting(plan) == [
        "create host.a",
        "create runtime.a",
        "create engine.a/llama_cpp",
        "create artifact.a/m:q4",
        "create bundle.a",
        "create deployment.a/chat",
        "create origin.a/ai.internal",
    ]
    assert [change.member_of for change in plan.changes][-2:] == [address("bundle.a")] * 2
    assert all(not change.steps for change in plan.changes if change.member_of)
    assert all(change.steps for change in plan.changes if not change.member_of)


def test_nothing_to_do_is_all_no_op() -> None:
    resources = host_resources("a")
    plan = build_plan(inputs(resources, resources), FAKE_PLANNERS)
    assert set(actions(plan).values()) == {"no-op"}
    assert plan.actionable == ()


def test_a_member_that_changes_makes_its_bundle_change() -> None:
    plan = build_plan(inputs(host_resources("a", chat=OTHER_CHAT), host_resources("a")), FAKE_PLANNERS)
    assert acting(plan) == ["update bundle.a", "update deployment.a/chat"]
    member = plan.actionable[1]
    assert [(leaf.path, leaf.before, leaf.after) for leaf in member.leaves] == [("max_concurrency", 4, 8)]


def test_destroy_runs_backwards_and_only_touches_what_is_recorded() -> None:
    plan = build_plan(inputs(host_resources("b"), host_resources("a"), mode="destroy"), FAKE_PLANNERS)
    assert acting(plan) == [
        "delete bundle.a",
        "delete deployment.a/chat",
        "delete origin.a/ai.internal",
        "delete artifact.a/m:q4",
        "delete engine.a/llama_cpp",
        "delete runtime.a",
        "delete host.a",
    ]


def test_destroy_of_nothing_changes_nothing() -> None:
    plan = build_plan(inputs(host_resources("a"), mode="destroy", hosts={}), FAKE_PLANNERS)
    assert plan.changes == ()


def test_an_artifact_goes_after_the_bundle_stopped_using_it() -> None:
    known = host_resources("a")
    wanted = [one for one in host_resources("a", chat=OTHER_CHAT) if one.address.kind != "artifact"]
    assert acting(build_plan(inputs(wanted, known), FAKE_PLANNERS)) == [
        "update bundle.a",
        "update deployment.a/chat",
        "delete artifact.a/m:q4",
    ]


def test_a_host_that_left_is_destroyed_by_its_recorded_connection() -> None:
    there = Connection("ssh", "10.0.0.9", host_keys=("SHA256:x",))
    known = [replace(one, connection=there) for one in host_resources("gone")]
    plan = build_plan(inputs(host_resources("a"), known), FAKE_PLANNERS)
    gone = [change for change in plan.changes if change.host == "gone"]
    assert {change.action for change in gone} == {"delete"}
    assert {change.connection for change in gone} == {there}


@pytest.mark.parametrize("allowed", [False, True])
def test_an_unreachable_host_is_one_row_and_nothing_is_said_of_what_is_on_it(allowed: bool) -> None:
    resources = host_resources("a") + host_resources("b")
    there = Connection("ssh", "10.0.0.9", host_keys=("SHA256:x",))
    silent = {"b": "no answer in 10 s"}
    plan = build_plan(
        inputs(
            resources,
            resources,
            unreachable=silent,
            allow_unreachable=allowed,
            hosts={"a": Connection("local"), "b": there},
        ),
        FAKE_PLANNERS,
    )
    rows = [change for change in plan.changes if change.host == "b"]
    assert [(str(row.address), row.action, row.reason) for row in rows] == [
        ("host.b", "unreachable", "no answer in 10 s")
    ]
    assert ("--allow-unreachable" in rows[0].notes[0]) is not allowed
    assert ("host forget b --lost" in rows[0].notes[0]) is not allowed
    assert plan.unreachable == {"b": "no answer in 10 s"}


@pytest.mark.parametrize(("canary", "said"), [("b", True), ("a", False)])
def test_a_canary_that_gives_no_answer_is_told(canary: str, said: bool) -> None:
    asked = inputs(
        host_resources("a") + host_resources("b"),
        host_resources("b"),
        unreachable={"b": "no answer in 10 s"},
        allow_unreachable=True,
        update=UpdatePolicy(canary=canary),
    )
    notes = build_plan(asked, FAKE_PLANNERS).notes
    assert any("the canary b gave no answer" in note for note in notes) is said


@pytest.mark.parametrize(("update", "port", "said"), [(True, 9090, True), (True, 8080, False), (False, 9090, False)])
def test_a_host_that_an_update_restarts_is_said_to_be_drained_first(update: bool, port: int, said: bool) -> None:
    asked = inputs(
        [*host_resources("a", port=port), desired("host.b", {"labels": {}})],
        host_resources("a"),
        **({"update": UpdatePolicy()} if update else {}),
    )
    notes = build_plan(asked, FAKE_PLANNERS).notes
    assert any("is drained first" in note for note in notes) is said


@pytest.mark.parametrize(("others", "said"), [(["b"], "the others serve"), ([], "no other serves")])
def test_whether_others_serve_while_a_host_is_drained_is_said(others: list[str], said: str) -> None:
    known = [each for host in ("a", *others) for each in host_resources(host)]
    wanted = [*host_resources("a", port=9090), *(each for host in others for each in host_resources(host))]
    notes = build_plan(inputs(wanted, known, update=UpdatePolicy()), FAKE_PLANNERS).notes
    assert [said in note for note in notes if "is drained first" in note] == [True]


def test_a_host_without_a_snapshot_counts_as_unreachable() -> None:
    resources = host_resources("a")
    plan = build_plan(inputs(resources, resources, snapshots={}), FAKE_PLANNERS)
    assert plan.unreachable == {"a": "the host was not observed"}


@pytest.mark.parametrize(
    ("recorded", "connection"),
    [((), Connection("ssh", "10.0.0.9", host_keys=("SHA256:x",))), (host_resources("a"), Connection("local"))],
    ids=["never taken in", "this machine"],
)
def test_a_host_that_cannot_be_lost_is_not_said_to_be(recorded: Iterable[Desired], connection: Connection) -> None:
    plan = build_plan(inputs(host_resources("a"), recorded, snapshots={}, hosts={"a": connection}), FAKE_PLANNERS)
    assert "forget" not in next(row for row in plan.changes if row.action == "unreachable").notes[0]


def test_a_host_of_another_fleet_is_blocked_as_a_whole() -> None:
    resources = host_resources("a")
    plan = build_plan(inputs(resources, snapshots={"a": snapshot([], lineage="other")}), FAKE_PLANNERS)
    assert {change.blocked_code for change in plan.actionable} == {"host.other_lineage"}


def test_what_is_kept_is_forgotten_when_its_host_is_given_up() -> None:
    known = [replace(one, keep=one.address.kind == "artifact") for one in host_resources("a")]
    plan = build_plan(inputs((), known, mode="destroy"), FAKE_PLANNERS)
    assert actions(plan)["artifact.a/m:q4"] == "forget"
    assert actions(plan)["runtime.a"] == "delete"


def test_what_is_kept_is_still_removed_when_only_itself_left_the_file() -> None:
    known = [replace(one, keep=True) for one in host_resources("a")]
    wanted = [one for one in host_resources("a") if one.address.kind != "artifact"]
    assert actions(build_plan(inputs(wanted, known), FAKE_PLANNERS))["artifact.a/m:q4"] == "delete"


def test_replace_is_asked_for_by_pattern() -> None:
    resources = host_resources("a")
    plan = build_plan(inputs(resources, resources, replaces=("engine.*",)), FAKE_PLANNERS)
    assert acting(plan) == ["replace engine.a/llama_cpp"]


def test_drift_compares_the_record_and_ignores_the_file() -> None:
    known = host_resources("a")
    edited = host_resources("a", chat=OTHER_CHAT, port=9)
    assert build_plan(inputs(edited, known, mode="drift"), FAKE_PLANNERS).actionable == ()
    plan = build_plan(inputs(edited, known, mode="drift", observed=known[1:]), FAKE_PLANNERS)
    assert acting(plan) == ["update host.a"]
    assert all(change.drifted and not change.steps for change in plan.actionable)


def test_a_resource_whose_removal_is_pending_is_no_drift() -> None:
    known = host_resources("a")
    given = inputs(known, known, mode="drift")
    pending = {**given.recorded, address("artifact.a/m:q4"): recorded(known[3], pending_delete=True)}
    plan = build_plan(replace(given, recorded=pending), FAKE_PLANNERS)
    assert actions(plan)["artifact.a/m:q4"] == "delete"


class _ShowsDrift(FakePlanner):
    def diff(self, *truths: Any) -> Change:
        return replace(super().diff(*truths), drifted=True)


def test_drift_without_effect_on_a_plan_is_one_line() -> None:
    resources = host_resources("a")
    planners = {**FAKE_PLANNERS, "engine": _ShowsDrift()}
    plan = build_plan(inputs(resources, resources), planners)
    assert plan.actionable == ()
    assert plan.notes == ("1 resource changed behind our back without effect on this plan: sbctl drift",)


def test_rollback_brings_no_removed_host_back_and_reaches_hosts_as_today() -> None:
    today = Connection("ssh", "10.0.0.2")
    old = host_resources("a", chat=OTHER_CHAT) + host_resources("removed")
    given = inputs(old, host_resources("a"), mode="rollback", hosts={"a": today})
    plan = build_plan(given, FAKE_PLANNERS)
    assert acting(plan) == ["update bundle.a", "update deployment.a/chat"]
    assert {change.connection for change in plan.changes} == {today}
    assert plan.notes == ("removed since and not brought back: removed",)


class _KeepsRevoked(FakePlanner):
    def restore_spec(self, snapshot_spec: Mapping[str, Any], recorded_spec: Mapping[str, Any]) -> Mapping[str, Any]:
        kept = {name: key for name, key in snapshot_spec["api_keys"].items() if name in recorded_spec["api_keys"]}
        return {**snapshot_spec, "api_keys": kept}


def test_rollback_asks_the_kind_what_must_not_come_back() -> None:
    old = host_resources("a")
    known = [
        desired("bundle.a", {**one.spec, "api_keys": {}}, after=map(str, one.after))
        if one.address.kind == "bundle"
        else one
        for one in old
    ]
    assert acting(build_plan(inputs(old, known, mode="rollback"), FAKE_PLANNERS)) == ["update bundle.a"]
    planners = {**FAKE_PLANNERS, "bundle": _KeepsRevoked()}
    assert acting(build_plan(inputs(old, known, mode="rollback"), planners)) == []
    assert acting(build_plan(inputs(old, (), mode="rollback"), planners))[0] == "create host.a"


class _Config:
    fleet_name = "fleet"
    digest = "e" * 64
    catalog_digest = "f" * 64
    prevent_destroy: tuple[str, ...] = ()


class _NoHosts(FakePlanner):
    """Fails when a recorded thing is observed: two files know no host."""

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Any) -> Observed:
        assert recorded is None
        assert snapshot is not None
        assert not snapshot.bootstrapped
        return super().interpret(snapshot, address, recorded)


def test_two_files_are_compared_without_any_host() -> None:
    base, proposed = host_resources("a"), host_resources("a", chat=OTHER_CHAT, port=9) + host_resources("b")
    planners = dict.fromkeys(FAKE_PLANNERS, _NoHosts())
    plan = build_plan(PlanInputs.against(base, proposed, _Config(), NOW), planners)
    assert acting(plan)[:3] == ["update runtime.a", "update bundle.a", "update deployment.a/chat"]
    assert acting(plan)[3] == "create host.b"
    assert all(not change.steps for change in plan.changes)
    bundle, member = plan.actionable[1:3]
    assert bundle.leaves == ()
    assert [leaf.path for leaf in member.leaves] == ["max_concurrency"]
    assert plan.offline
    assert str(plan.blast_radius) == "restart"
    assert plan.header == {"fleet": "fleet"}


def test_a_file_without_the_models_breaks_their_users() -> None:
    base = host_resources("a")
    proposed = [one for one in base if one.member_of is None]
    plan = build_plan(PlanInputs.against(base, proposed, _Config(), NOW), FAKE_PLANNERS)
    assert acting(plan) == ["update bundle.a", "delete deployment.a/chat", "delete origin.a/ai.internal"]
    assert {str(change.blast_radius) for change in plan.actionable} == {"breaking"}


def test_without_refresh_specs_are_compared_and_a_note_says_so() -> None:
    known = host_resources("a")
    plan = build_plan(inputs(host_resources("a", port=9), known, observed=(), refresh=False), FAKE_PLANNERS)
    assert acting(plan) == ["update runtime.a"]
    assert "--no-refresh" in plan.notes[0]
    plan = build_plan(
        inputs(known, known, refresh=False, replaces=("runtime.a",), unreachable={"a": "x"}), FAKE_PLANNERS
    )
    assert acting(plan) == ["replace runtime.a"]
    assert plan.unreachable == {}


class _Curious(FakePlanner):
    seen: DiffContext | None = None

    def diff(self, *truths: Any) -> Change:
        type(self).seen = truths[3]
        return super().diff(*truths)


def test_a_comparison_may_know_all_specs_of_its_host() -> None:
    resources = host_resources("a")
    build_plan(inputs(resources, resources + host_resources("b")), {**FAKE_PLANNERS, "bundle": _Curious()})
    context = _Curious.seen
    assert context is not None
    known = {str(where) for where in context.recorded_specs}
    assert "deployment.b/chat" in known
    assert not any(name.startswith("deployment.a") for name in known)
    assert context.now == NOW


@pytest.mark.parametrize(
    ("resources", "code"),
    [
        ([desired("host.a"), desired("host.a", {"value": 2})], "plan.duplicate_address"),
        ([desired("engine.a/x", after=["engine.a/x"])], "plan.cycle"),
    ],
)
def test_inputs_that_make_no_sense_are_refused_by_name(resources: list[Any], code: str) -> None:
    with pytest.raises(InputError) as caught:
        build_plan(inputs(resources), FAKE_PLANNERS)
    assert caught.value.code == code


def test_a_kind_without_a_planner_is_named() -> None:
    with pytest.raises(InputError, match=r'the kind "host" of host\.a') as caught:
        build_plan(inputs([desired("host.a")]), {})
    assert caught.value.code == "plan.unknown_kind"


def test_a_plan_carries_what_it_was_made_from() -> None:
    known = host_resources("a")
    given = inputs(known, known, options={"rollback_serial": 40}, header={"fleet": "f"}, notes=("said",))
    plan = build_plan(given, FAKE_PLANNERS)
    assert (plan.lineage, plan.serial, plan.config_digest, plan.created_at) == (LINEAGE, 41, "c" * 64, NOW)
    assert plan.options == {"rollback_serial": 40}
    assert plan.notes == ("said",)
    change = plan.changes[0]
    assert change.desired is not None
    assert change.recorded is not None
    assert change.decisive == {"version": known[0].fingerprint}
