"""Which event loop the daemon runs on: uvloop's where it is installed (it is, by the wheelhouse, on Linux and macOS), else asyncio's own.

The gateway's speed needs uvloop, its behaviour does not: tests run on both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["run_in_loop"]


def run_in_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run it to its end, in a loop that is closed afterwards."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
