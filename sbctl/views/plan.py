"""Printing a plan in the form that was asked for."""

from __future__ import annotations

from sbctl.plan.document import PlanDocument, plan_document
from sbctl.plan.model import Plan
from sbctl.plan.policy import Limits
from sbctl.views.console import line_width, print_json, print_plain, result
from sbctl.views.plan_markdown import plan_markdown
from sbctl.views.plan_text import plan_text

__all__ = ["print_plan", "print_plan_document"]

_NO_LIMITS = Limits()


def print_plan(plan: Plan, limits: Limits = _NO_LIMITS, *, format: str = "text", explain: bool = False) -> None:  # noqa: A002
    """On stdout; `format` is text, json or markdown."""
    print_plan_document(PlanDocument.model_validate(plan_document(plan, limits)), format=format, explain=explain)


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
    else:
        result(plan_text(document, width=line_width(), explain=explain))
