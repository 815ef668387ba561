"""A page of the documentation as a script: its ```console blocks are run in order in one shell-like session, its output compared.

What stands before a block in an HTML comment says how it runs (readers do not see it):

    <!-- run: exits 2 0 -->      the exit codes of its commands, in order; 0 when nothing is said
    <!-- run: parsed -->         not executed: each `sbctl` line only has to be one that the command line takes
    <!-- run: interrupted -->    the command serves until it is interrupted; Ctrl-C comes once it says it is ready
    <!-- file: NAME -->          a ```yaml block that is written to NAME

Output is compared loosely: numbers are any numbers, durations any durations, white space any white space, `…` any text, no output in the
page any output at all.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Block", "Command", "Session", "blocks_of", "sbctl_lines"]

_FENCE = re.compile(
    r"(?:<!-- (?P<note>(?:run|file): [^\n]*?) -->\n+)?^(?P<indent> *)```(?P<language>console|yaml)\n(?P<body>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_LONG = re.compile(r"\b(?:\d+ h )?\d+ m \d+ s\b")
"""A duration beyond a minute; on a busy machine any can be."""
_TIMEOUT_S = 280
_READY = "Ctrl-C stops it"


@dataclass(frozen=True)
class Command:
    """One `$ …` line with the output the page shows for it."""

    line: str
    shown: str
    exit_code: int


@dataclass(frozen=True)
class Block:
    """`number` is the line of the page where it begins."""

    number: int
    note: str
    language: str
    body: str

    @property
    def words(self) -> list[str]:
        return self.note.partition(":")[2].split()

    @property
    def is_run(self) -> bool:
        return self.language == "console" and "parsed" not in self.words

    @property
    def file(self) -> str | None:
        return self.words[0] if self.note.startswith("file:") else None

    def commands(self) -> Iterator[Command]:
        codes = [int(word) for word in self.words if word.isdigit()]
        parts = re.split(r"^\$ ", self.body, flags=re.MULTILINE)
        assert not parts[0].strip(), f"line {self.number}: output before the first command"
        for index, part in enumerate(parts[1:]):
            line, shown = _command_and_output(part)
            yield Command(line, shown, codes[index] if index < len(codes) else 0)


def _command_and_output(part: str) -> tuple[str, str]:
    lines = part.splitlines()
    last = 0
    while lines[last].endswith("\\"):
        last += 1
    return "\n".join(lines[: last + 1]), "\n".join(lines[last + 1 :]).strip()


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, match.start("language")) + 1, match["note"] or "", match["language"], match["body"])
        for match in _FENCE.finditer(text)
    ]


def sbctl_lines(page: Path) -> Iterator[tuple[int, list[str]]]:
    """Every `sbctl …` command line of the console blocks, as arguments without the program's name."""
    for block in blocks_of(page):
        if block.language == "console":
            for command in block.commands():
                for part in re.split(r"\s(?:&&|;|\||>+)\s", command.line.replace("\\\n", " ")):
                    words = shlex.split(part, comments=True)
                    words = words[next((at for at, word in enumerate(words) if "=" not in word), len(words)) :]
                    if words[:1] == ["sbctl"]:
                        yield block.number, words[1:]


def _pattern(shown: str) -> re.Pattern[str]:
    def loose(text: str) -> str:
        pieces = _NUMBER.split(text)
        return r"[\d.,]+".join(re.escape(piece) for piece in pieces)

    def line(text: str) -> str:
        return r"\s+".join(loose(word) for word in text.split())

    return re.compile(r"\s*" + r"(?:.*)".join(rf"\s*{line(part)}\s*" for part in shown.split("…")) + r"\s*", re.DOTALL)


class Session:
    """A directory, an environment and a place in the tree that commands share. Ports of the pages are moved to free ones."""

    def __init__(self, directory: Path, environ: Mapping[str, str], *, moved: Mapping[str, str]) -> None:
        self.directory = directory
        self.moved = dict(moved)
        self._environ = dict(environ)
        self._variables = directory / ".variables"
        self._variables.write_text("")
        self._where = directory

    def run_in(self, directory: str) -> None:
        """Go to a directory below the session's."""
        self._where = self.directory / directory

    def write(self, name: str, content: str) -> None:
        (self._where / name).write_text(content, encoding="utf-8")

    def run(self, command: Command, *, interrupted: bool = False) -> None:
        """Raises AssertionError when exit code or output is not what the page says."""
        self._move_files()
        code, output = self._execute(self._moved(command.line), interrupted=interrupted)
        for name, value in self.moved.items():
            output = output.replace(value, name)
        output = _LONG.sub("60 s", output)
        said = f"$ {command.line}\n{output}"
        assert code == command.exit_code, f"ended with {code}, the page says {command.exit_code}:\n{said}"
        if command.shown:
            assert _pattern(command.shown).fullmatch(output), f"the page shows\n{command.shown}\n--- but it is\n{said}"

    def _moved(self, text: str) -> str:
        for name, value in self.moved.items():
            text = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w)", value, text)
        return text

    def _move_files(self) -> None:
        for file in self.directory.rglob("sb*.yml"):
            text = file.read_text(encoding="utf-8")
            if (changed := self._moved(text)) != text:
                file.write_text(changed, encoding="utf-8")

    def _execute(self, line: str, *, interrupted: bool) -> tuple[int, str]:
        here, variables = shlex.quote(str(self._where)), shlex.quote(str(self._variables))
        script = f"set -a; . {variables}; cd {here} || exit 99\n{line}\ncode=$?; export -p >{variables}; pwd >{variables}.at; exit $code"
        log = self.directory / ".output"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                ["bash", "-c", line if interrupted else script],
                cwd=self._where,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                if interrupted:
                    self._interrupt_when_ready(process, log)
                code = process.wait(_TIMEOUT_S)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        if not interrupted:
            self._where = Path(Path(f"{self._variables}.at").read_text().strip())
        return code, log.read_text(encoding="utf-8", errors="replace")

    @staticmethod
    def _interrupt_when_ready(process: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while process.poll() is None and _READY not in log.read_text(encoding="utf-8", errors="replace"):
            assert time.monotonic() < deadline, f"it never said {_READY!r}:\n{log.read_text()}"
            time.sleep(0.2)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
