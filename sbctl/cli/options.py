"""Options that several commands share, written once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "AllowEmpty",
    "AllowUnreachable",
    "Exclude",
    "File",
    "Format",
    "LockTimeout",
    "MaxBlastRadius",
    "OutputFormat",
    "Parallelism",
    "PlanFormat",
    "PlanFormatOption",
    "Radius",
    "Refresh",
    "Replace",
    "Target",
    "Yes",
]


class OutputFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class PlanFormat(StrEnum):
    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


class Radius(StrEnum):
    HITLESS = "hitless"
    RELOAD = "reload"
    RESTART = "restart"
    BREAKING = "breaking"


File = Annotated[
    Path, typer.Option("--file", "-f", envvar="SB_CONFIG_FILE", help="The configuration.", show_default="sb.yml")
]
Format = Annotated[OutputFormat, typer.Option("--format", help="What stdout gets; progress goes to stderr.")]
PlanFormatOption = Annotated[PlanFormat, typer.Option("--format", help="What stdout gets.")]
Target = Annotated[
    list[str] | None,
    typer.Option(
        "--target", metavar="ADDRESS", help="Only resources that match, e.g. 'engine.gpu-*/llama_cpp'. Repeatable."
    ),
]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="ADDRESS", help="Leave resources out. Repeatable.")
]
Replace = Annotated[
    list[str] | None, typer.Option("--replace", metavar="ADDRESS", help="Make anew what matches. Repeatable.")
]
Refresh = Annotated[
    bool, typer.Option("--refresh/--no-refresh", help="Ask the hosts, or trust what the state remembers.")
]
MaxBlastRadius = Annotated[
    Radius | None, typer.Option("--max-blast-radius", help="Refuse (exit 4) what users would notice more.")
]
AllowUnreachable = Annotated[bool, typer.Option("--allow-unreachable", help="Go on without hosts that give no answer.")]
AllowEmpty = Annotated[bool, typer.Option("--allow-empty", help="Allow a plan that removes every deployment.")]
Parallelism = Annotated[int, typer.Option("--parallelism", min=1, max=64, help="Hosts at once.")]
LockTimeout = Annotated[
    float, typer.Option("--lock-timeout", min=0, metavar="SECONDS", help="How long to wait for the state's lock.")
]
Yes = Annotated[bool, typer.Option("--yes", "--auto-approve", help="Do not ask.")]
