from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from sbctl.base.errors import InputError
from sbctl.base.ids import Address
from sbctl.plan.build import build_plan
from sbctl.plan.inputs import PlanInputs
from sbctl.plan.model import Plan
from sbctl.plan.selection import effective_desired, match_addresses, merge_member_maps
from tests.simulators.planners import FAKE_PLANNERS, FakePlanner, address, desired, host_resources, inputs

A = {"model": "a", "max_concurrency": 1}
B = {"model": "b", "max_concurrency": 1}


def two_models(
    a: Mapping[str, Any] | None, b: Mapping[str, Any] | None, *, port: int = 1, keys: str = "k"
) -> list[Any]:
    """A host with up to two deployments, each with an artifact of its own."""
    specs = {name: dict(spec) for name, spec in (("a", a), ("b", b)) if spec is not None}
    edges = [f"artifact.h/{name}" for name in specs]
    return [
        desired("host.h"),
        desired("runtime.h", {"port": port}, after=["host.h"]),
        *(desired(f"artifact.h/{name}", {"of": name}, after=["runtime.h"]) for name in specs),
        desired("bundle.h", {"deployments": specs, "keys": keys}, after=["runtime.h", *edges]),
        *(
            desired(f"deployment.h/{name}", spec, after=[f"artifact.h/{name}"], member_of="bundle.h")
            for name, spec in specs.items()
        ),
    ]


def plan_of(given: PlanInputs) -> Plan:
    return build_plan(given, FAKE_PLANNERS)


def acting(plan: Plan) -> list[str]:
    return [f"{change.action} {change.address}" for change in plan.actionable]


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (("host.a",), {"host.a"}),
        (("*.a",), {str(one.address) for one in host_resources("a")}),
        (("engine.a",), {"engine.a/llama_cpp"}),
        (("engine.?/*",), {"engine.a/llama_cpp", "engine.b/llama_cpp"}),
        (("deployment.?/chat", "host.b"), {"deployment.a/chat", "deployment.b/chat", "host.b"}),
        ((), set()),
    ],
)
def test_patterns_match_the_text_of_addresses(patterns: tuple[str, ...], found: set[str]) -> None:
    addresses = [one.address for one in host_resources("a") + host_resources("b")]
    assert {str(one) for one in match_addresses(patterns, addresses, "--target")} == found


@pytest.mark.parametrize("option", ["targets", "excludes", "replaces"])
def test_a_pattern_without_a_match_is_an_error_with_the_nearest_address(option: str) -> None:
    with pytest.raises(InputError) as caught:
        effective_desired(inputs(host_resources("a"), **{option: ("deployment.a/chta",)}), FAKE_PLANNERS)
    assert caught.value.code == "plan.unmatched_pattern"
    assert f'--{option.removesuffix("s")} "deployment.a/chta"' in caught.value.message
    assert caught.value.next_step == 'did you mean "deployment.a/chat"?'


def test_a_pattern_like_nothing_says_where_to_look() -> None:
    with pytest.raises(InputError) as caught:
        match_addresses(("*.\x1b31mzzz",), [address("host.a")], "--target")
    assert "state list" in str(caught.value.next_step)
    assert "\x1b" not in caught.value.message


def test_a_target_is_the_recorded_fleet_with_the_target_as_desired() -> None:
    known, wanted = (
        two_models(A, B),
        two_models({**A, "max_concurrency": 9}, {**B, "max_concurrency": 9}, port=2, keys="n"),
    )
    plan = plan_of(inputs(wanted, known, targets=("deployment.h/a",)))
    assert acting(plan) == ["update runtime.h", "update bundle.h", "update deployment.h/a"]
    bundle = next(change for change in plan.changes if change.address.kind == "bundle")
    assert bundle.desired is not None
    assert bundle.desired.spec == {"deployments": {"a": {**A, "max_concurrency": 9}, "b": B}, "keys": "k"}
    assert plan.notes == ("partial: only deployment.h/a and what it needs; 1 resource not looked at",)


def test_a_target_brings_what_it_needs_and_not_what_others_need() -> None:
    plan = plan_of(inputs(two_models(A, B), targets=("deployment.h/a",)))
    assert acting(plan) == [
        "create host.h", "create runtime.h", "create artifact.h/a", "create bundle.h", "create deployment.h/a",
    ]  # fmt: skip
    bundle = plan.changes[3]
    assert bundle.desired is not None
    assert bundle.desired.spec == {"deployments": {"a": A}, "keys": "k"}


def test_a_bundle_as_target_brings_all_its_members() -> None:
    plan = plan_of(inputs(two_models(A, B), two_models(A, None, keys="n"), targets=("bundle.h",)))
    assert acting(plan) == ["create artifact.h/b", "update bundle.h", "create deployment.h/b"]


def test_a_removed_target_brings_what_used_it() -> None:
    known = two_models(A, B)
    plan = plan_of(inputs(two_models(A, None), known, targets=("artifact.h/b",)))
    assert acting(plan) == ["update bundle.h", "delete deployment.h/b", "delete artifact.h/b"]
    bundle = next(change for change in plan.changes if change.address.kind == "bundle")
    assert bundle.desired is not None
    assert bundle.desired.spec["deployments"] == {"a": A}


def test_a_removed_target_of_a_bundle_without_member_edges_takes_all_members() -> None:
    known = [
        desired("artifact.h/a"),
        desired("bundle.h", {"deployments": {"a": A}}, after=["artifact.h/a"]),
        desired("deployment.h/a", A, member_of="bundle.h"),
    ]
    plan = plan_of(inputs((), known, mode="destroy", targets=("artifact.h/a",)))
    assert acting(plan) == ["delete bundle.h", "delete deployment.h/a", "delete artifact.h/a"]


def test_a_member_can_be_destroyed_alone() -> None:
    known = two_models(A, B)
    plan = plan_of(inputs((), known, mode="destroy", targets=("deployment.h/a",)))
    assert acting(plan) == ["update bundle.h", "delete deployment.h/a"]
    bundle = plan.changes[0]
    assert bundle.desired is not None
    assert bundle.desired.spec == {"deployments": {"b": B}, "keys": "k"}


def test_an_excluded_member_stays_as_recorded_in_its_bundle() -> None:
    known, wanted = two_models(A, B), two_models({**A, "x": 1}, {**B, "x": 1}, keys="n")
    plan = plan_of(inputs(wanted, known, excludes=("deployment.h/b",)))
    assert acting(plan) == ["update bundle.h", "update deployment.h/a"]
    bundle = next(change for change in plan.changes if change.address.kind == "bundle")
    assert bundle.desired is not None
    assert bundle.desired.spec == {"deployments": {"a": {**A, "x": 1}, "b": B}, "keys": "n"}


def test_an_exclusion_also_leaves_out_what_stands_on_it() -> None:
    known, wanted = two_models(A, B), two_models({**A, "x": 1}, B, port=2)
    plan = plan_of(inputs(wanted, known, excludes=("runtime.h",)))
    assert [str(change.address) for change in plan.changes] == ["host.h"]
    assert plan.notes == ("partial: without runtime.h and what needs it; 6 resources not looked at",)


def test_what_is_kept_from_a_destroy_keeps_what_it_stands_on() -> None:
    plan = plan_of(inputs((), two_models(A, B), mode="destroy", excludes=("deployment.h/a",)))
    assert acting(plan) == ["update bundle.h", "delete deployment.h/b", "delete artifact.h/b"]


def test_a_kept_bundle_keeps_its_members() -> None:
    plan = plan_of(inputs((), two_models(A, B), mode="destroy", excludes=("bundle.h",)))
    assert acting(plan) == []


def test_a_new_member_that_is_not_selected_is_not_there() -> None:
    known, wanted = two_models(A, None), two_models({**A, "x": 1}, B)
    plan = plan_of(inputs(wanted, known, targets=("deployment.h/a",)))
    assert acting(plan) == ["update bundle.h", "update deployment.h/a"]


def test_only_selected_resources_are_replaced() -> None:
    known = two_models(A, B)
    plan = plan_of(inputs(known, known, targets=("artifact.h/a",), replaces=("artifact.*",)))
    assert acting(plan) == ["replace artifact.h/a"]


class _Merging(FakePlanner):
    def merge_spec(
        self,
        recorded_spec: Mapping[str, Any] | None,
        desired_spec: Mapping[str, Any] | None,
        selected_members: Collection[Address],
        own_fields: bool,
    ) -> Mapping[str, Any]:
        return {"merged": [str(member) for member in selected_members], "own": own_fields}


class _Shared(FakePlanner):
    """All bundles are one document; its revision is in the record."""

    def document_of(self, full_spec: Mapping[str, Any]) -> str | None:
        return str(full_spec["keys"]) if "keys" in full_spec else None

    def revision_of(self, record: Mapping[str, Any]) -> int:
        return int(record.get("revision", 0))


def holders(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Any]:
    """Two hosts that hold one document with two members."""
    found = []
    for host in ("h", "i"):
        found.append(desired(f"bundle.{host}", {"deployments": {"a": a, "b": b}, "keys": "k"}))
        found += [
            desired(f"deployment.{host}/{name}", spec, member_of=f"bundle.{host}")
            for name, spec in (("a", a), ("b", b))
        ]
    return found


A2, B2 = {**A, "max_concurrency": 9}, {**B, "max_concurrency": 9}


@pytest.mark.parametrize(
    ("options", "contents"),
    [
        pytest.param({"targets": ("deployment.h/a",)}, {"h": (A2, B), "i": (A, B)}, id="one holder alone"),
        pytest.param(
            {"targets": ("deployment.h/a", "deployment.i/b")}, {"h": (A2, B2), "i": (A2, B2)}, id="a member at each"
        ),
        pytest.param({"targets": ("bundle.h", "deployment.i/b")}, {"h": (A2, B2), "i": (A2, B2)}, id="all at one"),
        pytest.param({"targets": ("deployment.?/b",)}, {"h": (A, B2), "i": (A, B2)}, id="the same at each"),
        pytest.param({"excludes": ("deployment.h/a",)}, {"h": (A, B2), "i": (A, B2)}, id="left out at one"),
    ],
)
def test_holders_of_one_document_never_come_to_two_contents_in_one_run(
    options: dict[str, Any], contents: dict[str, tuple[Any, Any]]
) -> None:
    planners = {**FAKE_PLANNERS, "bundle": _Shared()}
    chosen = effective_desired(inputs(holders(A2, B2), holders(A, B), **options), planners).desired
    found = {host: chosen[address(f"bundle.{host}")].spec["deployments"] for host in contents}
    assert found == {host: {"a": a, "b": b} for host, (a, b) in contents.items()}


def test_a_holder_that_was_left_out_of_a_run_takes_nothing_of_it_back() -> None:
    planners = {**FAKE_PLANNERS, "bundle": _Shared()}
    given = inputs(holders(A2, B2), holders(A, B), targets=("deployment.i/b",))
    newer = given.recorded[address("bundle.h")]
    spec = {**newer.spec, "deployments": {"a": A2, "b": B}}
    known = {**given.recorded, newer.address: replace(newer, spec=spec, record={"revision": 8})}
    chosen = effective_desired(replace(given, recorded=known), planners).desired
    assert chosen[address("bundle.i")].spec["deployments"] == {"a": A2, "b": B2}


def test_a_kind_may_merge_in_its_own_way() -> None:
    planners = {**FAKE_PLANNERS, "bundle": _Merging()}
    given = inputs(two_models(A, B, keys="n"), two_models(A, B), targets=("deployment.h/b",))
    chosen = effective_desired(given, planners).desired[address("bundle.h")]
    assert chosen.spec == {"merged": ["deployment.h/b"], "own": False}


@pytest.mark.parametrize(
    ("recorded_spec", "desired_spec", "members", "own", "merged"),
    [
        ({"deployments": {"a": 1}, "k": 1}, {"deployments": {"a": 2, "b": 2}, "k": 2}, ["deployment.h/a"], False,
         {"deployments": {"a": 2}, "k": 1}),
        ({"deployments": {"a": 1}, "k": 1}, {"deployments": {"b": 2}, "k": 2}, ["deployment.h/a"], True,
         {"deployments": {}, "k": 2}),
        (None, {"deployments": {"a": 2, "b": 2}, "origins": {"o": 1}, "k": 2}, ["origin.h/o"], True,
         {"deployments": {}, "origins": {"o": 1}, "k": 2}),
        ({"origins": {"o": 1}, "k": 1}, None, ["origin.h/o"], True, {"origins": {}, "k": 1}),
        ({"k": 1}, {"k": 2}, ["engine.h/x", "host.h"], False, {"k": 1}),
    ],
)  # fmt: skip
def test_member_maps_are_merged_name_by_name(
    recorded_spec: Any, desired_spec: Any, members: list[str], own: bool, merged: dict[str, Any]
) -> None:
    assert merge_member_maps(recorded_spec, desired_spec, [address(one) for one in members], own) == merged
