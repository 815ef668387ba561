"""Which event loop the daemon runs on: uvloop's where it is installed (it is, by the wheelhouse, on Linux and macOS), else asyncio's own.

The gateway's speed needs uvloop, its behaviour does not: tests run on both.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, Final

__all__ = ["run_in_loop", "settle"]

_THRESHOLDS: Final = (5_000, 10, 5)
"""Objects that are made before the collector looks at the young ones, and how many of its looks before it looks at what outlived one, and at all.

A request leaves one cycle behind and each look costs all that run, so seldom; but what a change leaves has to be gone within minutes, not hours.
"""


def settle() -> None:
    """Once everything is loaded: what is there now stays, so the collector never looks at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


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
