"""Get an artifact into the cache: fetch what is missing, verify it, publish it as one snapshot.

Order: lock, look up by seal, repair or refuse what is damaged, take what another program on this machine has, fetch each missing blob from
the sources in turn, then publish (`publication`). The next run continues what a kill cut off. Offline, nothing but this machine is asked.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.disk_space import held_bytes, require_space
from sbctl.artifacts.download import Progress, fetch_file
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.foreign_caches import ForeignCache, bring_over, candidates
from sbctl.artifacts.locks import artifact_lock_path, hold_async
from sbctl.artifacts.model import ArtifactFacts, ArtifactFile
from sbctl.artifacts.publication import distinct, publish
from sbctl.artifacts.seal import check_facts
from sbctl.artifacts.sources import FileSource, Location, named_sources, parse_source
from sbctl.artifacts.split_sets import split_problem
from sbctl.base import fs
from sbctl.base.digests import sha256_file
from sbctl.base.display import plural
from sbctl.base.errors import ArtifactError, InputError

__all__ = ["Note", "PullResult", "import_files", "pull"]

_ROUNDS: Final = 3
"""A blob that another artifact shared may be removed with it while this one is fetched; then it is fetched after all."""
_NAMED_MISSING: Final = 3

Note = Callable[[str], None]
"""Is told in one sentence when a source was given up for the next."""

_FetchBlob = Callable[[ArtifactFile, Path, Progress], Awaitable[int]]
"""Leaves the verified bytes of one file at a path; returns how many came over the network."""


@dataclass(frozen=True, slots=True)
class PullResult:
    """`quarantined` names bad blobs that were replaced; `imported_from` which program's files were taken, in place of `imported_bytes`."""

    artifact: str
    downloaded_bytes: int
    was_present: bool
    quarantined: tuple[Path, ...] = ()
    imported_bytes: int = 0
    imported_from: tuple[str, ...] = ()


async def pull(
    cache: ArtifactCache,
    facts: ArtifactFacts,
    *,
    progress: Progress | None = None,
    fetcher: Fetcher | None = None,
    offline: bool = False,
    foreign: Sequence[ForeignCache] = (),
    note: Note | None = None,
) -> PullResult:
    """Take from `foreign` by digest, then fetch from `source`, then `mirrors`. A second process waits and finds the work done.

    Offline, only `file:` sources are read. Raises InputError `artifact.invalid`, `artifact.split_incomplete`; ArtifactError
    `artifact.offline_missing` and that of the last source; SbctlError `disk.*`; RefusedError `cache.unsafe_permissions`.
    """
    if fetcher is not None or offline:
        fetch = _only_local(facts) if offline or fetcher is None else _from_sources(facts, fetcher, note)
        return await _Ensuring(cache, facts, fetch, progress, foreign, offline=offline).run()
    async with Fetcher() as opened:
        return await _Ensuring(cache, facts, _from_sources(facts, opened, note), progress, foreign).run()


async def import_files(
    cache: ArtifactCache, facts: ArtifactFacts, files: Mapping[str, Path], *, progress: Progress | None = None
) -> PullResult:
    """Publish bytes that are on this host already, by digest. They are read and verified once more; `files` stay where they are."""
    async with Fetcher() as fetcher:
        return await _Ensuring(cache, facts, _from_files(files, fetcher), progress, ()).run()


def _from_sources(facts: ArtifactFacts, fetcher: Fetcher, note: Note | None = None) -> _FetchBlob:
    async def fetch(file: ArtifactFile, target: Path, progress: Progress) -> int:
        return await fetch_file(
            named_sources(file, facts, fetcher),
            target,
            sha256=file.sha256,
            size_bytes=file.size_bytes,
            progress=progress,
            fetcher=fetcher,
            note=note,
        )

    return fetch


def _only_local(facts: ArtifactFacts) -> _FetchBlob:
    """`file:` sources alone: this machine's own disks, or what is mounted there."""

    async def fetch(file: ArtifactFile, target: Path, progress: Progress) -> int:
        async with Fetcher() as fetcher:
            return await _from_sources(_with_sources(facts, _local_sources(facts)), fetcher)(file, target, progress)

    return fetch


def _local_sources(facts: ArtifactFacts) -> list[str]:
    found = []
    for text in (facts.source, *facts.mirrors):
        try:
            if isinstance(parse_source(text), FileSource):
                found.append(text)
        except InputError:
            continue
    return found


def _with_sources(facts: ArtifactFacts, sources: Sequence[str]) -> ArtifactFacts:
    return facts.model_copy(update={"source": sources[0], "mirrors": tuple(sources[1:])})


def _from_files(files: Mapping[str, Path], fetcher: Fetcher) -> _FetchBlob:
    async def fetch(file: ArtifactFile, target: Path, progress: Progress) -> int:
        source = files.get(file.sha256)
        if source is None:
            raise ArtifactError(
                "artifact.file_missing",
                f"the bytes of {file.path} were not put on this host",
                place=file.sha256,
                next_step="run sbctl apply again, which sends them",
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


class _Ensuring:
    """One run for one artifact."""

    def __init__(
        self,
        cache: ArtifactCache,
        facts: ArtifactFacts,
        fetch: _FetchBlob,
        progress: Progress | None,
        foreign: Sequence[ForeignCache],
        *,
        offline: bool = False,
    ) -> None:
        self._cache = cache
        self._facts = facts
        self._fetch = fetch
        self._progress = progress
        self._foreign = foreign
        self._offline = offline
        self._at_hand: set[str] = set()
        """Digests of files that lie verified among the partials."""
        self._downloaded_bytes = 0
        self._imported_bytes = 0
        self._imported_from: set[str] = set()

    async def run(self) -> PullResult:
        facts, cache = self._facts, self._cache
        check_facts(facts)
        _check_sets(facts)
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
                await asyncio.to_thread(cache.note_use, facts.artifact)
                return PullResult(facts.artifact, 0, was_present=True)
            for _ in range(_ROUNDS):
                await self._get_missing()
                if await asyncio.to_thread(publish, cache, facts):
                    return PullResult(
                        facts.artifact,
                        self._downloaded_bytes,
                        was_present=False,
                        quarantined=quarantined,
                        imported_bytes=self._imported_bytes,
                        imported_from=tuple(sorted(self._imported_from)),
                    )
        raise ArtifactError(
            "artifact.contended",
            "other processes removed blobs of this artifact as fast as they were fetched",
            place=facts.artifact,
            next_step="run it again once nobody prunes or removes models of this cache",
            retryable=True,
        )

    async def _get_missing(self) -> None:
        partials = self._cache.partials_path(self._facts.artifact)
        await asyncio.to_thread(fs.ensure_directory, partials, mode=0o755)
        self._at_hand.clear()
        missing = await asyncio.to_thread(self._missing, partials)
        await asyncio.to_thread(self._import, missing, partials)
        missing = [file for file in missing if file.sha256 not in self._at_hand]
        if self._offline and missing and not _local_sources(self._facts):
            raise _offline_missing(self._facts, missing)
        require_space(
            self._cache.root, sum(max(0, file.size_bytes - held_bytes(partials / file.sha256)) for file in missing)
        )
        done_bytes = self._facts.total_bytes - sum(file.size_bytes for file in missing)
        for file in missing:
            report = _part_of(self._progress, done_bytes, file, self._facts)
            self._downloaded_bytes += await self._fetch(file, partials / file.sha256, report)
            done_bytes += file.size_bytes

    def _missing(self, partials: Path) -> list[ArtifactFile]:
        """A whole file that an interrupted run left in its place counts as there once it was read."""
        absent = [file for file in distinct(self._facts.files) if not self._cache.has_blob(file)]
        for file in absent:
            if file.sha256 not in self._at_hand and _is_fetched(partials / file.sha256, file):
                self._at_hand.add(file.sha256)
        return [file for file in absent if file.sha256 not in self._at_hand]

    def _import(self, missing: list[ArtifactFile], partials: Path) -> None:
        if not missing or not self._foreign:
            return
        found = candidates(self._foreign, self._facts, missing)
        for file in missing:
            for candidate in found.get(file.sha256, ()):
                if bring_over(candidate, partials / file.sha256, file):
                    self._at_hand.add(file.sha256)
                    self._imported_bytes += file.size_bytes
                    self._imported_from.add(candidate.kind)
                    break


def _is_fetched(path: Path, file: ArtifactFile) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == file.size_bytes and sha256_file(path) == file.sha256


def _check_sets(facts: ArtifactFacts) -> None:
    problem = split_problem(file.path for file in facts.files)
    if problem is not None:
        raise InputError(
            "artifact.split_incomplete",
            f"the weights are split and the set is not whole: {problem}",
            place=f"{facts.model}:{facts.variant}",
            next_step="list every part of the set in the catalog",
        )


def _offline_missing(facts: ArtifactFacts, missing: Sequence[ArtifactFile]) -> ArtifactError:
    named = ", ".join(file.path for file in missing[:_NAMED_MISSING])
    more = f" and {len(missing) - _NAMED_MISSING} more" if len(missing) > _NAMED_MISSING else ""
    return ArtifactError(
        "artifact.offline_missing",
        f"{plural(len(missing), 'file')} of it {'is' if len(missing) == 1 else 'are'} not on this machine, and nothing is fetched offline: {named}{more}",
        place=f"{facts.model}:{facts.variant}",
        next_step="send them from a machine that can fetch (delivery: push, or sbctl pack), or pull without --offline",
        detail={"missing": [file.path for file in missing]},
    )


def _part_of(progress: Progress | None, before_bytes: int, file: ArtifactFile, facts: ArtifactFacts) -> Progress:
    """Progress of one file, possibly packed, as progress of the artifact."""

    def report(done: int, total: int | None) -> None:
        if progress is not None:
            share = file.size_bytes * done // total if total else min(done, file.size_bytes)
            progress(before_bytes + share, facts.total_bytes)

    return report
