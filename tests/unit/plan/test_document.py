from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from sbctl import __version__
from sbctl.base.errors import InputError
from sbctl.plan.build import build_plan
from sbctl.plan.document import (
    PLAN_FORMAT_VERSION,
    PlanDocument,
    document_of,
    plan_document,
    read_plan_document,
)
from sbctl.plan.model import UNKNOWN, BlastRadius, Leaf, Plan
from sbctl.plan.policy import Limits
from tests.simulators.planners import FAKE_PLANNERS, host_resources, inputs

KNOWN = host_resources("a")


def a_plan(**more: Any) -> Plan:
    wanted = host_resources("a", port=9, chat={"model": "m", "max_concurrency": 8, "artifact": "d1"})
    return build_plan(inputs(wanted, KNOWN, **more), FAKE_PLANNERS)


def test_a_document_is_valid_against_its_own_schema_and_comes_back() -> None:
    raw = plan_document(a_plan(), Limits(BlastRadius.HITLESS))
    jsonschema.validate(json.loads(json.dumps(raw)), PlanDocument.model_json_schema(mode="serialization"))
    document = read_plan_document(json.loads(json.dumps(raw)))
    assert document.model_dump(mode="json") == json.loads(json.dumps(raw))
    assert document == document_of(a_plan(), Limits(BlastRadius.HITLESS))


def test_a_document_says_who_wrote_it_and_in_which_format() -> None:
    raw = plan_document(a_plan())
    assert raw["format_version"] == PLAN_FORMAT_VERSION == "1.0"
    assert raw["sbctl_version"] == __version__
    assert raw["created_at"] == "2026-11-28T09:12:00Z"


def test_members_stand_flat_and_are_listed_by_their_bundle() -> None:
    document = document_of(a_plan())
    bundle = next(change for change in document.resource_changes if change.kind == "bundle")
    assert bundle.members == ("deployment.a/chat", "origin.a/ai.internal")
    assert [change.member_of for change in document.resource_changes if change.address in bundle.members] == [
        "bundle.a"
    ] * 2


def test_the_summary_counts_every_row_once() -> None:
    document = document_of(a_plan())
    counts = document.summary
    rows = document.resource_changes
    assert (counts.update, counts.unchanged, counts.create, counts.delete) == (3, 4, 0, 0)
    assert len(rows) == counts.update + counts.unchanged
    assert counts.blast_radius == "restart"


def test_cost_is_summed_and_the_worst_downtime_counts() -> None:
    plan = a_plan()
    changes = list(plan.changes)
    changes[1] = replace(changes[1], download_bytes=5, downtime="queue", drifted=True)
    changes[4] = replace(changes[4], download_bytes=7, downtime="refuse")
    document = document_of(replace(plan, changes=tuple(changes)))
    assert (document.summary.download_bytes, document.summary.downtime, document.summary.drifted) == (12, "refuse", 1)
    assert document.resource_drift == ("runtime.a",)


@pytest.mark.parametrize(
    ("after", "shown", "why"),
    [
        (UNKNOWN, None, "after bootstrap"),
        ({"a": UNKNOWN, "b": 1}, {"a": None, "b": 1}, "after bootstrap"),
        ([1, [UNKNOWN]], [1, [None]], "after bootstrap"),
        ({"a": (1,)}, {"a": [1]}, None),
        (3, 3, None),
    ],
)
def test_what_cannot_be_known_is_null_with_its_reason(after: Any, shown: Any, why: str | None) -> None:
    plan = a_plan()
    change = replace(plan.actionable[0], leaves=(Leaf("x", 1, after),))
    (row,) = document_of(replace(plan, changes=(change,))).resource_changes
    assert (row.leaves[0].after, row.leaves[0].after_unknown) == (shown, why)


def test_refusals_and_blocks_are_part_of_the_document() -> None:
    document = document_of(a_plan(mode="destroy", prevent_destroy=("host.a",)))
    assert [refusal.code for refusal in document.refusals] == ["plan.prevent_destroy"]
    blocked = [change for change in document.resource_changes if change.blocked]
    assert [change.address for change in blocked] == ["host.a"]
    assert document.summary.blocked == 1


def test_a_host_that_cannot_hold_its_models_is_a_refusal_and_no_note() -> None:
    document = document_of(replace(a_plan(), unfit=("local cannot hold chat",)))
    assert [(one.code, one.message) for one in document.refusals] == [("doctor.blocked", "local cannot hold chat")]
    assert not document.applyable
    assert "local cannot hold chat" not in document.notes


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        ({"format_version": "2.0"}, "plan.foreign_format"),
        ({"format_version": 1}, "plan.foreign_format"),
        ({"serial": "many"}, "plan.invalid"),
        ({"resource_changes": [{"address": "x"}]}, "plan.invalid"),
    ],
)
def test_a_document_of_another_kind_is_refused(edit: dict[str, Any], code: str) -> None:
    with pytest.raises(InputError) as caught:
        read_plan_document({**plan_document(a_plan()), **edit})
    assert caught.value.code == code


def test_a_later_minor_version_may_say_more() -> None:
    raw = {**plan_document(a_plan()), "format_version": "1.7", "something_new": 1}
    assert read_plan_document(raw).format_version == "1.7"
