"""The fence against a dispatch that comes twice: (issuer, nonce) of every one that was accepted, for as long as it could be shown again.

In memory only: a dispatch names the start of this process (`audience_boot_epoch`), so nothing from before it is accepted anyway. The
fence is bounded; when it is full it refuses what is new and forgets nothing. One issuer fills three quarters of it at most.

An entry leaves when both clocks say so: the wall clock, by which a dispatch is judged, and the monotonic one, so that no step forward frees
anything early. What remains is a wall clock that ran ahead past a dispatch's end and is set back within its seconds; whoever shows it then
still needs the private key of the gateway that made it, since it counts on that gateway's own connections alone.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Final

from sbctl.base.errors import RefusedError

__all__ = ["FENCE_ENTRIES", "ReplayFence"]

FENCE_ENTRIES: Final = 65_536


class ReplayFence:
    """Of one process."""

    def __init__(self, entries_max: int = FENCE_ENTRIES) -> None:
        self._entries_max = entries_max
        self._issuer_max = max(1, entries_max * 3 // 4)
        self._live: set[tuple[str, str]] = set()
        self._of_issuer: Counter[str] = Counter()
        self._ends: list[tuple[float, int, tuple[str, str]]] = []
        """A heap: until when by the monotonic clock (s) and the wall clock (ms), and whose."""

    def __len__(self) -> int:
        return len(self._live)

    def accept(self, issuer: str, nonce: str, *, expires_at_unix_ms: int, now_unix_ms: int, now_s: float) -> None:
        """Once for each (issuer, nonce) until it expires. Raises RefusedError `replay_detected`, `replay_fence_full`."""
        self._prune(now_unix_ms, now_s)
        key = (issuer, nonce)
        if key in self._live:
            raise RefusedError("replay_detected", "this dispatch was accepted before")
        if len(self._live) >= self._entries_max or self._of_issuer[issuer] >= self._issuer_max:
            raise RefusedError(
                "replay_fence_full", "too many dispatches are remembered; none is forgotten early", retryable=True
            )
        self._live.add(key)
        self._of_issuer[issuer] += 1
        left_s = max(0, expires_at_unix_ms - now_unix_ms) / 1000
        heapq.heappush(self._ends, (now_s + left_s, expires_at_unix_ms, key))

    def _prune(self, now_unix_ms: int, now_s: float) -> None:
        while self._ends and self._ends[0][0] < now_s:
            _, expires_ms, key = heapq.heappop(self._ends)
            if expires_ms >= now_unix_ms:
                # The wall clock went back: it could be shown again until then.
                heapq.heappush(self._ends, (now_s + (expires_ms - now_unix_ms) / 1000, expires_ms, key))
                continue
            self._live.discard(key)
            self._of_issuer[key[0]] -= 1
            if not self._of_issuer[key[0]]:
                del self._of_issuer[key[0]]
