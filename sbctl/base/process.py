"""How a short process of ours begins: commands, and the node interface that a plan starts on every host."""

from __future__ import annotations

import atexit
import gc
import os
from typing import Final

__all__ = ["begin_short_process"]

_COLLECT_EVERY: Final = 50_000
"""Containers made before the youngest generation is looked through. With Python's 700 a tenth of a plan's CPU time goes into looking
through modules that are just being loaded and stay to the end."""


def begin_short_process() -> None:
    """Call before anything large is imported. Nothing is scanned for, so no stranger's pydantic plugin runs in ours."""
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "1"
    gc.set_threshold(_COLLECT_EVERY, 20, 50)
    # Leaving, the interpreter looks through everything twice more; frozen, nothing is left to look through.
    atexit.register(gc.freeze)
