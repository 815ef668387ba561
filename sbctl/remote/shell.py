"""The one place where a command line is put together for somebody else's shell."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from sbctl.base.errors import InputError

__all__ = ["command_line"]


def command_line(
    argv: Sequence[str], *, environment: Mapping[str, str] | None = None, before: Sequence[str] = ()
) -> str:
    """A line that any POSIX shell turns back into exactly `argv`, started in place of the shell.

    With `environment` the program sees these variables and no others; `before` is a command that starts it. Raises InputError `shell.refused` for an empty command, for NUL and
    line breaks (no honest value of ours has them, and not every login shell keeps them), and for a variable name that is none.
    """
    words = list(argv)
    if environment is not None:
        for name in environment:
            if not name.isidentifier() or not name.isascii():
                raise InputError("shell.refused", f'"{name[:64]}" is not the name of an environment variable')
        words = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in environment.items()), *words]
    words = [*before, *words]
    if not argv or not argv[0]:
        raise InputError("shell.refused", "there is no command to run")
    if any(char in word for word in words for char in "\0\n\r"):
        raise InputError("shell.refused", "a command for a host contains a line break or a NUL character")
    return "exec " + shlex.join(words)
