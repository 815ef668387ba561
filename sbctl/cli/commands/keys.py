"""`key list|add|rotate|remove`: who may sign what should run."""

from __future__ import annotations

import os
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
        config = workspace.with_signers(workspace.loaded)
        signers, epoch = dict(config.signers or {}), config.key_epoch
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
    """List another signer; the next apply takes the set to every host. With --generate: make a key here, to be listed by others.

    It is made where this machine's key is looked for: SBCTL_SIGNING_KEY_FILE, else ~/.config/sbctl/keys/operator.key.
    """
    from sbctl.base.ids import is_id

    if generate == (public_key is not None):
        raise UsageError("usage", "give the signer's public key, or --generate to make one on this machine")
    if not is_id(name):
        raise InputError(
            "key.name", f'"{name}" is not a name', next_step="use letters, digits, dot, dash and underscore"
        )
    if generate:
        _make_key(name)
    else:
        _list_signer(file, name, str(public_key), lock_timeout)
    return ExitCode.DONE


def _make_key(name: str) -> None:
    from sbctl.cli.signing import key_path, passphrase_of
    from sbctl.trust.keys import SigningKey, save_key_file
    from sbctl.views.console import note, print_plain

    key = SigningKey.generate()
    path = key_path(os.environ)
    save_key_file(path, key, passphrase_of(os.environ))
    note(f"made {path}; a listed signer runs:")
    print_plain(f"sbctl key add {name} {key.public_text}\n")


def _list_signer(file: Path, name: str, public_key: str, lock_timeout: float) -> None:
    from sbctl.cli.fleet_setup import held_state
    from sbctl.cli.key_changes import with_listed
    from sbctl.cli.workspace import Workspace
    from sbctl.state.operator import run_info
    from sbctl.trust.keys import parse_public_key
    from sbctl.views.console import note, print_plain

    text = parse_public_key(public_key).text
    workspace = Workspace(file)
    with held_state(workspace, "sbctl key add", lock_timeout):
        state = workspace.require_state()
        if workspace.file.exists() and workspace.loaded.signers is not None:
            note("sb.yml lists the signers; add this line there:")
            print_plain(f'      {name}: "{text}"\n')
            return
        signers = with_listed(state.signers, name, text, workspace.signing_key)
        if signers == state.signers:
            note(f"{name} is listed already")
            return
        workspace.store.set_trust(
            signers, state.key_epoch + 1, run_info("key add", workspace.environ, workspace.directory)
        )
    note(f"listed {name}; sbctl apply takes the set to every host")


@app.command()
def rotate(file: File = Path("sb.yml"), lock_timeout: LockTimeout = 0.0) -> int:
    """Make a new key for this machine and list it beside the old one. Then: apply, and `key remove NAME.retiring`."""
    from sbctl.cli.fleet_setup import held_state
    from sbctl.cli.key_changes import RETIRING, key_place, with_rotated
    from sbctl.cli.signing import require_member
    from sbctl.cli.workspace import Workspace
    from sbctl.state.operator import run_info
    from sbctl.trust.keys import load_key_file
    from sbctl.views.console import note, print_plain

    workspace = Workspace(file)
    place = key_place(workspace.environ)
    own = load_key_file(place.path, place.passphrase)
    with held_state(workspace, "sbctl key rotate", lock_timeout):
        state = workspace.require_state()
        declared = workspace.loaded.signers if workspace.file.exists() else None
        listed_now = declared if declared is not None else state.signers
        require_member(own, listed_now)
        name, signers = with_rotated(listed_now, own, place.make_successor())
        if declared is not None:
            note("sb.yml lists the signers; these two lines take the place of the one for this key:")
            for listed in (name, f"{name}{RETIRING}"):
                print_plain(f'      {listed}: "{signers[listed]}"\n')
        elif signers != dict(state.signers):
            info = run_info("key rotate", workspace.environ, workspace.directory)
            workspace.store.set_trust(signers, state.key_epoch + 1, info)
    note(f"made {place.next_path}; now: sbctl apply, then sbctl key remove {name}{RETIRING}")
    return ExitCode.DONE


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="A signer of `key list`.")],
    file: File = Path("sb.yml"),
    lock_timeout: LockTimeout = 0.0,
) -> int:
    """Take a signer out of the set; the next apply takes the set to every host. Of a rotation, the new key takes the old one's place."""
    from sbctl.cli.fleet_setup import held_state
    from sbctl.cli.key_changes import key_place, refuse_unknown_to_hosts, without
    from sbctl.cli.workspace import Workspace
    from sbctl.state.operator import run_info
    from sbctl.views.console import note

    workspace = Workspace(file)
    with held_state(workspace, "sbctl key remove", lock_timeout):
        state = workspace.require_state()
        own = workspace.signing_key
        if own is None:
            raise RefusedError(
                "key.none", "this machine has no signing key", next_step="run it where a listed signer's key is"
            )
        place = None if workspace.environ.get("SBCTL_SIGNING_KEY") else key_place(workspace.environ)
        successor = place.successor() if place is not None else None
        declared = workspace.loaded.signers if workspace.file.exists() else None
        signer, signers = without(declared if declared is not None else state.signers, name, own, successor)
        refuse_unknown_to_hosts(state, signer)
        if signer is not own and place is not None:
            # Before the set: a run that ends here leaves a key that is listed.
            place.promote(signer)
            note(f"{place.path} is the new key now; the old one is gone")
        if declared is not None:
            note(f'sb.yml lists the signers; take the line of "{name}" out of fleet.trust.signers')
        else:
            info = run_info("key remove", workspace.environ, workspace.directory)
            workspace.store.set_trust(signers, state.key_epoch + 1, info)
    note(f"{name} is not listed any more; sbctl apply takes the set to every host")
    return ExitCode.DONE
