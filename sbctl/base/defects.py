"""Where a defect of ours showed: enough to report it, without values of variables, which might be secret."""

from __future__ import annotations

import traceback
from pathlib import Path

__all__ = ["where_it_failed"]

_ROOT = Path(__file__).resolve().parents[2]
_OURS = ("sbctl/", "providers/")


def where_it_failed(error: BaseException) -> str:
    """`ValidationError at providers/runtime/apply.py:39`: the kind of the error and the innermost line of ours that it came through."""
    kind = type(error).__name__
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        place = Path(frame.filename)
        inside = place.relative_to(_ROOT).as_posix() if place.is_relative_to(_ROOT) else ""
        if inside.startswith(_OURS):
            return f"{kind} at {inside}:{frame.lineno}"
    return kind
