"""Fetch one file to a local path and be sure of it: continued, hashed while it arrives, capped, tried again, then made durable.

What may be fetched and connected to is `fetch_policy`; following redirects is `fetcher`; who fetches is `claim`; keeping what was got is
`partial`; bringing it is `transfer`. Here is the order of attempts: the sources in turn, each again while it makes progress, DOWNLOAD_ATTEMPTS
times without any. What one source brought, the next continues. Bytes with another digest are thrown away; when several sources had brought
them, each is then asked for the whole, so that the one with the wrong bytes is named. A full disk ends everything at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from yarl import URL

from sbctl.artifacts.archive import read_member
from sbctl.artifacts.claim import Claim, Claimant
from sbctl.artifacts.disk_space import held_bytes, require_space
from sbctl.artifacts.fetch_policy import parse_url, shown
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.http_answers import pause_s, size_error
from sbctl.artifacts.partial import Partial, Validator
from sbctl.artifacts.sources import ArchivePin, Location, NamedSource
from sbctl.artifacts.transfer import Transfer, source_place
from sbctl.base import fs
from sbctl.base.digests import sha256_file
from sbctl.base.errors import ArtifactError, InputError, SbctlError
from sbctl.base.limits import DOWNLOAD_ATTEMPTS, GIB

__all__ = ["Progress", "fetch_file"]

Progress = Callable[[int, int | None], None]
"""Bytes done and in total, None when unknown."""

Sleep = Callable[[float], Awaitable[None]]

_UNKNOWN_SIZE_CAP_BYTES: Final = 8 * GIB
_CLAIM_POLL_S: Final = 0.2
_MAX_ATTEMPTS: Final = 100
"""Also for a server that gives a little each time."""


async def fetch_file(
    sources: Sequence[Location | NamedSource | str],
    target: Path,
    *,
    sha256: str,
    size_bytes: int | None = None,
    progress: Progress | None = None,
    fetcher: Fetcher | None = None,
    sleep: Sleep = asyncio.sleep,
    note: Callable[[str], None] | None = None,
) -> int:
    """Leave a file with exactly this digest at `target`, durably, mode 0600; returns how many bytes came over the network.

    A `target` that already has the digest is left alone. `sources` are tried in order; `note` is told in one sentence each time one is given up
    for the next. After a failure `target` does not exist, and what can be continued lies beside it. Raises ArtifactError
    of the last source, with the others in `detail["sources"]`; SbctlError `disk.*` at once.
    """
    if await asyncio.to_thread(_is_done, target, sha256):
        return 0
    if fetcher is None:
        async with Fetcher() as opened:
            return await fetch_file(
                sources, target, sha256=sha256, size_bytes=size_bytes, progress=progress, fetcher=opened, sleep=sleep, note=note
            )  # fmt: skip
    named = [_named(source) for source in sources]
    job = _Job(fetcher, sleep, progress or (lambda _done, _total: None))
    given_up: list[tuple[str, SbctlError]] = []
    for number, source in enumerate(named):
        is_last = number == len(named) - 1
        try:
            await job.get(await source.locate(), target, sha256, size_bytes, is_last=is_last)
            return job.received_bytes
        except (ArtifactError, InputError) as error:
            if error.code.startswith("disk."):
                raise
            given_up.append((source.name, error))
            if note is not None and not is_last:
                note(f"{source.name} is left for the next source: {error.message}")
    raise _all_failed(given_up, target)


def _named(source: Location | NamedSource | str) -> NamedSource:
    if isinstance(source, NamedSource):
        return source
    location = Location(url=parse_url(source)) if isinstance(source, str) else source

    async def found() -> Location:
        return location

    return NamedSource(shown(location.url) if location.url is not None else str(location.path), found)


def _all_failed(given_up: Sequence[tuple[str, SbctlError]], target: Path) -> SbctlError:
    if not given_up:
        return ArtifactError(
            "artifact.no_source",
            "no source names this file",
            place=str(target),
            next_step="give the variant a source or a mirror in the catalog",
        )
    last = given_up[-1][1]
    if len(given_up) > 1:
        others = "; ".join(f"{name}: {error.message}" for name, error in given_up[:-1])
        tried = [{"source": name, "code": error.code, "message": error.message} for name, error in given_up]
        return ArtifactError(
            last.code,
            f"{last.message} (before it, {others})",
            place=last.place,
            next_step=last.next_step,
            retryable=any(error.retryable for _, error in given_up),
            detail={**last.detail, "sources": tried},
        )
    return last


class _Job:
    """One call of fetch_file: what its attempts share."""

    def __init__(self, fetcher: Fetcher, sleep: Sleep, progress: Progress) -> None:
        self._fetcher = fetcher
        self._sleep = sleep
        self._progress = progress
        self.received_bytes = 0

    async def get(
        self, location: Location, target: Path, sha256: str, size_bytes: int | None, *, is_last: bool
    ) -> None:
        if location.path is not None:
            await self._store(target, sha256, size_bytes, _pieces(location.path), str(location.path))
            return
        assert location.url is not None
        self._fetcher.origins.add_source(location.url)
        if location.archive is None:
            await self._download(location.url, target, sha256, size_bytes, is_last=is_last)
        else:
            await self._member(location.url, location.archive, target, sha256, size_bytes, is_last=is_last)

    async def _member(
        self, url: URL, pin: ArchivePin, target: Path, sha256: str, size_bytes: int | None, *, is_last: bool
    ) -> None:
        archive = target.with_name(target.name + ".archive")
        require_space(target.parent, max(0, (pin.size_bytes or 0) - held_bytes(archive)) + (size_bytes or 0))
        await self._download(url, archive, pin.sha256, pin.size_bytes, is_last=is_last)
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
        claim = await self._claimed(target, sha256)
        if claim is None:
            return
        partial = Partial(target, claim, "", size_bytes)
        try:
            require_space(target.parent, size_bytes or 0)
            await asyncio.to_thread(_write_pieces, partial, pieces, size_bytes, place)
            _check(await asyncio.to_thread(partial.hexdigest), sha256, place)
            await asyncio.to_thread(partial.finish)
        finally:
            await asyncio.to_thread(_end, partial, claim)

    async def _download(
        self, url: URL, target: Path, sha256: str | None, size_bytes: int | None, *, is_last: bool
    ) -> None:
        """`sha256` None: an archive that nothing pins; its member's digest decides."""
        claim = await self._claimed(target, sha256)
        if claim is None:
            return
        partial = Partial(target, claim, sha256 or "", size_bytes)
        try:
            await asyncio.to_thread(partial.open)
            await self._attempts(url, partial, claim, sha256, size_bytes, is_last=is_last)
            await asyncio.to_thread(partial.finish)
        finally:
            await asyncio.to_thread(_end, partial, claim)

    async def _attempts(
        self, url: URL, partial: Partial, claim: Claim, sha256: str | None, size_bytes: int | None, *, is_last: bool
    ) -> None:
        failures, restarted, mixed = 0, False, False
        for attempt in itertools.count(1):
            before = partial.pieces.done_bytes
            transfer = Transfer(
                self._fetcher, url, partial, size_bytes, is_last=is_last, progress=self._progress, alive=claim.touch
            )
            try:
                mixed = await self._run(transfer, partial, url)
                if sha256 is not None:
                    _check(await asyncio.to_thread(partial.hexdigest), sha256, shown(url))
                return
            except ArtifactError as error:
                if error.code in ("artifact.digest_mismatch", "artifact.size_mismatch"):
                    await asyncio.to_thread(partial.restart)
                if error.code == "artifact.digest_mismatch" and mixed and not restarted:
                    restarted = True
                    continue
                failures = 1 if partial.pieces.done_bytes > before else failures + 1
                if not error.retryable or failures >= DOWNLOAD_ATTEMPTS or attempt >= _MAX_ATTEMPTS:
                    raise
                await self._sleep(pause_s(failures, error))

    async def _run(self, transfer: Transfer, partial: Partial, url: URL) -> bool:
        """True when earlier bytes, or another source's, are part of the file."""
        whole = partial.pieces.is_whole
        try:
            if not whole:
                await transfer.run()
        finally:
            self.received_bytes += transfer.received_bytes
        return whole or transfer.resumed or partial.places != {source_place(url)}

    async def _claimed(self, target: Path, sha256: str | None) -> Claim | None:
        """The right to fetch; None when another process finished the very file meanwhile."""
        claimant = Claimant(target)
        while (claim := await asyncio.to_thread(claimant.try_claim)) is None:
            await self._sleep(_CLAIM_POLL_S)
        try:
            if sha256 is None or not await asyncio.to_thread(_is_done, target, sha256):
                return claim
        except BaseException:
            claim.release()
            raise
        claim.release()
        return None


def _end(partial: Partial, claim: Claim) -> None:
    try:
        partial.leave()
    finally:
        claim.release()


def _remove_quietly(path: Path) -> None:
    with contextlib.suppress(SbctlError):
        fs.remove_file(path)


def _is_done(target: Path, sha256: str) -> bool:
    if target.is_symlink():
        raise SbctlError(
            "disk.symlink_refused",
            "a symbolic link stands where a file of ours belongs",
            place=str(target),
            next_step="look who placed it and remove it",
        )
    try:
        return target.is_file() and sha256_file(target) == sha256
    except OSError as error:
        raise fs.disk_error(error, target) from error


def _check(found: str, sha256: str, place: str) -> None:
    if found != sha256:
        raise ArtifactError(
            "artifact.digest_mismatch",
            f"the bytes have SHA-256 {found} where {sha256} is expected",
            place=place,
            next_step="the source was changed or damaged on its way; correct the catalog's digest only if you trust the new bytes",
        )


def _pieces(path: Path) -> Iterator[bytes]:
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
    partial.open()
    partial.begin(size_bytes, Validator("", ""))
    lease = partial.pieces.take(partial.pieces.total)
    assert lease is not None
    for piece in pieces:
        if lease.position + len(piece) > lease.end:
            raise size_error(None, lease.end, place)
        partial.write_at(piece, lease.position)
        partial.pieces.advance(lease, lease.position + len(piece))
        partial.advance_hash()
    if size_bytes is not None and lease.position != size_bytes:
        raise size_error(lease.position, size_bytes, place)
    partial.end_is_known(lease.position)
