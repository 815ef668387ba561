from __future__ import annotations

from typing import Any

import pytest

from sbctl.base.errors import ConfigError, Diagnostic, LockedError, SourceSpan
from sbctl.views.diagnostics import diagnostics_text, error_document, error_text
from sbctl.views.failure import print_bug, print_failure, print_usage_error

UNKNOWN_FIELD = Diagnostic(
    "config.unknown_field",
    '"replica" is not a field of a deployment',
    SourceSpan("sb.yml", 23, 7, 7, "      replica: 2"),
    'did you mean "replicas"?',
    ("fields of a deployment: sbctl explain proxy.model_host.deployments",),
)


def test_a_finding_shows_its_line_and_marks_the_place() -> None:
    assert (
        diagnostics_text([UNKNOWN_FIELD]).plain
        == """\
error[config.unknown_field]: "replica" is not a field of a deployment
  --> sb.yml:23:7
23 |       replica: 2
   |       ^^^^^^^ did you mean "replicas"?
   = fields of a deployment: sbctl explain proxy.model_host.deployments
1 error"""
    )


@pytest.mark.parametrize(
    ("severities", "last"),
    [
        (["error", "error"], "2 errors"),
        (["warning", "error", "warning"], "1 error, 2 warnings"),
        (["odd", "note"], "1 note, 1 odd"),
        ([], ""),
    ],
)
def test_the_last_line_counts_by_severity(severities: list[str], last: str) -> None:
    findings = [Diagnostic("c", "m", severity=severity) for severity in severities]
    assert diagnostics_text(findings).plain.split("\n")[-1] == last


@pytest.mark.parametrize(
    ("diagnostic", "lines"),
    [
        (Diagnostic("c", "m", None, "label", ("n",)), ["error[c]: m", " = label", " = n", "1 error"]),
        (Diagnostic("c", "m", SourceSpan("f", 9, 1), "label"), ["error[c]: m", " --> f:9:1", "  = label", "1 error"]),
        (Diagnostic("c", "m", SourceSpan("f", 9, 1)), ["error[c]: m", " --> f:9:1", "1 error"]),
        (Diagnostic("c", "m", SourceSpan("f", 1, 3, 1, "\t\tx")),
         ["error[c]: m", " --> f:1:3", "1 |   x", "  |   ^", "1 error"]),
        (Diagnostic("c", "m", SourceSpan("f", 1, 3, 2, "\x1b世界ab")),
         ["error[c]: m", " --> f:1:3", "1 | \\x1b世界ab", "  |       ^^^", "1 error"]),
        (Diagnostic("c", "m", SourceSpan("f", 1, 50, 5, "short")),
         ["error[c]: m", " --> f:1:50", "1 | short", "  |      ^", "1 error"]),
    ],
)  # fmt: skip
def test_findings_with_less_or_odder_text(diagnostic: Diagnostic, lines: list[str]) -> None:
    assert diagnostics_text([diagnostic]).plain.split("\n") == lines


def test_a_long_line_is_shown_around_its_mark() -> None:
    line = "a" * 400 + "HERE" + "b" * 400
    text = diagnostics_text([Diagnostic("c", "m", SourceSpan("f", 1, 401, 4, line), "this")]).plain.split("\n")
    shown, mark = text[2], text[3]
    assert len(shown) < 200
    assert shown[mark.index("^") : mark.index("^") + 4] == "HERE"


def test_an_error_says_what_where_and_what_next() -> None:
    error = LockedError("state.locked", "another run holds the state", place=".sbctl/lock", next_step="wait for it")
    assert error_text(error).plain == (
        "error[state.locked]: another run holds the state\n  --> .sbctl/lock\n   = wait for it"
    )
    assert error_text(LockedError("a.b", "short")).plain == "error[a.b]: short"
    assert error_text(ConfigError([UNKNOWN_FIELD])).plain == diagnostics_text([UNKNOWN_FIELD]).plain


def test_the_json_of_an_error_has_its_exit_code_and_findings() -> None:
    body = error_document(ConfigError([UNKNOWN_FIELD]))
    assert body["error"]["exit_code"] == 3
    assert body["error"]["code"] == "config.unknown_field"
    assert body["diagnostics"][0]["range"] == {"filename": "sb.yml", "line": 23, "column": 7, "length": 7}
    assert error_document(LockedError("a.b", "m"))["diagnostics"] == []


def test_a_failure_is_talk_in_text_and_the_result_in_json(capsys: Any) -> None:
    print_failure(LockedError("state.locked", "held"))
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error[state.locked]: held\n")
    print_failure(LockedError("state.locked", "held"), format="json", command="apply")
    out, err = capsys.readouterr()
    assert '"command": "apply"' in out
    assert err == ""


def test_wrong_usage_names_the_help(capsys: Any) -> None:
    print_usage_error("No such option: --detialed", "sbctl plan")
    assert capsys.readouterr().err == "error[usage]: No such option: --detialed\n   = sbctl plan --help\n"


def test_a_bug_shows_places_in_the_code_and_no_values(capsys: Any) -> None:
    def fails() -> None:
        secret_value = "canary-5150"
        raise KeyError(len(secret_value))

    try:
        fails()
    except KeyError as error:
        print_bug(error)
    said = capsys.readouterr().err
    assert "KeyError: 11" in said
    assert "in fails" in said
    assert "canary" not in said
    assert "please report" in said
