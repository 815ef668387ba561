"""Printing a plan in the form that was asked for."""

from __future__ import annotations

from sbctl.plan.document import PlanDocument, document_of
from sbctl.plan.model import Plan
from sbctl.plan.policy import Limits
from sbctl.views.console import line_width, print_json, print_plain, result, talk
from sbctl.views.plan_markdown import plan_markdown
from sbctl.views.plan_text import plan_text

__all__ = ["print_plan", "print_plan_document", "talk_plan"]

_NO_LIMITS = Limits()


def print_plan(plan: Plan, limits: Limits = _NO_LIMITS, *, format: str = "text", explain: bool = False) -> None:  # noqa: A002
    """On stdout; `format` is text, json, markdown, github or junit."""
    print_plan_document(document_of(plan, limits), format=format, explain=explain)


def talk_plan(plan: Plan, limits: Limits = _NO_LIMITS) -> None:
    """The text on stderr, where stdout is for a report."""
    talk(plan_text(document_of(plan, limits), width=line_width()))


def print_plan_document(
    document: PlanDocument,
    *,
    format: str = "text",  # noqa: A002
    explain: bool = False,
    command: str | None = None,
) -> None:
    """The same from a saved plan; `command` is what JSON calls it."""
    if format == "json":
        print_json(command or ("drift" if document.mode == "drift" else "plan"), document.model_dump(mode="json"))
    elif format == "markdown":
        print_plain(plan_markdown(document))
    elif format != "text":
        from sbctl.views.ci_cases import plan_report
        from sbctl.views.ci_formats import print_report

        print_report(plan_report(document, command), format=format)
    else:
        result(plan_text(document, width=line_width(), explain=explain))
