"""When an external provider or one of its keys is left alone, and until when.

A key rests as long as the provider says (Retry-After) when it is over its limit, and five minutes when it is refused. A provider that does
not answer three times in a row is left alone for ten seconds, doubled each time, five minutes at most; then one request tries it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["Breaker", "Desk"]

_FAILURES_MAX: Final = 3
_REST_S: Final = 10.0
_REST_MAX_S: Final = 300.0
_LIMITED_S: Final = 10.0
_LIMITED_MAX_S: Final = 3600.0
_REFUSED_S: Final = 300.0


class Breaker:
    """Of one provider. Times are the event loop's."""

    def __init__(self) -> None:
        self._failures = 0
        self._until_s = 0.0
        self._tried = False

    def admits(self, now_s: float) -> bool:
        """Whether to ask now. After a rest only one request is let through until it reports back."""
        if self.rests(now_s):
            return False
        self._tried = self._failures >= _FAILURES_MAX
        return True

    def rests(self, now_s: float) -> bool:
        """Whether a request would not be let through now; asking changes nothing."""
        return self._failures >= _FAILURES_MAX and (now_s < self._until_s or self._tried)

    def succeeded(self) -> None:
        """It answered, whatever it said."""
        self._failures, self._tried = 0, False

    def failed(self, now_s: float) -> None:
        self._failures += 1
        self._tried = False
        if self._failures >= _FAILURES_MAX:
            doubled = min(self._failures - _FAILURES_MAX, 16)
            self._until_s = now_s + min(_REST_MAX_S, _REST_S * 2**doubled)

    def abandoned(self) -> None:
        """The request ended without saying anything about the provider."""
        self._tried = False


class Desk:
    """One provider as it is now: its breaker, and which of its keys may be used. A provider without keys has the one key None."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.breaker = Breaker()
        self._until_s: dict[str | None, float] = dict.fromkeys(keys, 0.0) or {None: 0.0}

    def keys(self, now_s: float) -> list[str | None]:
        """Those that do not rest, in the order in which they are written."""
        return [key for key, until_s in self._until_s.items() if until_s <= now_s]

    def limited(self, key: str | None, now_s: float, retry_after_s: float | None) -> None:
        """The key is over its limit there."""
        rest_s = _LIMITED_S if retry_after_s is None else min(max(retry_after_s, 1.0), _LIMITED_MAX_S)
        self._until_s[key] = now_s + rest_s

    def renew(self, key: str) -> None:
        """The key is another one now: what was said of the former means nothing."""
        if key in self._until_s:
            self._until_s[key] = 0.0

    def refused(self, key: str | None, now_s: float) -> None:
        """The provider does not take the key."""
        self._until_s[key] = now_s + _REFUSED_S
