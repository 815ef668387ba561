"""What a command found or did, as cases that a CI system counts: one for each resource, finding or refusal.

A case says nothing about the exit code; that is the command's. `passed` is a change that may be made or was made; `failed` is what a reader
has to act on; `error` is what could not be found out; `skipped` was not begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from sbctl.apply.outcome import ApplyResult, ChangeResult, next_step_of, nodes_behind
from sbctl.base.display import format_bytes
from sbctl.base.errors import ConfigError, Diagnostic, SbctlError
from sbctl.plan.document import ChangeDocument, PlanDocument
from sbctl.views.apply_text import summary_sentence as apply_summary
from sbctl.views.layout import joined
from sbctl.views.plan_text import leaf_words, shown_changes
from sbctl.views.plan_text import summary_sentence as plan_summary

__all__ = ["Case", "Report", "apply_report", "failure_report", "plan_report", "validation_report"]

Outcome = Literal["passed", "failed", "error", "skipped"]


@dataclass(frozen=True, slots=True)
class Case:
    """`group` is a host, or what else the case belongs to; texts are foreign and not yet safe. `noticeable`: users of the fleet notice it."""

    group: str
    name: str
    outcome: Outcome
    message: str = ""
    detail: tuple[str, ...] = ()
    code: str = ""
    noticeable: bool = False
    file: str | None = None
    line: int | None = None
    column: int | None = None
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """All cases of one command, and the sentence that sums them up."""

    command: str
    cases: tuple[Case, ...]
    summary: str = ""
    duration_s: float = 0.0


def plan_report(document: PlanDocument, command: str | None = None) -> Report:
    """A plan: a change passes, unless it is blocked or, in `drift`, was made behind our back; a silent host is an error."""
    cases = [_planned(change, document.mode) for change in shown_changes(document)]
    cases += [
        Case("policy", refusal.code, "failed", refusal.message, (refusal.next_step,), refusal.code)
        for refusal in document.refusals
        if not refusal.only_apply
    ]
    return Report(command or ("drift" if document.mode == "drift" else "plan"), tuple(cases), plan_summary(document))


def _planned(change: ChangeDocument, mode: str) -> Case:
    leaves = tuple(f"{leaf.path}: {leaf_words(leaf)}" for leaf in change.leaves if leaf.path)
    download = f"download {format_bytes(change.download_bytes)}" if change.download_bytes else ""
    said = joined((change.action, change.reason, f"blast radius {change.blast_radius}", download), ", ")
    noticeable = change.action in ("delete", "replace") or change.blast_radius in ("restart", "breaking")
    outcome: Outcome = "passed"
    code = ""
    if change.blocked is not None:
        outcome, said, code = "failed", change.blocked.message, change.blocked.code
    elif change.action == "unreachable":
        outcome, said, code = "error", change.reason, "host.unreachable"
    elif mode == "drift" and not change.carries_only:
        outcome, code = "failed", "drift"
    return Case(change.host, change.address, outcome, said, (*leaves, *change.notes), code, noticeable)


def apply_report(outcome: ApplyResult | None) -> Report:
    """An apply; None: there was nothing to carry out."""
    if outcome is None:
        return Report("apply", (), "Nothing to do.")
    cases = [_carried_out(change) for change in outcome.changes]
    cases += _behind_cases(outcome.changes)
    if outcome.journal_error is not None:
        cases.append(_of_error("state", "state", outcome.journal_error))
    for host in outcome.hosts:
        if host.error is not None:
            cases.append(_of_error(host.host, f"host.{host.host}", host.error))
        why = outcome.unreachable.get(host.host)
        if why is not None:
            left_out: Outcome = "skipped" if outcome.allow_unreachable else "error"
            cases.append(Case(host.host, f"host.{host.host}", left_out, why, code="host.unreachable"))
        cases += [Case(host.host, f"host.{host.host}", "failed", said, code="degraded") for said in host.degraded]
    return Report(outcome.mode, tuple(cases), apply_summary(outcome), outcome.duration_s)


def _carried_out(change: ChangeResult) -> Case:
    name = str(change.address)
    if change.status == "done":
        return Case(change.host, name, "passed", change.action, duration_s=change.duration_s)
    if change.status in ("skipped", "not_started"):
        return Case(change.host, name, "skipped", change.because or change.status.replace("_", " "))
    code = "" if change.cause is None else change.cause.code
    said = change.because if change.cause is None else change.cause.message
    at = f'at "{change.step}"' if change.step else ""
    place = "" if change.cause is None or not change.cause.place else str(change.cause.place)
    detail = tuple(line for line in (at, place, next_step_of(change) or "") if line)
    outcome: Outcome = "error" if change.status == "unknown" else "failed"
    return Case(change.host, name, outcome, said or change.status, detail, code, duration_s=change.duration_s)


def _behind_cases(changes: Iterable[ChangeResult]) -> list[Case]:
    """Nodes of a cluster that are not ready with its bundle: several authorities tell the same."""
    found = {
        behind.node: behind for change in changes if change.cause is not None for behind in nodes_behind(change.cause)
    }
    return [
        Case(
            name,
            f"node.{name}",
            "failed",
            f"is {one.state}{f': {one.detail}' if one.detail else ''}",
            (one.next_step,),
            "cluster.not_ready",
        )
        for name, one in sorted(found.items())
    ]


def validation_report(path: str, findings: Iterable[Diagnostic]) -> Report:
    """Errors fail; warnings and notes pass with what they say."""
    cases = tuple(_finding(finding, path) for finding in findings)
    errors = sum(case.outcome == "failed" for case in cases)
    summary = f"{path} is valid" if not errors else f"{path} is not valid"
    return Report("validate", cases or (Case("config", path, "passed", summary),), summary)


def failure_report(error: SbctlError, command: str) -> Report:
    """A command that ended with an error."""
    if isinstance(error, ConfigError):
        return Report(command, tuple(_finding(finding, "") for finding in error.diagnostics), error.message)
    return Report(command, (_of_error("sbctl", command or "sbctl", error),), error.message)


def _of_error(group: str, name: str, error: SbctlError) -> Case:
    detail = tuple(_lines(error))
    return Case(group, name, "error", error.message, detail, error.code)


def _lines(error: SbctlError) -> Iterator[str]:
    if error.place:
        yield str(error.place)
    if error.next_step:
        yield error.next_step


def _finding(finding: Diagnostic, path: str) -> Case:
    span = finding.span
    where = path if span is None else span.path
    return Case(
        "config",
        finding.code if span is None else f"{where}:{span.line}:{span.column} {finding.code}",
        "failed" if finding.severity == "error" else "passed",
        finding.message,
        tuple(said for said in (finding.label, *finding.notes) if said),
        finding.code,
        noticeable=finding.severity == "warning",
        file=where or None,
        line=None if span is None else span.line,
        column=None if span is None else span.column,
    )
