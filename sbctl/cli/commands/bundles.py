"""`bundle show|verify|export`: signed desired state as hosts get it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbctl.base.errors import ExitCode
from sbctl.cli.options import File, Format, OutputFormat

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Bundle = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="A file that `bundle export` wrote, or a host's bundle.json.")
]


@app.command()
def show(bundle: Bundle, format: Format = OutputFormat.TEXT) -> int:  # noqa: A002
    """What a bundle says; trusts nothing of it and says so."""
    from sbctl.cli.bundling import read_unverified
    from sbctl.views.bundle_views import bundle_body, bundle_text
    from sbctl.views.console import note, print_json, result

    payload, claimed = read_unverified(bundle)
    if format is OutputFormat.JSON:
        print_json("bundle.show", bundle_body(payload, signer=None, claimed=claimed))
    else:
        result(bundle_text(payload, signer=None, claimed=claimed))
        note("its signature was not checked: sbctl bundle verify")
    return ExitCode.DONE


@app.command()
def verify(
    bundle: Bundle,
    host: Annotated[str, typer.Option("--host", help="The host it is for.")] = "local",
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Check a bundle as that host would: signer, fleet, host, digest, times. Exit 4 when it would be refused."""
    from sbctl.cli.bundling import verified
    from sbctl.cli.workspace import Workspace
    from sbctl.views.bundle_views import bundle_body, bundle_text
    from sbctl.views.console import print_json, result

    accepted = verified(Workspace(file), bundle, host)
    if format is OutputFormat.JSON:
        print_json("bundle.verify", bundle_body(accepted.payload, signer=accepted.signer, claimed=()))
    else:
        result(bundle_text(accepted.payload, signer=accepted.signer, claimed=()))
    return ExitCode.DONE


@app.command()
def export(
    out: Annotated[Path, typer.Option("--out", help="The file to write.")],
    host: Annotated[str, typer.Option("--host", help="The host it is for.")] = "local",
    file: File = Path("sb.yml"),
    by_hand: Annotated[
        bool, typer.Option("--by-hand", help="Unsigned, with the runtime's settings: for sbctl-runtime serve --config.")
    ] = False,
) -> int:
    """Sign what sb.yml asks of one host, with the revision after the last, and write it. Nothing is sent."""
    from sbctl.cli.bundling import export_bundle, write_unsigned
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note

    if by_hand:
        write_unsigned(Workspace(file), host, out)
        note(f"wrote what {host} should run: sbctl-runtime serve --config {out}")
        return ExitCode.DONE
    revision = export_bundle(Workspace(file), host, out)
    note(f"wrote revision {revision} for {host}: {out}")
    return ExitCode.DONE
