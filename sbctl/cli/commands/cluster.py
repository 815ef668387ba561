"""`cluster init|status|rotate|revoke|token|enroll`: the authority that gives the hosts of a cluster their identities.

`status` and the commands of `cluster_actions` ask the nodes of a cluster that runs, and `enroll` works on a host that cannot be reached; all else on the authority's directory on this
machine: what rotate and revoke change reaches the hosts by the next apply, which plans show first.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sbctl.base.errors import ExitCode, UsageError
from sbctl.cli.commands import cluster_actions, tokens
from sbctl.cli.options import AuthorityDirectory as Directory
from sbctl.cli.options import File, Format, OutputFormat

if TYPE_CHECKING:
    from sbctl.cli.workspace import Workspace

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(tokens.app, name="token", help="Join tokens, for hosts that cannot be reached over SSH.")
cluster_actions.register(app)

_DEFAULT_SERVER_NAME: Final = "sbproxy-mesh"


@app.command()
def init(
    file: File = Path("sb.yml"),
    directory: Directory = None,
    cluster_id: Annotated[
        str | None, typer.Option("--cluster-id", help="Name of the cluster. Unset: that in sb.yml, else its fleet's.")
    ] = None,
    node_id: Annotated[str, typer.Option("--node-id", help="Name of the authority's own identity.")] = "authority",
    role: Annotated[
        list[str] | None, typer.Option("--role", help="Role of the authority's own identity. Repeatable.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Label of it. Repeatable.")
    ] = None,
    server_name: Annotated[
        str, typer.Option("--server-name", help="Name that all hosts of the cluster answer to.")
    ] = _DEFAULT_SERVER_NAME,
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Make the authority: a CA, the key that signs identities, and the authority's own identity. All of it or nothing."""
    from sbctl.cli.authority import directory_of, new_grant
    from sbctl.cli.workspace import Workspace
    from sbctl.trust.authority import Authority
    from sbctl.views.cluster_views import init_body, init_text
    from sbctl.views.console import print_json, result

    workspace = Workspace(file)
    if cluster_id is None:
        if not workspace.file.exists():
            raise UsageError("usage", "without an sb.yml the cluster needs a name", next_step="--cluster-id NAME")
        loaded = workspace.loaded
        cluster_id = loaded.fleet_name if loaded.cluster is None else loaded.cluster.cluster_id
    grant = new_grant(cluster_id, server_name, node_id, role or ["gateway", "authority"], label or [])
    authority = Authority.create(
        directory_of(workspace, directory),
        cluster_id=cluster_id,
        grant=grant,
        server_name=server_name,
        now=workspace.clock.now(),
    )
    if format is OutputFormat.JSON:
        print_json("cluster.init", init_body(authority))
    else:
        named = directory is None and workspace.file.exists() and workspace.loaded.identity is not None
        result(init_text(authority, workspace.directory, named=named))
    return ExitCode.DONE


@app.command()
def status(
    file: File = Path("sb.yml"),
    directory: Directory = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host", metavar="HOST", help="Ask this authority or gateway. Unset: whichever answers, authorities first."
        ),
    ] = None,
    identities: Annotated[
        bool, typer.Option("--identities", help="Only who has an identity until when; no node is asked.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")] = False,
    every: Annotated[
        float,
        typer.Option("--every", min=0.5, max=3600, metavar="SECONDS", help="How long --watch waits between looks."),
    ] = 2.0,
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """How the cluster of sb.yml is: nodes, deployments, store; exit 7: a host gives no answer, 8: something is wrong. Without `proxy.cluster`,
    or with --dir or --identities: who has an identity, until when, and what the next apply renews."""
    from sbctl.cli.cluster_looks import look_at_cluster, show_identities
    from sbctl.cli.workspace import Workspace

    workspace = Workspace(file)
    offline = identities or directory is not None
    if offline and (host is not None or watch):
        raise UsageError("usage", "--host and --watch ask nodes, and --dir and --identities ask none")
    as_json = format is OutputFormat.JSON
    if offline or not (host is not None or watch or _is_cluster(workspace)):
        return show_identities(workspace, directory, as_json=as_json)
    return look_at_cluster(workspace, host, every_s=every if watch else None, as_json=as_json)


def _is_cluster(workspace: Workspace) -> bool:
    from sbctl.cli.fleet_hosts import unpinned

    return workspace.file.exists() and unpinned(workspace).cluster is not None


@app.command()
def rotate(
    nodes: Annotated[list[str] | None, typer.Argument(metavar="NODE…", help="Hosts that get a new identity.")] = None,
    file: File = Path("sb.yml"),
    directory: Directory = None,
    ca: Annotated[
        bool, typer.Option("--ca", help="Take the CA over into a new one, over three applies and without a gap.")
    ] = False,
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Ask for new identities; the next apply issues them, each above its old epoch. A revoked host is let in again by this."""
    from sbctl.cli.authority import directory_of, let_in_again
    from sbctl.cli.workspace import Workspace
    from sbctl.trust.authority import Authority
    from sbctl.views.cluster_views import ROLLOVER_STEPS
    from sbctl.views.console import note, print_json

    if ca == bool(nodes):
        raise UsageError("usage", "name the hosts that get a new identity, or --ca for a new CA")
    workspace = Workspace(file)
    authority = Authority.open(directory_of(workspace, directory))
    if ca:
        held = workspace.held_identities()
        authority.finish_rollover(held, now=workspace.clock.now())
        under_way = authority.facts(held).rollover
        fingerprint: str | None = authority.begin_rollover(now=workspace.clock.now())
        note(
            "apply three times: hosts trust the new CA as well; they get identities of it; the old CA goes"
            if under_way is None
            else f"a CA rollover is under way already, and goes on: {ROLLOVER_STEPS[under_way]}"
        )
    else:
        fingerprint = None
        records = authority.rotate(nodes or [])
        nodes = [record.node_id for record in records]
        note(f"sbctl apply issues a new identity to {', '.join(nodes)}")
        for said in let_in_again(records):
            note(said)
    if format is OutputFormat.JSON:
        print_json("cluster.rotate", {"ca": fingerprint, "nodes": nodes or []})
    return ExitCode.DONE


@app.command()
def revoke(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The host whose identity is taken away.")],
    reason: Annotated[str, typer.Option("--reason", help="For whoever reads the list.")] = "",
    file: File = Path("sb.yml"),
    directory: Directory = None,
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Take a host's identities away; the next apply tells every other host, and removes it from this one."""
    from sbctl.cli.authority import directory_of, recorded_identity, revoke_newest
    from sbctl.cli.enrollment_server import enrolled_record
    from sbctl.cli.workspace import Workspace
    from sbctl.trust.authority import Authority
    from sbctl.views.console import note, print_json

    workspace = Workspace(file)
    authority = Authority.open(directory_of(workspace, directory))
    record = enrolled_record(workspace, node) if directory is None else None
    if record is not None:
        authority.adopt(record)
    recorded = recorded_identity(workspace, node)
    listed = revoke_newest(authority, node, recorded, reason=reason, now=workspace.clock.now())
    note(f"{node} is on revocation list {listed.revision}; sbctl apply takes it to every host")
    if format is OutputFormat.JSON:
        print_json("cluster.revoke", {"node": node, "revision": listed.revision})
    return ExitCode.DONE


@app.command()
def enroll(
    url: Annotated[
        str, typer.Option("--url", metavar="https://HOST:PORT", help="Where the authority's runtime listens.")
    ],
    node_id: Annotated[str, typer.Option("--node-id", metavar="HOST", help="Name of this host in the cluster.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The directory to make; it must not be there yet.")],
    role: Annotated[
        list[str] | None, typer.Option("--role", help="Role of this host. Repeatable. Unset: worker.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="Label, exactly as in the token. Repeatable."),
    ] = None,
    server_name: Annotated[
        str, typer.Option("--server-name", help="Name that all hosts of the cluster answer to.")
    ] = _DEFAULT_SERVER_NAME,
    ca_cert: Annotated[
        Path | None,
        typer.Option("--ca-cert", metavar="FILE", help="The cluster's CA, where it is known; it must be the token's."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="The token; - is stdin. Unset: SBCTL_CLUSTER_TOKEN, else what is piped in.",
        ),
    ] = None,
    token: Annotated[str | None, typer.Option("--token", hidden=True)] = None,
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """On a host that cannot be reached: make a key here and have the authority give it an identity, for a join token."""
    from sbctl.base.clock import SYSTEM_CLOCK
    from sbctl.cli.enrolling import enroll as enroll_here
    from sbctl.cli.enrolling import grant_of, refuse_token_in_arguments, server_of
    from sbctl.views.console import print_json, result
    from sbctl.views.enrollment_views import enrolled_body, enrolled_text

    if token is not None:
        refuse_token_in_arguments()
    server, grant = server_of(url, server_name), grant_of(node_id, role or ["worker"], label or [])
    enrolled = enroll_here(server, grant, out.absolute(), token_file=token_file, ca_file=ca_cert, clock=SYSTEM_CLOCK)
    if format is OutputFormat.JSON:
        print_json("cluster.enroll", enrolled_body(enrolled.directory, enrolled.identity))
    else:
        result(enrolled_text(enrolled.directory, enrolled.identity))
    return ExitCode.DONE
