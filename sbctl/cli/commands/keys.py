"""`key list|add`: who may sign what should run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbctl.base.errors import ExitCode, InputError, RefusedError, UsageError
from sbctl.cli.options import File, Format, LockTimeout, OutputFormat

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_(file: File = Path("sb.yml"), format: Format = OutputFormat.TEXT) -> int:  # noqa: A002
    """The fleet's signers, and whether this machine's key is one."""
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import print_json, result
    from sbctl.views.state_views import key_list_body, key_list_text

    workspace = Workspace(file)
    if workspace.file.exists():
        signers, epoch = dict(workspace.config.signers or {}), workspace.config.key_epoch
    else:
        state = workspace.require_state()
        signers, epoch = dict(state.signers), state.key_epoch
    mine = workspace.signing_key.public_text if workspace.signing_key is not None else None
    if format is OutputFormat.JSON:
        print_json("key.list", key_list_body(signers, key_epoch=epoch, mine=mine))
    else:
        result(key_list_text(signers, key_epoch=epoch, mine=mine))
    return ExitCode.DONE


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="How plans and hosts call this signer.")],
    public_key: Annotated[str | None, typer.Argument(metavar="[ed25519:…]", help="Their public key.")] = None,
    generate: Annotated[
        bool, typer.Option("--generate", help="Make this machine's key and print its public half.")
    ] = False,
    file: File = Path("sb.yml"),
    lock_timeout: LockTimeout = 0.0,
) -> int:
    """List another signer; the next apply takes the set to every host. With --generate: make a key here, to be listed by others."""
    from sbctl.base.ids import is_id
    from sbctl.cli.fleet_setup import held_state
    from sbctl.cli.signing import default_key_path, require_member
    from sbctl.cli.workspace import Workspace
    from sbctl.state.operator import run_info
    from sbctl.trust.keys import SigningKey, parse_public_key, save_key_file
    from sbctl.views.console import note, print_plain

    if generate == (public_key is not None):
        raise UsageError("usage", "give the signer's public key, or --generate to make one on this machine")
    if not is_id(name):
        raise InputError(
            "key.name", f'"{name}" is not a name', next_step="use letters, digits, dot, dash and underscore"
        )
    if generate:
        key = SigningKey.generate()
        save_key_file(default_key_path(), key)
        note(f"made {default_key_path()}; a listed signer runs:")
        print_plain(f"sbctl key add {name} {key.public_text}\n")
        return ExitCode.DONE
    text = parse_public_key(str(public_key)).text
    workspace = Workspace(file)
    with held_state(workspace, "sbctl key add", lock_timeout):
        state = workspace.require_state()
        if workspace.file.exists() and workspace.loaded.signers is not None:
            note("sb.yml lists the signers; add this line there:")
            print_plain(f'      {name}: "{text}"\n')
            return ExitCode.DONE
        if workspace.signing_key is None:
            raise RefusedError(
                "key.none", "this machine has no signing key", next_step="run it where a listed signer's key is"
            )
        require_member(workspace.signing_key, state.signers)
        signers = dict(state.signers)
        if signers.get(name) == text:
            note(f"{name} is listed already")
            return ExitCode.DONE
        if name in signers:
            raise RefusedError("key.name_taken", f'another key is listed as "{name}"', next_step="choose another name")
        workspace.store.set_trust(
            {**signers, name: text}, state.key_epoch + 1, run_info("key add", workspace.environ, workspace.directory)
        )
    note(f"listed {name}; sbctl apply takes the set to every host")
    return ExitCode.DONE
