"""`state list|show|history|pull|push|rm|import|unlock`: the recorded truth. Beside it `state_sharing`: mv, migrate, rekey, recipient."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbctl.base.errors import ExitCode, InputError
from sbctl.cli.commands.state_sharing import register
from sbctl.cli.options import File, Format, LockTimeout, OutputFormat, Yes

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
register(app)


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
def pull(
    file: File = Path("sb.yml"),
    local: Annotated[
        bool, typer.Option("--local", help="What this checkout has, without asking where the state is shared.")
    ] = False,
    decrypt: Annotated[
        bool, typer.Option("--decrypt", help="Print it in clear although fleet.state.encryption is set.")
    ] = False,
) -> int:
    """Print the recorded truth as one document (state.v1). It holds no secrets; with fleet.state.encryption it is encrypted."""
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import print_plain

    workspace = Workspace(file, offline=local)
    workspace.require_state()
    document = workspace.store.export()
    if not decrypt:
        from sbctl.cli.sharing import declared_settings, vault_of

        document = vault_of(workspace, declared_settings(workspace).encryption).dump(document)
    print_plain(document.decode())
    return ExitCode.DONE


@app.command()
def push(
    document: Annotated[
        Path, typer.Argument(help="A document that `state pull` printed, or errored.json; - for stdin.")
    ],
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
    from sbctl.cli.state_moving import push as take_in
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note

    if str(document) == "-":
        data, place = sys.stdin.buffer.read(STATE_DOCUMENT_MAX_BYTES + 1), "standard input"
    else:
        data, place = read_bounded(document, max_bytes=STATE_DOCUMENT_MAX_BYTES), str(document)
    serial = take_in(Workspace(file), data, place=place, force=force, lock_timeout_s=lock_timeout)
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
def unlock(
    lock_id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Of a shared lock, as the refusal named it: take it from a dead run."),
    ] = None,
    file: File = Path("sb.yml"),
) -> int:
    """Say who holds the state. A local lock is the kernel's, and free when its holder is gone; a shared one is taken from a dead run by its ID."""
    from sbctl.base.clock import rfc3339
    from sbctl.base.errors import LockedError
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note

    workspace = Workspace(file)
    holder = workspace.store.holder()
    if holder is not None:
        raise LockedError(
            "state.locked",
            f"{holder.who} holds the state since {rfc3339(holder.since)} (process {holder.pid}: {holder.command})",
            next_step=f"wait for it, or stop process {holder.pid} on that machine: the kernel then frees the lock by itself",
        )
    if workspace.sharing is None:
        if lock_id is not None:
            raise InputError(
                "state.unlock", "the state is local: there is no lock to take", next_step="sbctl state unlock"
            )
        note("nobody holds the state")
    elif lock_id is None:
        workspace.sharing.probe_lock("sbctl state unlock")
        note("nobody holds the shared state")
    else:
        workspace.sharing.break_lock(lock_id)
        note("the shared lock is free; the next plan reads the hosts before anything is changed")
    return ExitCode.DONE
