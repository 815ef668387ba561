from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sbctl.base.connection import Connection
from sbctl.plan.build import build_plan
from sbctl.plan.remembered import outdated
from tests.simulators.planners import FAKE_PLANNERS, host_resources, inputs

ELSEWHERE = Connection("ssh", address="10.0.0.2", port=22, user="root", host_keys=("SHA256:" + "A" * 43,))


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param({"prevent_destroy": True}, id="protected"),
        pytest.param({"keep": True}, id="kept"),
        pytest.param({"connection": ELSEWHERE}, id="reached at another address"),
    ],
)
def test_an_edit_that_changes_no_host_is_remembered(edit: dict[str, Any]) -> None:
    resources = [replace(one, **edit) for one in host_resources("a")]
    plan = build_plan(inputs(resources, host_resources("a")), FAKE_PLANNERS)
    assert plan.actionable == ()
    found = list(outdated(plan.changes))
    assert [one.address for one in found] == [change.address for change in plan.changes]
    assert all(getattr(one, name) == value for one in found for name, value in edit.items())
    assert any("records how 7 resources are reached, kept or protected" in note for note in plan.notes)


def test_what_is_remembered_already_is_left_alone() -> None:
    plan = build_plan(inputs(host_resources("a"), host_resources("a")), FAKE_PLANNERS)
    assert list(outdated(plan.changes)) == []
    assert plan.notes == ()


def test_what_changes_anyway_is_recorded_by_its_change() -> None:
    resources = [replace(one, prevent_destroy=True) for one in host_resources("a")]
    plan = build_plan(inputs(resources), FAKE_PLANNERS)
    assert list(outdated(plan.changes)) == []
