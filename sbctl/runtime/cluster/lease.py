"""Who of the authorities decides: a lease in the store, fenced by an epoch that only grows.

    taking    epoch = the highest that this node has seen, in the store or in any signed document, plus one; kept on this node's disk before
              it is written by compare-and-set. So it grows even where the store lost its data
    keeping   the holder writes its lease anew every third of `ttl_s`; what it did not manage to renew in time it holds no more
    waiting   another's lease is over when nothing of it changed for its `ttl_secs` by this node's own monotonic clock: wall clocks, here and
              there, decide nothing
    standing  a node whose own clock is another than that of most nodes holds none: what it judges and dates is wrong
    back
    at once   a lease below an epoch that was seen, or at one that this node took itself, is of a store that lost data: its holder is fenced
              off by whoever saw more, so it is taken over without waiting

What is in the store is believed only when its signature is: anything else counts as no lease.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from sbctl.base.clock import Clock
from sbctl.base.errors import SbctlError
from sbctl.node.cluster_documents import LeaseDocument
from sbctl.runtime.cluster.store import CONTROLLER_KEY, Bucket, ClusterStore, Entry, StoreConflictError
from sbctl.runtime.log import get_log
from sbctl.trust.cluster_fences import LEASE_LEAP_MAX

__all__ = ["LEASE_TTL_S", "ClusterLease", "LeaseMemory", "LeaseWords"]

LEASE_TTL_S: Final = 15
_RENEWALS_A_TTL: Final = 3
_MARGIN: Final = 0.2
"""Of the lease's life: so much earlier the holder stops than others may take over."""
_GIVEN_BACK_TTL_S: Final = 1


class LeaseMemory(Protocol):
    """What the node remembers on its disk (`ClusterFences`)."""

    @property
    def lease_epoch_seen(self) -> int: ...

    def take_lease_epoch(self, epoch: int) -> None:
        """Durable before it returns. Raises SbctlError."""
        ...


class LeaseWords(Protocol):
    """Signs this node's lease, and judges what others signed."""

    def seal(self, *, epoch: int, renewal: int, acquired_at_ms: int, renewed_at_ms: int, ttl_secs: int) -> bytes: ...

    def open(self, value: bytes) -> LeaseDocument | None:
        """None for anything that is not the word of an authority of this cluster."""
        ...


@dataclass(frozen=True, slots=True)
class _Own:
    epoch: int
    renewal: int
    revision: int
    acquired_at_ms: int
    valid_until_s: float


class ClusterLease:
    """One authority's side. `run` keeps at it; `epoch` is what it may sign with now, None while it holds nothing."""

    def __init__(
        self,
        store: ClusterStore,
        words: LeaseWords,
        memory: LeaseMemory,
        *,
        holder: str,
        clock: Clock,
        ttl_s: int = LEASE_TTL_S,
        may_hold: Callable[[], bool] = lambda: True,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._words = words
        self._memory = memory
        self._holder = holder
        self._clock = clock
        self._ttl_s = ttl_s
        self._may_hold = may_hold
        self._chance = chance
        self._log = get_log("lease")
        self._own: _Own | None = None
        self._taken = 0
        self._other: tuple[int, float] | None = None
        """Revision of another's lease, and when it was seen first."""
        self.seen: LeaseDocument | None = None
        """The lease as it was read last, anybody's."""

    @property
    def epoch(self) -> int | None:
        """By the time of this moment: a holder that was asleep holds nothing when it wakes up."""
        own = self._own
        return own.epoch if own is not None and self._time_s() < own.valid_until_s else None

    async def run(self) -> None:
        """Take it when it is free, and keep it, until cancelled; then give it back."""
        said = ""
        try:
            while True:
                try:
                    await self.step()
                    said = ""
                except SbctlError as error:
                    if error.code != said:
                        self._log.warning("lease", code=error.code, reason=error.message)
                    said = error.code
                await asyncio.sleep(self._ttl_s / _RENEWALS_A_TTL * (0.8 + self._chance() / 5))
        finally:
            await self.release()

    async def step(self) -> int | None:
        """Renew or try to take it, once; → `epoch`. Raises UnreachableError, and what keeping the epoch raises."""
        if not self._may_hold():
            if self._own is not None:
                self._log.warning("the lease is left to others", epoch=self._own.epoch)
                await self.release()
            return None
        try:
            if self.epoch is not None:
                await self._renew()
            else:
                await self._try()
        except StoreConflictError:
            self._own = None
        return self.epoch

    async def surpass(self, epoch: int) -> None:
        """Others spoke with this epoch, which this node did not see: hold nothing until a higher one is taken. An epoch that no takings led to
        is nobody's, and is ignored. Raises what keeping it raises."""
        if self._own is not None and epoch <= self._seen_epoch() + LEASE_LEAP_MAX:
            await asyncio.to_thread(self._memory.take_lease_epoch, epoch)
            self._own = None

    async def release(self) -> None:
        """Let the next one begin soon. Never raises; nothing where it is not held."""
        own, self._own = self._own, None
        if own is None or self._time_s() >= own.valid_until_s:
            return
        value = self._value(own.epoch, own.renewal + 1, own.acquired_at_ms, _GIVEN_BACK_TTL_S)
        try:
            async with asyncio.timeout(self._ttl_s / _RENEWALS_A_TTL):
                await self._store.compare_and_set(Bucket.LEASES, CONTROLLER_KEY, value, expected=own.revision)
        except (SbctlError, TimeoutError):
            self._log.info("the lease ends by itself")

    async def _renew(self) -> None:
        """Over its own words only: in a store that lost its data, another's may stand at the very revision that is remembered. A renewal whose
        answer was lost is found in this way, too."""
        own = self._own
        assert own is not None
        began_s = self._time_s()
        entry, found = await self._read()
        if entry is None or found is None or (found.holder, found.epoch) != (self._holder, own.epoch):
            self._own = None
            self._log.warning("the lease is lost", epoch=own.epoch, holder=None if found is None else found.holder)
            return
        renewal = max(own.renewal, found.renewal) + 1
        value = self._value(own.epoch, renewal, own.acquired_at_ms, self._ttl_s)
        revision = await self._store.compare_and_set(Bucket.LEASES, CONTROLLER_KEY, value, expected=entry.revision)
        self._own = _Own(own.epoch, renewal, revision, own.acquired_at_ms, self._end_s(began_s))

    async def _try(self) -> None:
        entry, found = await self._read()
        if entry is not None and found is not None and not self._is_over(entry, found):
            return
        began_s = self._time_s()
        epoch = max(0 if found is None else found.epoch, await asyncio.to_thread(self._seen_epoch)) + 1
        await asyncio.to_thread(self._memory.take_lease_epoch, epoch)
        self._taken = epoch
        now_ms = self._now_ms()
        revision = await self._store.compare_and_set(
            Bucket.LEASES,
            CONTROLLER_KEY,
            self._value(epoch, 0, now_ms, self._ttl_s),
            expected=0 if entry is None else entry.revision,
        )
        self._other = None
        self._own = _Own(epoch, 0, revision, now_ms, self._end_s(began_s))
        self._log.info("the lease is taken", epoch=epoch)

    async def _read(self) -> tuple[Entry | None, LeaseDocument | None]:
        entry = await self._store.get(Bucket.LEASES, CONTROLLER_KEY)
        self.seen = None if entry is None else self._words.open(entry.value)
        return entry, self.seen

    def _is_over(self, entry: Entry, found: LeaseDocument) -> bool:
        if found.holder == self._holder or found.epoch < self._memory.lease_epoch_seen or found.epoch == self._taken:
            return True
        now_s = self._time_s()
        if self._other is None or self._other[0] != entry.revision:
            self._other = (entry.revision, now_s)
        return now_s - self._other[1] >= found.ttl_secs

    def _seen_epoch(self) -> int:
        return self._memory.lease_epoch_seen

    def _value(self, epoch: int, renewal: int, acquired_at_ms: int, ttl_secs: int) -> bytes:
        return self._words.seal(
            epoch=epoch,
            renewal=renewal,
            acquired_at_ms=acquired_at_ms,
            renewed_at_ms=self._now_ms(),
            ttl_secs=ttl_secs,
        )

    def _end_s(self, began_s: float) -> float:
        return began_s + self._ttl_s * (1 - _MARGIN)

    def _now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    @staticmethod
    def _time_s() -> float:
        return asyncio.get_running_loop().time()
