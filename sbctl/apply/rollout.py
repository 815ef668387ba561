"""Which host may start next, by `fleet.update`. Pure: what runs and how hosts ended goes in, one decision comes out.

    canary      first and alone, a batch of its own; unless it ends well, nobody else starts
    batches     of hosts that go out (a change of them restarts something or breaks something): at most `max_unavailable` at once,
                the next batch when the last host of the one before has ended, and `pause_secs` later
    the others  whose changes nobody notices, start whenever the canary is through
    failures    after `max_failures` hosts that did not end well, nobody starts any more

Without a policy every host may start at once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sbctl.apply.outcome import HostStatus
from sbctl.base.display import plural
from sbctl.base.update_policy import UpdatePolicy

__all__ = ["Decision", "Rollout", "Stop", "Wait"]

_WELL: Final[frozenset[HostStatus]] = frozenset({"done", "unchanged"})


@dataclass(frozen=True, slots=True)
class Wait:
    """Nobody may start now. `until_s`: when somebody may even if nothing ends, by the clock that was given; None: only when a host ends."""

    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Nobody may start any more."""

    because: str


Decision = str | Wait | Stop
"""The host to start, or why none is."""


class Rollout:
    """The rules over one run. `outs` are the hosts that go out; the order of `waiting` is kept where the rules leave a choice."""

    def __init__(self, policy: UpdatePolicy | None, outs: Collection[str], *, fleet_size: int) -> None:
        self._policy = policy
        self._outs = frozenset(outs)
        self._at_once = policy.hosts_at_once(fleet_size) if policy is not None else 0
        self._ended: dict[str, HostStatus] = {}
        self._batch: set[str] = set()
        self._batch_ended_s: float | None = None

    @property
    def pause_s(self) -> int:
        return self._policy.pause_secs if self._policy is not None else 0

    def started(self, host: str) -> None:
        if host in self._outs or (self._policy is not None and host == self._policy.canary):
            self._batch.add(host)
            self._batch_ended_s = None

    def ended(self, host: str, status: HostStatus, now_s: float) -> None:
        """`host` is finished for this run."""
        self._ended[host] = status
        if host in self._batch and self._batch <= self._ended.keys():
            self._batch = set()
            self._batch_ended_s = now_s

    def next(self, waiting: Collection[str], running: Collection[str], now_s: float) -> Decision:
        """What to do now that `running` hosts are at work and `waiting` ones are not begun. `waiting` is not empty."""
        policy = self._policy
        if policy is None:
            return next(iter(waiting))
        stop = self._stop(policy)
        if stop is not None:
            return stop
        if policy.canary in waiting or policy.canary in running:
            return Wait() if running else str(policy.canary)
        pause = self._pause_end_s(policy, now_s)
        for host in waiting:
            if host not in self._outs or (pause is None and self._has_room(running)):
                return host
        return Wait(pause)

    def _stop(self, policy: UpdatePolicy) -> Stop | None:
        canary = policy.canary
        if canary is not None and self._ended.get(canary, "done") not in _WELL:
            return Stop(f"the canary {canary} did not come through, and fleet.update.canary goes first")
        failed = sum(status not in _WELL for status in self._ended.values())
        if failed >= policy.max_failures:
            return Stop(f"{plural(failed, 'host')} failed, fleet.update.max_failures is {policy.max_failures}")
        return None

    def _pause_end_s(self, policy: UpdatePolicy, now_s: float) -> float | None:
        if self._batch_ended_s is None or now_s >= self._batch_ended_s + policy.pause_secs:
            return None
        return self._batch_ended_s + policy.pause_secs

    def _has_room(self, running: Collection[str]) -> bool:
        """The batch is filled up to its size while none of it has ended."""
        out = [host for host in running if host in self._outs]
        return len(out) < self._at_once and len(self._batch) < self._at_once and not (self._batch & self._ended.keys())
