"""`init`, `schema`, `explain`, `validate`, `version`: sb.yml without any host."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbctl.base.errors import ConfigError, ExitCode, RefusedError
from sbctl.cli.options import File, Format, OutputFormat, ReportFormat, ReportFormatOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(init)
    app.command()(validate)
    app.command()(migrate)
    app.command()(explain)
    app.command()(schema)
    app.command()(version)


def init(
    file: File = Path("sb.yml"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> int:
    """Write a starter sb.yml that serves one small model on this machine."""
    from sbctl.base.fs import write_atomic
    from sbctl.config.starter import STARTER
    from sbctl.views.console import note

    if file.exists() and not force:
        raise RefusedError(
            "init.exists", "there is a configuration here already", place=str(file), next_step="--force replaces it"
        )
    write_atomic(file, STARTER.encode(), mode=0o644)
    note(f"wrote {file}; next: sbctl plan")
    return ExitCode.DONE


def validate(file: File = Path("sb.yml"), format: ReportFormatOption = ReportFormat.TEXT) -> int:  # noqa: A002 - the option's name
    """Check the configuration offline: no host and no state is touched."""
    from sbctl.cli.workspace import Workspace
    from sbctl.views.validation import print_validation

    try:
        config = Workspace(file).checked()
    except ConfigError as error:
        print_validation(str(file), error.diagnostics, format=format.value)
        return ExitCode.INVALID
    print_validation(str(file), config.notes, format=format.value)
    return ExitCode.DONE


def migrate(
    file: File = Path("sb.yml"),
    show: Annotated[bool, typer.Option("--print", help="Show the new file and write nothing.")] = False,
    format: Format = OutputFormat.TEXT,  # noqa: A002 - the option's name
) -> int:
    """Rewrite `serve:` blocks of providers, SBproxy's older way to host a model, as deployments. Comments stay; the file means the same."""
    from sbctl.base.fs import write_atomic
    from sbctl.config.legacy_migration import migrated
    from sbctl.config.reader import read_yaml
    from sbctl.views.console import note, print_json, result

    new = migrated(read_yaml(file))
    if new is not None and not show:
        write_atomic(file, new.text.encode(), mode=file.stat().st_mode & 0o777)
    if format is OutputFormat.JSON:
        deployments = [] if new is None else list(new.deployments)
        left_out = [] if new is None else list(new.left_out)
        body = {
            "file": str(file),
            "changed": new is not None and not show,
            "deployments": deployments,
            "left_out": left_out,
        }
        print_json("migrate", body)
        return ExitCode.DONE
    if new is None:
        note(f"{file} has no serve block: nothing to rewrite")
        return ExitCode.DONE
    if show:
        result(new.text)
    for sentence in new.left_out:
        note(sentence)
    note(f"{'would rewrite' if show else 'rewrote'} {file}: {', '.join(new.deployments)}")
    return ExitCode.DONE


def explain(
    field: Annotated[
        str, typer.Argument(metavar="FIELD", help="e.g. proxy.model_host.deployments.chat.max_concurrency")
    ],
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """What a field means, its type, default and bounds, and where its value comes from."""
    import os

    from sbctl.config.explain import explain_field
    from sbctl.views.explanation import print_explanation

    print_explanation(
        explain_field(field, file if file.exists() else None, os.environ), as_json=format is OutputFormat.JSON
    )
    return ExitCode.DONE


def schema(
    name: Annotated[str, typer.Argument(help="sb, catalog, bundle, plan or state")] = "sb",
) -> int:
    """Print a JSON Schema, for editors and other tools."""
    from sbctl.base.resources import data_path
    from sbctl.base.strict_json import loads
    from sbctl.config.schema import SCHEMA_FILES
    from sbctl.views.console import print_plain

    if name not in SCHEMA_FILES:
        from sbctl.base.errors import UsageError

        raise UsageError("usage", f'there is no schema "{name}"', next_step=f"one of: {', '.join(SCHEMA_FILES)}")
    text = data_path("schemas", SCHEMA_FILES[name]).read_text(encoding="utf-8")
    loads(text.encode(), max_bytes=len(text.encode()) + 1)
    print_plain(text)
    return ExitCode.DONE


def version() -> int:
    """Print the version."""
    from sbctl import __version__
    from sbctl.views.console import print_plain

    print_plain(f"sbctl {__version__}\n")
    return ExitCode.DONE
