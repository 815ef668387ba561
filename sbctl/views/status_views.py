"""`sbctl status`: how every host and what it serves is doing, in 80 columns or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from sbctl.base.display import format_bytes, plural
from sbctl.base.errors import ExitCode, worst_exit
from sbctl.views.layout import safe, sentence
from sbctl.views.tables import Cell, Column, render_rows

__all__ = ["Condition", "DeploymentStatus", "HostStatus", "status_body", "status_exit_code", "status_text"]

Condition = Literal["healthy", "degraded", "unreachable", "bare"]
"""`bare`: nothing was applied to it yet."""

_CONDITION_STYLES: Final = {"healthy": "green", "degraded": "bold red", "unreachable": "bold red", "bare": "dim"}
_SHORT_DATE: Final = 10


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """One deployment on one host. `state` is that of the deployment, `replicas` those of its replicas."""

    deployment: str
    state: str
    ready: int
    replicas: tuple[str, ...]
    running: int = 0
    waiting: int = 0
    restarts: int = 0
    memory_bytes: int | None = None
    """Resident memory of its engines; None when nobody told."""


@dataclass(frozen=True, slots=True)
class HostStatus:
    """One host. `problems` are why it is degraded or unreachable, `notes` what else an operator should know."""

    host: str
    condition: Condition
    runtime_version: str | None = None
    service: str = ""
    """`in service`, `drained`, `draining`."""
    leased_by: str | None = None
    revision: int | None = None
    recorded_revision: int | None = None
    deployments: tuple[DeploymentStatus, ...] = ()
    running: int = 0
    waiting: int = 0
    memory_available_bytes: int | None = None
    memory_total_bytes: int | None = None
    certificate_until: str | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def status_exit_code(hosts: Sequence[HostStatus]) -> ExitCode:
    """7 when a host gave no answer, 8 when one is degraded, else 0."""
    codes = {"unreachable": ExitCode.UNREACHABLE, "degraded": ExitCode.DEGRADED}
    return worst_exit(codes.get(one.condition, ExitCode.DONE) for one in hosts)


def status_text(hosts: Sequence[HostStatus], width: int) -> RenderableType:
    """Hosts, deployments, then in sentences what is wrong, and a verdict as the last line."""
    parts: list[RenderableType] = [_host_table(hosts)]
    if any(one.deployments for one in hosts):
        parts += [Text(""), _deployment_table(hosts)]
    said = [
        *((one.host, text, "red") for one in hosts for text in one.problems),
        *((one.host, text, "") for one in hosts for text in one.notes),
    ]
    if said:
        parts.append(Text(""))
        for host, text, style in said:
            line = sentence(text, indent=0, width=width, style=style, first=f"{safe(host)}: ")
            line.rstrip()
            parts.append(line)
    return Group(*parts, Text(f"\n{_verdict(hosts)}"))


def _host_table(hosts: Sequence[HostStatus]) -> RenderableType:
    with_certificates = any(one.certificate_until for one in hosts)
    columns: list[Column | str] = [
        "host", Column("is", style_by=_CONDITION_STYLES), "runtime", "service", Column("revision", "right"), "free memory",
    ]  # fmt: skip
    rows = []
    for one in hosts:
        free = None if one.memory_available_bytes is None else format_bytes(one.memory_available_bytes)
        cells: list[Cell] = [
            one.host, one.condition, one.runtime_version, one.service or None, _revision(one), free,
        ]  # fmt: skip
        until = one.certificate_until[:_SHORT_DATE] if one.certificate_until else None
        rows.append([*cells, until] if with_certificates else cells)
    return render_rows([*columns, "certificate"] if with_certificates else columns, rows, empty="there are no hosts")


def _revision(one: HostStatus) -> str | None:
    """`12`, or `11, not 12` where the state remembers another one."""
    if one.recorded_revision is None or one.condition == "unreachable" or one.revision == one.recorded_revision:
        return None if one.revision is None else str(one.revision)
    return f"{one.revision or 'none'}, not {one.recorded_revision}"


def _deployment_table(hosts: Sequence[HostStatus]) -> RenderableType:
    columns: list[Column | str] = [
        "deployment", "host", "state", Column("ready", "right"), Column("running", "right"), Column("waiting", "right"),
        Column("memory", "right"), Column("restarts", "right"),
    ]  # fmt: skip
    rows = [
        [
            row.deployment,
            one.host,
            row.state,
            f"{row.ready}/{len(row.replicas)}",
            row.running,
            row.waiting,
            None if row.memory_bytes is None else format_bytes(row.memory_bytes),
            row.restarts,
        ]
        for one in hosts
        for row in one.deployments
    ]
    return render_rows(columns, rows, empty="nothing is served")


def _verdict(hosts: Sequence[HostStatus]) -> str:
    words: dict[Condition, str] = {
        "healthy": "healthy",
        "degraded": "degraded",
        "unreachable": "unreachable",
        "bare": "with nothing applied",
    }
    counted = [
        f"{sum(one.condition == condition for one in hosts)} {word}"
        for condition, word in words.items()
        if any(one.condition == condition for one in hosts)
    ]
    return f"{plural(len(hosts), 'host')}: {', '.join(counted) or 'none'}"


def status_body(hosts: Sequence[HostStatus]) -> dict[str, Any]:
    """The same as JSON."""
    return {"exit_code": int(status_exit_code(hosts)), "hosts": [asdict(one) for one in hosts]}
