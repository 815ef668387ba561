"""Which bytes of a file are here, which are on their way, and which come next. Pure.

Bytes are handed out in order of the file, so that what is here grows from the front and can be hashed while the rest arrives.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Lease", "Pieces"]


@dataclass(slots=True, eq=False)
class Lease:
    """`[position, end)` is fetched by one connection, which moves `position` as bytes are written."""

    position: int
    end: int


class Pieces:
    """The bytes `[0, total)` of one file. Intervals are half open and never overlap."""

    def __init__(self, total: int, done: Iterable[tuple[int, int]] = ()) -> None:
        self.total = total
        self._done: list[tuple[int, int]] = []
        self._leases: list[Lease] = []
        for start, end in done:
            self._add(max(0, start), min(end, total))

    @property
    def done(self) -> tuple[tuple[int, int], ...]:
        """What is here, in order, joined where it touches."""
        return tuple(self._done)

    @property
    def done_bytes(self) -> int:
        return sum(end - start for start, end in self._done)

    @property
    def prefix(self) -> int:
        """How far the file is whole from its first byte."""
        return self._done[0][1] if self._done and self._done[0][0] == 0 else 0

    @property
    def is_whole(self) -> bool:
        return self.prefix == self.total

    def take(self, most: int) -> Lease | None:
        """The first bytes that are neither here nor leased, at most `most`; None when there are none."""
        position = 0
        for start, end in self._taken():
            if start > position:
                break
            position = max(position, end)
        if position >= self.total:
            return None
        lease = Lease(position, min(self._free_until(position), position + most))
        self._leases.append(lease)
        return lease

    def extend(self, lease: Lease, most: int) -> bool:
        """Lengthen a lease over free bytes behind it; False when the byte behind it is here, leased, or beyond the file."""
        if lease.end >= self.total or any(start <= lease.end < end for start, end in self._taken()):
            return False
        lease.end = min(self._free_until(lease.end), lease.end + most)
        return True

    def advance(self, lease: Lease, to: int) -> None:
        """The bytes of the lease up to `to` are here now."""
        self._add(lease.position, to)
        lease.position = to

    def give_back(self, lease: Lease) -> None:
        """What the lease did not bring is free again. Quiet when it was given back already."""
        if lease in self._leases:
            self._leases.remove(lease)

    @property
    def free_bytes(self) -> int:
        """Neither here nor leased."""
        return self.total - self.done_bytes - sum(lease.end - lease.position for lease in self._leases)

    def _taken(self) -> list[tuple[int, int]]:
        leased = [(lease.position, lease.end) for lease in self._leases if lease.position < lease.end]
        return sorted([*self._done, *leased])

    def _free_until(self, position: int) -> int:
        return min((start for start, _ in self._taken() if start > position), default=self.total)

    def _add(self, start: int, end: int) -> None:
        if start >= end:
            return
        at = bisect.bisect_left(self._done, (start, start))
        if at > 0 and self._done[at - 1][1] >= start:
            at -= 1
            start = min(start, self._done[at][0])
        until = at
        while until < len(self._done) and self._done[until][0] <= end:
            end = max(end, self._done[until][1])
            until += 1
        self._done[at:until] = [(start, end)]
