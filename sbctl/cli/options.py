"""Options that several commands share, written once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbctl.base.errors import UsageError

if TYPE_CHECKING:
    from sbctl.cli.workspace import Workspace

__all__ = [
    "AcceptUnsigned",
    "AllowEmpty",
    "AllowUnreachable",
    "AuthorityDirectory",
    "Exclude",
    "File",
    "Format",
    "FromPack",
    "LockTimeout",
    "MaxBlastRadius",
    "OutputFormat",
    "Parallelism",
    "PlanFormat",
    "PlanFormatOption",
    "Radius",
    "ReadersLockTimeout",
    "Refresh",
    "Replace",
    "ReportFormat",
    "ReportFormatOption",
    "Target",
    "Yes",
    "refuse_without_meaning",
    "supplied",
]


class OutputFormat(StrEnum):
    """Of commands that people and scripts read."""

    TEXT = "text"
    JSON = "json"


class ReportFormat(StrEnum):
    """Of commands that a CI system judges; github and junit are its own forms."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    JUNIT = "junit"


class PlanFormat(StrEnum):
    """Of commands that show a plan."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    GITHUB = "github"
    JUNIT = "junit"


class Radius(StrEnum):
    """What users of the fleet may notice at the most."""

    HITLESS = "hitless"
    RELOAD = "reload"
    RESTART = "restart"
    BREAKING = "breaking"


File = Annotated[
    Path, typer.Option("--file", "-f", envvar="SB_CONFIG_FILE", help="The configuration.", show_default="sb.yml")
]
Format = Annotated[OutputFormat, typer.Option("--format", help="What stdout gets; progress goes to stderr.")]
ReportFormatOption = Annotated[
    ReportFormat, typer.Option("--format", help="What stdout gets; progress goes to stderr.")
]
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
AuthorityDirectory = Annotated[
    Path | None,
    typer.Option(
        "--dir", metavar="DIR", help="The authority's directory. Unset: the one sb.yml names, else ./cluster beside it."
    ),
]
AllowEmpty = Annotated[bool, typer.Option("--allow-empty", help="Allow a plan that removes every deployment.")]
Parallelism = Annotated[int, typer.Option("--parallelism", min=1, max=64, help="Hosts at once.")]
LockTimeout = Annotated[
    float,
    typer.Option(
        "--lock-timeout",
        min=0,
        metavar="SECONDS",
        help="How long to wait for the state's lock, and then for a host that somebody else changes.",
    ),
]
ReadersLockTimeout = Annotated[
    float,
    typer.Option(
        "--lock-timeout",
        min=0,
        metavar="SECONDS",
        help="As for apply; who only reads never waits, so this counts only where --out begins a new fleet.",
    ),
]
FromPack = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="PACK", help="Take wheels, engines and weights from this pack alone and fetch nothing."
    ),
]
AcceptUnsigned = Annotated[bool, typer.Option("--unsigned", help="With --from: accept a pack that nobody signed.")]
Yes = Annotated[bool, typer.Option("--yes", "--auto-approve", help="Do not ask.")]


def supplied(workspace: Workspace, pack: Path | None, *, unsigned: bool) -> Workspace:
    """As `--from` and `--unsigned` say. Raises UsageError for `--unsigned` alone, and what `packing.open_for` raises."""
    if pack is None:
        if unsigned:
            raise UsageError(
                "usage", "--unsigned is about a pack, and there is none", next_step="sbctl apply --from PACK"
            )
        return workspace
    from sbctl.cli.packing import open_for

    return open_for(workspace, pack, accept_unsigned=unsigned)


def refuse_without_meaning(command: str, *, refresh: bool = True, replace: list[str] | None = None) -> None:
    """For shared options that a command takes and cannot follow. Raises UsageError saying why and what does."""
    if not refresh:
        raise UsageError(
            "usage",
            f"{command} goes by what the hosts say, so --no-refresh does not go with it",
            next_step="sbctl plan --no-refresh compares sb.yml with what the state remembers",
        )
    if replace:
        raise UsageError(
            "usage",
            f"{command} makes nothing anew, so --replace does not go with it",
            next_step="sbctl apply --replace ADDRESS",
        )
