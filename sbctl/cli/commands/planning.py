"""`plan`, `show`, `drift`: what would change, and what changed behind our back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbctl.base.errors import ExitCode, UsageError
from sbctl.cli.options import (
    AcceptUnsigned,
    AllowEmpty,
    AllowUnreachable,
    Exclude,
    File,
    FromPack,
    MaxBlastRadius,
    Parallelism,
    PlanFormat,
    PlanFormatOption,
    ReadersLockTimeout,
    Refresh,
    Replace,
    Target,
    refuse_without_meaning,
    supplied,
)

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(plan)
    app.command()(show)
    app.command()(drift)


def plan(
    file: File = Path("sb.yml"),
    out: Annotated[
        Path | None, typer.Option("--out", help="Save the plan, sealed and signed, for `apply FILE`.")
    ] = None,
    against: Annotated[Path | None, typer.Option("--against", help="Compare two files offline instead.")] = None,
    format: PlanFormatOption = PlanFormat.TEXT,  # noqa: A002 - the option's name
    explain: Annotated[bool, typer.Option("--explain", help="Every reason and value.")] = False,
    target: Target = None,
    exclude: Exclude = None,
    replace: Replace = None,
    refresh: Refresh = True,
    max_blast_radius: MaxBlastRadius = None,
    allow_unreachable: AllowUnreachable = False,
    allow_empty: AllowEmpty = False,
    parallelism: Parallelism = 10,
    lock_timeout: ReadersLockTimeout = 0.0,
    from_pack: FromPack = None,
    unsigned: AcceptUnsigned = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", "--auto-approve", help="Make a signing key for --out when the fleet has none."),
    ] = False,
) -> int:
    """Show what would change. Exit 0: nothing; 2: changes; 7: a host gave no answer; 4: refused by a limit."""
    from sbctl.cli.planning import PlanRequest, limits_of, plan_against, planned
    from sbctl.cli.workspace import Workspace
    from sbctl.plan.policy import plan_exit_code
    from sbctl.views.plan import print_plan
    from sbctl.views.validation import print_notes

    workspace = supplied(Workspace(file), from_pack, unsigned=unsigned)
    limits = limits_of(max_blast_radius, allow_empty=allow_empty)
    if against is not None:
        if out is not None or target or exclude or replace:
            raise UsageError(
                "usage", "--against compares two files; --out, --target, --exclude and --replace do not go with it"
            )
        compared = plan_against(workspace, against)
        print_plan(compared, limits, format=format.value, explain=explain)
        return plan_exit_code(compared, limits)
    request = PlanRequest(
        mode="apply",
        targets=tuple(target or ()),
        excludes=tuple(exclude or ()),
        replaces=tuple(replace or ()),
        refresh=refresh,
        allow_unreachable=allow_unreachable,
        parallelism=parallelism,
    )
    if out is not None:
        from sbctl.cli.saving import save_plan

        found = save_plan(workspace, request, out, assume_yes=yes, lock_timeout_s=lock_timeout)
    else:
        with planned(workspace, request) as result:
            found = result.plan
    print_plan(found, limits, format=format.value, explain=explain)
    if format is PlanFormat.TEXT:
        print_notes(workspace.config.notes)
    return plan_exit_code(found, limits)


def drift(
    file: File = Path("sb.yml"),
    format: PlanFormatOption = PlanFormat.TEXT,  # noqa: A002
    explain: Annotated[bool, typer.Option("--explain", help="Every reason and value.")] = False,
    target: Target = None,
    exclude: Exclude = None,
    replace: Replace = None,
    refresh: Refresh = True,
    max_blast_radius: MaxBlastRadius = None,
    allow_unreachable: AllowUnreachable = False,
    parallelism: Parallelism = 10,
    lock_timeout: ReadersLockTimeout = 0.0,  # noqa: ARG001 - the four commands share their options
) -> int:
    """Show what changed on the hosts since the last apply; edits of sb.yml do not matter. Exit 0: nothing; 2: drift."""
    from sbctl.cli.planning import PlanRequest, limits_of, planned
    from sbctl.cli.workspace import Workspace
    from sbctl.plan.policy import plan_exit_code
    from sbctl.views.plan import print_plan

    refuse_without_meaning("drift", refresh=refresh, replace=replace)
    limits = limits_of(max_blast_radius)
    workspace = Workspace(file)
    workspace.require_state()
    request = PlanRequest(
        mode="drift",
        targets=tuple(target or ()),
        excludes=tuple(exclude or ()),
        allow_unreachable=allow_unreachable,
        parallelism=parallelism,
    )
    with planned(workspace, request) as found:
        print_plan(found.plan, limits, format=format.value, explain=explain)
        return plan_exit_code(found.plan, limits)


def show(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="A file that `plan --out` wrote.")],
    file: File = Path("sb.yml"),
    format: PlanFormatOption = PlanFormat.TEXT,  # noqa: A002
    explain: Annotated[bool, typer.Option("--explain", help="Every reason and value.")] = False,
) -> int:
    """Show a saved plan, also a stale one; says who signed it when that can be told."""
    from sbctl.base.errors import SbctlError
    from sbctl.cli.applying import open_saved_plan
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note
    from sbctl.views.plan import print_plan_document

    workspace = Workspace(file)
    saved = open_saved_plan(workspace, plan_file, verify=False)
    print_plan_document(saved.document, format=format.value, explain=explain, command="show")
    try:
        open_saved_plan(workspace, plan_file, verify=True)
    except SbctlError as error:
        note(f"its signature was not checked: {error.message}")
    if workspace.state is not None and workspace.state.serial != saved.serial:
        note(f"stale: it was made at serial {saved.serial}, the state is at {workspace.state.serial}")
    return ExitCode.DONE
