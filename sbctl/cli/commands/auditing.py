"""`audit verify`: whether the chain of what changed on a host still holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbctl.base.errors import ExitCode, worst_exit
from sbctl.cli.commands.models import Hosts, complain
from sbctl.cli.options import File, Format, OutputFormat

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Who changed what on a host."""


@app.command()
def verify(
    hosts: Hosts = None,
    head: Annotated[
        str | None,
        typer.Option(
            "--head", metavar="NUMBER:DIGEST", help="As an earlier verify printed it: that entry must be there still."
        ),
    ] = None,
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002 - the option's name
) -> int:
    """Walk the audit chain of this machine's runtime, or of hosts'. Exit 1: a link is broken; the first one is named."""
    from sbctl.cli.auditing import parsed_head, walked
    from sbctl.cli.node_calls import opened_nodes
    from sbctl.cli.workspace import Workspace
    from sbctl.views.audit_views import audit_body, audit_text
    from sbctl.views.console import print_json, result

    expected = parsed_head(head)
    with opened_nodes(Workspace(file), tuple(hosts or ())) as nodes:
        rows, errors = walked(nodes, expected)
    if format is OutputFormat.JSON:
        print_json("audit.verify", audit_body(rows, errors))
    else:
        result(audit_text(rows))
        complain(errors)
    broken = any(row.answer.broken_at is not None for row in rows)
    return worst_exit([one.error.exit_code for one in errors] + ([ExitCode.FAILED] if broken else []))
