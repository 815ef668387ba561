"""`admin hash-password`: what `proxy.admin.operators` has in place of a password."""

from __future__ import annotations

import sys

import typer

from sbctl.base.errors import ExitCode, InputError

__all__ = ["app"]

_PASSWORD_MAX_BYTES = 1024

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Accounts of the admin API."""


@app.command("hash-password")
def hash_password() -> int:
    """Read a password, from the terminal or the first line of standard input, and print its scrypt hash for admin.operators."""
    import getpass

    from sbctl.base.scrypt import scrypt_hash
    from sbctl.views.console import print_plain

    if sys.stdin.isatty():
        password = getpass.getpass("Password: ")
        if password != getpass.getpass("Again: "):
            raise InputError("admin.passwords_differ", "the two passwords differ", next_step="run it again")
    else:
        password = sys.stdin.readline(_PASSWORD_MAX_BYTES + 2).rstrip("\r\n")
    if not password or len(password.encode()) > _PASSWORD_MAX_BYTES:
        raise InputError(
            "admin.bad_password",
            f"a password has 1 to {_PASSWORD_MAX_BYTES} bytes",
            next_step="type it when asked, or give it as the first line of standard input",
        )
    print_plain(scrypt_hash(password.encode()) + "\n")
    return ExitCode.DONE
