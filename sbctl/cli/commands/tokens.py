"""`cluster token create|list|revoke`: tokens that let one host in, once. They live, as hashes, where they are redeemed: on the host of the
enrollment server that sb.yml names, else (or with --dir) in the authority's directory on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbctl.base.errors import ExitCode
from sbctl.base.limits import JOIN_TOKEN_TTL_DEFAULT_S, JOIN_TOKEN_TTL_MAX_S
from sbctl.cli.options import AuthorityDirectory, File, Format, OutputFormat

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command()
def create(
    file: File = Path("sb.yml"),
    directory: AuthorityDirectory = None,
    role: Annotated[
        list[str] | None, typer.Option("--role", help="Role that the host may have. Repeatable. Unset: worker.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="Label that the host must have. Repeatable."),
    ] = None,
    node_id: Annotated[
        str | None,
        typer.Option(
            "--node-id",
            metavar="HOST",
            help="The only name it is good for, also one that has an identity. Unset: any new name.",
        ),
    ] = None,
    ttl_secs: Annotated[
        int, typer.Option("--ttl-secs", min=1, max=JOIN_TOKEN_TTL_MAX_S, help="Seconds until it is void.")
    ] = JOIN_TOKEN_TTL_DEFAULT_S,
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Make a token and print it, this once: only its hash is kept."""
    from sbctl.cli.authority import enrollment_of
    from sbctl.cli.enrolling import grant_of
    from sbctl.cli.enrollment_server import fleet_server
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import print_json, print_plain
    from sbctl.views.enrollment_views import created_body

    workspace = Workspace(file)
    grant = grant_of(node_id or "any", role or ["worker"], label or [])
    server = fleet_server(workspace) if directory is None else None
    if server is not None:
        text, row = server.create_token(roles=grant.roles, labels=grant.labels, node_id=node_id, ttl_s=ttl_secs)
    else:
        token, row = enrollment_of(workspace, directory).create_token(
            roles=grant.roles, labels=dict(grant.labels), node_id=node_id, ttl_s=ttl_secs, now=workspace.clock.now()
        )
        text = token.text().reveal().decode()
    if format is OutputFormat.JSON:
        print_json("cluster.token.create", created_body(text, row))
    else:
        print_plain(f"{text}\n")
    return ExitCode.DONE


@app.command("list")
def list_tokens(
    file: File = Path("sb.yml"),
    directory: AuthorityDirectory = None,
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Tokens that were made, and what became of them; those that are void for a week are left out."""
    from sbctl.cli.authority import enrollment_of
    from sbctl.cli.enrollment_server import fleet_server
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import print_json, result
    from sbctl.views.enrollment_views import tokens_body, tokens_text

    workspace = Workspace(file)
    server, now = fleet_server(workspace) if directory is None else None, workspace.clock.now()
    rows = server.tokens() if server is not None else enrollment_of(workspace, directory).tokens()
    if format is OutputFormat.JSON:
        print_json("cluster.token.list", tokens_body(rows, now))
    else:
        result(tokens_text(rows, now))
    return ExitCode.DONE


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As sbctl cluster token list shows it.")],
    file: File = Path("sb.yml"),
    directory: AuthorityDirectory = None,
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Make a token void, at once. An identity that it gave stays; sbctl cluster revoke takes that away."""
    from sbctl.cli.authority import enrollment_of
    from sbctl.cli.enrollment_server import fleet_server
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note, print_json
    from sbctl.views.enrollment_views import token_body

    workspace = Workspace(file)
    now = workspace.clock.now()
    server = fleet_server(workspace) if directory is None else None
    row = (
        server.revoke_token(token_id)
        if server is not None
        else enrollment_of(workspace, directory).revoke_token(token_id, now=now)
    )
    if row.node is not None:
        note(f"the token was used already, by {row.node}: sbctl cluster revoke {row.node} takes that identity away")
    else:
        note(f"token {row.id} is void")
    if format is OutputFormat.JSON:
        print_json("cluster.token.revoke", token_body(row, now))
    return ExitCode.DONE
