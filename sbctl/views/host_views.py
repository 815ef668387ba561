"""Machines: what they are, whether they are fit, and where their models answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from sbctl.base.display import format_bytes, plural
from sbctl.node.snapshot import NodeSnapshot
from sbctl.views.layout import safe
from sbctl.views.tables import Cell, Column, render_fields, render_rows

__all__ = [
    "Check",
    "Endpoint",
    "checks_body",
    "checks_text",
    "endpoints_body",
    "endpoints_text",
    "facts_text",
    "host_list_text",
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


def host_list_text(hosts: Iterable[tuple[str, str, NodeSnapshot | None]]) -> RenderableType:
    """Name, how it is reached, and what it said; None when it gave no answer."""
    columns = ("host", "reached by", Column("answer", style_by={"no answer": "red"}), "runtime", "system", "memory")
    return render_rows(columns, [_host_row(*host) for host in hosts], empty="no host")


def facts_text(host: str, snapshot: NodeSnapshot, *, width: int = 80) -> RenderableType:
    """One host's facts."""
    facts, disk, runtime = snapshot.host, snapshot.disk, snapshot.runtime
    fields: list[tuple[str, Cell]] = [
        ("hostname", facts.hostname),
        ("system", f"{facts.os_id} {facts.os_version}, {facts.kernel}, {facts.arch}, {facts.libc}"),
        ("init", facts.init),
        ("cores", facts.cpu_count),
        (
            "memory",
            f"{format_bytes(facts.memory_available_bytes)} of {format_bytes(facts.memory_total_bytes)} available",
        ),
        ("cache disk", None if disk.cache_free_bytes is None else f"{format_bytes(disk.cache_free_bytes)} free"),
        ("python", ", ".join(f"{python.path} {python.version}" for python in facts.pythons)),
        ("devices", ", ".join(str(gpu.get("name", "device")) for gpu in facts.gpus)),
        ("runtime", _runtime(snapshot)),
        ("serves at", runtime.http_url),
        ("fleet", None if snapshot.marker is None else f"{snapshot.marker.host} of {snapshot.marker.lineage}"),
        (
            "bundle",
            None if snapshot.bundle is None else f"revision {snapshot.bundle.revision} by {snapshot.bundle.signer}",
        ),
        ("artifacts", f"{sum(one.state == 'ready' for one in snapshot.artifacts)} ready of {len(snapshot.artifacts)}"),
    ]
    return render_fields(fields, width=width, title=host)


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


def checks_body(checks: Sequence[Check]) -> dict[str, Any]:
    """The same as JSON."""
    return {"ready": all(check.verdict != "fail" for check in checks), "checks": [asdict(check) for check in checks]}


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


def _host_row(name: str, reached_by: str, snapshot: NodeSnapshot | None) -> tuple[Cell, ...]:
    if snapshot is None:
        return (name, reached_by, "no answer", None, None, None)
    facts = snapshot.host
    answer = "ready" if snapshot.bootstrapped else "not bootstrapped"
    memory = format_bytes(facts.memory_total_bytes) if facts.memory_total_bytes else None
    return (
        name,
        reached_by,
        answer,
        _runtime(snapshot),
        f"{facts.os_id} {facts.os_version} {facts.arch}".strip(),
        memory,
    )


def _runtime(snapshot: NodeSnapshot) -> str | None:
    runtime = snapshot.runtime
    if runtime.current_version is None:
        return None
    health = "healthy" if runtime.healthy else "unhealthy" if runtime.running else "stopped"
    return f"{runtime.current_version}, {health}"


def _advice(check: Check) -> str:
    return (
        f"{check.detail}; {check.next_step}" if check.next_step and check.verdict in ("warn", "fail") else check.detail
    )
