"""`host drain|resume|forget`: a host out of service and back, given up, taken in again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbctl.base.errors import ExitCode, HostError, UsageError
from sbctl.cli.options import File, Format, LockTimeout, OutputFormat, Yes

__all__ = ["register"]

Name = Annotated[str, typer.Argument(metavar="NAME", help="The host, as sb.yml calls it.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(drain)
    app.command()(resume)
    app.command()(forget)


def drain(
    name: Name,
    deadline: Annotated[
        float, typer.Option("--deadline", min=0, max=86_400, metavar="SECONDS", help="How long to wait for what runs.")
    ] = 60.0,
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002 - the option's name
) -> int:
    """Take a host out of service until `host resume`: new requests get 503, those that run finish. It holds over restarts. A worker of a cluster
    is evacuated instead, without an outage, as by `cluster evacuate`."""
    from sbctl.cli.host_life import drain as carry_out
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note, print_json

    drained = carry_out(Workspace(file), name, deadline_s=deadline)
    if format is OutputFormat.JSON:
        body = {
            "host": name,
            "running": drained.running,
            "active_requests": drained.active_requests,
            "evacuated": drained.evacuated,
        }
        print_json("host.drain", body)
    if not drained.finished:
        raise HostError(
            "host.drain_unfinished",
            f"{name} takes no new requests, and {drained.active_requests} still run after {deadline:g} s",
            place=f"host.{name}",
            next_step=f"wait longer (sbctl host drain {name} --deadline SECONDS), or go on: they are cut when it stops",
        )
    runs = "nothing runs on it" if drained.running else "no runtime runs on it"
    note(f"{name} is out of service, {runs}; back by: sbctl host resume {name}")
    return ExitCode.DONE


def resume(
    name: Name,
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Take a host that was drained into service again."""
    from sbctl.cli.host_life import resume as carry_out
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note, print_json

    was_drained = carry_out(Workspace(file), name)
    if format is OutputFormat.JSON:
        print_json("host.resume", {"host": name, "was_drained": was_drained})
    note(f"{name} is in service again" if was_drained else f"{name} was in service already")
    return ExitCode.DONE


def forget(
    name: Name,
    lost: Annotated[
        bool, typer.Option("--lost", help="Nobody can reach it: forget it without asking it, and revoke its identity.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take in again what was given up as lost.")] = False,
    why: Annotated[str, typer.Option("--why", help="For whoever reads the history.")] = "",
    file: File = Path("sb.yml"),
    yes: Yes = False,
    format: Format = OutputFormat.TEXT,  # noqa: A002
    lock_timeout: LockTimeout = 0.0,
) -> int:
    """Give a host up. Without --lost everything of ours is removed from it first, over SSH."""
    if lost and undo:
        raise UsageError("usage", "--lost gives a host up, --undo takes it in again: choose one")
    if undo:
        return _take_in_again(name, file, format, lock_timeout)
    return (
        _lost(name, why, file, yes, format, lock_timeout) if lost else _removed(name, file, yes, format, lock_timeout)
    )


def _lost(name: str, why: str, file: Path, yes: bool, format: OutputFormat, lock_timeout: float) -> int:  # noqa: A002
    from sbctl.base.display import plural
    from sbctl.cli.host_life import give_up_lost
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note, print_json

    gone = give_up_lost(Workspace(file), name, why=why[:1000], assume_yes=yes, lock_timeout_s=lock_timeout)
    if format is OutputFormat.JSON:
        print_json("host.forget", {"host": name, "lost": True, "resources": [str(one.address) for one in gone]})
    note(f"{name} is forgotten with {plural(len(gone), 'resource')}; take it out of sb.yml")
    if any(one.address.kind == "certificate" for one in gone):
        note("its identity is revoked; the next apply tells the other hosts")
    note(
        f"nobody told the machine: should it come back, it runs what it ran until it is taken in again (sbctl host forget {name} --undo, then apply)"
    )
    return ExitCode.DONE


def _take_in_again(name: str, file: Path, format: OutputFormat, lock_timeout: float) -> int:  # noqa: A002
    from sbctl.cli.host_life import take_in_again
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note, print_json

    take_in_again(Workspace(file), name, lock_timeout_s=lock_timeout)
    if format is OutputFormat.JSON:
        print_json("host.forget", {"host": name, "undone": True})
    note(f"{name} may come back: list it in sb.yml and apply, which installs it anew")
    return ExitCode.DONE


def _removed(name: str, file: Path, yes: bool, format: OutputFormat, lock_timeout: float) -> int:  # noqa: A002
    from sbctl.cli.applying import ApplyRequest
    from sbctl.cli.commands.applying import run_apply
    from sbctl.cli.host_life import recorded_on
    from sbctl.cli.planning import PlanRequest
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note

    workspace = Workspace(file)
    targets = tuple(sorted(str(one.address) for one in recorded_on(workspace, name)))
    request = PlanRequest(mode="destroy", targets=targets)
    asked = ApplyRequest("destroy", request, assume_yes=yes, lock_timeout_s=lock_timeout)
    code = run_apply(workspace, asked, format=format.value)
    if code == ExitCode.DONE:
        note(f"nothing of ours is left on {name}; the next apply takes it in again unless it is taken out of sb.yml")
    return code
