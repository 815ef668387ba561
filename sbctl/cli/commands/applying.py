"""`apply`, `destroy`, `rollback`: making it so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbctl.base.errors import ExitCode, UsageError
from sbctl.cli.options import (
    AcceptUnsigned,
    AllowEmpty,
    AllowUnreachable,
    Exclude,
    File,
    FromPack,
    LockTimeout,
    MaxBlastRadius,
    Parallelism,
    Refresh,
    Replace,
    ReportFormat,
    ReportFormatOption,
    Target,
    Yes,
    refuse_without_meaning,
    supplied,
)

if TYPE_CHECKING:
    from sbctl.cli.applying import ApplyRequest
    from sbctl.cli.workspace import Workspace
    from sbctl.plan.model import Plan

__all__ = ["register", "run_apply"]

FailFast = Annotated[bool, typer.Option("--fail-fast", help="After the first failure start nothing more on any host.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(apply)
    app.command()(destroy)
    app.command()(rollback)


def apply(
    plan_file: Annotated[
        Path | None, typer.Argument(metavar="[PLAN]", help="A saved plan: carry out exactly that.")
    ] = None,
    file: File = Path("sb.yml"),
    yes: Yes = False,
    format: ReportFormatOption = ReportFormat.TEXT,  # noqa: A002 - the option's name
    target: Target = None,
    exclude: Exclude = None,
    replace: Replace = None,
    refresh: Refresh = True,
    max_blast_radius: MaxBlastRadius = None,
    allow_unreachable: AllowUnreachable = False,
    allow_empty: AllowEmpty = False,
    fail_fast: FailFast = False,
    parallelism: Parallelism = 10,
    lock_timeout: LockTimeout = 0.0,
    from_pack: FromPack = None,
    unsigned: AcceptUnsigned = False,
    accept_blockers: Annotated[
        bool,
        typer.Option(
            "--accept-blockers",
            help="Begin although doctor names blockers on hosts that would change; take a worker out of its cluster also when what it runs has no other place.",
        ),
    ] = False,
    locked: Annotated[
        bool, typer.Option("--locked", help="Refuse (exit 4) models that are not as sbproxy-models.lock has them.")
    ] = False,
) -> int:
    """Plan, ask, and make it so. With PLAN: exactly the saved plan, without asking, or exit 5 when anything moved."""
    from sbctl.cli.applying import ApplyRequest, open_saved_plan
    from sbctl.cli.planning import PlanRequest, limits_of
    from sbctl.cli.workspace import Workspace

    refuse_without_meaning("apply", refresh=refresh)
    workspace = supplied(Workspace(file), from_pack, unsigned=unsigned)
    if locked:
        from sbctl.cli.models_lock import lock_path, refuse_unlocked

        refuse_unlocked(workspace.loaded, lock_path(file))
    saved = None
    request = PlanRequest(
        mode="apply",
        targets=tuple(target or ()),
        excludes=tuple(exclude or ()),
        replaces=tuple(replace or ()),
        allow_unreachable=allow_unreachable,
        parallelism=parallelism,
    )
    if plan_file is not None:
        if target or exclude or replace:
            raise UsageError(
                "usage", "a saved plan is applied as it is: --target, --exclude and --replace belong to `plan --out`"
            )
        saved = open_saved_plan(workspace, plan_file, verify=True)
        request = request.of_saved(saved)
    asked = ApplyRequest(
        "apply",
        request,
        limits_of(max_blast_radius, allow_empty=allow_empty),
        saved,
        assume_yes=yes or saved is not None,
        fail_fast=fail_fast,
        lock_timeout_s=lock_timeout,
        accept_blockers=accept_blockers,
    )
    return run_apply(workspace, asked, format=format.value)


def destroy(
    file: File = Path("sb.yml"),
    yes: Yes = False,
    format: ReportFormatOption = ReportFormat.TEXT,  # noqa: A002
    target: Target = None,
    exclude: Exclude = None,
    replace: Replace = None,
    refresh: Refresh = True,
    max_blast_radius: MaxBlastRadius = None,
    allow_unreachable: AllowUnreachable = False,
    fail_fast: FailFast = False,
    parallelism: Parallelism = 10,
    lock_timeout: LockTimeout = 0.0,
) -> int:
    """Remove all that was applied, by what the state recorded; sb.yml is not needed for it."""
    from sbctl.cli.applying import ApplyRequest
    from sbctl.cli.planning import PlanRequest, limits_of, refuse_marked_hosts
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note

    refuse_without_meaning("destroy", refresh=refresh, replace=replace)
    workspace = Workspace(file)
    if workspace.state is None:
        refuse_marked_hosts(workspace)
        note("nothing to remove: nothing was applied from here")
        return ExitCode.DONE
    request = PlanRequest(
        mode="destroy",
        targets=tuple(target or ()),
        excludes=tuple(exclude or ()),
        allow_unreachable=allow_unreachable,
        parallelism=parallelism,
    )
    limits = limits_of(max_blast_radius)
    asked = ApplyRequest("destroy", request, limits, assume_yes=yes, fail_fast=fail_fast, lock_timeout_s=lock_timeout)
    return run_apply(workspace, asked, format=format.value)


def rollback(
    serial: Annotated[
        int | None, typer.Argument(help="A serial of `state history`; without it, the one before the last.")
    ] = None,
    file: File = Path("sb.yml"),
    yes: Yes = False,
    format: ReportFormatOption = ReportFormat.TEXT,  # noqa: A002
    max_blast_radius: MaxBlastRadius = None,
    allow_unreachable: AllowUnreachable = False,
    fail_fast: FailFast = False,
    parallelism: Parallelism = 10,
    lock_timeout: LockTimeout = 0.0,
    from_pack: FromPack = None,
    unsigned: AcceptUnsigned = False,
) -> int:
    """Apply the desired state of an old serial as a new one. sb.yml stays as it is, so the next plan says what differs from it."""
    from sbctl.cli.applying import ApplyRequest, earlier_serial
    from sbctl.cli.planning import PlanRequest, limits_of
    from sbctl.cli.workspace import Workspace

    workspace = supplied(Workspace(file), from_pack, unsigned=unsigned)
    workspace.require_state()
    request = PlanRequest(
        mode="rollback",
        allow_unreachable=allow_unreachable,
        parallelism=parallelism,
        rollback_serial=earlier_serial(workspace, serial),
    )
    limits = limits_of(max_blast_radius)
    asked = ApplyRequest("rollback", request, limits, assume_yes=yes, fail_fast=fail_fast, lock_timeout_s=lock_timeout)
    return run_apply(workspace, asked, format=format.value)


def run_apply(workspace: Workspace, request: ApplyRequest, *, format: str) -> int:  # noqa: A002 - the option's name
    """Plan, show, ask, carry out, tell: what `apply`, `destroy`, `rollback` and `host forget` share. The exit code."""
    from sbctl.cli.applying import apply as carry_out
    from sbctl.cli.fleet_setup import interactive
    from sbctl.views.apply_text import print_apply_result
    from sbctl.views.console import ask_yes, note
    from sbctl.views.live import event_view
    from sbctl.views.plan import print_plan, talk_plan

    def show(plan: Plan) -> None:
        if format == "text":
            print_plan(plan, request.limits)
        elif format != "json":
            talk_plan(plan, request.limits)

    def confirm(plan: Plan) -> bool:
        return interactive() and ask_yes(_question(plan))

    with event_view(as_json=format == "json") as sink:
        _plan, result = carry_out(workspace, request, show=show, confirm=confirm, sink=sink)
    if result is None:
        if format != "text":
            print_apply_result(None, format=format)
        return ExitCode.DONE
    print_apply_result(result, format=format)
    if result.exit_code in (ExitCode.DONE, ExitCode.DEGRADED) and request.command != "destroy" and format == "text":
        note(
            "how to use what runs: sbctl output" + ("" if workspace.file == Path("sb.yml") else f" -f {workspace.file}")
        )
    sys.stdout.flush()
    return result.exit_code


def _question(plan: Plan) -> str:
    from sbctl.base.display import plural

    count = len(plan.counted)
    verb = {"destroy": "Remove all of this", "rollback": "Roll back"}.get(plan.mode, "Apply")
    return f"{verb}? {plural(count, 'change')}, blast radius {plan.blast_radius} (yes/no) "
