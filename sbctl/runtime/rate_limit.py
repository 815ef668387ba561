"""Requests a minute, by a caller's name or address: a bucket that refills evenly, so a burst may use what the last minute left over."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sbctl.base.errors import RefusedError

__all__ = ["RateLimiter"]

_NAMES_MAX: Final = 10_000


class RateLimiter:
    """At most 10,000 names are remembered; the one that was quiet longest is forgotten first, and starts full when it comes back."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str, *, per_minute: int, now_s: float) -> None:
        """One request. Raises RefusedError `rate_limited` with `retry_after_s` in its detail."""
        tokens, at_s = self._buckets.pop(name, (float(per_minute), now_s))
        tokens = min(float(per_minute), tokens + (now_s - at_s) * per_minute / 60)
        allowed = tokens >= 1
        self._buckets[name] = (tokens - 1 if allowed else tokens, now_s)
        if len(self._buckets) > _NAMES_MAX:
            self._buckets.popitem(last=False)
        if not allowed:
            raise RefusedError(
                "rate_limited",
                f"{per_minute} requests a minute are allowed",
                retryable=True,
                detail={"retry_after_s": (1 - tokens) * 60 / per_minute},
            )
