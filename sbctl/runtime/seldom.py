"""Lines that others can cause: so many of one cause in a while, and then how many were left out.

Whoever may speak to us may be wrong as often as he likes; a log that tells of each time is full of him, and says nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

__all__ = ["Seldom"]

_LINES: Final = 10
_WHILE_S: Final = 10.0
_CAUSES_MAX: Final = 1024


class Seldom:
    """`tell` a line at most ten times in ten seconds for each cause; the next one that is told says how many were not (`left_out`)."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._causes: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """When the while of a cause began, and how many lines it had since; the longest unheard first."""

    def tell(self, log: Callable[..., Any], event: str, *, cause: str, **more: Any) -> None:
        """By `log`, a logger's method, as it takes event and fields."""
        now_s = self._now_s()
        began_s, lines = self._causes.pop(cause, (now_s, 0))
        left_out = 0
        if now_s - began_s >= _WHILE_S:
            left_out, began_s, lines = max(0, lines - _LINES), now_s, 0
        self._causes[cause] = (began_s, lines + 1)
        if len(self._causes) > _CAUSES_MAX:
            self._causes.popitem(last=False)
        if lines < _LINES:
            log(event, **more, **({"left_out": left_out} if left_out else {}))
