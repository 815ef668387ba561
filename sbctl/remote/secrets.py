"""Where logins get the secrets that they ask for; who has a terminal or sb.yml gives them."""

from __future__ import annotations

from collections.abc import Callable

from sbctl.base.errors import InputError
from sbctl.base.secret import Secret

__all__ = ["SecretSource", "no_secrets", "passphrase_question", "sudo_question"]

SecretSource = Callable[[str, str], Secret]
"""The value of a reference (`env:…`, `file:…`, `exec:…`, `prompt`); the second argument says to a person what is wanted."""


def no_secrets(reference: str, what: str) -> Secret:
    """For who has none to give. Raises InputError `ssh.secret_unavailable`."""
    raise InputError(
        "ssh.secret_unavailable", f"{what} cannot be asked for here", place=reference, next_step="use a key without one"
    )


def sudo_question(user: str) -> str:
    """How a person is asked for the password that sudo wants."""
    return f"the sudo password of {user}"


def passphrase_question(identity_file: str) -> str:
    """How a person is asked for what opens a key file."""
    return f"the passphrase of {identity_file}"
