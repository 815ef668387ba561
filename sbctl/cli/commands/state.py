"""`state list|show|history|pull|push|rm|import|unlock`: the recorded truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbctl.base.errors import ExitCode, InputError
from sbctl.cli.options import File, Format, LockTimeout, OutputFormat, Yes

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_(file: File = Path("sb.yml"), format: Format = OutputFormat.TEXT) -> int:  # noqa: A002
    """Every recorded resource."""
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import print_json, result
    from sbctl.views.state_views import state_list_body, state_list_text

    state = Workspace(file).require_state()
    if format is OutputFormat.JSON:
        print_json("state.list", state_list_body(state))
    else:
        result(state_list_text(state))
    return ExitCode.DONE


@app.command()
def show(
    address: Annotated[str, typer.Argument(help="e.g. engine.gpu-a/llama_cpp")],
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """What is recorded of one resource."""
    from sbctl.base.ids import Address
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import line_width, print_json, result
    from sbctl.views.state_views import recorded_body, recorded_text

    state = Workspace(file).require_state()
    recorded = state.resources.get(Address.parse(address))
    if recorded is None:
        raise InputError("state.no_resource", f"the state has no {address}", next_step="sbctl state list names them")
    if format is OutputFormat.JSON:
        print_json("state.show", recorded_body(recorded))
    else:
        result(recorded_text(recorded, width=line_width()))
    return ExitCode.DONE


@app.command()
def history(file: File = Path("sb.yml"), format: Format = OutputFormat.TEXT) -> int:  # noqa: A002
    """Every serial: what was run, by whom, from which commit, how it ended."""
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import print_json, result
    from sbctl.views.state_views import history_body, history_text

    workspace = Workspace(file)
    workspace.require_state()
    runs = workspace.store.history()
    if format is OutputFormat.JSON:
        print_json("state.history", history_body(runs))
    else:
        result(history_text(runs))
    return ExitCode.DONE


@app.command()
def pull(file: File = Path("sb.yml")) -> int:
    """Print the recorded truth as one document (state.v1); it holds no secrets."""
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import print_plain

    workspace = Workspace(file)
    workspace.require_state()
    print_plain(workspace.store.export().decode())
    return ExitCode.DONE


@app.command()
def push(
    document: Annotated[Path, typer.Argument(help="A document that `state pull` printed; - for stdin.")],
    file: File = Path("sb.yml"),
    force: Annotated[
        bool, typer.Option("--force", help="Also an older or foreign document, or over a damaged state.")
    ] = False,
    lock_timeout: LockTimeout = 0.0,
) -> int:
    """Take a document in as the recorded truth. A foreign, older or emptied one is refused by name unless forced."""
    import sys

    from sbctl.base.fs import read_bounded
    from sbctl.base.limits import STATE_DOCUMENT_MAX_BYTES
    from sbctl.cli.fleet_setup import held_state
    from sbctl.cli.workspace import Workspace
    from sbctl.state.operator import run_info
    from sbctl.views.console import note

    workspace = Workspace(file)
    if str(document) == "-":
        data = sys.stdin.buffer.read(STATE_DOCUMENT_MAX_BYTES + 1)
    else:
        data = read_bounded(document, max_bytes=STATE_DOCUMENT_MAX_BYTES)
    with held_state(workspace, "sbctl state push", lock_timeout):
        serial = workspace.store.import_document(
            data, force=force, info=run_info("state push", workspace.environ, workspace.directory)
        )
    note(f"the state is at serial {serial}")
    return ExitCode.DONE


@app.command("rm")
def remove(
    address: Annotated[str, typer.Argument(help="e.g. artifact.gpu-a/qwen3-8b:q4_k_m")],
    file: File = Path("sb.yml"),
    yes: Yes = False,
    lock_timeout: LockTimeout = 0.0,
) -> int:
    """Forget a resource without touching its host; the next plan adopts or removes nothing of it."""
    from sbctl.base.ids import Address
    from sbctl.cli.fleet_setup import held_state, require_yes
    from sbctl.cli.workspace import Workspace
    from sbctl.state.operator import run_info
    from sbctl.views.console import note

    workspace = Workspace(file)
    target = Address.parse(address)
    with held_state(workspace, "sbctl state rm", lock_timeout):
        workspace.require_state()
        require_yes(f"Forget {target}? What is on the host stays there. (yes/no) ", assume_yes=yes)
        workspace.store.remove(target, run_info("state rm", workspace.environ, workspace.directory))
    note(f"forgot {target}")
    return ExitCode.DONE


@app.command("import")
def import_(
    address: Annotated[str, typer.Argument(help="A resource of sb.yml that its host already has.")],
    file: File = Path("sb.yml"),
    lock_timeout: LockTimeout = 0.0,
) -> int:
    """Record a resource that its host already has, as sb.yml describes it; refused unless the host shows exactly that."""
    from sbctl.base.ids import Address
    from sbctl.cli.adopting import adopt
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note

    adopt(Workspace(file), Address.parse(address), lock_timeout_s=lock_timeout)
    note(f"recorded {address}")
    return ExitCode.DONE


@app.command()
def unlock(file: File = Path("sb.yml")) -> int:
    """Say who holds the state. A local lock belongs to the kernel: it is free the moment its holder is gone."""
    from sbctl.base.clock import rfc3339
    from sbctl.base.errors import LockedError
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note

    holder = Workspace(file).store.holder()
    if holder is None:
        note("nobody holds the state")
        return ExitCode.DONE
    raise LockedError(
        "state.locked",
        f"{holder.who} holds the state since {rfc3339(holder.since)} (process {holder.pid}: {holder.command})",
        next_step=f"wait for it, or stop process {holder.pid} on that machine: the kernel then frees the lock by itself",
    )
