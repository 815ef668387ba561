"""`catalog add|check|update`: an operator's own models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbctl.base.errors import ExitCode
from sbctl.cli.options import File, Format, OutputFormat

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

CatalogFile = Annotated[
    Path | None,
    typer.Option("--catalog", metavar="FILE", help="The catalog. Unset: the one that sb.yml names, else catalog.yml."),
]


@app.command()
def add(
    reference: Annotated[str, typer.Argument(metavar="hf:ORG/REPO[@REVISION]", help="A repository of the model hub.")],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]…", help="Paths or patterns, such as '*q4_k_m*'.")
    ] = None,
    file: File = Path("sb.yml"),
    catalog: CatalogFile = None,
    model_id: Annotated[str, typer.Option("--id", help="Id of the model. Unset: from the repository's name.")] = "",
    variant: Annotated[str, typer.Option("--variant", help="Id of the variant. Unset: the quantisation.")] = "",
    license_id: Annotated[str, typer.Option("--license", help="Where the repository's card names none.")] = "",
    context: Annotated[int | None, typer.Option("--context", min=1, help="Tokens of context.")] = None,
    show: Annotated[bool, typer.Option("--print", help="Show the entry and write nothing.")] = False,
    format: Format = OutputFormat.TEXT,  # noqa: A002 - the option's name
) -> int:
    """Add a model: its commit, files, digests, licence and context are asked of the hub and pinned. Comments in the catalog stay."""
    from sbctl.catalog.licenses import license_of
    from sbctl.catalog.proposal import Asked
    from sbctl.cli import cataloging
    from sbctl.engines.model import DRIVEN
    from sbctl.views.catalog_views import entry_body, entry_text
    from sbctl.views.console import note, print_json, result

    asked = Asked(model_id, variant, license_id, context)
    proposal, gated = cataloging.proposed(reference, files or (), asked)
    path = cataloging.catalog_path(catalog, file)
    changed = not show and cataloging.add(proposal, path)
    if format is OutputFormat.JSON:
        body = entry_body(proposal.model_id, proposal.model, proposal.variant)
        print_json("catalog add", {**body, "catalog": str(path), "changed": changed})
        return ExitCode.DONE
    result(entry_text(proposal.model_id, proposal.model, proposal.variant))
    if not show:
        note(f"{'added to' if changed else 'already in'} {path}")
    if not show and not cataloging.is_read(file):
        note(f"{file} does not read it yet: proxy: {{model_host: {{catalog_file: {path.name}}}}}")
    if not set(proposal.variant["engines"]) & set(DRIVEN):
        said = ", ".join(proposal.variant["engines"])
        note(f"no engine of this version serves it ({said}): hosts run {', '.join(DRIVEN)}, which needs GGUF files")
    if gated:
        note("its terms must be accepted on the hub; hosts that fetch it need a token (HF_TOKEN)")
    if license_of(proposal.model["license"]).restrictive:
        note(f"a deployment of it must say accept_license: {proposal.model['license']}")
    return ExitCode.DONE


@app.command()
def check(
    models: Annotated[list[str] | None, typer.Argument(metavar="[MODEL[:VARIANT]]…")] = None,
    file: File = Path("sb.yml"),
    catalog: CatalogFile = None,
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Whether the catalog still says what the hub has. Exit 3 when an entry is false; newer bytes elsewhere are only told."""
    from sbctl.cli import cataloging
    from sbctl.views.catalog_views import findings_text
    from sbctl.views.console import print_json, result

    findings = cataloging.check(cataloging.catalog_path(catalog, file), models or ())
    if format is OutputFormat.JSON:
        rows = [
            {"model": one.model, "variant": one.variant, "verdict": one.verdict, "detail": one.detail}
            for one in findings
        ]
        print_json("catalog check", {"entries": rows})
    else:
        result(findings_text((f"{one.model}:{one.variant}", one.verdict, one.detail) for one in findings))
    return ExitCode.INVALID if any(one.verdict == "false" for one in findings) else ExitCode.DONE


@app.command()
def update(
    model: Annotated[str, typer.Argument(metavar="MODEL[:VARIANT]")],
    to: Annotated[str, typer.Option("--to", metavar="REVISION", help="A branch, tag or commit.")] = "main",
    file: File = Path("sb.yml"),
    catalog: CatalogFile = None,
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Pin an entry to what its source has now. Comments stay; only deployments of this entry are touched by the next plan."""
    from sbctl.base.display import format_bytes
    from sbctl.cli import cataloging
    from sbctl.views.catalog_views import updates_text
    from sbctl.views.console import note, print_json, result

    path = cataloging.catalog_path(catalog, file)
    updates = cataloging.update(path, model, to)
    if format is OutputFormat.JSON:
        rows = [
            {
                "model": one.model,
                "variant": one.variant,
                "before": one.before,
                "after": one.after,
                "bytes_before": one.bytes_before,
                "bytes_after": one.bytes_after,
                "changed": one.changed,
            }
            for one in updates
        ]
        print_json("catalog update", {"catalog": str(path), "entries": rows})
        return ExitCode.DONE
    result(
        updates_text(
            (
                f"{one.model}:{one.variant}",
                one.before[:12],
                one.after[:12],
                f"{format_bytes(one.bytes_before)} → {format_bytes(one.bytes_after)}" if one.changed else "the same",
            )
            for one in updates
        )
    )
    if any(one.changed for one in updates):
        note("next: sbctl plan shows which deployments this touches")
    return ExitCode.DONE
