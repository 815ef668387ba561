"""Fetch one file to a local path and be sure of it: resumed, hashed while it streams, capped, tried again, then made durable.

What may be fetched and connected to is `fetch_policy`; following redirects is `fetcher`; keeping what was got is `partial`. Here is the
order of attempts: the locations in turn, each again while it makes progress, DOWNLOAD_ATTEMPTS times without any. A full disk, a refused
address or a wrong size ends a location at once; a wrong digest is tried once more from the first byte if the download had been resumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

import aiohttp
from yarl import URL

from sbctl.artifacts.archive import read_member
from sbctl.artifacts.fetch_policy import parse_url, shown
from sbctl.artifacts.fetcher import Fetcher, transport_error
from sbctl.artifacts.partial import Partial, require_space
from sbctl.artifacts.sources import ArchivePin, Location
from sbctl.base import fs
from sbctl.base.digests import sha256_bytes, sha256_file
from sbctl.base.errors import ArtifactError, SbctlError
from sbctl.base.limits import DOWNLOAD_ATTEMPTS, GIB

__all__ = ["Progress", "fetch_file"]

Progress = Callable[[int, int | None], None]
"""Bytes done and in total, None when unknown."""

Sleep = Callable[[float], Awaitable[None]]

_CHUNK_BYTES: Final = 256 * 1024
_UNKNOWN_SIZE_CAP_BYTES: Final = 8 * GIB
_BACKOFF_FIRST_S: Final = 0.5
_BACKOFF_CAP_S: Final = 30.0
_RETRY_AFTER_CAP_S: Final = 120.0
_LOCK_POLL_S: Final = 0.2
_MAX_ATTEMPTS: Final = 100
"""Also for a server that gives a little each time."""
_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")


async def fetch_file(
    sources: Sequence[Location | str],
    target: Path,
    *,
    sha256: str,
    size_bytes: int | None = None,
    progress: Progress | None = None,
    fetcher: Fetcher | None = None,
    sleep: Sleep = asyncio.sleep,
) -> int:
    """Leave a file with exactly this digest at `target`, durably, mode 0600; returns how many bytes came over the network.

    A `target` that already has the digest is left alone. `sources` are URLs or Locations, tried in order. After a failure `target` does
    not exist, and what can be continued lies beside it. Raises ArtifactError of the last location, SbctlError `disk.*` at once.
    """
    if await asyncio.to_thread(_is_done, target, sha256):
        return 0
    if fetcher is None:
        async with Fetcher() as opened:
            return await fetch_file(
                sources, target, sha256=sha256, size_bytes=size_bytes, progress=progress, fetcher=opened, sleep=sleep
            )
    job = _Job(fetcher, sleep, progress or (lambda _done, _total: None))
    last: ArtifactError | None = None
    for source in sources:
        location = Location(url=parse_url(source)) if isinstance(source, str) else source
        try:
            await job.get(location, target, sha256, size_bytes)
            return job.received_bytes
        except ArtifactError as error:
            if error.code.startswith("disk."):
                raise
            last = error
    raise last or ArtifactError("artifact.no_source", "no source names this file", place=str(target))


class _Job:
    """One call of fetch_file: what its attempts share."""

    def __init__(self, fetcher: Fetcher, sleep: Sleep, progress: Progress) -> None:
        self._fetcher = fetcher
        self._sleep = sleep
        self._progress = progress
        self.received_bytes = 0

    async def get(self, location: Location, target: Path, sha256: str, size_bytes: int | None) -> None:
        if location.path is not None:
            await self._store(target, sha256, size_bytes, _pieces(location.path), str(location.path))
        elif location.archive is None:
            assert location.url is not None
            await self._download(location.url, target, sha256, size_bytes)
        else:
            assert location.url is not None
            await self._member(location.url, location.archive, target, sha256, size_bytes)

    async def _member(self, url: URL, pin: ArchivePin, target: Path, sha256: str, size_bytes: int | None) -> None:
        archive = target.with_name(target.name + ".archive")
        require_space(target.parent, (pin.size_bytes or 0) + (size_bytes or 0))
        await self._download(url, archive, pin.sha256, pin.size_bytes)
        try:
            pieces = read_member(archive, pin.member, max_bytes=size_bytes or _UNKNOWN_SIZE_CAP_BYTES)
            await self._store(target, sha256, size_bytes, pieces, shown(url))
        except ArtifactError as error:
            if not error.code.startswith("disk."):
                _remove_quietly(archive)
            raise
        _remove_quietly(archive)

    async def _store(
        self, target: Path, sha256: str, size_bytes: int | None, pieces: Iterable[bytes], place: str
    ) -> None:
        """Write pieces that are already on this machine; their digest decides."""
        partial = await self._locked(target, sha256)
        if partial is None:
            return
        try:
            require_space(target.parent, size_bytes or 0)
            partial.restart(sha256=sha256, total_bytes=None, place="", etag="")
            await asyncio.to_thread(_write_pieces, partial, pieces, size_bytes, place)
            _check(partial, sha256, size_bytes, place)
            await asyncio.to_thread(partial.finish)
        except BaseException:
            partial.discard()
            raise
        finally:
            partial.close()

    async def _download(self, url: URL, target: Path, sha256: str | None, size_bytes: int | None) -> None:
        """`sha256` None: an archive that nothing pins; its member's digest decides."""
        partial = await self._locked(target, sha256)
        if partial is None:
            return
        if url.host in ("127.0.0.1", "::1", "localhost"):
            self._fetcher.origins.add(url)
        failures, restarted = 0, False
        try:
            for attempt in itertools.count(1):
                before = partial.size_bytes
                try:
                    resumed = await self._attempt(url, partial, sha256, size_bytes)
                    _check(partial, sha256, size_bytes, shown(url))
                    await asyncio.to_thread(partial.finish)
                    return
                except ArtifactError as error:
                    if error.code == "artifact.digest_mismatch":
                        partial.discard_content()
                        if resumed and not restarted:
                            restarted = True
                            continue
                    failures = 1 if partial.size_bytes > before else failures + 1
                    if not error.retryable or failures >= DOWNLOAD_ATTEMPTS or attempt >= _MAX_ATTEMPTS:
                        raise
                    await self._sleep(_pause_s(failures, error))
        except BaseException:
            if not partial.can_resume:
                partial.discard()
            raise
        finally:
            partial.close()

    async def _locked(self, target: Path, sha256: str | None) -> Partial | None:
        """The partial file under our lock; None when another process finished the very file meanwhile."""
        partial = Partial(target)
        while not partial.try_open():
            await self._sleep(_LOCK_POLL_S)
        if sha256 is not None and await asyncio.to_thread(_is_done, target, sha256):
            partial.discard()
            partial.close()
            return None
        return partial

    async def _attempt(self, url: URL, partial: Partial, sha256: str | None, size_bytes: int | None) -> bool:
        """One request; True when it continued earlier bytes."""
        place = sha256_bytes(str(url).encode())
        offset, etag = await asyncio.to_thread(partial.resume_point, sha256 or "", size_bytes, place)
        headers = {}
        if offset:
            headers["Range"] = f"bytes={offset}-"
            if etag:
                headers["If-Range"] = etag
        async with self._fetcher.open(url, headers) as response:
            continued = _continues(response, offset, size_bytes)
            if not continued:
                if response.status != 200:
                    if response.status in (206, 416):
                        partial.discard_content()
                    raise _status_error(response, url)
                length = response.content_length
                if size_bytes is not None and length is not None and length != size_bytes:
                    raise _size_error(length, size_bytes, shown(url))
                require_space(partial.target.parent, length if length is not None else size_bytes or 0)
                partial.restart(sha256=sha256 or "", total_bytes=size_bytes, place=place, etag=_validator(response))
            else:
                assert size_bytes is not None
                require_space(partial.target.parent, size_bytes - offset)
            await self._receive(response, partial, size_bytes, url)
        return continued

    async def _receive(
        self, response: aiohttp.ClientResponse, partial: Partial, size_bytes: int | None, url: URL
    ) -> None:
        cap = size_bytes if size_bytes is not None else _UNKNOWN_SIZE_CAP_BYTES
        total = size_bytes if size_bytes is not None else response.content_length
        try:
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                if partial.size_bytes + len(chunk) > cap:
                    partial.discard_content()
                    raise _size_error(None, cap, shown(url))
                partial.write(chunk)
                self.received_bytes += len(chunk)
                self._progress(partial.size_bytes, total)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise transport_error(url, error) from error
        if size_bytes is not None and partial.size_bytes < size_bytes:
            raise transport_error(url, ConnectionError(f"it ended after {partial.size_bytes} of {size_bytes} bytes"))


def _remove_quietly(path: Path) -> None:
    with contextlib.suppress(SbctlError):
        fs.remove_file(path)


def _is_done(target: Path, sha256: str) -> bool:
    if target.is_symlink():
        raise SbctlError(
            "disk.symlink_refused", "a symbolic link stands where a file of ours belongs", place=str(target)
        )
    try:
        return target.is_file() and sha256_file(target) == sha256
    except OSError as error:
        raise fs.disk_error(error, target) from error


def _continues(response: aiohttp.ClientResponse, offset: int, size_bytes: int | None) -> bool:
    """Whether the answer is exactly the rest of what we have."""
    if response.status != 206 or not offset:
        return False
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    return match is not None and (int(match[1]), int(match[2]) + 1, int(match[3])) == (offset, size_bytes, size_bytes)


def _validator(response: aiohttp.ClientResponse) -> str:
    """The strong ETag; a weak one says nothing about bytes."""
    etag = response.headers.get("ETag", "")
    return etag if etag.startswith('"') and len(etag) <= 256 else ""


def _status_error(response: aiohttp.ClientResponse, url: URL) -> ArtifactError:
    status = response.status
    step = {
        401: "give a token (HF_TOKEN) or index credentials",
        403: "check that your token may read this repository",
        404: "check the source and revision in the catalog",
    }.get(status)
    return ArtifactError(
        "artifact.http_status",
        f"the server answered {status}",
        place=shown(url),
        next_step=step,
        retryable=status in (206, 408, 416, 425, 429) or status >= 500,
        detail={"status": status, "retry_after_s": _retry_after_s(response)},
    )


def _retry_after_s(response: aiohttp.ClientResponse) -> float | None:
    """Seconds the server asks for; a date is read against the server's own clock."""
    value = response.headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit():
        return min(float(value[:6]), _RETRY_AFTER_CAP_S)
    try:
        until, now = parsedate_to_datetime(value), parsedate_to_datetime(response.headers.get("Date", ""))
        return min(max((until - now).total_seconds(), 0.0), _RETRY_AFTER_CAP_S)
    except (ValueError, TypeError):
        return None


def _pause_s(failures: int, error: ArtifactError) -> float:
    asked = error.detail.get("retry_after_s")
    backoff = min(_BACKOFF_CAP_S, _BACKOFF_FIRST_S * 2.0 ** (failures - 1)) * (0.5 + random.random())  # noqa: S311 - jitter
    return max(backoff, asked) if isinstance(asked, float) else backoff


def _size_error(got: int | None, expected: int, place: str) -> ArtifactError:
    said = f"{got} bytes" if got is not None else f"more than {expected} bytes"
    return ArtifactError("artifact.size_mismatch", f"the source has {said} where {expected} are expected", place=place)


def _check(partial: Partial, sha256: str | None, size_bytes: int | None, place: str) -> None:
    if size_bytes is not None and partial.size_bytes != size_bytes:
        raise _size_error(partial.size_bytes, size_bytes, place)
    if sha256 is not None and partial.digest.hexdigest() != sha256:
        raise ArtifactError(
            "artifact.digest_mismatch",
            f"the bytes have SHA-256 {partial.digest.hexdigest()} where {sha256} is expected",
            place=place,
            next_step="the source was changed or damaged on its way; correct the catalog's digest only if you trust the new bytes",
        )


def _pieces(path: Path) -> Iterable[bytes]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise fs.disk_error(error, path) from error
    try:
        while chunk := os.read(fd, 1 << 20):
            yield chunk
    except OSError as error:
        raise fs.disk_error(error, path) from error
    finally:
        os.close(fd)


def _write_pieces(partial: Partial, pieces: Iterable[bytes], size_bytes: int | None, place: str) -> None:
    for piece in pieces:
        if size_bytes is not None and partial.size_bytes + len(piece) > size_bytes:
            raise _size_error(None, size_bytes, place)
        partial.write(piece)
