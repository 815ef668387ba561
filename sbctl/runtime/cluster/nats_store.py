"""`ClusterStore` on NATS JetStream: one connection at a time to one of the authorities, and the watches that outlive it.

    connect   authorities in random order, each proved by its own name in its certificate; TLS from the first byte, so that nobody on the way
              can talk the client out of it; after a round without success a pause that doubles, with jitter
    read      from the leader, which for some seconds may not know yet that it is none any more
    list      from any member, in pages; what was heard of as newer is read from the leader
    watch     the server tells what it wrote; a gap in the numbers, a dropped message, another connection or another incarnation of the bucket
              is a listing. Every `audit_s` the numbers are compared, in case the last message was the one that was lost

No consumer is made on the server, so a watch costs it nothing that must be replicated, and needs no right to make one.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from sbctl.base.clock import Clock
from sbctl.base.errors import HostError, SbctlError, UnreachableError
from sbctl.runtime.cluster.buckets import bucket_config, differs
from sbctl.runtime.cluster.nats_link import Link, StoreServer
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
    store_unreachable,
)
from sbctl.runtime.cluster.watching import WatchBuffer
from sbctl.runtime.log import get_log
from sbctl.runtime.watching import keep_watching

__all__ = ["NatsStore", "StoreServer", "StoreTiming"]

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class StoreTiming:
    """Seconds. `patience_s`: how long a call waits for a connection that is not there."""

    first_pause_s: float = 0.25
    longest_pause_s: float = 15.0
    audit_s: float = 30.0
    probe_s: float = 10.0
    patience_s: float = 3.0


_PARALLEL: Final = 64


class NatsStore:
    """`start` once, `close` once. `servers` and `context` are asked at every connection, so that other authorities and a renewed identity are
    taken up by themselves; `node_id` is whom the certificate names."""

    def __init__(
        self,
        servers: Callable[[], Sequence[StoreServer]],
        context: Callable[[], ssl.SSLContext],
        *,
        node_id: str,
        clock: Clock,
        timing: StoreTiming = StoreTiming(),
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._servers = servers
        self._context = context
        self._node_id = node_id
        self._clock = clock
        self._timing = timing
        self._chance = chance
        self._log = get_log("store")
        self._link: Link | None = None
        self._linked = asyncio.Event()
        self._closed = False
        self._keeper: asyncio.Task[None] | None = None
        self._calls = asyncio.Semaphore(_PARALLEL)
        self._status = StoreStatus("lost", clock.now(), problem="not connected yet")
        self._not_written = ""
        """Why the last write over this connection was not taken."""

    # Life

    async def start(self) -> None:
        """Connect in the background; returns at once."""
        kept = keep_watching("store", self._keep, again_s=self._timing.longest_pause_s)
        self._keeper = asyncio.create_task(kept, name="store")

    async def close(self) -> None:
        """End the connection. Watches end, too."""
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        self._linked.set()

    def status(self) -> StoreStatus:
        return self._status

    async def _keep(self) -> None:
        failures = 0
        while True:
            link = await self._connect()
            if link is None:
                failures += 1
                await asyncio.sleep(self._pause_s(failures))
                continue
            failures = 0
            self._link = link
            self._linked.set()
            try:
                await self._stay(link)
            finally:
                self._link = None
                self._linked.clear()
                await link.close()
            self._tell("lost", None, link.why_lost)
            await asyncio.sleep(self._pause_s(1))

    async def _connect(self) -> Link | None:
        """One round over all authorities."""
        problem = "no authority is known"
        servers = list(self._servers())
        random.shuffle(servers)
        for server in servers:
            try:
                link = await Link.open(server, self._context(), node_id=self._node_id)
            except Exception as error:  # noqa: BLE001 - what one server says wrong keeps nobody from the next
                problem = error.message if isinstance(error, SbctlError) else str(error) or type(error).__name__
                continue
            self._not_written = ""
            self._tell("connected", server.node_id, None)
            return link
        self._tell("lost", None, problem)
        return None

    async def _stay(self, link: Link) -> None:
        """Until it is lost; now and then one question, so that a store without quorum shows while nobody asks."""
        while not link.lost.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timing.probe_s):
                    await link.lost.wait()
                return
            with suppress(SbctlError):
                await self._answered(link, link.info(Bucket.LEASES))

    def _pause_s(self, failures: int) -> float:
        full = min(self._timing.longest_pause_s, self._timing.first_pause_s * 2.0 ** min(failures - 1, 16))
        return full * (0.5 + self._chance() / 2)

    def _tell(self, state: StoreState, server: str | None, problem: str | None) -> None:
        before = self._status
        if (before.state, before.server, before.problem) == (state, server, problem):
            return
        is_same = before.state == state or {before.state, state} == {"no_quorum", "no_writes"}
        since = before.since if is_same else self._clock.now()
        self._status = StoreStatus(state, since, server, problem)
        if before.state != state:
            self._log.info("store", state=state, server=server, problem=problem)

    # Calls

    async def get(self, bucket: Bucket, key: str) -> Entry | None:
        check_key(bucket, key)
        found = await self._call(lambda link: link.read(bucket, key))
        return None if found is None or found[2] is None else Entry(key, found[2], found[1])

    async def put(self, bucket: Bucket, key: str, value: bytes, *, ttl_s: int | None = None) -> int:
        check_key(bucket, key)
        check_value(bucket, key, value)
        return await self._call(lambda link: link.write(bucket, key, value, ttl_s=ttl_s), writes=True)

    async def compare_and_set(self, bucket: Bucket, key: str, value: bytes, *, expected: int) -> int:
        check_key(bucket, key)
        check_value(bucket, key, value)
        try:
            return await self._call(lambda link: link.write(bucket, key, value, expected=expected), writes=True)
        except StoreConflictError:
            if expected:
                raise
        # What is there may be the mark of a deletion, which has a revision of its own.
        found = await self._call(lambda link: link.read(bucket, key))
        if found is None or found[2] is not None:
            raise StoreConflictError(bucket, key)
        return await self._call(lambda link: link.write(bucket, key, value, expected=found[1]), writes=True)

    async def delete(self, bucket: Bucket, key: str) -> None:
        check_key(bucket, key)
        await self._call(lambda link: link.write(bucket, key, None), writes=True)

    async def prepare(self, *, replicas: int) -> None:
        """By an authority: make the buckets that are missing, and bring the others to today's settings. Done again it changes nothing.

        Raises as every call does.
        """
        for bucket in Bucket:
            wanted = bucket_config(bucket, replicas=replicas)
            await self._call(partial(_prepare, bucket=bucket, wanted=wanted))

    async def _call(self, ask: Callable[[Link], Awaitable[_Result]], *, writes: bool = False) -> _Result:
        async with self._calls:
            link = await self._usable()
            return await self._answered(link, ask(link), writes=writes)

    async def _usable(self) -> Link:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timing.patience_s):
                await self._linked.wait()
        if self._link is None:
            raise store_unreachable(self._status.problem or "there is no connection")
        return self._link

    async def _answered(self, link: Link, answer: Awaitable[_Result], *, writes: bool = False) -> _Result:
        """What an answer, or none, says of the store."""
        try:
            result = await answer
        except (UnreachableError, HostError) as error:
            self._tell_failure(link, error, writes=writes)
            raise
        except StoreConflictError:
            self._tell_answer(link, writes=writes)
            raise
        self._tell_answer(link, writes=writes)
        return result

    def _tell_failure(self, link: Link, error: SbctlError, *, writes: bool) -> None:
        if self._link is not link or link.lost.is_set():
            return
        if not writes or error.code == "store.no_quorum":
            self._tell("no_quorum", link.server.node_id, error.message)
            return
        self._not_written = error.message
        if self._status.state != "no_quorum":
            self._tell("no_writes", link.server.node_id, error.message)

    def _tell_answer(self, link: Link, *, writes: bool) -> None:
        """A store whose disk is full goes on answering questions: only a write that it takes says that it takes writes."""
        if self._link is not link:
            return
        if writes:
            self._not_written = ""
        problem = self._not_written
        self._tell("no_writes" if problem else "connected", link.server.node_id, problem or None)

    # Watching

    async def watch(self, bucket: Bucket, prefix: str = "") -> AsyncIterator[Watched]:
        check_prefix(bucket, prefix)
        seen = _Seen(bucket, prefix, WatchBuffer(is_whole=not prefix))
        while (link := await self._next_link()) is not None:
            seen.buffer.missed()
            try:
                end = await link.listen(bucket, prefix, seen.buffer)
            except UnreachableError:
                await asyncio.sleep(self._pause_s(1))
                continue
            try:
                async for told in self._follow(link, seen):
                    yield told
            finally:
                await end()

    async def _next_link(self) -> Link | None:
        """The connection, waited for; None when the store is closed."""
        while not self._closed:
            await self._linked.wait()
            if self._link is not None:
                return self._link
            await asyncio.sleep(0)
        return None

    async def _follow(self, link: Link, seen: _Seen) -> AsyncIterator[Watched]:
        """What comes over one connection, until it is lost."""
        failures, is_audit = 0, False
        while not link.lost.is_set():
            try:
                if seen.buffer.has_gap or is_audit:
                    await self._catch_up(link, seen)
                failures, is_audit = 0, False
            except SbctlError:
                failures += 1
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_s(failures)):
                        await link.lost.wait()
                continue
            while (told := seen.buffer.take()) is not None:
                yield told
            if not seen.buffer.has_gap:
                is_audit = not await seen.buffer.wait(self._timing.audit_s * (0.75 + self._chance() / 2))

    async def _catch_up(self, link: Link, seen: _Seen) -> None:
        """Compare what was heard with what there is, and list it where that differs."""
        buffer = seen.buffer
        info = await self._answered(link, link.info(seen.bucket))
        if info.incarnation != seen.incarnation or info.last_sequence < buffer.last_sequence:
            buffer.forget()
        elif not buffer.has_gap and (info.last_sequence, info.messages) == (buffer.last_sequence, buffer.keys_known):
            return
        # Any member answers this one, so it says nothing of the quorum.
        found = await link.listing(seen.bucket, seen.prefix)
        listed = {one[0]: one for one in found}
        for key in buffer.newer_than({key: one[1] for key, one in listed.items()}):
            newest = await self._answered(link, link.read(seen.bucket, key))
            if newest is None:
                listed.pop(key, None)
            else:
                listed[key] = newest
        buffer.resynced(listed.values(), 0 if seen.prefix else info.last_sequence)
        seen.incarnation = info.incarnation


@dataclass(slots=True)
class _Seen:
    """One watch, over all its connections."""

    bucket: Bucket
    prefix: str
    buffer: WatchBuffer
    incarnation: str = ""


async def _prepare(link: Link, bucket: Bucket, wanted: dict[str, Any]) -> None:
    try:
        found = await link.info(bucket)
    except UnreachableError as error:
        if error.code != "store.no_bucket":
            raise
        await link.make("create", bucket, wanted)
        return
    if differs(wanted, found.config):
        await link.make("update", bucket, wanted)
