"""`status`, `logs`, `events`: the fleet live. They read and change nothing; Ctrl-C ends them with 130."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbctl.base.errors import ExitCode, SbctlError, worst_exit
from sbctl.cli.options import File, Format, OutputFormat, Parallelism
from sbctl.node.records import EVENTS_MAX, LINES_MAX

if TYPE_CHECKING:
    from sbctl.base.connection import Connection
    from sbctl.cli.following import Ask
    from sbctl.cli.host_lines import HostLines
    from sbctl.cli.workspace import Workspace

__all__ = ["register"]

Hosts = Annotated[
    list[str] | None, typer.Argument(metavar="[HOST]...", help="Hosts; patterns such as 'gpu-*'. Without: all.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")]
File_ = Annotated[
    Path, typer.Option("--file", envvar="SB_CONFIG_FILE", help="The configuration.", show_default="sb.yml")
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="AGO", help="Only what is younger: 90s, 10m, 2h, 3d; by the host's clock."),
]
Deployment = Annotated[
    str | None, typer.Option("--deployment", metavar="NAME", help="Only what is about this deployment.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(status)
    app.command()(logs)
    app.command()(events)


def status(
    hosts: Hosts = None,
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002 - the option's name
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")] = False,
    every: Annotated[
        float,
        typer.Option("--every", min=0.5, max=3600, metavar="SECONDS", help="How long --watch waits between looks."),
    ] = 2.0,
    parallelism: Parallelism = 16,
) -> int:
    """How every host and what it serves is doing now. Exit 7: one gives no answer; 8: one is degraded."""
    from sbctl.cli.fleet_status import fleet_status
    from sbctl.views.console import line_width, print_json, print_json_line, print_plain, reader_left, result
    from sbctl.views.status_views import status_body, status_exit_code, status_text

    workspace, connections, lines = _looking(file, hosts)
    with closing(lines):
        while True:
            found = fleet_status(workspace, lines, connections, parallelism=parallelism)
            if format is OutputFormat.JSON and not watch:
                print_json("status", status_body(found))
            elif format is OutputFormat.JSON:
                print_json_line({"at": _now(workspace), **status_body(found)})
            else:
                result(status_text(found, line_width()))
            if not watch or reader_left():
                return status_exit_code(found)
            if format is OutputFormat.TEXT:
                print_plain(f"-- {_now(workspace)}, again in {every:g} s\n\n")
            workspace.clock.sleep_s(every)


def logs(
    hosts: Hosts = None,
    deployment: Deployment = None,
    follow: Follow = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=LINES_MAX, help="The newest lines of each host to begin with.")
    ] = 100,
    since: Since = None,
    file: File_ = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
    parallelism: Parallelism = 16,
) -> int:
    """What runtimes log and engines print; as JSON one object a line. Exit 7: a host gave no answer."""
    from sbctl.cli.fleet_records import ask_logs, seconds_of
    from sbctl.views.record_views import log_document, log_line

    ask = ask_logs(lines=lines, since_s=seconds_of(since), deployment=deployment)
    return _records(file, hosts, ask, log_line, log_document, format=format, follow=follow, parallelism=parallelism)


def events(
    hosts: Hosts = None,
    deployment: Deployment = None,
    follow: Follow = False,
    limit: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=EVENTS_MAX, help="The newest events of each host to begin with.")
    ] = 100,
    since: Since = None,
    file: File_ = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
    parallelism: Parallelism = 16,
) -> int:
    """What happened on hosts: bundles, replicas, engines, drains, upgrades, certificates. Exit 7: a host gave no answer."""
    from sbctl.cli.fleet_records import ask_events, seconds_of
    from sbctl.views.record_views import event_document, event_line

    ask = ask_events(limit=limit, since_s=seconds_of(since), deployment=deployment)
    return _records(file, hosts, ask, event_line, event_document, format=format, follow=follow, parallelism=parallelism)


def _records(
    file: Path,
    hosts: Sequence[str] | None,
    ask: Ask[Any, Any],
    as_line: Callable[[str, Any, int], str],
    as_document: Callable[[str, Any], dict[str, Any]],
    *,
    format: OutputFormat,  # noqa: A002
    follow: bool,
    parallelism: int,
) -> int:
    from sbctl.cli.following import read_once
    from sbctl.views.console import note, print_json_line, print_plain
    from sbctl.views.record_views import failure_document, lost_sentence

    _workspace, connections, lines = _looking(file, hosts)
    width = max(map(len, connections))

    def show(host: str, item: Any) -> None:
        if format is OutputFormat.JSON:
            print_json_line(as_document(host, item))
        else:
            print_plain(as_line(host, item, width))

    if follow:
        _follow(lines, list(connections), ask, show)
        return ExitCode.DONE
    with closing(lines):
        found, failed = read_once(lines, list(connections), ask, parallelism=parallelism)
    merged = sorted(((item.at, host, item) for host, items in found.items() for item in items), key=lambda one: one[0])
    for _at, host, item in merged:
        show(host, item)
    for host, error in failed.items():
        if format is OutputFormat.JSON:
            print_json_line(failure_document(host, error))
        note(lost_sentence(host, error))
    return worst_exit(_code(error) for error in failed.values())


def _code(error: SbctlError) -> ExitCode:
    """A host with nothing installed has nothing to tell, which is no failure."""
    if error.code == "node.missing":
        return ExitCode.DONE
    return ExitCode.UNREACHABLE if error.exit_code is ExitCode.UNREACHABLE else ExitCode.FAILED


def _follow(lines: HostLines, hosts: Sequence[str], ask: Ask[Any, Any], show: Callable[[str, Any], None]) -> None:
    """Until Ctrl-C, which goes on to who called, or until nobody reads any more."""
    from sbctl.cli.following import Back, Lost, followed
    from sbctl.views.console import note, reader_left
    from sbctl.views.record_views import lost_sentence

    with closing(followed(lines, hosts, ask)) as stream:
        for event in stream:
            match event:
                case Lost(host, error):
                    note(f"{lost_sentence(host, error)}; it is asked again")
                case Back(host):
                    note(f"{host}: answers again")
                case told:
                    if told.lost:
                        note(f"{told.host}: some lines were gone before they were read")
                    for item in told.items:
                        show(told.host, item)
            if reader_left():
                return


def _looking(file: Path, hosts: Sequence[str] | None) -> tuple[Workspace, Mapping[str, Connection], HostLines]:
    from sbctl.cli.fleet_hosts import unpinned
    from sbctl.cli.host_lines import fleet_lines
    from sbctl.cli.host_work import chosen_hosts
    from sbctl.cli.workspace import Workspace

    workspace = Workspace(file)
    connections = chosen_hosts(workspace, hosts or ["*"])
    pythons = {name: host.python for name, host in unpinned(workspace).hosts.items() if host.python}
    return workspace, connections, fleet_lines(workspace, connections, pythons)


def _now(workspace: Workspace) -> str:
    from sbctl.base.clock import rfc3339

    return rfc3339(workspace.clock.now())
