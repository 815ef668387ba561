"""What `validate` found, and the notes that a plan carries along."""

from __future__ import annotations

from collections.abc import Iterable

from sbctl.base.errors import Diagnostic
from sbctl.views.console import note, print_json, result, talk
from sbctl.views.diagnostics import diagnostics_text

__all__ = ["print_notes", "print_validation"]


def print_validation(path: str, findings: Iterable[Diagnostic], *, format: str) -> None:  # noqa: A002 - the option's name
    """Findings on stdout as text, json, github or junit; a file without errors is said to be valid."""
    listed = tuple(findings)
    errors = sum(finding.severity == "error" for finding in listed)
    if format == "json":
        body = {
            "path": path,
            "valid": errors == 0,
            "error_count": errors,
            "warning_count": len(listed) - errors,
            "diagnostics": [finding.to_wire() for finding in listed],
        }
        print_json("validate", body)
        return
    if format != "text":
        from sbctl.views.ci_cases import validation_report
        from sbctl.views.ci_formats import print_report

        print_report(validation_report(path, listed), format=format)
        return
    if listed:
        result(diagnostics_text(listed))
    if not errors:
        note(f"{path} is valid")


def print_notes(findings: Iterable[Diagnostic]) -> None:
    """On stderr, after a plan."""
    listed = tuple(findings)
    if listed:
        talk(diagnostics_text(listed))
