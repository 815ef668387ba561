"""The one owner of stdout and stderr.

stdout carries the result, stderr the talk: progress, notes, failures. Colour only on a terminal and without NO_COLOR. Lines are laid out
for the terminal's width, 80 without one, COLUMNS when set. A reader that went away (`| head -1`) ends output quietly and nothing else: a
running apply goes on to its safe point. A result that cannot be written is a failure. An encoding that lacks our signs gets plain ones.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from sbctl.base.display import display_safe
from sbctl.base.errors import SbctlError
from sbctl.base.strict_json import dump_pretty

__all__ = [
    "SCHEMA_VERSION",
    "ask_yes",
    "complain_plain",
    "envelope",
    "line_width",
    "note",
    "print_json",
    "print_json_line",
    "print_plain",
    "reader_left",
    "result",
    "stderr_console",
    "talk",
]

SCHEMA_VERSION: Final = 1
"""Of every JSON result on stdout."""

_left = False
_MIN_WIDTH: Final = 40
_MAX_WIDTH: Final = 110
_PLAIN_SIGNS: Final = str.maketrans(
    {"→": "->", "·": "-", "…": "...", "—": "-", "–": "-", "✓": "ok", "✗": "x", "│": "|", "“": '"', "”": '"'}
)


def result(renderable: RenderableType) -> None:
    """Print a command's result on stdout."""
    _print(renderable, sys.stdout)


def talk(renderable: RenderableType) -> None:
    """Print on stderr what is not the result."""
    _print(renderable, sys.stderr)


def note(text: str) -> None:
    """One line on stderr; foreign parts are made safe."""
    talk(Text(display_safe(text)))


def print_json(command: str, body: Mapping[str, Any]) -> None:
    """Print a command's result as JSON on stdout; what a terminal would obey, or the encoding lacks, is escaped as JSON does."""
    _write(_json_safe(dump_pretty(envelope(command, body)), sys.stdout), sys.stdout)


def print_json_line(document: Mapping[str, Any]) -> None:
    """Print one JSON object on a line of its own on stdout: an answer of many, or of a stream that has no end."""
    line = json.dumps(dict(document), ensure_ascii=False, separators=(",", ":"))
    _write(_json_safe(line, sys.stdout) + "\n", sys.stdout)


def print_plain(text: str) -> None:
    """Print finished text on stdout as it is: markdown, schemas, documents."""
    _write(text, sys.stdout)


def complain_plain(text: str) -> None:
    """Print finished text on stderr as it is."""
    _write(text, sys.stderr)


def reader_left() -> bool:
    """Whether whoever read stdout went away: what has no end of its own ends then."""
    return _left


def ask_yes(question: str) -> bool:
    """Ask on stderr, read one line of stdin; only `yes` or `y` means yes. The caller has made sure that somebody is there."""
    _write(display_safe(question), sys.stderr)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def envelope(command: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Every JSON result: `schema_version` and `command` beside the body's own fields."""
    return {"schema_version": SCHEMA_VERSION, "command": command, **body}


def line_width(stream: TextIO | None = None) -> int:
    """Columns to lay a text out for, 40 to 110."""
    return max(_MIN_WIDTH, min(_MAX_WIDTH, _console(stream or sys.stdout).width))


def stderr_console() -> Console:
    """For live progress; writes to stderr as it is at the time of the call."""
    return _console(sys.stderr)


def _plain(stream: TextIO) -> bool:
    return bool(os.environ.get("NO_COLOR")) or not _is_terminal(stream)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:
        return False


def _console(stream: TextIO, file: TextIO | None = None) -> Console:
    return Console(
        file=file or stream,
        force_terminal=_is_terminal(stream),
        color_system=None if _plain(stream) else "auto",
        width=_width(stream),
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


def _width(stream: TextIO) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and 0 < int(columns) < 10_000:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _print(renderable: RenderableType, stream: TextIO) -> None:
    buffer = io.StringIO()
    _console(stream, buffer).print(renderable, soft_wrap=isinstance(renderable, (str, Text)))
    _write(buffer.getvalue(), stream)


def _json_safe(text: str, stream: TextIO) -> str:
    """Finished JSON with unsafe characters written as `\\uNNNN`; only strings of it can hold them, so it means the same."""
    if text.isascii():
        return text
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
        kept = frozenset(char for char in set(text) if char == "\n" or display_safe(char) == char)
    except UnicodeEncodeError:
        kept = frozenset(char for char in set(text) if char.isascii())
    return "".join(char if char in kept else json.dumps(char)[1:-1] for char in text)


def _write(text: str, stream: TextIO) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_PLAIN_SIGNS).encode(encoding, "backslashreplace").decode(encoding)
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        _silence(stream)
    except OSError as error:
        _silence(stream)
        if stream is sys.stdout:
            raise SbctlError(
                "output.failed",
                f"the result cannot be written: {error.strerror}",
                place="standard output",
                next_step="free space where it goes, then run the command again",
            ) from error
    except ValueError:
        # The stream was closed under us; there is nobody to tell.
        return


def _silence(stream: TextIO) -> None:
    """Later output, the interpreter's last flush too, goes nowhere."""
    global _left  # noqa: PLW0603 - the process has one stdout
    _left = _left or stream is sys.stdout
    try:
        sink = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(sink, stream.fileno())
        os.close(sink)
    except (OSError, ValueError):
        return
