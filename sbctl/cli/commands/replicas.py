"""`models ps|load|stop|drain|reset`: what runs, on this machine or on hosts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbctl.base.errors import ExitCode
from sbctl.cli.commands.models import Hosts, complain
from sbctl.cli.options import File, Format, OutputFormat

if TYPE_CHECKING:
    from sbctl.cli.replicas import Moving
    from sbctl.node.snapshot import DeploymentState

__all__ = ["register"]

Deployment = Annotated[str, typer.Argument(metavar="DEPLOYMENT", help="Its id in sb.yml.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(ps)
    app.command()(load)
    app.command()(stop)
    app.command()(drain)
    app.command()(reset)


def ps(
    hosts: Hosts = None,
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002 - the option's name
) -> int:
    """Replicas: state, requests that run and wait, memory, why. Exit 7: a host gives no answer; 8: a replica has failed."""
    from sbctl.base.errors import worst_exit
    from sbctl.cli.node_calls import opened_nodes
    from sbctl.cli.replicas import replicas
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import print_json, result
    from sbctl.views.replica_views import ps_body, ps_text

    with opened_nodes(Workspace(file), tuple(hosts or ())) as nodes:
        rows, errors = replicas(nodes)
    if format is OutputFormat.JSON:
        print_json("models.ps", ps_body(rows, errors))
    else:
        result(ps_text(rows, several=len(nodes.names) > 1))
        complain(errors)
    failed = any(row.replica.state == "failed" for row in rows)
    return worst_exit([one.error.exit_code for one in errors] + ([ExitCode.DEGRADED] if failed else []))


def load(
    deployment: Deployment,
    hosts: Hosts = None,
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Start every replica, weights fetched where they are missing, and wait until they are ready. Exit 1: one did not start."""
    return _move(deployment, "load", hosts, file, format)


def stop(
    deployment: Deployment,
    hosts: Hosts = None,
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Stop it until `models load`, a reset or the next apply; requests that run are cut after the shutdown deadline. It is drift."""
    return _move(deployment, "stop", hosts, file, format)


def drain(
    deployment: Deployment,
    deadline: Annotated[
        float | None,
        typer.Option(
            "--deadline", min=0, max=86_400, metavar="SECONDS", help="Cut what still runs then. Unset: a day."
        ),
    ] = None,
    hosts: Hosts = None,
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Stop it as `models stop` does, and let requests that run finish."""
    return _move(deployment, "drain", hosts, file, format, drain_s=deadline)


def reset(
    deployment: Deployment,
    hosts: Hosts = None,
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Forget a crash loop or a stop; the next request starts it again. Exit 4: every replica is ready."""
    return _move(deployment, "reset", hosts, file, format)


def _move(
    deployment: str,
    action: Moving,
    hosts: list[str] | None,
    file: Path,
    format: OutputFormat,  # noqa: A002
    *,
    drain_s: float | None = None,
) -> int:
    from sbctl.cli.models_work import exit_code
    from sbctl.cli.node_calls import opened_nodes
    from sbctl.cli.replicas import moved
    from sbctl.cli.workspace import Workspace
    from sbctl.state.operator import who
    from sbctl.views.console import note, print_json
    from sbctl.views.replica_views import moved_body
    from sbctl.views.transfers import transfers

    workspace = Workspace(file)
    with opened_nodes(workspace, tuple(hosts or ())) as nodes, transfers() as begin:
        rows, errors = moved(nodes, deployment, action, by=who(workspace.environ), drain_s=drain_s, begin=begin)
    if format is OutputFormat.JSON:
        print_json(f"models.{action}", moved_body(deployment, rows, errors))
        return exit_code(errors)
    for row in rows:
        note(f"{row.host}: {deployment} is {row.state.state}{_owed(row.state)}")
    complain(errors)
    return exit_code(errors)


def _owed(state: DeploymentState) -> str:
    if not state.stop_is_owed:
        return ""
    return "; its disk takes no write, so a restart of the runtime starts it again until there is room (df)"
