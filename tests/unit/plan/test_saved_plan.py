from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sbctl.base.digests import canonical_json, fingerprint
from sbctl.base.errors import InputError, RefusedError, StalePlanError
from sbctl.plan.build import build_plan
from sbctl.plan.model import UNKNOWN, Leaf, Plan, Step
from sbctl.plan.saved_plan import (
    SavedPlan,
    changes_digest,
    check_saved,
    decisive_facts,
    read_saved,
    saved_payload,
)
from tests.simulators.planners import FAKE_PLANNERS, LINEAGE, host_resources, inputs

KNOWN = host_resources("a")
EDITED = host_resources("a", port=9)


def a_plan(**more: Any) -> Plan:
    return build_plan(inputs(more.pop("wanted", EDITED), KNOWN, **more), FAKE_PLANNERS)


def check(saved: SavedPlan, fresh: Plan) -> None:
    check_saved(
        saved,
        lineage=fresh.lineage,
        serial=fresh.serial,
        config_digest=fresh.config_digest,
        catalog_digest=fresh.catalog_digest,
        fresh_plan=fresh,
    )


def test_an_unmoved_world_lets_a_saved_plan_through() -> None:
    saved = read_saved(saved_payload(a_plan(targets=("runtime.a",), options={"rollback_serial": 3})))
    assert (saved.targets, saved.options, saved.serial) == (("runtime.a",), {"rollback_serial": 3}, 41)
    assert saved.document.summary.update == 1
    check(saved, a_plan(targets=("runtime.a",)))


def test_facts_are_kept_for_every_resource_on_a_host_that_changes() -> None:
    both = [*KNOWN, *host_resources("b")]
    plan = build_plan(inputs([*EDITED, *host_resources("b")], both), FAKE_PLANNERS)
    assert {address.split(".")[1][0] for address in decisive_facts(plan)} == {"a"}
    assert len(decisive_facts(plan)) == len(KNOWN)


@pytest.mark.parametrize("more", [{"mode": "drift"}, {"refresh": False}, {"mode": "against"}])
def test_what_can_never_be_applied_is_not_saved(more: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        saved_payload(a_plan(**more))
    assert caught.value.code == "plan.not_saveable"


def _sealed(raw: dict[str, Any]) -> bytes:
    body = {key: value for key, value in raw.items() if key != "seal"}
    return canonical_json({**body, "seal": fingerprint(body)})


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        ({"format_version": "2.0"}, "plan.foreign_format"),
        ({"format_version": None}, "plan.foreign_format"),
        ({"serial": "x"}, "plan.invalid"),
        ({"extra": 1}, "plan.invalid"),
    ],
)
def test_foreign_payloads_are_refused_by_name(edit: dict[str, Any], code: str) -> None:
    raw = json.loads(saved_payload(a_plan()))
    with pytest.raises(InputError) as caught:
        read_saved(_sealed({**raw, **edit}))
    assert caught.value.code == code


@pytest.mark.parametrize(("payload", "code"), [(b"[]", "plan.invalid"), (b"{", "json.invalid"), (b"", "json.invalid")])
def test_payloads_that_are_no_plan_are_refused(payload: bytes, code: str) -> None:
    with pytest.raises(InputError) as caught:
        read_saved(payload)
    assert caught.value.code == code


def test_a_payload_that_does_not_match_its_seal_was_edited() -> None:
    raw = json.loads(saved_payload(a_plan()))
    raw["plan"]["notes"] = ["all is well"]
    with pytest.raises(RefusedError) as caught:
        read_saved(canonical_json(raw))
    assert caught.value.code == "plan.edited"
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    "edit",
    [
        {"steps": (Step("k", "m", {"a": 1}, "t"),)},
        {"leaves": (Leaf("x", 1, UNKNOWN),)},
        {"action": "replace"},
        {"blocked": "no", "blocked_code": "x"},
        {"downtime": "refuse"},
    ],
)
def test_the_digest_covers_what_would_be_done(edit: dict[str, Any]) -> None:
    plan = a_plan()
    other = replace(plan, changes=tuple(replace(one, **edit) for one in plan.changes))
    assert changes_digest(plan) != changes_digest(other)


def test_the_digest_ignores_costs_notes_and_what_stays() -> None:
    plan = a_plan()
    told = {"notes": ("22 GiB free",), "download_bytes": 3, "memory_bytes": 4, "reason": "other words"}
    other = replace(
        plan, changes=tuple(replace(one, **told) for one in plan.changes), created_at=plan.created_at.replace(year=2030)
    )
    assert changes_digest(plan) == changes_digest(other)


def test_facts_with_tuples_survive_being_written() -> None:
    plan = a_plan()
    plan = replace(
        plan, changes=tuple(replace(one, decisive={"parts": (1, 2), "later": UNKNOWN}) for one in plan.changes)
    )
    check(read_saved(saved_payload(plan)), plan)


def test_everything_that_moved_is_named_and_the_list_is_short() -> None:
    wanted = [one for host in range(20) for one in host_resources(f"h{host:02}", port=9)]
    known = [one for host in range(20) for one in host_resources(f"h{host:02}")]
    saved = read_saved(saved_payload(build_plan(inputs(wanted, known), FAKE_PLANNERS)))
    fresh = build_plan(
        inputs(wanted, known, observed=(), serial=42, header={"state": "serial 42, apply by ci"}), FAKE_PLANNERS
    )
    with pytest.raises(StalePlanError) as caught:
        check(saved, fresh)
    assert "the state moved from serial 41 to 42 (serial 42, apply by ci)" in caught.value.message
    assert "more" in caught.value.message
    assert len(caught.value.message) < 2000
    assert len(caught.value.detail["moved"]) > 100


def test_other_changes_are_said_even_when_no_fact_moved() -> None:
    saved = read_saved(saved_payload(a_plan()))
    with pytest.raises(StalePlanError, match=r"other changes \(2, it had 1\)"):
        check(saved, a_plan(replaces=("engine.*",)))
    with pytest.raises(StalePlanError, match=r"planning now gives other changes$"):
        check(saved, a_plan(wanted=host_resources("a", port=10)))


def test_a_first_plan_is_stale_once_there_is_a_state() -> None:
    saved = read_saved(saved_payload(build_plan(inputs(EDITED), FAKE_PLANNERS)))
    with pytest.raises(StalePlanError, match="before there was a state"):
        check(saved, a_plan())
    with pytest.raises(StalePlanError, match=f"another fleet \\(lineage {LINEAGE}, here none yet\\)"):
        check(read_saved(saved_payload(a_plan())), build_plan(inputs(EDITED), FAKE_PLANNERS))


def test_long_facts_are_named_short() -> None:
    plan = a_plan()
    moved = replace(plan, changes=tuple(replace(one, decisive={"v": "x" * 500}) for one in plan.changes))
    with pytest.raises(
        StalePlanError, match=r"artifact.a/m:q4 changed on its host: v none → x{37}…; .*: version [0-9a-f]{12}… → none"
    ):
        check(read_saved(saved_payload(plan)), moved)
