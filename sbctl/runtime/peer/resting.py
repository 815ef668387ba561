"""Workers whose way failed, and when they are asked again.

    resting     behind all others: 5 s after a failure, twice as long after each further one in a row, a minute at most
    on trial    then one request tries it; it stays behind all others until a word of it has come
    forgotten   with its first word, or when nobody asked it for ten minutes

Who rests is asked all the same where nobody else is left. Requests that were on their way together fail together, and count once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["Rests"]

_REST_S: Final = 5.0
_REST_MAX_S: Final = 60.0
_FORGOTTEN_S: Final = 600.0


@dataclass(slots=True)
class _Rest:
    since_s: float
    length_s: float
    trials: int = 0

    @property
    def until_s(self) -> float:
        return self.since_s + self.length_s


class Rests:
    """Of one gateway. `now_s`: a monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._nodes: dict[str, _Rest] = {}

    def __len__(self) -> int:
        """How many failed and have said nothing since."""
        return len(self._nodes)

    def __contains__(self, node_id: str) -> bool:
        """Whether others come first now."""
        rest = self._nodes.get(node_id)
        return rest is not None and (bool(rest.trials) or self._now_s() < rest.until_s)

    @contextlib.contextmanager
    def trying(self, node_id: str) -> Iterator[None]:
        """One request is at this node."""
        rest = self._nodes.get(node_id)
        if rest is None:
            yield
            return
        rest.trials += 1
        try:
            yield
        finally:
            rest.trials -= 1

    def failed(self, node_id: str, *, asked_s: float) -> None:
        """A request that asked at `asked_s` found no way, or no word."""
        now_s, rest = self._now_s(), self._nodes.get(node_id)
        if rest is None:
            self._nodes[node_id] = _Rest(now_s, _REST_S)
        elif asked_s >= rest.since_s:
            rest.since_s, rest.length_s = now_s, min(rest.length_s * 2, _REST_MAX_S)

    def heard(self, node_id: str) -> None:
        """It said something, whatever that is."""
        self._nodes.pop(node_id, None)

    def forget(self) -> None:
        """Those that nobody asks any more."""
        if not self._nodes:
            return
        now_s = self._now_s()
        self._nodes = {
            name: rest for name, rest in self._nodes.items() if rest.trials or now_s < rest.until_s + _FORGOTTEN_S
        }
