"""`pack`, `pack show|verify`: everything a closed site needs, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbctl.base.errors import ExitCode, UsageError
from sbctl.cli.options import File, Format, OutputFormat

__all__ = ["app"]

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)

PackFile = Annotated[Path, typer.Argument(metavar="PACK", help="A file that `sbctl pack` wrote.")]


@app.callback()
def make(
    context: typer.Context,
    file: File = Path("sb.yml"),
    out: Annotated[Path | None, typer.Option("--out", help="The file to write.")] = None,
    arch: Annotated[
        str | None, typer.Option("--arch", help="Machines of the hosts: x86_64,aarch64. Unset: this machine's.")
    ] = None,
    python: Annotated[str, typer.Option("--python", help="Python versions of the hosts.")] = "3.11,3.12,3.13",
    libc: Annotated[
        str, typer.Option("--libc", help="The oldest C library of the hosts: glibc-2.28, musl-1.2.")
    ] = "glibc-2.28",
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="weights", help="Leave the weights out.")
    ] = None,
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Make it without a signature.")] = False,
    format: Format = OutputFormat.TEXT,  # noqa: A002 - the option's name
) -> int:
    """Everything a closed site needs for this sb.yml, in one verified file: wheels, engines, weights, catalogs. Nothing is applied."""
    if context.invoked_subcommand is not None:
        return ExitCode.DONE
    from sbctl.cli.packing import ARCHES, PackRequest, default_arch, make_pack, parsed_list
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note, print_json, result
    from sbctl.views.pack_views import pack_body, pack_text
    from sbctl.views.transfers import transfers

    if out is None:
        raise UsageError("usage", "sbctl pack writes a file: --out FILE", next_step="sbctl pack --out site.sbpack")
    if set(exclude or ()) - {"weights"}:
        raise UsageError("usage", "only weights can be left out: --exclude weights")
    with transfers() as begin:
        pack, signer, notes = make_pack(
            Workspace(file),
            PackRequest(
                out=out,
                arches=parsed_list(arch or default_arch(), "--arch", ARCHES),
                pythons=parsed_list(python, "--python"),
                libc=libc,
                with_weights=not exclude,
                unsigned=unsigned,
                begin=begin,
            ),
        )
    if format is OutputFormat.JSON:
        print_json("pack", {**pack_body(pack, signer=signer, verified=True), "notes": list(notes)})
        return ExitCode.DONE
    result(pack_text(pack, signer=signer))
    for text in notes:
        note(text)
    if signer is None:
        note("this pack is unsigned: who applies it must say --unsigned")
    note(f"at the site: sbctl apply --from {out}")
    return ExitCode.DONE


@app.command()
def show(pack_file: PackFile, format: Format = OutputFormat.TEXT) -> int:  # noqa: A002
    """What a pack holds; its contents and its signature are not checked, and that is said."""
    from sbctl.pack.reader import open_pack
    from sbctl.views.console import note, print_json, result
    from sbctl.views.pack_views import pack_body, pack_text

    pack = open_pack(pack_file)
    if format is OutputFormat.JSON:
        print_json("pack.show", pack_body(pack, signer=None, verified=False))
    else:
        result(pack_text(pack, signer=None))
        note("its files and its signature were not checked: sbctl pack verify")
    return ExitCode.DONE


@app.command()
def verify(
    pack_file: PackFile,
    file: File = Path("sb.yml"),
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Accept a pack that nobody signed.")] = False,
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Read every byte of a pack and check who signed it. Exit 3: damaged; 4: nobody of this fleet signed it."""
    from sbctl.cli.packing import signer_of
    from sbctl.cli.workspace import Workspace
    from sbctl.pack.reader import open_pack
    from sbctl.views.console import note, print_json, result
    from sbctl.views.pack_views import pack_body, pack_text
    from sbctl.views.transfers import transfers

    pack = open_pack(pack_file)
    signer = None if unsigned and pack.envelope is None else signer_of(pack, Workspace(file))
    with transfers() as begin:
        pack.verify(begin(f"reading {pack_file}"))
    if format is OutputFormat.JSON:
        print_json("pack.verify", pack_body(pack, signer=signer, verified=True))
    else:
        result(pack_text(pack, signer=signer))
        note("every byte is as the manifest says")
    return ExitCode.DONE
