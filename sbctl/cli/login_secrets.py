"""What logins ask a person for: sudo's password, the passphrase of a key. Asked once a command, before the first host is.

A reference other than `prompt` is read where it points; `prompt` needs a terminal, and nothing ever waits for one that is not there.
"""

from __future__ import annotations

import getpass
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from sbctl.base.connection import Connection
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.secret import Secret
from sbctl.config.secrets import SecretSources
from sbctl.remote.secrets import passphrase_question, sudo_question

__all__ = ["LoginSecrets", "has_terminal"]

PROMPT: Final = "prompt"


def has_terminal(environ: Mapping[str, str]) -> bool:
    """Whether somebody can be asked."""
    return not environ.get("CI") and sys.stdin.isatty() and sys.stderr.isatty()


def _ask(question: str) -> str:
    return getpass.getpass(f"{question}: ", stream=sys.stderr)


class LoginSecrets:
    """A `SecretSource` for one command. Threads: any."""

    def __init__(
        self,
        directory: Path,
        environ: Mapping[str, str],
        *,
        ask: Callable[[str], str] = _ask,
        can_ask: Callable[[Mapping[str, str]], bool] = has_terminal,
    ) -> None:
        self._sources = SecretSources(directory, environ)
        self._environ = environ
        self._ask = ask
        self._can_ask = can_ask
        self._known: dict[tuple[str, str], Secret] = {}
        self._lock = threading.Lock()

    def __call__(self, reference: str, what: str) -> Secret:
        """Raises InputError `secret.*` naming the reference, never the value; RefusedError `secret.no_terminal`."""
        with self._lock:
            key = (reference, what if reference == PROMPT else "")
            if key not in self._known:
                value = self._asked(what) if reference == PROMPT else self._sources.read(reference)
                if b"\n" in value.reveal():
                    raise InputError(
                        "secret.bad_value",
                        f"{what} has more than one line",
                        place=reference,
                        next_step="let the reference lead to the one line that is to be typed in",
                    )
                self._known[key] = value
            return self._known[key]

    def prepared(self, connections: Iterable[Connection]) -> LoginSecrets:
        """Itself, once everything that `connections` would ask a person for was asked. Raises as a call."""
        for connection in connections:
            if connection.become_password == PROMPT:
                self(PROMPT, sudo_question(connection.user))
            for hop in connection.path(""):
                if hop.passphrase == PROMPT:
                    self(PROMPT, passphrase_question(hop.identity_file))
        return self

    def _asked(self, what: str) -> Secret:
        if not self._can_ask(self._environ):
            raise RefusedError(
                "secret.no_terminal",
                f"{what} is to be asked for, and there is no terminal to ask at",
                place=PROMPT,
                next_step="name a reference (env:, file:, exec:, secret:) instead of prompt",
            )
        try:
            value = self._ask(what)
        except EOFError:
            value = ""
        if not value:
            raise InputError(
                "secret.empty",
                f"{what}: nothing was given",
                place=PROMPT,
                next_step="run the command again and type it in, or name a reference instead of prompt",
            )
        return Secret(value.encode())
