"""Get an artifact into the cache: fetch what is missing, verify it, publish it as one snapshot.

Order: lock, look up by seal, repair or refuse what is damaged, fetch each missing blob from the sources in turn, then publish under the
shared mutation lock: blobs by rename, a staging directory of links, its manifest, one rename. A kill at any point leaves either no snapshot
or a whole one; the next run continues.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.download import Progress, fetch_file
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.locks import artifact_lock_path, hold, hold_async, mutation_lock_path
from sbctl.artifacts.model import ArtifactFacts, ArtifactFile
from sbctl.artifacts.partial import require_space
from sbctl.artifacts.seal import check_facts
from sbctl.artifacts.sources import Location, locate, parse_source
from sbctl.base import fs
from sbctl.base.digests import sha256_file
from sbctl.base.errors import ArtifactError, InputError, SbctlError

__all__ = ["PullResult", "import_files", "pull"]

_ROUNDS: Final = 3
"""A blob that another artifact shared may be removed with it while this one is fetched; then it is fetched after all."""

_FetchBlob = Callable[[ArtifactFile, Path, Progress], Awaitable[int]]
"""Leaves the verified bytes of one file at a path; returns how many came over the network."""


@dataclass(frozen=True, slots=True)
class PullResult:
    """`quarantined` names bad blobs that were replaced."""

    artifact: str
    downloaded_bytes: int
    was_present: bool
    quarantined: tuple[Path, ...] = ()


def _from_sources(facts: ArtifactFacts, fetcher: Fetcher) -> _FetchBlob:
    async def fetch(file: ArtifactFile, target: Path, progress: Progress) -> int:
        last: SbctlError | None = None
        for text in (facts.source, *facts.mirrors):
            try:
                location = await locate(parse_source(text), file, facts, fetcher)
                return await fetch_file(
                    [location],
                    target,
                    sha256=file.sha256,
                    size_bytes=file.size_bytes,
                    progress=progress,
                    fetcher=fetcher,
                )
            except (ArtifactError, InputError) as error:
                if error.code.startswith("disk."):
                    raise
                last = error
        assert last is not None
        raise last

    return fetch


def _from_files(files: Mapping[str, Path], fetcher: Fetcher) -> _FetchBlob:
    async def fetch(file: ArtifactFile, target: Path, progress: Progress) -> int:
        source = files.get(file.sha256)
        if source is None:
            raise ArtifactError(
                "artifact.file_missing", f"the bytes of {file.path} were not put on this host", place=file.sha256
            )
        if not await asyncio.to_thread(_adopt, source, target, file):
            await fetch_file(
                [Location(path=source)],
                target,
                sha256=file.sha256,
                size_bytes=file.size_bytes,
                progress=progress,
                fetcher=fetcher,
            )
        return file.size_bytes

    return fetch


def _adopt(source: Path, target: Path, file: ArtifactFile) -> bool:
    """A put file on the same filesystem is linked, not copied, and read once. False: it must be copied, or has other bytes."""
    if os.path.lexists(target):
        return False
    try:
        status = os.lstat(source)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size != file.size_bytes:
            return False
        fs.OPS.link(str(source), str(target))
    except OSError:
        return False
    if sha256_file(target) == file.sha256:
        return True
    fs.remove_file(target)
    return False


async def pull(
    cache: ArtifactCache, facts: ArtifactFacts, *, progress: Progress | None = None, fetcher: Fetcher | None = None
) -> PullResult:
    """Fetch from `source`, then `mirrors`. A second process waits and finds the work done.

    Raises InputError `artifact.invalid`, ArtifactError of the last source, SbctlError `disk.*`, RefusedError `cache.unsafe_permissions`.
    """
    if fetcher is not None:
        return await _ensure(cache, facts, _from_sources(facts, fetcher), progress)
    async with Fetcher() as opened:
        return await _ensure(cache, facts, _from_sources(facts, opened), progress)


async def import_files(
    cache: ArtifactCache, facts: ArtifactFacts, files: Mapping[str, Path], *, progress: Progress | None = None
) -> PullResult:
    """Publish bytes that are on this host already, by digest. They are read and verified once more; `files` stay where they are."""
    async with Fetcher() as fetcher:
        return await _ensure(cache, facts, _from_files(files, fetcher), progress)


async def _ensure(
    cache: ArtifactCache, facts: ArtifactFacts, fetch: _FetchBlob, progress: Progress | None
) -> PullResult:
    check_facts(facts)
    await asyncio.to_thread(cache.prepare)
    async with hold_async(artifact_lock_path(cache.root, facts.artifact)):
        entry = await asyncio.to_thread(cache.entry, facts.artifact)
        quarantined: tuple[Path, ...] = ()
        if entry is not None and entry.state == "corrupt":
            verification = await asyncio.to_thread(cache.verify_locked, facts.artifact)
            quarantined = verification.quarantined
            entry = await asyncio.to_thread(cache.entry, facts.artifact)
        if entry is not None and entry.state == "ready":
            await asyncio.to_thread(fs.remove_tree, cache.partials_path(facts.artifact))
            return PullResult(facts.artifact, 0, was_present=True)
        downloaded = 0
        for _ in range(_ROUNDS):
            downloaded += await _fetch_missing(cache, facts, fetch, progress)
            if await asyncio.to_thread(_publish, cache, facts):
                return PullResult(facts.artifact, downloaded, was_present=False, quarantined=quarantined)
        raise ArtifactError(
            "artifact.contended",
            "other processes removed blobs of this artifact as fast as they were fetched",
            place=facts.artifact,
            retryable=True,
        )


async def _fetch_missing(
    cache: ArtifactCache, facts: ArtifactFacts, fetch: _FetchBlob, progress: Progress | None
) -> int:
    partials = cache.partials_path(facts.artifact)
    await asyncio.to_thread(fs.ensure_directory, partials, mode=0o755)
    missing = [file for file in _distinct(facts.files) if not cache.has_blob(file)]
    require_space(cache.root, sum(file.size_bytes for file in missing))
    done_bytes = facts.total_bytes - sum(file.size_bytes for file in missing)
    downloaded = 0
    for file in missing:
        downloaded += await fetch(file, partials / file.sha256, _part_of(progress, done_bytes, file, facts))
        done_bytes += file.size_bytes
    return downloaded


def _distinct(files: Sequence[ArtifactFile]) -> list[ArtifactFile]:
    return list({file.sha256: file for file in files}.values())


def _part_of(progress: Progress | None, before_bytes: int, file: ArtifactFile, facts: ArtifactFacts) -> Progress:
    """Progress of one file, possibly packed, as progress of the artifact."""

    def report(done: int, total: int | None) -> None:
        if progress is not None:
            share = file.size_bytes * done // total if total else min(done, file.size_bytes)
            progress(before_bytes + share, facts.total_bytes)

    return report


def _publish(cache: ArtifactCache, facts: ArtifactFacts) -> bool:
    """False: a blob that was there before has gone meanwhile."""
    partials = cache.partials_path(facts.artifact)
    snapshot = cache.snapshot_path(facts.artifact)
    with hold(mutation_lock_path(cache.root), cache.clock, shared=True):
        for file in _distinct(facts.files):
            if not _promote(cache, partials / file.sha256, file):
                return False
        for name in _stagings(cache, facts.artifact):
            fs.remove_tree(name)
        staging = cache.snapshots / f".staging-{facts.artifact}-{secrets.token_hex(4)}"
        fs.ensure_directory(staging, mode=0o755)
        for file in facts.files:
            target = staging / file.path
            fs.ensure_directory(target.parent, mode=0o755)
            fs.link_or_copy(cache.blob_path(file.sha256), target)
        cache.write_manifest(staging, facts)
        for directory in sorted({(staging / file.path).parent for file in facts.files}, reverse=True):
            fs.fsync_directory(directory)
        fs.install_file(staging, snapshot, mode=0o755)
    fs.remove_tree(partials)
    return True


def _promote(cache: ArtifactCache, fetched: Path, file: ArtifactFile) -> bool:
    blob = cache.blob_path(file.sha256)
    if blob.is_file() and not blob.is_symlink():
        if blob.stat().st_size == file.size_bytes and sha256_file(blob) == file.sha256:
            return True
        fs.remove_file(blob)
    if not fetched.is_file():
        return False
    fs.install_file(fetched, blob, mode=0o444)
    return True


def _stagings(cache: ArtifactCache, artifact: str) -> list[Path]:
    """What a killed run of ours left; the artifact's lock keeps living ones away."""
    return list(cache.snapshots.glob(f".staging-{artifact}-*"))
