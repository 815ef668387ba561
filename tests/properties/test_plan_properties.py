"""Laws that every plan obeys, whatever fleet it is of."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.base.errors import ExitCode, InputError
from sbctl.base.ids import Address
from sbctl.plan.build import build_plan
from sbctl.plan.document import document_of, plan_document
from sbctl.plan.inputs import PlanInputs
from sbctl.plan.model import BlastRadius, Desired, Plan
from sbctl.plan.policy import Limits, applyable, plan_exit_code, refusals
from sbctl.plan.saved_plan import check_saved, read_saved, saved_payload
from sbctl.views.plan_text import plan_text
from tests.simulators.planners import FAKE_PLANNERS, host_resources, inputs

_HOSTS = ("a", "b", "c")


@st.composite
def _fleets(draw: st.DrawFn) -> list[Desired]:
    fleet: list[Desired] = []
    for host in draw(st.lists(st.sampled_from(_HOSTS), unique=True)):
        resources = host_resources(
            host,
            port=draw(st.sampled_from((8080, 9090))),
            chat={"model": draw(st.sampled_from("mn")), "max_concurrency": draw(st.integers(1, 2)), "artifact": "d1"},
        )
        without = draw(st.sampled_from(((), ("deployment", "origin"), ("engine",))))
        fleet += [one for one in resources if one.address.kind not in without]
    return fleet


@st.composite
def _inputs(draw: st.DrawFn) -> PlanInputs:
    wanted, known = draw(_fleets()), draw(_fleets())
    observed = [one for one in known if draw(st.integers(0, 9))]
    return inputs(
        draw(st.permutations(wanted)),
        draw(st.permutations(known)),
        observed=observed,
        mode=draw(st.sampled_from(("apply", "destroy", "drift", "rollback"))),
        unreachable=dict.fromkeys(draw(st.lists(st.sampled_from(_HOSTS), max_size=1)), "no answer"),
        allow_unreachable=draw(st.booleans()),
        prevent_destroy=draw(st.sampled_from(((), ("artifact.*",), ("host.a",)))),
        targets=draw(st.sampled_from(((), ("*.a*",), ("deployment.*",)))),
        excludes=draw(st.sampled_from(((), ("*.b*",), ("deployment.*",)))),
    )


_LIMITS = st.builds(Limits, st.sampled_from((None, *BlastRadius)), st.booleans())


def _plan(given_inputs: PlanInputs) -> Plan | None:
    try:
        return build_plan(given_inputs, FAKE_PLANNERS)
    except InputError as error:
        assert error.code == "plan.unmatched_pattern"
        return None


@settings(max_examples=150, deadline=None)
@given(_inputs(), _LIMITS)
def test_the_exit_code_agrees_with_what_is_printed(given_inputs: PlanInputs, limits: Limits) -> None:
    plan = _plan(given_inputs)
    if plan is None:
        return
    document = document_of(plan, limits)
    text = plan_text(document).plain
    code = plan_exit_code(plan, limits)
    last = " ".join(text.splitlines()[-3:])
    changes = "Plan:" in last or "Drift:" in last
    assert changes == bool(plan.actionable)
    hard = [one for one in refusals(plan, limits) if not one.only_apply]
    match code:
        case ExitCode.DONE:
            assert not changes
            assert "refused:" not in text
        case ExitCode.CHANGES:
            assert changes
            assert not hard
            assert "refused:" not in text
        case ExitCode.UNREACHABLE:
            assert "? host." in text
            assert "unknown" in last
            assert not plan.allow_unreachable
        case _:
            assert code is ExitCode.REFUSED
            assert hard
            assert "refused:" in text
    if applyable(plan, limits):
        assert code is ExitCode.CHANGES
    shown = {change.address for change in document.resource_changes if change.action != "no-op"}
    assert all(address in text for address in shown)


@settings(max_examples=100, deadline=None)
@given(_inputs(), st.randoms(use_true_random=False))
def test_the_order_of_inputs_never_changes_a_byte(given_inputs: PlanInputs, random: Any) -> None:
    def shuffled(mapping: Any) -> Any:
        items = list(mapping.items())
        random.shuffle(items)
        return dict(items)

    wanted = list(given_inputs.desired)
    random.shuffle(wanted)
    values = {name: getattr(given_inputs, name) for name in given_inputs.__dataclass_fields__}
    values.update(
        desired=wanted,
        recorded=shuffled(given_inputs.recorded),
        snapshots=shuffled(given_inputs.snapshots),
        hosts=shuffled(given_inputs.hosts),
    )
    one, two = _plan(given_inputs), _plan(PlanInputs(**values))
    if one is None or two is None:
        assert one is two
        return
    assert json.dumps(plan_document(one)) == json.dumps(plan_document(two))


@settings(max_examples=60, deadline=None)
@given(_fleets())
def test_destroy_of_nothing_is_0_and_of_everything_leaves_nothing_out(fleet: list[Desired]) -> None:
    nothing = build_plan(inputs(fleet, (), mode="destroy"), FAKE_PLANNERS)
    assert plan_exit_code(nothing) is ExitCode.DONE
    everything = build_plan(inputs((), fleet, mode="destroy"), FAKE_PLANNERS)
    assert [change.action for change in everything.changes] == ["delete"] * len(fleet)


@settings(max_examples=60, deadline=None)
@given(_fleets())
def test_a_fleet_that_is_as_desired_has_no_changes_in_any_mode(fleet: list[Desired]) -> None:
    for mode in ("apply", "drift", "rollback"):
        assert build_plan(inputs(fleet, fleet, mode=mode), FAKE_PLANNERS).actionable == ()


@settings(max_examples=100, deadline=None)
@given(_inputs())
def test_the_order_respects_every_edge_and_holds_each_address_once(given_inputs: PlanInputs) -> None:
    plan = _plan(given_inputs)
    if plan is None:
        return
    at: dict[Address, int] = {change.address: index for index, change in enumerate(plan.changes)}
    assert len(at) == len(plan.changes)
    removed = {change.address for change in plan.changes if change.action in ("delete", "forget")}
    for change in plan.changes:
        for needed in change.after & at.keys():
            if change.address not in removed and needed not in removed and change.member_of is None:
                assert at[needed] < at[change.address]
            if {change.address, needed} <= removed and None is change.member_of:
                assert at[change.address] < at[needed]


@settings(max_examples=60, deadline=None)
@given(_inputs())
def test_a_plan_can_be_saved_and_read_and_is_not_stale_at_once(given_inputs: PlanInputs) -> None:
    plan = _plan(given_inputs)
    if plan is None or plan.mode == "drift":
        return
    saved = read_saved(saved_payload(plan))
    check_saved(
        saved,
        lineage=plan.lineage,
        serial=plan.serial,
        config_digest=plan.config_digest,
        catalog_digest=plan.catalog_digest,
        fresh_plan=plan,
    )
