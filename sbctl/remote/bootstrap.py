"""The control side of the bootstrap: modules of ours as one Python text for the standard input of a host's own interpreter.

The text carries the sources of standard-library-only modules and loads them under their own names. An answer is one JSON line behind a
random marker, so a banner, a message of the day or a chatty shell profile cannot be mistaken for it.

    facts      `python3 -I -`, any Python from 3.8: one text, one answer, the end
    commands   a `BootstrapWorker` on the interpreter (3.8 or newer) that the facts named: one text, then a line a command, a line an answer
"""

from __future__ import annotations

import importlib
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from sbctl.base import strict_json
from sbctl.base.clock import Clock
from sbctl.base.errors import HostError, InputError, SbctlError
from sbctl.base.limits import REMOTE_OUTPUT_MAX_BYTES
from sbctl.remote.transport import (
    LOOK_AT_IT,
    Channel,
    ChannelBroken,
    Completed,
    foreign_error,
    foreign_text,
    lost,
    output_too_large,
    timed_out,
)

__all__ = [
    "FACTS",
    "WORKER_PROGRAM",
    "BootstrapWorker",
    "compose_command",
    "compose_facts",
    "compose_lease_holder",
    "compose_worker",
    "new_marker",
    "read_answer",
]

FACTS: Final = "facts"

_STATUS_WAIT_S: Final = 2.0
_STALL_S: Final = 30.0

_FACTS_MODULES: Final = ("sbctl.node.paths", "sbctl.node.lease_file", "sbctl.node.machine", "sbctl.node.facts")
_COMMAND_MODULES: Final = (
    "sbctl.base.errors",
    "sbctl.base.file_ops",
    "sbctl.base.fs",
    "sbctl.base.flock",
    *_FACTS_MODULES,
    "sbctl.node.python_archive",
    "sbctl.node.standalone",
    "sbctl.remote.bootstrap_blobs",
    "sbctl.remote.bootstrap_install",
    "sbctl.remote.bootstrap_script",
)

_LEASE_MODULES: Final = (
    "sbctl.base.errors",
    "sbctl.base.file_ops",
    "sbctl.base.fs",
    "sbctl.node.paths",
    "sbctl.node.lease_file",
    "sbctl.node.lease_holder",
)

_LOADER: Final = """\
import json, sys, types
def load(name, source):
    module = types.ModuleType(name)
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            load(parent, "")
        setattr(sys.modules[parent], leaf, module)
    exec(compile(source, name, "exec"), module.__dict__)
    return module
for name, source in json.loads({sources}):
    last = load(name, source)
last.{entry}({argument})
"""

WORKER_PROGRAM: Final = "import sys;exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
"""For `python -I -c`: the text comes first on standard input, with its length on a line before it."""


@cache
def _source(name: str) -> str:
    return Path(str(importlib.import_module(name).__file__)).read_text(encoding="utf-8")


def new_marker() -> str:
    """What no host can know before it is asked."""
    return f"sbctl-{secrets.token_hex(16)}:"


def compose_facts(params: Mapping[str, Any], marker: str) -> bytes:
    """The program text for `python3 -I -`; ASCII, so no locale of the host matters."""
    return _compose(_FACTS_MODULES, "answer", f"json.loads({json.dumps({**params, 'marker': marker})!a})")


def compose_worker(marker: str) -> bytes:
    """The program text for WORKER_PROGRAM, its length before it."""
    text = _compose(_COMMAND_MODULES, "serve", ascii(marker))
    return b"%d\n%s" % (len(text), text)


def compose_lease_holder(marker: str) -> bytes:
    """The program text for WORKER_PROGRAM that holds a host's lease, its length before it."""
    text = _compose(_LEASE_MODULES, "serve", ascii(marker))
    return b"%d\n%s" % (len(text), text)


def compose_command(command: str, params: Mapping[str, Any]) -> bytes:
    """One command for a worker."""
    return json.dumps({**params, "command": command}).encode("ascii") + b"\n"


def _compose(modules: Sequence[str], entry: str, argument: str) -> bytes:
    sources = json.dumps([(name, _source(name)) for name in modules])
    return _LOADER.format(sources=ascii(sources), entry=entry, argument=argument).encode("ascii")


def read_answer(done: Completed, marker: str, *, place: str) -> Mapping[str, Any]:
    """The result in what the command printed. Raises the error it answers, HostError when it answers nothing that makes sense."""
    line = next((part for part in done.stdout.split(b"\n") if part.startswith(marker.encode("ascii"))), None)
    if line is None:
        raise _no_answer(done, place)
    answer = _parse(line[len(marker) :], place)
    if isinstance(answer, SbctlError):
        raise answer
    return answer


def _parse(text: bytes, place: str) -> Mapping[str, Any] | SbctlError:
    """The result or the answered error. Raises HostError `host.answer_invalid` for what is neither."""
    try:
        message = strict_json.loads(text, max_bytes=REMOTE_OUTPUT_MAX_BYTES)
    except InputError as error:
        raise HostError(
            "host.answer_invalid",
            f"the host's answer is not JSON: {error.message}",
            place=place,
            next_step=LOOK_AT_IT,
        ) from error
    if isinstance(message, dict) and isinstance(message.get("error"), dict):
        return foreign_error(message["error"], place)
    if not isinstance(message, dict) or not isinstance(message.get("result"), dict):
        raise HostError(
            "host.answer_invalid",
            "the host's answer has neither result nor error",
            place=place,
            next_step=LOOK_AT_IT,
        )
    result: Mapping[str, Any] = message["result"]
    return result


class BootstrapWorker:
    """An interpreter on the host that waits for commands. One user at a time; after any exception but an answered error it is closed."""

    def __init__(
        self,
        channel: Channel,
        marker: str,
        *,
        place: str,
        clock: Clock,
        deadline_s: float,
        compose: Callable[[str], bytes] = compose_worker,
    ) -> None:
        """`channel` runs WORKER_PROGRAM, which gets what `compose` makes of the marker. Raises ChannelBroken."""
        self._channel = channel
        self._marker = marker
        self._place = place
        self._clock = clock
        self._buffer = bytearray()
        self.open = True
        self._send(compose(marker), deadline_s)

    def ask(self, command: str, params: Mapping[str, Any], *, deadline_s: float) -> Mapping[str, Any]:
        """The result. Raises the error the host answers, or ChannelBroken."""
        deadline = self._clock.monotonic_s() + deadline_s
        self._send(compose_command(command, params), deadline_s)
        return self._answer(deadline, deadline_s)

    def pour(
        self, command: str, params: Mapping[str, Any], body: Iterable[bytes], *, deadline_s: float
    ) -> Mapping[str, Any]:
        """The result of a command that reads `body` behind its line. Raises as `ask`, and what `body` raises.

        A host that stops reading has said why before it ended.
        """
        deadline = self._clock.monotonic_s() + deadline_s
        self._send(compose_command(command, params), deadline_s)
        try:
            for piece in body:
                left = deadline - self._clock.monotonic_s()
                if left <= 0:
                    raise TimeoutError
                self._channel.send(piece, min(left, _STALL_S))
        except TimeoutError as error:
            self.close()
            raise ChannelBroken(timed_out(self._place, deadline_s), sent=True) from error
        except OSError:
            return self._answer(min(deadline, self._clock.monotonic_s() + _STATUS_WAIT_S), deadline_s)
        except BaseException:
            self.close()
            raise
        return self._answer(deadline, deadline_s)

    def _answer(self, deadline: float, deadline_s: float) -> Mapping[str, Any]:
        try:
            answer = _parse(self._line(deadline, deadline_s), self._place)
        except SbctlError as error:
            self.close()
            raise ChannelBroken(error, sent=True) from error
        except BaseException:
            self.close()
            raise
        if isinstance(answer, SbctlError):
            raise answer
        return answer

    def _send(self, data: bytes, deadline_s: float) -> None:
        try:
            self._channel.send(data, deadline_s)
        except OSError as error:
            self.close()
            late = isinstance(error, TimeoutError)
            cause = timed_out(self._place, deadline_s) if late else lost(self._place)
            raise ChannelBroken(cause, sent=False) from error

    def close(self) -> None:
        if self.open:
            self.open = False
            self._channel.close()

    def _line(self, deadline: float, deadline_s: float) -> bytes:
        """What follows our marker on the next line that has it; whatever else the program prints is passed over."""
        passed = 0
        while True:
            end = self._buffer.find(b"\n")
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                if line.startswith(self._marker.encode("ascii")):
                    return line[len(self._marker) :]
                continue
            if passed > REMOTE_OUTPUT_MAX_BYTES:
                raise output_too_large(self._place, REMOTE_OUTPUT_MAX_BYTES)
            try:
                piece = self._channel.receive(1 << 16, deadline - self._clock.monotonic_s())
            except TimeoutError as error:
                raise timed_out(self._place, deadline_s) from error
            except OSError as error:
                raise lost(self._place) from error
            if not piece:
                raise self._ended()
            passed += len(piece)
            self._buffer += piece

    def _ended(self) -> SbctlError:
        status = self._channel.ended(_STATUS_WAIT_S)
        if status is None:
            return lost(self._place)
        return _no_answer(Completed(status, b"", self._channel.stderr_tail().encode()), self._place)


def _no_answer(done: Completed, place: str) -> SbctlError:
    said = foreign_text(done.stderr or done.stdout)
    if done.status == 127:
        return HostError(
            "host.no_python",
            "the host has no python3 on its PATH",
            place=place,
            next_step="install Python 3.11 or newer on the host (Debian, Ubuntu: apt-get install python3); with fleet.runtime.python any from 3.8 will do",
        )
    if done.status == 0:
        return lost(place)
    return HostError(
        "host.bootstrap_failed",
        f"the bootstrap ended with status {done.status}" + (f": {said}" if said else ""),
        place=place,
        next_step="try by hand whether a Python starts there: sbctl host exec HOST -- python3 --version",
    )
