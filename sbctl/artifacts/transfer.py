"""The missing bytes of one file from one source: by one connection, or by several when the server takes ranges and more of them bring more.

The first answer decides. It is read on as long as nobody else has what comes next; beside it others ask for pieces in order of the file. A
connection is added while that makes the whole faster, and taken back when the server will not have it. Every answer must be exactly the
range that was asked for, of the file that the first answer showed; whatever else comes, the digest decides in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import aiohttp
from yarl import URL

from sbctl.artifacts.disk_space import held_bytes, require_space
from sbctl.artifacts.fetch_policy import shown
from sbctl.artifacts.fetcher import Fetcher, transport_error
from sbctl.artifacts.http_answers import content_range, size_error, status_error, takes_ranges, validator
from sbctl.artifacts.partial import Partial, Validator
from sbctl.artifacts.ranges import Lease
from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import ArtifactError, SbctlError
from sbctl.base.limits import (
    DOWNLOAD_MAX_CONNECTIONS,
    DOWNLOAD_PIECE_BYTES,
    DOWNLOAD_SLOW_BYTES_PER_S,
    GIB,
    MIB,
)

__all__ = ["Transfer", "source_place"]

_TICK_S: Final = 0.25
_WINDOW_S: Final = 0.25
_REST_S: Final = 30.0
_SYNC_EVERY_S: Final = 20.0
_WRITE_BYTES: Final = 1 * MIB
_QUEUE_BYTES: Final = 4 * MIB
_MARK_BYTES: Final = 1 * MIB
_PIECE_LEAST_BYTES: Final = 1 * MIB
_UNKNOWN_SIZE_CAP_BYTES: Final = 8 * GIB
_FAST_ENOUGH_BYTES_PER_S: Final = 256 * MIB
"""One connection that brings so much is not helped by a second."""
_WORTH_IT: Final = 1.15
"""More connections stay when the whole became so much faster."""
_UNHASHED_BYTES: Final = 64 * MIB
_TRANSPORT: Final = (aiohttp.ClientError, TimeoutError, ConnectionError)
_SIGNATURE_ENDED: Final = frozenset({400, 401, 403, 404, 410})


def source_place(url: URL) -> str:
    """How a source is named in journals: its address may hold a signature."""
    return sha256_bytes(str(url).encode())


class Transfer:
    """One attempt with one source. `is_last`: no other source can be tried instead, so slowness is borne."""

    def __init__(
        self,
        fetcher: Fetcher,
        url: URL,
        partial: Partial,
        size_bytes: int | None,
        *,
        is_last: bool,
        progress: Callable[[int, int | None], None],
        alive: Callable[[], None],
    ) -> None:
        self._fetcher = fetcher
        self._url = url
        self._place = source_place(url)
        self._partial = partial
        self._size_bytes = size_bytes
        self._is_last = is_last
        self._progress = progress
        self._alive = alive
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="download-disk")
        self._final: URL | None = None
        self._etag = ""
        self._workers: set[asyncio.Task[None]] = set()
        self._active = 0
        self._wanted = 1
        self.received_bytes = 0
        self.resumed = False

    async def run(self) -> None:
        """Until the file is whole. What arrived is in the partial file, however this ends. Raises ArtifactError, SbctlError `disk.*`."""
        ranges: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        try:
            self._spawn(self._first(ranges))
            await self._answered(ranges)
            await self._watch(can_grow=ranges.done() and ranges.result())
        finally:
            for worker in self._workers:
                worker.cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)
            ranges.cancel()
            self._disk.shutdown(wait=True)
        if not self._partial.pieces.is_whole:
            raise transport_error(self._url, ConnectionError("it ended before the file was whole"))

    async def _answered(self, ranges: asyncio.Future[bool]) -> None:
        waited: set[asyncio.Future[bool] | asyncio.Task[None]] = {ranges, *self._workers}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        async def counted() -> None:
            try:
                await work
            finally:
                self._active -= 1

        self._active += 1
        self._workers.add(asyncio.create_task(counted()))

    # The watch: failures of workers, growth, slowness, life signs.

    async def _watch(self, *, can_grow: bool) -> None:
        loop = asyncio.get_running_loop()
        growth = _Growth(loop.time(), self.received_bytes) if can_grow else None
        pace = _Pace(loop.time(), self.received_bytes, self._fetcher.stall_s)
        synced_s = loop.time()
        while self._workers:
            done, _ = await asyncio.wait(self._workers, timeout=_TICK_S, return_when=asyncio.FIRST_COMPLETED)
            self._workers -= done
            if self._failed(done) and growth is not None:
                growth.hold(loop.time())
            self._alive()
            if not self._is_last and pace.is_slow(loop.time(), self.received_bytes):
                raise _slow(self._url, self._fetcher.stall_s)
            if growth is not None and self._partial.unhashed_bytes < _UNHASHED_BYTES:
                self._wanted = growth.decide(loop.time(), self.received_bytes, self._wanted)
            if loop.time() - synced_s >= _SYNC_EVERY_S:
                synced_s = loop.time()
                await loop.run_in_executor(None, self._partial.sync)
            while growth is not None and self._active < self._wanted and self._partial.pieces.free_bytes > 0:
                self._spawn(self._ranges())

    def _failed(self, done: set[asyncio.Task[None]]) -> bool:
        """A connection that failed while others go on costs one connection; the last one's failure is the transfer's."""
        failures = [error for worker in done if (error := worker.exception()) is not None]
        for error in failures:
            if not isinstance(error, ArtifactError) or not error.retryable or not self._workers:
                raise error
        if failures:
            self._wanted = max(1, len(self._workers))
        return bool(failures)

    # The first answer.

    async def _first(self, ranges: asyncio.Future[bool]) -> None:
        pieces, known = self._partial.pieces, self._partial.total
        lease = pieces.take(DOWNLOAD_PIECE_BYTES)
        if lease is None:
            ranges.set_result(False)
            return
        headers = {}
        if lease.position:
            headers["Range"] = f"bytes={lease.position}-"
            if etag := self._partial.etag_of(self._place):
                headers["If-Range"] = etag
        try:
            async with self._fetcher.open(self._url, headers) as response:
                if lease.position and _continues(response, lease.position, known):
                    self._continue(response, known)
                else:
                    pieces.give_back(lease)
                    lease = self._start_anew(response)
                if response.url != self._url:
                    self._final = response.url
                self._etag = validator(response.headers)
                ranges.set_result(takes_ranges(response) and self._partial.total is not None)
                await self._receive(response, lease, reads_on=True)
            if ranges.result():
                self._partial.pieces.give_back(lease)
                await self._ranges()
        finally:
            self._partial.pieces.give_back(lease)

    def _continue(self, response: aiohttp.ClientResponse, total: int | None) -> None:
        assert total is not None
        require_space(self._partial.target.parent, total - held_bytes(self._partial.target))
        self._partial.join(Validator(self._place, validator(response.headers)))
        self.resumed = True

    def _start_anew(self, response: aiohttp.ClientResponse) -> Lease:
        if response.status != 200:
            if response.status in (206, 416):
                self._partial.restart()
            raise status_error(response, self._url)
        expected, length = self._size_bytes, response.content_length
        if expected is not None and length is not None and length != expected:
            raise size_error(length, expected, shown(self._url))
        total = expected if expected is not None else length
        require_space(self._partial.target.parent, (total or 0) - held_bytes(self._partial.target))
        if total is not None and total > _UNKNOWN_SIZE_CAP_BYTES and expected is None:
            raise size_error(None, _UNKNOWN_SIZE_CAP_BYTES, shown(self._url))
        self._partial.begin(total, Validator(self._place, validator(response.headers)))
        lease = self._partial.pieces.take(DOWNLOAD_PIECE_BYTES)
        if lease is None:
            raise size_error(0, expected or 1, shown(self._url))
        return lease

    # Further connections.

    async def _ranges(self) -> None:
        """Piece after piece, until none is left or one connection fewer is wanted."""
        while self._active <= self._wanted:
            lease = self._partial.pieces.take(self._piece_bytes())
            if lease is None:
                return
            try:
                await self._range(lease)
            finally:
                self._partial.pieces.give_back(lease)

    def _piece_bytes(self) -> int:
        """Smaller towards the end, so that no connection is the last for long."""
        share = self._partial.pieces.free_bytes // (2 * self._wanted)
        return min(DOWNLOAD_PIECE_BYTES, max(_PIECE_LEAST_BYTES, share))

    async def _range(self, lease: Lease) -> None:
        headers = {"Range": f"bytes={lease.position}-{lease.end - 1}", "If-Range": self._etag}
        async with self._fetcher.open(self._url, headers, at=self._final) as response:
            if response.status in _SIGNATURE_ENDED and self._final is not None:
                self._final = None  # a signed address ends some day; the source makes a new one
                raise transport_error(self._url, ConnectionError(f"the redirected address answered {response.status}"))
            if response.status != 206:
                raise _changed(self._url) if response.status == 200 else status_error(response, self._url)
            exactly = (lease.position, lease.end, self._partial.total)
            if content_range(response.headers) != exactly or validator(response.headers) not in ("", self._etag):
                raise _changed(self._url)
            await self._receive(response, lease, reads_on=False)
            if self._final is None and response.url != self._url:
                self._final = response.url

    # Bytes.

    async def _receive(self, response: aiohttp.ClientResponse, lease: Lease, *, reads_on: bool) -> None:
        sink = _Sink(self._partial, lease, self._disk, self._report)
        total = self._partial.total
        try:
            while True:
                chunk, _ = await response.content.readchunk()
                if not chunk:
                    break
                room = self._room(sink, lease, len(chunk), reads_on=reads_on)
                self.received_bytes += room
                await sink.put(chunk[:room])
                if room < len(chunk):
                    if not reads_on or lease.end in (total, _UNKNOWN_SIZE_CAP_BYTES):
                        raise size_error(None, lease.end, shown(self._url))
                    return
        except _TRANSPORT as error:
            raise transport_error(self._url, error) from error
        finally:
            await sink.close()
        if total is None:
            self._partial.end_is_known(lease.position)
        elif lease.position < (total if reads_on else lease.end):
            raise transport_error(self._url, ConnectionError(f"it ended at byte {lease.position} of {total}"))

    def _room(self, sink: _Sink, lease: Lease, wanted: int, *, reads_on: bool) -> int:
        """How many of the next bytes are this connection's, after the lease grew over what nobody else has."""
        limit = self._partial.total or _UNKNOWN_SIZE_CAP_BYTES
        while reads_on and sink.position + wanted > lease.end < limit:
            if not self._partial.pieces.extend(lease, min(DOWNLOAD_PIECE_BYTES, limit - lease.end)):
                break
        return min(wanted, lease.end - sink.position)

    def _report(self) -> None:
        self._partial.advance_hash()
        self._progress(self._partial.pieces.done_bytes, self._partial.total)


def _continues(response: aiohttp.ClientResponse, offset: int, total: int | None) -> bool:
    """Whether the answer is exactly the rest of the file from `offset`."""
    return response.status == 206 and content_range(response.headers) == (offset, total, total)


class _Sink:
    """Bytes of one lease on their way to the disk: written by a thread while the next ones arrive."""

    def __init__(self, partial: Partial, lease: Lease, disk: ThreadPoolExecutor, report: Callable[[], None]) -> None:
        self.position = lease.position
        self._partial = partial
        self._lease = lease
        self._disk = disk
        self._report = report
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._marked = lease.position
        self._written = lease.position
        self._flight: asyncio.Future[None] | None = None

    async def put(self, chunk: bytes) -> None:
        """Raises SbctlError `disk.*` of an earlier write."""
        self._pending.append(chunk)
        self._pending_bytes += len(chunk)
        self.position += len(chunk)
        if self._flight is not None and (self._flight.done() or self._pending_bytes >= _QUEUE_BYTES):
            await self._land()
        if self._flight is None and self._pending_bytes >= _WRITE_BYTES:
            self._start()

    async def close(self) -> None:
        """Everything that arrived is written and marked. Raises SbctlError `disk.*`."""
        try:
            if self._flight is not None:
                await self._land()
            if self._pending:
                self._start()
                await self._land()
        finally:
            if self._marked < self._lease.position:
                await self._mark()

    def _start(self) -> None:
        chunks, self._pending, self._pending_bytes = self._pending, [], 0
        self._written = self._lease.position
        self._flight = asyncio.get_running_loop().run_in_executor(self._disk, self._write, chunks)

    def _write(self, chunks: list[bytes]) -> None:
        for chunk in chunks:
            self._partial.write_at(chunk, self._written)
            self._written += len(chunk)

    async def _land(self) -> None:
        """What a thread writes cannot be called off, so a cancelled connection waits for it too; what it wrote before it failed counts."""
        assert self._flight is not None
        flight = self._flight
        try:
            await asyncio.shield(flight)
        except asyncio.CancelledError:
            await asyncio.wait({flight})
            raise
        except SbctlError:
            self._pending, self._pending_bytes = [], 0
            raise
        finally:
            self._flight = None
            self._partial.pieces.advance(self._lease, self._written)
            self._report()
        if self._written - self._marked >= _MARK_BYTES:
            await self._mark()

    async def _mark(self) -> None:
        start, self._marked = self._marked, self._lease.position
        marking = asyncio.get_running_loop().run_in_executor(self._disk, self._partial.mark, start, self._marked)
        try:
            await asyncio.shield(marking)
        except asyncio.CancelledError:
            await asyncio.wait({marking})
            raise


class _Growth:
    """How many connections to have: twice as many as long as that pays, and another look now and then."""

    def __init__(self, now_s: float, received: int) -> None:
        self._since_s, self._received = now_s, received
        self._rest_until_s = 0.0
        self._before: tuple[int, float] | None = None
        self._warm = True

    def hold(self, now_s: float) -> None:
        """The server turned one away: leave it at what there is for a while."""
        self._before, self._rest_until_s = None, now_s + _REST_S

    def decide(self, now_s: float, received: int, wanted: int) -> int:
        if now_s - self._since_s < _WINDOW_S:
            return wanted
        rate = (received - self._received) / (now_s - self._since_s)
        self._since_s, self._received = now_s, received
        if not self._warm:  # connections that have just been made are not judged yet
            self._warm = True
            return wanted
        if now_s < self._rest_until_s:
            return wanted
        if self._before is not None and rate < self._before[1] * _WORTH_IT:
            former = self._before[0]
            self.hold(now_s)
            return former
        if wanted >= DOWNLOAD_MAX_CONNECTIONS or rate >= _FAST_ENOUGH_BYTES_PER_S:
            self.hold(now_s)
            return wanted
        self._before, self._warm = (wanted, rate), False
        return min(DOWNLOAD_MAX_CONNECTIONS, wanted * 2)


class _Pace:
    """Whether a source gave less than it must over a whole stall time."""

    def __init__(self, now_s: float, received: int, window_s: float) -> None:
        self._since_s, self._received, self._window_s = now_s, received, window_s

    def is_slow(self, now_s: float, received: int) -> bool:
        if now_s - self._since_s < self._window_s:
            return False
        got, self._received, self._since_s = received - self._received, received, now_s
        return got < DOWNLOAD_SLOW_BYTES_PER_S * self._window_s


def _slow(url: URL, window_s: float) -> ArtifactError:
    return ArtifactError(
        "artifact.slow",
        f"the source gave less than {DOWNLOAD_SLOW_BYTES_PER_S // 1024} KiB/s for {window_s:.0f} s",
        place=shown(url),
        next_step="the next source is tried; look at this one, or put a faster one before it",
    )


def _changed(url: URL) -> ArtifactError:
    return ArtifactError(
        "artifact.changed_meanwhile",
        "the server answered another range or another file than the one it began with",
        place=shown(url),
        next_step="run again: it starts from the first byte where the server's file has changed",
        retryable=True,
    )
