"""`state mv|migrate|rekey|recipient`: other names, other places, other keys for the recorded truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sbctl.base.errors import ExitCode, InputError
from sbctl.cli.options import File, LockTimeout

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("mv")(move)
    app.command()(migrate)
    app.command()(rekey)
    app.command()(recipient)


def move(
    old: Annotated[str, typer.Argument(help="deployment.HOST/NAME, as `state list` shows it.")],
    new: Annotated[str, typer.Argument(help="The new address, on the same host.")],
    file: File = Path("sb.yml"),
    lock_timeout: LockTimeout = 0.0,
) -> int:
    """Rename a deployment in the record. The next plan shows what that means on its host."""
    from sbctl.base.ids import Address
    from sbctl.cli.fleet_setup import held_state
    from sbctl.cli.workspace import Workspace
    from sbctl.state.operator import run_info
    from sbctl.views.console import note

    workspace = Workspace(file)
    source, target = Address.parse(old), Address.parse(new)
    with held_state(workspace, "sbctl state mv", lock_timeout):
        workspace.require_state()
        workspace.store.rename(source, target, run_info("state mv", workspace.environ, workspace.directory))
    note(f"{source} is {target} now; name it so in sb.yml, then plan")
    return ExitCode.DONE


def migrate(file: File = Path("sb.yml"), lock_timeout: LockTimeout = 0.0) -> int:
    """Bring the state to the place that fleet.state names now. The copy is verified first; where it was, it stays, marked as moved."""
    from sbctl.cli.state_moving import migrate as carry_out
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note

    place = carry_out(Workspace(file), lock_timeout_s=lock_timeout)
    note(f"the state is kept at {place} now; commit sb.yml, so that everybody goes there")
    return ExitCode.DONE


def rekey(
    file: File = Path("sb.yml"),
    old_passphrase: Annotated[
        str | None, typer.Option("--old-passphrase", metavar="REFERENCE", help="What opened it before, e.g. env:OLD.")
    ] = None,
    old_identity: Annotated[
        str | None,
        typer.Option("--old-identity", metavar="REFERENCE", help="What opened it before, e.g. file:old.key."),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="End the encryption: sb.yml asks for none any more.")] = False,
    lock_timeout: LockTimeout = 0.0,
) -> int:
    """Write the shared state anew for whom fleet.state.encryption names now. Copies that others kept stay readable to them."""
    from sbctl.cli.state_moving import rekey as carry_out
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note

    settings = carry_out(
        Workspace(file),
        old_passphrase=old_passphrase,
        old_identity=old_identity,
        plain=plain,
        lock_timeout_s=lock_timeout,
    )
    wanted = settings.encryption
    if wanted is None:
        note("the shared state is in clear now")
    else:
        by = [*wanted.recipients, *(["the passphrase"] if wanted.passphrase else [])]
        note(f"the shared state is encrypted now; it opens with: {', '.join(by)}")
    return ExitCode.DONE


def recipient(
    generate: Annotated[
        bool, typer.Option("--generate", help="Make this machine's key for encrypted states first.")
    ] = False,
) -> int:
    """Print this machine's recipient (sbx1…): what others list under fleet.state.encryption so that this machine can read the state."""
    import os

    from sbctl.cli.sharing import default_identity_path, own_identity
    from sbctl.trust.keys import save_private_file
    from sbctl.trust.sealing import Identity
    from sbctl.views.console import note, print_plain

    if generate:
        identity = Identity.generate()
        save_private_file(default_identity_path(), identity.to_text())
        note(
            f"made {default_identity_path()} (keep a copy: without it, and without another recipient, the state cannot be read)"
        )
    else:
        found = own_identity(os.environ)
        if found is None:
            raise InputError(
                "identity.none",
                "this machine has no key for encrypted states",
                place=str(default_identity_path()),
                next_step="sbctl state recipient --generate",
            )
        identity = found
    print_plain(f"{identity.recipient}\n")
    return ExitCode.DONE
