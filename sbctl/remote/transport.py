"""How bytes reach a host: the port that SSH and the local machine implement, and the words for how it fails.

Rules for every transport (measured traps of SSH libraries are behind them):

- both output streams are pumped together, each with a cap; a deadline is monotonic and holds for the whole operation;
- a command that ended without an exit status is a lost connection (`remote.lost`), never a result;
- everything that a host sends is foreign: it is shown only through `display_safe`.
"""

from __future__ import annotations

import re
import select
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sbctl.base.display import display_safe
from sbctl.base.errors import HostError, SbctlError, UnreachableError, error_from_wire
from sbctl.base.file_slice import ByteSource

__all__ = [
    "LOOK_AT_IT",
    "PASSING",
    "STDERR_TAIL_BYTES",
    "Channel",
    "ChannelBroken",
    "Completed",
    "Progress",
    "Transport",
    "foreign_error",
    "foreign_text",
    "is_ready",
    "lost",
    "no_progress",
    "output_too_large",
    "timed_out",
]

STDERR_TAIL_BYTES: Final = 16 * 1024

PASSING: Final = frozenset({"ssh.connection_lost", "ssh.name_unknown"})
"""Codes of failures to connect that may pass by themselves within a second: an sshd with too many starts, a slow name server."""

_CODE: Final = re.compile(r"[a-z0-9_]{1,40}(\.[a-z0-9_]{1,40}){0,3}")

Progress = Callable[[int, int | None], None]
"""Called with bytes or units done and in total, None when unknown."""


def no_progress(_done: int, _total: int | None) -> None:
    """For who does not want to know."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ended with a status of its own."""

    status: int
    stdout: bytes
    stderr: bytes
    """The last STDERR_TAIL_BYTES of it."""


class ChannelBroken(Exception):  # noqa: N818 - an event between two layers, never shown
    """No answer will come to what was asked. `sent` tells whether the whole question may have arrived."""

    def __init__(self, cause: SbctlError, *, sent: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.sent = sent


class Channel(Protocol):
    """A running program's input and output. One user at a time."""

    def receive(self, count: int, timeout_s: float) -> bytes:
        """1 to `count` bytes, b"" at the end. Raises TimeoutError, OSError."""
        ...

    def send(self, data: bytes, timeout_s: float) -> None:
        """All of `data`. Raises TimeoutError, OSError: then the other side has at most a part."""
        ...

    def ended(self, timeout_s: float) -> int | None:
        """The exit status once the program has ended; None while it runs or when none was reported."""
        ...

    def stderr_tail(self) -> str:
        """The end of what the program complained about, raw."""
        ...

    def close(self) -> None:
        """End it: the program sees the end of its input. Never raises."""
        ...


class Transport(Protocol):
    """One host. One user at a time; reconnects by itself after a cut."""

    def bootstrap(
        self, command: str, params: Mapping[str, Any], *, python: str | None, deadline_s: float
    ) -> Mapping[str, Any]:
        """Run one command of the bootstrap on the host (`python` None: any Python 3).

        Raises the error it answers; ChannelBroken when a command got no answer; UnreachableError, HostError before anything was asked.
        """
        ...

    def open_channel(self, argv: Sequence[str], environment: Mapping[str, str], *, deadline_s: float) -> Channel:
        """Start a program that sees exactly `environment` (and what the transport says it adds). Raises UnreachableError; FileNotFoundError when a local program does not exist."""
        ...

    def upload(self, source: ByteSource, target: str, *, deadline_s: float, progress: Progress) -> None:
        """Bring the bytes of `source` to the path `target`, going on where an earlier upload was cut; not verified, not durable."""
        ...

    def close(self) -> None: ...


def is_ready(fd: int, *, writable: bool = False, timeout_s: float) -> bool:
    """Whether `fd` can be read from (or written to), or has ended, within the time; any number of files may be open."""
    poller = select.poll()
    poller.register(fd, select.POLLOUT if writable else select.POLLIN)
    return bool(poller.poll(max(0.0, timeout_s) * 1000))


def foreign_text(raw: bytes | str, *, max_chars: int = 600) -> str:
    """The end of what a host sent, fit for a terminal, on one line."""
    text = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return display_safe(" | ".join(lines[-3:])[-max_chars:], max_chars=max_chars)


def foreign_error(raw: Mapping[str, Any], place: str) -> SbctlError:
    """The error that a host answered; its texts are made fit for a terminal, its place is put behind the host's."""
    safe = {name: display_safe(value, max_chars=2000) for name, value in raw.items() if isinstance(value, str)}
    if not _CODE.fullmatch(safe.get("code", "")):
        safe.pop("code", None)
    failure = error_from_wire({**raw, "code": None, "place": None, "next_step": None, "message": None, **safe})
    failure.place = f"{place}: {failure.place}" if failure.place else place
    return failure


def lost(place: str) -> UnreachableError:
    """The connection ended in the middle of something that changes nothing, or whose outcome the next snapshot tells."""
    return UnreachableError(
        "remote.lost",
        "the connection to the host was lost",
        place=place,
        next_step="run the command again",
        retryable=True,
    )


def timed_out(place: str, deadline_s: float) -> UnreachableError:
    """The host did not finish in time."""
    return UnreachableError(
        "remote.timeout",
        f"the host did not answer within {round(deadline_s, 1):g} s",
        place=place,
        next_step="check the load of the host and the network, then run the command again",
        retryable=True,
    )


LOOK_AT_IT: Final = "log in by hand and look what the machine is and what it prints: sbctl host shell HOST"
"""The next step after an answer that makes no sense."""


def output_too_large(place: str, max_bytes: int) -> HostError:
    """The host sends more than any honest answer has."""
    return HostError(
        "remote.output_too_large",
        f"a command on the host printed more than {max_bytes} bytes",
        place=place,
        next_step=LOOK_AT_IT,
    )
