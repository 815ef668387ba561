"""What an engine prints, on disk and bounded: `<state>/logs/engines/<deployment>-r<replica>.log`, at most 2 x 4 MiB, each line with its time.

For engines that are children of the runtime; those that are units print into the system's journal. A disk that is full loses lines, not
the engine.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sbctl.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from sbctl.base.limits import KIB, MIB

__all__ = ["EngineOutput", "engine_log_slot", "prune_engine_logs"]

_FILE_MAX_BYTES: Final = 4 * MIB
_LINE_MAX_BYTES: Final = 8 * KIB
_SLOTS_KEPT: Final = 64
_NAME: Final = re.compile(r"([A-Za-z0-9._-]{1,128})-r([0-9]{1,6})\.log")


def engine_log_slot(name: str) -> tuple[str, int] | None:
    """Deployment and replica of a log, by the name of its file; None for a file that is none."""
    found = _NAME.fullmatch(name)
    return None if found is None else (found[1], int(found[2]))


class EngineOutput:
    """The log of one replica of a deployment, over all engines it ever had."""

    def __init__(self, directory: Path, deployment: str, replica: int, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = directory / f"{deployment}-r{replica}.log"
        self._clock = clock
        self._begun = b""

    def add(self, data: bytes) -> None:
        """Write the complete lines of what came so far. Never raises."""
        lines = list(self._lines(data))
        if lines:
            at = rfc3339(self._clock.now()).encode()
            self._append(b"".join(at + b" " + line + b"\n" for line in lines))

    def close(self) -> None:
        """Write what had no end."""
        if self._begun:
            self.add(b"\n")

    def _lines(self, data: bytes) -> Iterator[bytes]:
        *whole, self._begun = (self._begun + data).replace(b"\r", b"\n").split(b"\n")
        for line in whole:
            if line.strip():
                yield line[:_LINE_MAX_BYTES]
        if len(self._begun) > _LINE_MAX_BYTES:
            line, self._begun = self._begun[:_LINE_MAX_BYTES], b""
            yield line

    def _append(self, text: bytes) -> None:
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(self._path, flags, 0o600)
            try:
                os.write(fd, text)
                if os.fstat(fd).st_size >= _FILE_MAX_BYTES:
                    os.replace(self._path, f"{self._path}.1")
            finally:
                os.close(fd)


def prune_engine_logs(directory: Path) -> None:
    """Keep the logs of the replicas that printed last. Never raises."""
    with contextlib.suppress(OSError):
        files = sorted(directory.glob("*.log"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in files[_SLOTS_KEPT:]:
            path.unlink(missing_ok=True)
            Path(f"{path}.1").unlink(missing_ok=True)
