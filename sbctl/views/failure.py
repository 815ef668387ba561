"""How a command says on stderr that it did not work; where stdout was asked for in a form for machines, the error is the result too."""

from __future__ import annotations

import traceback

from rich.text import Text

from sbctl.base.errors import SbctlError, UsageError
from sbctl.base.secret import redact
from sbctl.views.console import print_json, talk
from sbctl.views.diagnostics import error_document, error_text
from sbctl.views.layout import safe

__all__ = ["CI_FORMATS", "print_bug", "print_failure", "print_usage_error"]

_FRAMES_MAX = 6
CI_FORMATS = ("github", "junit")
"""Loaded only where one of them was asked for."""


def print_failure(error: SbctlError, *, format: str = "text", command: str = "") -> None:  # noqa: A002 - the option's name
    """Say what went wrong, where, and what to do next. In the forms for CI systems people read stderr as well."""
    if format == "json" and error.code != "output.failed":
        print_json(command, error_document(error))
        return
    talk(error_text(error))
    if format in CI_FORMATS and error.code != "output.failed":
        from sbctl.views.ci_cases import failure_report
        from sbctl.views.ci_formats import print_report

        print_report(failure_report(error, command), format=format)


def print_usage_error(message: str, command_path: str, *, format: str = "text") -> None:  # noqa: A002
    """A wrong command line."""
    if format == "json":
        usage = UsageError("usage", message, next_step=f"{command_path} --help")
        print_failure(usage, format=format, command=".".join(command_path.split()[1:]))
        return
    text = Text("error[usage]", style="bold red")
    text.append(f": {safe(message)}\n", style="bold")
    text.append(f"   = {safe(command_path)} --help")
    talk(text)


def print_bug(error: BaseException) -> None:
    """An error that sbctl did not expect: its kind and its places in our code, without values of variables."""
    frames = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    text = Text("error[bug]", style="bold red")
    text.append(f": {safe(redact(f'{type(error).__name__}: {error}'), max_chars=400)}\n", style="bold")
    for frame in frames[-_FRAMES_MAX:]:
        text.append(f"  at {safe(frame)}\n", style="dim")
    text.append("   = this is a fault of sbctl itself; please report it with the lines above")
    talk(text)
