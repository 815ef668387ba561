"""`output`, `doctor`: how to use what runs, and what a machine can serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbctl.base.errors import ExitCode
from sbctl.cli.options import Format, OutputFormat

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(output)
    app.command()(doctor)


def output(
    file: Annotated[Path, typer.Option("--file", "-f", envvar="SB_CONFIG_FILE", help="The configuration.")] = Path(
        "sb.yml"
    ),
    format: Format = OutputFormat.TEXT,  # noqa: A002 - the option's name
) -> int:
    """Where the models answer and how to ask them."""
    from sbctl.cli.endpoints import endpoints_of
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import print_json, result
    from sbctl.views.host_views import endpoints_body, endpoints_text, trial_text

    endpoints = endpoints_of(Workspace(file).require_state())
    if format is OutputFormat.JSON:
        print_json("output", endpoints_body(endpoints))
    else:
        result(endpoints_text(endpoints))
        if (trial := trial_text(endpoints)) is not None:
            result(trial)
    return ExitCode.DONE


def doctor(
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", envvar="SB_CONFIG_FILE", help="Also check what this configuration asks for."),
    ] = None,
    format: Format = OutputFormat.TEXT,  # noqa: A002
    strict: Annotated[bool, typer.Option("--strict", help="Warnings are blockers too.")] = False,
) -> int:
    """What this machine (or, with a configuration, every host) can serve, what blocks it, and the remedy. Exit 4: blocked."""
    from sbctl.cli.doctor import examine
    from sbctl.views.console import print_json, result
    from sbctl.views.host_views import checks_text

    given = file if file is not None else Path("sb.yml")
    report = examine(given if file is not None or given.exists() else None)
    if format is OutputFormat.JSON:
        print_json("doctor", report.body(strict=strict))
    else:
        result(checks_text(report.checks))
    return report.exit_code(strict=strict)
