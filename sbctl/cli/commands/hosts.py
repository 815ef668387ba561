"""`host list`: the machines of a fleet, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbctl.base.errors import ExitCode
from sbctl.cli.options import File, Format, OutputFormat, Parallelism

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_(
    file: File = Path("sb.yml"),
    check: Annotated[
        bool, typer.Option("--check", help="Ask every host whether it answers. Exit 7: one does not.")
    ] = False,
    format: Format = OutputFormat.TEXT,  # noqa: A002 - the option's name
    parallelism: Parallelism = 10,
) -> int:
    """Every host: address, roles, group, labels, whether its key is pinned, and the last serial that changed it."""
    from sbctl.cli.fleet_hosts import host_rows, unreachable
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import print_json, result
    from sbctl.views.fleet_hosts import host_list_body, host_list_text

    workspace = Workspace(file)
    rows = host_rows(workspace, workspace.loaded, check=check, parallelism=parallelism)
    if format is OutputFormat.JSON:
        print_json("host.list", host_list_body(rows))
    else:
        result(host_list_text(rows))
    return ExitCode.UNREACHABLE if unreachable(rows) else ExitCode.DONE
