from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sbctl.base.errors import ExitCode
from sbctl.plan.build import build_plan
from sbctl.plan.inputs import PlanInputs
from sbctl.plan.model import BlastRadius, Plan
from sbctl.plan.policy import Limits, applyable, complete, plan_exit_code, refusals
from tests.simulators.planners import FAKE_PLANNERS, LOCAL, NOW, host_resources, inputs, snapshot

EDITED = host_resources("a", port=9)
KNOWN = host_resources("a")


def plan_of(given: PlanInputs) -> Plan:
    return build_plan(given, FAKE_PLANNERS)


def blocked(plan: Plan) -> dict[str, str | None]:
    return {str(change.address): change.blocked_code for change in plan.changes if change.blocked}


@pytest.mark.parametrize(
    ("given", "limits", "code"),
    [
        (inputs(KNOWN, KNOWN), Limits(), ExitCode.DONE),
        (inputs((), KNOWN, mode="destroy", recorded={}), Limits(), ExitCode.DONE),
        (inputs(EDITED, KNOWN), Limits(), ExitCode.CHANGES),
        (inputs(EDITED, KNOWN), Limits(BlastRadius.RESTART), ExitCode.CHANGES),
        (inputs(EDITED, KNOWN), Limits(BlastRadius.RELOAD), ExitCode.REFUSED),
        (inputs(KNOWN, KNOWN), Limits(BlastRadius.HITLESS), ExitCode.DONE),
        (inputs(KNOWN, KNOWN, unreachable={"a": "x"}), Limits(), ExitCode.UNREACHABLE),
        (inputs(KNOWN, KNOWN, unreachable={"a": "x"}, allow_unreachable=True), Limits(), ExitCode.DONE),
        (inputs(KNOWN + host_resources("b"), KNOWN, unreachable={"b": "x"}), Limits(), ExitCode.UNREACHABLE),
        (inputs(EDITED + host_resources("b"), KNOWN, unreachable={"b": "x"}), Limits(), ExitCode.UNREACHABLE),
        (inputs(EDITED + host_resources("b"), KNOWN, unreachable={"b": "x"}, allow_unreachable=True), Limits(), ExitCode.CHANGES),
        (inputs(EDITED + host_resources("b"), KNOWN, unreachable={"b": "x"}), Limits(BlastRadius.HITLESS), ExitCode.REFUSED),
        (inputs((), KNOWN, mode="destroy", prevent_destroy=("artifact.*",)), Limits(), ExitCode.REFUSED),
        (inputs((), KNOWN, mode="drift"), Limits(), ExitCode.DONE),
        (inputs((), KNOWN, mode="drift", observed=()), Limits(BlastRadius.HITLESS), ExitCode.CHANGES),
        (inputs(KNOWN, snapshots={"a": snapshot([], lineage="other")}), Limits(), ExitCode.REFUSED),
    ],
)  # fmt: skip
def test_one_table_of_exit_codes(given: PlanInputs, limits: Limits, code: ExitCode) -> None:
    assert plan_exit_code(plan_of(given), limits) is code


def test_drift_whose_repair_would_be_noticed_more_than_allowed_is_refused() -> None:
    plan = plan_of(inputs((), KNOWN, mode="drift", observed=()))
    noticed = replace(plan, changes=tuple(replace(one, blast_radius=BlastRadius.RESTART) for one in plan.changes))
    assert plan_exit_code(noticed, Limits(BlastRadius.RESTART)) is ExitCode.CHANGES
    assert plan_exit_code(noticed, Limits(BlastRadius.RELOAD)) is ExitCode.REFUSED


def test_prevent_destroy_blocks_what_stands_under_it_and_names_the_way_out() -> None:
    plan = plan_of(inputs((), KNOWN, mode="destroy", prevent_destroy=("artifact.*",)))
    assert blocked(plan) == {
        "artifact.a/m:q4": "plan.prevent_destroy",
        "runtime.a": "plan.waits_for_blocked",
        "host.a": "plan.waits_for_blocked",
    }
    (refusal,) = refusals(plan)
    assert "prevent_destroy" in refusal.message
    assert refusal.next_step == "leave it out: --exclude 'artifact.a/m:q4'"
    assert refusal.error().code == "plan.prevent_destroy"
    assert refusal.error().place == "artifact.a/m:q4"
    assert not complete(plan)
    assert not applyable(plan)


def test_a_protected_member_holds_its_bundle_and_all_that_ride_on_it() -> None:
    wanted = [replace(one, prevent_destroy=one.address.kind == "deployment") for one in KNOWN]
    plan = plan_of(inputs(wanted, KNOWN, replaces=("deployment.*",)))
    assert blocked(plan) == {"bundle.a": "plan.waits_for_blocked", "deployment.a/chat": "plan.prevent_destroy"}


def test_protection_that_sb_yml_gave_up_is_gone_and_a_recorded_one_holds() -> None:
    protected = [replace(one, prevent_destroy=True) for one in KNOWN]
    assert blocked(plan_of(inputs(KNOWN, protected, replaces=("engine.*",)))) == {}
    gone = plan_of(inputs([one for one in KNOWN if one.address.kind != "engine"], protected))
    assert blocked(gone)["engine.a/llama_cpp"] == "plan.prevent_destroy"


def test_only_removal_is_prevented() -> None:
    assert blocked(plan_of(inputs(EDITED, KNOWN, prevent_destroy=("*",)))) == {}


def test_the_rest_of_the_fleet_is_not_marked() -> None:
    wanted, known = EDITED, KNOWN + host_resources("b")
    plan = plan_of(inputs(wanted, known, prevent_destroy=("*.b*",)))
    assert {name.split(".")[1][0] for name in blocked(plan)} == {"b"}


def test_blast_radius_refusal_names_the_first_change_beyond() -> None:
    (refusal,) = refusals(plan_of(inputs(EDITED, KNOWN)), Limits(BlastRadius.HITLESS))
    assert refusal.place == "runtime.a"
    assert refusal.message == "the blast radius is restart, at most hitless is allowed; 1 change beyond it"
    assert "--max-blast-radius restart" in refusal.next_step


@pytest.mark.parametrize(
    ("more", "refused"),
    [({}, True), ({"mode": "destroy"}, False), ({"mode": "rollback"}, False), ({"excludes": ("deployment.*",)}, False)],
)
def test_an_emptied_map_needs_a_word_more(more: dict[str, Any], refused: bool) -> None:
    plan = plan_of(inputs([one for one in KNOWN if one.member_of is None], KNOWN, **more))
    assert plan.removes_every_deployment is refused
    assert [one.code for one in refusals(plan)] == (["plan.empties_fleet"] if refused else [])
    assert refusals(plan, Limits(allow_empty=True)) == ()
    assert plan_exit_code(plan) in (ExitCode.CHANGES, ExitCode.DONE)


@pytest.mark.parametrize(
    ("given", "ready", "whole"),
    [
        (inputs(EDITED, KNOWN), True, True),
        (inputs(KNOWN, KNOWN), False, True),
        (inputs(EDITED, KNOWN, targets=("runtime.*",)), True, False),
        (inputs(EDITED, KNOWN, mode="drift", observed=()), False, True),
        (inputs(EDITED, KNOWN, refresh=False), False, True),
        (inputs(EDITED + host_resources("b"), KNOWN, unreachable={"b": "x"}), False, False),
        (inputs(EDITED + host_resources("b"), KNOWN, unreachable={"b": "x"}, allow_unreachable=True), True, False),
    ],
)
def test_a_plan_says_itself_whether_it_can_be_applied_and_leaves_nothing(
    given: PlanInputs, ready: bool, whole: bool
) -> None:
    plan = plan_of(given)
    assert applyable(plan) is ready
    assert complete(plan) is whole


def test_a_blocked_change_without_a_code_still_has_one() -> None:
    plan = plan_of(inputs(EDITED, KNOWN))
    change = replace(plan.actionable[0], blocked="no", blocked_code=None)
    (refusal,) = refusals(replace(plan, changes=(change,)))
    assert refusal.code == "plan.blocked"


def test_nothing_planned_is_nothing_to_do() -> None:
    plan = Plan("apply", None, 0, "", "", (), NOW, {"a": LOCAL})
    assert plan_exit_code(plan) is ExitCode.DONE
    assert plan.blast_radius is BlastRadius.HITLESS
