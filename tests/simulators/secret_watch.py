"""Looks for secrets where every process of a machine can be looked at: on command lines and in environments."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, Self

import psutil

__all__ = ["SecretWatch"]

_LOOKS_EACH: Final = 3
"""Before and after it became the program it is; later nothing changes there."""


class SecretWatch(threading.Thread):
    """Looks again and again while the block lasts. The environment of `sbctl` itself is where the user put his secrets, and is left out."""

    def __init__(
        self, secrets: Iterable[bytes], processes: Callable[[], Iterable[psutil.Process]], *, every_s: float = 0.02
    ) -> None:
        super().__init__(daemon=True)
        self._secrets = tuple(secrets)
        self._processes = processes
        self._every_s = every_s
        self._done = threading.Event()
        self._looks: Counter[psutil.Process] = Counter()
        self.found: set[str] = set()
        self.seen = 0

    def run(self) -> None:
        while not self._done.wait(self._every_s):
            for process in self._processes():
                self._looks[process] += 1
                if self._looks[process] <= _LOOKS_EACH:
                    with contextlib.suppress(psutil.Error):
                        self._look(process)

    def _look(self, process: psutil.Process) -> None:
        argv = process.cmdline()
        given = [*argv]
        if not any(part.endswith("/sbctl") for part in argv[:2]):
            given += [f"{name}={value}" for name, value in process.environ().items()]
        self.seen += 1
        for text in given:
            if any(secret in text.encode(errors="surrogateescape") for secret in self._secrets):
                self.found.add(f"{argv[:3]}: {text[:60]}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()
