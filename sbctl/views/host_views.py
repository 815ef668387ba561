"""Machines: what they are, whether they are fit, and where their models answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from sbctl.base.display import plural
from sbctl.views.layout import safe
from sbctl.views.tables import Column, render_rows

__all__ = [
    "Check",
    "Endpoint",
    "checks_text",
    "endpoints_body",
    "endpoints_text",
    "trial_text",
]

Verdict = Literal["pass", "warn", "fail", "skip"]

_VERDICT_STYLES: Final = {"pass": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}


@dataclass(frozen=True, slots=True)
class Check:
    """One finding of doctor. `fail` is a blocker."""

    name: str
    verdict: Verdict
    detail: str
    next_step: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one public model answers. `curl` is a whole command line that works from where it is printed, without a secret in it."""

    host: str
    base_url: str
    hostname: str
    model: str
    deployment: str
    needs_key: bool
    curl: str = ""


def checks_text(checks: Sequence[Check]) -> RenderableType:
    """Doctor's report: one line a check, what to do under what is wrong, a verdict as the last line."""
    rows = [(check.host, check.name, check.verdict, _advice(check)) for check in checks]
    with_hosts = any(check.host for check in checks)
    columns: list[Column | str] = ["host", "check", Column("verdict", style_by=_VERDICT_STYLES), "detail"]
    table = render_rows(
        columns if with_hosts else columns[1:],
        [row if with_hosts else row[1:] for row in rows],
        empty="nothing to check",
    )
    failed, warned = (sum(check.verdict == verdict for check in checks) for verdict in ("fail", "warn"))
    if failed:
        verdict = Text(f"not ready: {plural(failed, 'blocker')}, {plural(warned, 'warning')}", style="bold red")
    else:
        verdict = Text(f"ready, {plural(warned, 'warning')}" if warned else "ready", style="bold green")
    return Group(table, verdict)


def endpoints_text(endpoints: Sequence[Endpoint]) -> RenderableType:
    """Where to send requests."""
    rows = [
        (one.model, one.base_url, one.hostname, one.deployment, "API key" if one.needs_key else "open")
        for one in endpoints
    ]
    return render_rows(("model", "base url", "host header", "deployment", "access"), rows, empty="nothing is served")


def trial_text(endpoints: Sequence[Endpoint]) -> Text | None:
    """One command line to try; a text of its own, since a wrapped one could not be copied."""
    first = next((one.curl for one in endpoints if one.curl), "")
    return Text(f"\ntry: {safe(first)}") if first else None


def endpoints_body(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The same as JSON."""
    return {"endpoints": [asdict(endpoint) for endpoint in endpoints]}


def _advice(check: Check) -> str:
    return (
        f"{check.detail}; {check.next_step}" if check.next_step and check.verdict in ("warn", "fail") else check.detail
    )
