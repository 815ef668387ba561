"""What one watcher of the store was told, and what it is still to be told. No network, no clock.

Messages tell of single changes and may be lost, doubled or late; a listing tells of everything, but of a member that may lag. Together they
give what `ClusterStore.watch` promises: the newest value of each key, never an older one after it, and a Resync whenever something may be
missing. Values are held only until they are taken, and only the newest of each key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from sbctl.runtime.cluster.store import Changed, Entry, Gone, Resync, Watched

__all__ = ["Found", "WatchBuffer"]

Found = tuple[str, int, bytes | None]
"""Key, revision, value; None for one that was deleted."""


class WatchBuffer:
    """One event loop; one taker. A value of None is a deletion. `is_whole`: of all keys of a bucket, so that no revision may be left out."""

    def __init__(self, *, is_whole: bool) -> None:
        self._is_whole = is_whole
        self._revisions: dict[str, int] = {}
        self._told: set[str] = set()
        """Keys of which the taker knows a value."""
        self._pending: dict[str, Entry | None] = {}
        self._resync = False
        self._wake = asyncio.Event()
        self.has_gap = True
        """A listing is needed."""
        self.last_sequence = 0
        """The highest revision of the whole bucket that was heard of; of a watch of one key, of that key."""

    @property
    def keys_known(self) -> int:
        """How many keys have a revision here, deleted ones too."""
        return len(self._revisions)

    def message(self, key: str, revision: int, value: bytes | None) -> None:
        """A single change was heard of."""
        if self._is_whole and revision > self.last_sequence + 1:
            self.has_gap = True
        self.last_sequence = max(self.last_sequence, revision)
        if revision <= self._revisions.get(key, 0):
            return
        self._revisions[key] = revision
        self._pending.pop(key, None)
        self._pending[key] = None if value is None else Entry(key, value, revision)
        self._wake.set()

    def missed(self) -> None:
        """Something was dropped on the way."""
        self.has_gap = True
        self._wake.set()

    def newer_than(self, listed: Mapping[str, int]) -> tuple[str, ...]:
        """Keys of which a newer value was heard than a listing has: they have to be read one by one."""
        return tuple(key for key, revision in self._revisions.items() if revision > listed.get(key, 0))

    def forget(self) -> None:
        """The store lost its data, or has other data: what was heard before orders nothing any more."""
        self._revisions.clear()
        self._pending.clear()
        self.last_sequence = 0
        self.missed()

    def resynced(self, listed: Iterable[Found], last_sequence: int) -> None:
        """Everything, with newer single readings in it. What was heard meanwhile and is newer stays. An audit that finds nothing else than is
        known already is not told."""
        found = {key: (revision, value) for key, revision, value in listed}
        listed_revisions = {key: revision for key, (revision, _) in found.items()}
        self.last_sequence = max(self.last_sequence, last_sequence)
        if not self.has_gap and listed_revisions == self._revisions:
            return
        newer = {
            key: each for key, each in self._pending.items() if self._revisions[key] > listed_revisions.get(key, 0)
        }
        self._revisions = listed_revisions | {key: self._revisions[key] for key in newer}
        values = {
            key: None if value is None else Entry(key, value, revision) for key, (revision, value) in found.items()
        }
        self._pending = values | newer
        self.has_gap, self._resync = False, True
        self._wake.set()

    def take(self) -> Watched | None:
        """What comes next; None when there is nothing to tell."""
        if self._resync:
            entries = tuple(entry for entry in self._pending.values() if entry is not None)
            self._told = {entry.key for entry in entries}
            self._pending.clear()
            self._resync = False
            return Resync(entries)
        # Before the first listing nobody knows what a single change belongs to.
        while self._pending and not self.has_gap:
            key = next(iter(self._pending))
            entry = self._pending.pop(key)
            if entry is not None:
                self._told.add(key)
                return Changed(entry)
            if key in self._told:
                self._told.discard(key)
                return Gone(key)
        return None

    async def wait(self, timeout_s: float) -> bool:
        """Until something was heard, or the time is over: False then."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True
