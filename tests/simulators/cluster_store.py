"""The cluster's store in memory: one `MemoryCluster` with its data and its faults, and a `ClusterStore` for each node that uses it.

    cluster = MemoryCluster()
    a, w = cluster.client("a", is_authority=True), cluster.client("w")

Faults: `cut` and `mend` a node's link, `quorum = False`, `delay_s` for every call, `lose_data`, `double_events`, `lose_events`,
`lose_answers` (a write happens and nobody learns of it). Everything waits on the loop, so virtual time works.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from sbctl.base.clock import SYSTEM_CLOCK, Clock
from sbctl.base.errors import RefusedError, UnreachableError
from sbctl.runtime.cluster.store import (
    Bucket,
    Entry,
    StoreConflictError,
    StoreState,
    StoreStatus,
    Watched,
    check_key,
    check_prefix,
    check_value,
    key_matches,
    node_key,
    outcome_unknown,
    store_unreachable,
)
from sbctl.runtime.cluster.watching import WatchBuffer

__all__ = ["MemoryCluster", "MemoryStore"]

_AUDIT_S = 30.0


@dataclass(slots=True)
class _Stored:
    revision: int
    value: bytes | None


@dataclass(slots=True)
class MemoryCluster:
    """All that is shared. `sequence` numbers the writes of each bucket."""

    clock: Clock = SYSTEM_CLOCK
    quorum: bool = True
    delay_s: float = 0.0
    double_events: bool = False
    lose_events: bool = False
    lose_answers: bool = False
    data: dict[Bucket, dict[str, _Stored]] = field(default_factory=lambda: {bucket: {} for bucket in Bucket})
    sequence: dict[Bucket, int] = field(default_factory=lambda: dict.fromkeys(Bucket, 0))
    clients: list[MemoryStore] = field(default_factory=list)

    def client(self, node_id: str, *, is_authority: bool = False) -> MemoryStore:
        made = MemoryStore(self, node_id, is_authority=is_authority)
        self.clients.append(made)
        return made

    def cut(self, node_id: str) -> None:
        """The node reaches no server any more."""
        for client in self._of(node_id):
            client.set_linked(False)

    def mend(self, node_id: str) -> None:
        for client in self._of(node_id):
            client.set_linked(True)

    def lose_data(self) -> None:
        """All disks are empty; numbers begin anew. Who is connected notices."""
        self.data = {bucket: {} for bucket in Bucket}
        self.sequence = dict.fromkeys(Bucket, 0)
        for client in self.clients:
            client.restarted()

    def write(self, bucket: Bucket, key: str, value: bytes | None) -> int:
        self.sequence[bucket] += 1
        revision = self.sequence[bucket]
        self.data[bucket][key] = _Stored(revision, value)
        if not self.lose_events:
            for client in self.clients:
                for _ in range(2 if self.double_events else 1):
                    client.hear(bucket, key, revision, value)
        return revision

    def _of(self, node_id: str) -> list[MemoryStore]:
        return [client for client in self.clients if client.node_id == node_id]


class MemoryStore:
    """One node's view."""

    def __init__(self, cluster: MemoryCluster, node_id: str, *, is_authority: bool) -> None:
        self.node_id = node_id
        self._cluster = cluster
        self._is_authority = is_authority
        self._linked = asyncio.Event()
        self._linked.set()
        self._since = cluster.clock.now()
        self._state: StoreState = "connected"
        self._watches: list[tuple[Bucket, str, WatchBuffer]] = []

    def set_linked(self, linked: bool) -> None:
        if linked:
            self._linked.set()
            self.restarted()
        else:
            self._linked.clear()
        self._tell()

    def restarted(self) -> None:
        for _, _, buffer in self._watches:
            buffer.forget()

    def hear(self, bucket: Bucket, key: str, revision: int, value: bytes | None) -> None:
        if self._linked.is_set():
            for watched, prefix, buffer in self._watches:
                if watched == bucket and key_matches(prefix, key):
                    buffer.message(key, revision, value)

    def status(self) -> StoreStatus:
        self._tell()
        problem = None if self._state == "connected" else "made so by a test"
        return StoreStatus(self._state, self._since, "memory" if self._linked.is_set() else None, problem)

    def _tell(self) -> None:
        state: StoreState = "lost"
        if self._linked.is_set():
            state = "connected" if self._cluster.quorum else "no_quorum"
        if state != self._state:
            self._state, self._since = state, self._cluster.clock.now()

    async def _reach(self) -> None:
        await asyncio.sleep(self._cluster.delay_s)
        if not self._linked.is_set():
            raise store_unreachable("the link is cut")
        if not self._cluster.quorum:
            raise UnreachableError("store.no_quorum", "too few members run", retryable=True)

    def _may(self, bucket: Bucket, key: str) -> None:
        if not (self._is_authority and bucket is not Bucket.NODES) and (bucket, key) != (
            Bucket.NODES,
            node_key(self.node_id),
        ):
            raise RefusedError("store.denied", "a node writes under its own name only", place=f"{bucket}/{key}")

    async def get(self, bucket: Bucket, key: str) -> Entry | None:
        check_key(bucket, key)
        await self._reach()
        found = self._cluster.data[bucket].get(key)
        return None if found is None or found.value is None else Entry(key, found.value, found.revision)

    async def put(self, bucket: Bucket, key: str, value: bytes, *, ttl_s: int | None = None) -> int:
        await self._begin(bucket, key, value)
        revision = self._write(bucket, key, value)
        if ttl_s is not None:
            asyncio.get_running_loop().call_later(ttl_s, self._expire, bucket, key, revision)
        return revision

    async def compare_and_set(self, bucket: Bucket, key: str, value: bytes, *, expected: int) -> int:
        await self._begin(bucket, key, value)
        found = self._cluster.data[bucket].get(key)
        current = 0 if found is None or (found.value is None and expected == 0) else found.revision
        if current != expected:
            raise StoreConflictError(bucket, key)
        return self._write(bucket, key, value)

    async def delete(self, bucket: Bucket, key: str) -> None:
        await self._begin(bucket, key, b"")
        self._write(bucket, key, None)

    async def _begin(self, bucket: Bucket, key: str, value: bytes) -> None:
        check_key(bucket, key)
        check_value(bucket, key, value)
        await self._reach()
        self._may(bucket, key)

    def _write(self, bucket: Bucket, key: str, value: bytes | None) -> int:
        revision = self._cluster.write(bucket, key, value)
        if self._cluster.lose_answers:
            raise outcome_unknown(bucket, key)
        return revision

    def _expire(self, bucket: Bucket, key: str, revision: int) -> None:
        found = self._cluster.data[bucket].get(key)
        if found is not None and found.revision == revision:
            self._cluster.write(bucket, key, None)

    async def watch(self, bucket: Bucket, prefix: str = "") -> AsyncIterator[Watched]:
        check_prefix(bucket, prefix)
        buffer = WatchBuffer(is_whole=not prefix)
        watch = (bucket, prefix, buffer)
        self._watches.append(watch)
        try:
            while True:
                await self._linked.wait()
                found = self._cluster.data[bucket]
                listed = [(key, each.revision, each.value) for key, each in found.items() if key_matches(prefix, key)]
                buffer.resynced(listed, 0 if prefix else self._cluster.sequence[bucket])
                while (told := buffer.take()) is not None:
                    yield told
                while self._linked.is_set() and not buffer.has_gap and await buffer.wait(_AUDIT_S):
                    while (told := buffer.take()) is not None:
                        yield told
        finally:
            self._watches.remove(watch)
