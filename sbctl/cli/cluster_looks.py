"""`cluster status`: a look at a cluster that runs, once or again and again, or at the identities that its authority gave."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from sbctl.base.clock import rfc3339
from sbctl.base.errors import ExitCode, UnreachableError
from sbctl.cli.authority import directory_of, identity_rows
from sbctl.cli.cluster_live import asked_hosts, live_status, with_unheard
from sbctl.cli.enrollment_server import server_line
from sbctl.cli.fleet_hosts import unpinned
from sbctl.cli.host_lines import HostLines, Lines, fleet_lines
from sbctl.cli.workspace import Workspace
from sbctl.config.compiled import CompiledConfig
from sbctl.trust.authority import Authority
from sbctl.views.cluster_live_views import live_body, live_exit_code, live_text
from sbctl.views.cluster_views import status_body, status_text
from sbctl.views.console import line_width, note, print_json, print_json_line, print_plain, reader_left, result

__all__ = ["cluster_lines", "look_at_cluster", "show_identities"]


def show_identities(workspace: Workspace, directory: Path | None, *, as_json: bool) -> int:
    """Asks no host but that of the enrollment server, if there is one."""
    authority = Authority.open(directory_of(workspace, directory))
    facts = authority.facts(workspace.held_identities())
    rows = identity_rows(workspace, facts)
    line, told = server_line(workspace) if directory is None else ("", None)
    if as_json:
        print_json("cluster.status", {**status_body(authority, facts, rows), "enrollment_server": told})
    else:
        result(status_text(authority, facts, rows, enrollment=line))
    return ExitCode.DONE


def cluster_lines(workspace: Workspace, config: CompiledConfig, host: str | None) -> tuple[HostLines, tuple[str, ...]]:
    """Lines to those who know the cluster, in the order to ask. Raises as `asked_hosts`."""
    hosts = asked_hosts(config, host)
    connections = {name: config.hosts[name].connection for name in hosts}
    pythons = {name: config.hosts[name].python or "" for name in hosts if config.hosts[name].python}
    return fleet_lines(workspace, connections, pythons), hosts


def look_at_cluster(workspace: Workspace, host: str | None, *, every_s: float | None, as_json: bool) -> int:
    """Once, or with `every_s` until Ctrl-C, over looks that nobody answers. Raises what reading sb.yml raises, as `cluster_lines` and, without
    `every_s`, `live_status`."""
    config = unpinned(workspace)
    lines, hosts = cluster_lines(workspace, config, host)
    members = {name: one.roles for name, one in config.hosts.items()}
    with closing(lines):
        while True:
            code = _look(workspace, lines, hosts, members, goes_on=every_s is not None, as_json=as_json)
            if every_s is None or reader_left():
                return code
            if not as_json:
                print_plain(f"-- {_now(workspace)}, again in {every_s:g} s\n\n")
            workspace.clock.sleep_s(every_s)


def _look(
    workspace: Workspace,
    lines: Lines,
    hosts: tuple[str, ...],
    members: Mapping[str, Collection[str]],
    *,
    goes_on: bool,
    as_json: bool,
) -> ExitCode:
    try:
        live = live_status(lines, hosts)
    except UnreachableError as error:
        if not goes_on:
            raise
        note(error.message)
        return ExitCode.UNREACHABLE
    status = with_unheard(live.status, members)
    body: dict[str, Any] = live_body(live.host, live.document, status, live.silent)
    if not as_json:
        result(live_text(live.host, status, live.silent, width=line_width()))
    elif goes_on:
        print_json_line({"at": _now(workspace), **body})
    else:
        print_json("cluster.status", body)
    return live_exit_code(status, live.silent)


def _now(workspace: Workspace) -> str:
    return rfc3339(workspace.clock.now())
