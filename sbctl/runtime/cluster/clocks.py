"""How far the clocks of other nodes are from this one's, by what came from them just now; and whether it is this node's own that is off.

Of two clocks that differ nobody can say which is right. Of many the one that differs from most of the others is taken to be wrong, so a node
whose own clock is off says so, instead of that of all the others. Pure but for what it remembers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Final

from sbctl.base.limits import CLOCK_SKEW_LEEWAY_S

__all__ = ["Clocks"]

_HEARD_S: Final = 120.0
"""An older difference says nothing of now."""
_OTHERS_MIN: Final = 2


@dataclass(slots=True)
class Clocks:
    """`own`: this node's id. Differences are in seconds, positive where the other clock is ahead."""

    own: str
    _ahead: dict[str, tuple[float, float]] = field(default_factory=dict)

    def heard(self, node_id: str, *, made_s: float, now_s: float, at_s: float) -> None:
        """Something that `node_id` dated `made_s` arrived when this clock said `now_s`; `at_s` is monotonic."""
        if node_id != self.own:
            self._ahead[node_id] = (made_s - now_s, at_s)

    def ahead_s(self, node_id: str, at_s: float) -> float | None:
        """None: nothing was heard of late, or the two are near enough to each other."""
        ahead, heard_s = self._ahead.get(node_id, (0.0, at_s))
        return ahead if abs(ahead) > CLOCK_SKEW_LEEWAY_S and at_s - heard_s <= _HEARD_S else None

    def own_ahead_s(self, at_s: float) -> float | None:
        """By how much this node's own clock is ahead of most others that are heard; None: it is not, or too few are heard to say so."""
        heard = [ahead for ahead, heard_s in self._ahead.values() if at_s - heard_s <= _HEARD_S]
        for sign in (1, -1):
            off = [ahead for ahead in heard if sign * ahead > CLOCK_SKEW_LEEWAY_S]
            if len(off) >= _OTHERS_MIN and 2 * len(off) > len(heard):
                return -median(off)
        return None

    def forget(self, node_id: str) -> None:
        self._ahead.pop(node_id, None)
