"""The event loop's time, without asking each time which loop that is: asking is a system call in CPython 3.11, and a request needs the time often."""

from __future__ import annotations

import asyncio

__all__ = ["LoopTime"]


class LoopTime:
    """Seconds of the loop that runs at the first call, and of that one from then on."""

    __slots__ = ("_loop",)

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self) -> float:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        return loop.time()
