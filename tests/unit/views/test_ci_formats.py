"""Reports for CI systems: every resource is counted once, and nothing that a host says becomes a command or markup."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbctl.base.errors import ConfigError, Diagnostic, LockedError, SourceSpan
from sbctl.plan.build import build_plan
from sbctl.plan.document import PlanDocument, document_of
from sbctl.views.ci_cases import Case, Report, apply_report, failure_report, plan_report, validation_report
from sbctl.views.ci_formats import github_text, junit_text
from tests.simulators.apply_results import PARTIAL
from tests.simulators.planners import FAKE_PLANNERS, host_resources, inputs

KNOWN = host_resources("a")
FINDINGS = (
    Diagnostic(
        "config.unknown_field", '"x" is not a field', SourceSpan("sb.yml", 3, 7, 1, "      x: 1"), 'did you mean "y"?'
    ),
    Diagnostic(
        "config.not_managed", "kept, and not managed", SourceSpan("sb.yml", 9, 1, 1, "a: 1"), severity="warning"
    ),
)


def _plan() -> PlanDocument:
    return document_of(build_plan(inputs(host_resources("a", port=9), KNOWN), FAKE_PLANNERS))


def test_a_plan_in_annotations_warns_of_what_users_notice() -> None:
    lines = github_text(plan_report(_plan())).splitlines()
    assert lines[0] == (
        "::warning title=runtime.a::update, sb.yml asks for something else, blast radius restart"
        "%0Aconfig.http_bind_port: 8080 → 9"
    )
    assert lines[-1].startswith("::notice title=sbctl plan::Plan: 0 to add, 1 to change, 0 to remove.")


def test_drift_fails_where_a_plan_passes() -> None:
    document = _plan()
    assert {case.outcome for case in plan_report(document).cases} == {"passed"}
    assert {case.outcome for case in plan_report(replace_mode(document)).cases} == {"failed"}


def replace_mode(document: PlanDocument) -> PlanDocument:
    return document.model_copy(update={"mode": "drift"})


def test_every_row_of_an_apply_is_counted_and_hosts_are_suites() -> None:
    root = ET.fromstring(junit_text(apply_report(PARTIAL)))
    counts = {name: int(root.get(name, "")) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": 9, "failures": 2, "errors": 2, "skipped": 3}
    assert [suite.get("name") for suite in root] == ["gpu-a", "gpu-b", "gpu-c", "gpu-d"]
    failure = root.find(".//failure[@type='engine.broken']")
    assert failure is not None
    assert failure.text == 'at "install engine x"\ngpu-b\nrepair it, then run apply again'
    assert "::notice title=sbctl apply::Apply: 2 done" in github_text(apply_report(PARTIAL))


def test_hosts_that_may_be_left_out_are_skipped() -> None:
    allowed = {case.name: case for case in apply_report(replace(PARTIAL, allow_unreachable=True)).cases}
    assert allowed["host.gpu-d"].outcome == "skipped"


def test_findings_stand_at_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    lines = github_text(validation_report("sb.yml", FINDINGS)).splitlines()
    assert lines == [
        '::error file=sb.yml,line=3,col=7,title=config.unknown_field::"x" is not a field%0Adid you mean "y"?',
        "::warning file=sb.yml,line=9,col=1,title=config.not_managed::kept, and not managed",
        "::notice title=sbctl validate::sb.yml is not valid",
    ]
    root = ET.fromstring(junit_text(validation_report("sb.yml", FINDINGS)))
    assert (root.get("tests"), root.get("failures")) == ("2", "1")
    assert ET.fromstring(junit_text(validation_report("sb.yml", ()))).get("tests") == "1"


@pytest.mark.parametrize(
    ("error", "cases"),
    [(LockedError("state.locked", "held", place="ci@runner", next_step="wait"), 1), (ConfigError(FINDINGS), 2)],
)
def test_a_command_that_failed_is_a_report_too(error: LockedError | ConfigError, cases: int) -> None:
    assert len(failure_report(error, "plan").cases) == cases


@given(st.text(), st.text(), st.text())
def test_foreign_text_is_neither_a_command_nor_markup(name: str, message: str, detail: str) -> None:
    report = Report("plan", (Case("h", name, "failed", message, (detail,)),), message)
    assert len(github_text(report).splitlines()) == 2
    assert all(line.startswith("::") for line in github_text(report).splitlines())
    case = ET.fromstring(junit_text(report)).find("./testsuite/testcase")
    assert case is not None
    assert case.find("failure") is not None
