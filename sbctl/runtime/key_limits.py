"""Limits of a caller's key: requests and tokens a minute, each a bucket that refills evenly, so a burst may use what the last minute left over.

Tokens are not known before an answer is complete. So a request takes an estimate when it is admitted and is settled afterwards by what the
engine counted; more than was estimated becomes a debt that later requests wait for. The limits are this process's own: with three hosts
a key may use three times as much, and a restart begins with full buckets.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Literal

from sbctl.base.errors import RefusedError
from sbctl.trust.bundle import ApiKeyEntry

__all__ = ["KeyLimits"]

_NAMES_MAX: Final = 10_000
_Unit = Literal["requests", "tokens"]


@dataclass(slots=True)
class _Bucket:
    left: float
    at_s: float


class KeyLimits:
    """At most 10,000 buckets are remembered; the one that was quiet longest is forgotten first, and starts full when it comes back.

    `now_s` is the event loop's time.
    """

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[str, _Unit], _Bucket] = OrderedDict()

    def take(self, name: str, entry: ApiKeyEntry, *, now_s: float) -> None:
        """One request. Raises RefusedError `rate_limited` with `retry_after_s` in its detail."""
        limit = entry.requests_per_minute
        if limit is None:
            return
        bucket = self._bucket(name, "requests", limit, now_s)
        if bucket.left < 1:
            raise _limited(f"this key may make {limit} requests a minute", (1 - bucket.left) * 60 / limit)
        bucket.left -= 1

    def reserve(self, name: str, entry: ApiKeyEntry, estimate: int, *, now_s: float) -> int:
        """Tokens for one request; returns what to settle. One that wants more than a minute's waits for a full bucket.

        Raises RefusedError `rate_limited` with `retry_after_s` in its detail.
        """
        limit = entry.tokens_per_minute
        if limit is None:
            return 0
        wanted = min(estimate, limit)
        bucket = self._bucket(name, "tokens", limit, now_s)
        # A full bucket may miss a hair by its arithmetic.
        if bucket.left < wanted - 1e-6:
            raise _limited(f"this key may use {limit} tokens a minute", (wanted - bucket.left) * 60 / limit)
        bucket.left -= wanted
        return wanted

    def settle(self, name: str, entry: ApiKeyEntry, *, reserved: int, used: int, now_s: float) -> None:
        """The request is over and used so many; 0 for one that never reached an engine."""
        limit = entry.tokens_per_minute
        if limit is not None:
            bucket = self._bucket(name, "tokens", limit, now_s)
            bucket.left = min(float(limit), bucket.left + reserved - used)

    def lines(self, name: str, entry: ApiKeyEntry, *, now_s: float) -> str:
        """The usual `x-ratelimit-*` as they stand in a head, for the limits that the key has. Reset is when the bucket is full again."""
        told = ""
        if entry.requests_per_minute is not None:
            told = self._told(name, "requests", entry.requests_per_minute, now_s)
        if entry.tokens_per_minute is not None:
            told += self._told(name, "tokens", entry.tokens_per_minute, now_s)
        return told

    def _told(self, name: str, unit: _Unit, limit: int, now_s: float) -> str:
        left = self._bucket(name, unit, limit, now_s).left
        return (
            f"x-ratelimit-limit-{unit}: {limit}\r\n"
            f"x-ratelimit-remaining-{unit}: {max(0, int(left + 1e-6))}\r\n"
            f"x-ratelimit-reset-{unit}: {(limit - left) * 60 / limit:.3f}s\r\n"
        )

    def _bucket(self, name: str, unit: _Unit, limit: int, now_s: float) -> _Bucket:
        """Refilled up to now; a limit that a reload changed holds from now on."""
        key = (name, unit)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(float(limit), now_s)
            if len(self._buckets) > _NAMES_MAX:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        bucket.left = min(float(limit), bucket.left + (now_s - bucket.at_s) * limit / 60)
        bucket.at_s = now_s
        return bucket


def _limited(message: str, retry_after_s: float) -> RefusedError:
    return RefusedError("rate_limited", message, retryable=True, detail={"retry_after_s": retry_after_s})
