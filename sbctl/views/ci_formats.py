"""Reports for CI systems: `github` as workflow commands, which become annotations of a run, and `junit` as the XML that most others read.

Foreign text cannot end a command or an element: control characters are escaped first, then what the format itself would obey.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final
from xml.etree import ElementTree as ET

from sbctl.base.display import plural
from sbctl.views.ci_cases import Case, Report
from sbctl.views.console import print_plain
from sbctl.views.layout import safe

__all__ = ["github_text", "junit_text", "print_report"]

_MESSAGE_MAX_CHARS: Final = 4000
_NOT_XML: Final = re.compile("[^\\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def print_report(report: Report, *, format: str) -> None:  # noqa: A002 - the option's name
    """On stdout; `format` is github or junit."""
    print_plain(github_text(report) if format == "github" else junit_text(report))


def github_text(report: Report) -> str:
    """One workflow command a line: errors for what failed, warnings for what users of the fleet notice, notices for the rest.

    Source: the workflow commands of GitHub's documentation; `%`, carriage return and newline are escaped in messages, `:` and `,` too in
    properties.
    """
    lines = [_annotation(case) for case in report.cases if case.outcome != "skipped"]
    skipped = sum(case.outcome == "skipped" for case in report.cases)
    said = f"{report.summary} {plural(skipped, 'resource')} not begun." if skipped else report.summary
    lines.append(f"::notice title={_property(f'sbctl {report.command}')}::{_message(said)}")
    return "\n".join(lines) + "\n"


def _annotation(case: Case) -> str:
    level = "error" if case.outcome in ("failed", "error") else "warning" if case.noticeable else "notice"
    properties: dict[str, str | int | None] = {
        "title": f"{case.code}: {case.name}" if case.code and case.file is None else case.name
    }
    if case.file is not None:
        properties = {"file": _relative(case.file), "line": case.line, "col": case.column, "title": case.code}
    listed = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items() if value)
    return f"::{level} {listed}::{_message(chr(10).join((case.message, *case.detail)))}"


def _relative(path: str) -> str:
    """Annotations stand at files of the checkout, named from its root."""
    root = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
    whole = os.path.abspath(path)
    return os.path.relpath(whole, root) if whole.startswith(root.rstrip("/") + "/") else path


def _message(text: str) -> str:
    lines = "\n".join(safe(line, max_chars=_MESSAGE_MAX_CHARS) for line in text.split("\n"))
    return lines.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(safe(text)).replace(":", "%3A").replace(",", "%2C")


def junit_text(report: Report) -> str:
    """JUnit XML: a suite for each host, a case for each resource."""
    root = ET.Element("testsuites", _counts(report.cases))
    root.set("name", f"sbctl {report.command}")
    root.set("time", f"{report.duration_s:.3f}")
    groups: dict[str, list[Case]] = {}
    for case in report.cases:
        groups.setdefault(case.group, []).append(case)
    for group, cases in groups.items():
        suite = ET.SubElement(root, "testsuite", _counts(tuple(cases)))
        suite.set("name", _xml(group))
        for case in cases:
            suite.append(_junit_case(case))
    ET.indent(root)
    declaration = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return declaration + ET.tostring(root, encoding="unicode") + "\n"


def _xml(text: str) -> str:
    """Foreign text as XML 1.0 may hold it: what has no category of its own there, such as U+FFFE, is left out by a mark."""
    return _NOT_XML.sub("\ufffd", safe(text, max_chars=_MESSAGE_MAX_CHARS))


def _counts(cases: tuple[Case, ...]) -> dict[str, str]:
    outcomes = [case.outcome for case in cases]
    return {
        "tests": str(len(outcomes)),
        "failures": str(outcomes.count("failed")),
        "errors": str(outcomes.count("error")),
        "skipped": str(outcomes.count("skipped")),
    }


def _junit_case(case: Case) -> ET.Element:
    element = ET.Element(
        "testcase", name=_xml(case.name), classname=f"sbctl.{_xml(case.group)}", time=f"{case.duration_s:.3f}"
    )
    if case.file is not None:
        element.set("file", _xml(case.file))
        element.set("line", str(case.line or 1))
    message = _xml(case.message)
    body = "\n".join(_body(case))
    if case.outcome == "passed":
        output = "\n".join(part for part in (message, body) if part)
        if output:
            ET.SubElement(element, "system-out").text = output
        return element
    tag = {"failed": "failure", "error": "error", "skipped": "skipped"}[case.outcome]
    said = ET.SubElement(element, tag, message=message)
    if case.code:
        said.set("type", _xml(case.code))
    said.text = body or None
    return element


def _body(case: Case) -> Iterator[str]:
    for line in case.detail:
        yield _xml(line)
