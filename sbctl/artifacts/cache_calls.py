"""Everything that a command does to one cache, in one place: the node interface does it on a host, `sbctl models --cache-dir` on this machine."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sbctl.artifacts.answers import CachedArtifact, CacheListing, Collected, Pruned, Pulled, Removed, Verified
from sbctl.artifacts.cache import ArtifactCache, CacheEntry
from sbctl.artifacts.collection import Collection, collect, disk_bytes, is_leased, prune
from sbctl.artifacts.download import Progress
from sbctl.artifacts.fetch_policy import FetchSettings
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.foreign_caches import candidates, foreign_caches
from sbctl.artifacts.model import ArtifactFacts
from sbctl.artifacts.publication import distinct
from sbctl.artifacts.pull import Note, PullResult, pull
from sbctl.artifacts.usage import read_usage, set_pinned
from sbctl.base import fs
from sbctl.base.errors import ArtifactError, RefusedError, SbctlError

__all__ = ["CacheCalls", "collected"]

_TEXT_MAX_CHARS = 1024

Run = Callable[[Awaitable[PullResult]], PullResult]
"""Runs asynchronous work to its end."""


@dataclass(frozen=True, slots=True)
class CacheCalls:
    """One cache and what its host says about it.

    `configured` are the artifacts of the host's deployments, which no collection takes; None: they cannot be told, so nothing is collected.
    `offline`: the host fetches nothing. `settings`: how it fetches.
    """

    cache: ArtifactCache
    environ: Mapping[str, str]
    configured: frozenset[str] | None = frozenset()
    budget_bytes: int | None = None
    offline: bool = False
    settings: FetchSettings | None = field(default=None, repr=False)

    def pull(
        self,
        facts: ArtifactFacts,
        run: Run,
        *,
        progress: Progress,
        note: Note | None = None,
        offline: bool = False,
        pinned: bool | None = None,
    ) -> Pulled:
        """Raises what `artifacts.pull.pull` raises."""
        settings = self.settings or FetchSettings.from_environ(self.environ)
        foreign = foreign_caches(self.environ)

        async def work() -> PullResult:
            if offline or self.offline:
                return await pull(self.cache, facts, progress=progress, offline=True, foreign=foreign)
            async with Fetcher(settings) as fetcher:
                return await pull(self.cache, facts, progress=progress, fetcher=fetcher, foreign=foreign, note=note)

        return self.settled(facts, run(work()), pinned=pinned)

    def settled(self, facts: ArtifactFacts, result: PullResult, *, pinned: bool | None = None) -> Pulled:
        """What is left to do once an artifact is published: pin it, and make room for it."""
        if pinned is not None:
            set_pinned(self.cache.root, facts.artifact, pinned=pinned)
        return Pulled(
            artifact=facts.artifact,
            snapshot_path=str(self.cache.snapshot_path(facts.artifact)),
            was_present=result.was_present,
            downloaded_bytes=result.downloaded_bytes,
            imported_bytes=result.imported_bytes,
            imported_from=result.imported_from,
            quarantined=tuple(str(path) for path in result.quarantined),
            collected=collected(self.cache, self.budget_bytes, self.configured, fresh=facts.artifact),
        )

    def listing(self, wanted: Iterable[ArtifactFacts] = ()) -> CacheListing:
        """What is there, and which of `wanted` that are not could be taken from another program on this machine."""
        root = self.cache.root
        entries = self.cache.entries()
        ready = {entry.artifact for entry in entries if entry.state == "ready"}
        pruning = prune(self.cache, dry_run=True, everything=False)
        return CacheListing(
            root=str(root),
            disk_bytes=disk_bytes(self.cache),
            budget_bytes=self.budget_bytes,
            free_bytes=fs.free_bytes(root),
            offline=self.offline,
            orphan_bytes=pruning.reclaimed_bytes,
            quarantined=_names(self.cache),
            artifacts=tuple(self._described(entry) for entry in entries),
            importable=self._importable(facts for facts in wanted if facts.artifact not in ready),
        )

    def _described(self, entry: CacheEntry) -> CachedArtifact:
        usage = read_usage(self.cache.root, entry.artifact)
        told = CachedArtifact(
            artifact=entry.artifact,
            state=entry.state,
            size_bytes=entry.size_bytes,
            reason=None if entry.reason is None else entry.reason[:_TEXT_MAX_CHARS],
            last_accessed_ms=usage.last_accessed_ms,
            pinned=usage.pinned,
            leased=is_leased(self.cache, entry.artifact),
            configured=entry.artifact in (self.configured or ()),
        )
        try:
            facts = self.cache.facts(entry.artifact)
        except ArtifactError:
            return told
        names = {"model": facts.model, "variant": facts.variant, "format": facts.format, "license": facts.license}
        return told.model_copy(update={name: text[:_TEXT_MAX_CHARS] for name, text in names.items()})

    def _importable(self, wanted: Iterable[ArtifactFacts]) -> dict[str, str]:
        caches = foreign_caches(self.environ)
        found: dict[str, str] = {}
        for facts in wanted if caches else ():
            files = [file for file in distinct(facts.files) if not self.cache.has_blob(file)]
            there = candidates(caches, facts, files)
            if files and all(file.sha256 in there for file in files):
                found[facts.artifact] = there[files[0].sha256][0].kind
        return found

    def verify(self, artifact: str) -> Verified:
        """Read every byte. Raises ArtifactError `artifact.missing` where there is nothing to read."""
        entry = self.cache.entry(artifact)
        if entry is None or entry.state == "partial":
            raise ArtifactError(
                "artifact.missing", "the artifact is not in the cache", place=artifact, next_step="sbctl models pull"
            )
        self.cache.prepare()
        verification = self.cache.verify(artifact)
        return Verified(
            is_good=verification.is_good,
            reasons=tuple(reason[:_TEXT_MAX_CHARS] for reason in verification.reasons),
            quarantined=tuple(str(path) for path in verification.quarantined),
        )

    def remove(self, artifact: str) -> Removed:
        """Raises RefusedError `artifact.in_use`, `cache.locks_unreliable`."""
        removal = self.cache.remove(artifact)
        return Removed(removed=removal.removed, reclaimed_bytes=removal.reclaimed_bytes)

    def collect(self) -> Collection:
        """Bring the cache within its budget. Raises RefusedError `cache.use_unknown` where what deployments need cannot be told, or there is
        no budget; what `collection.collect` raises."""
        if self.budget_bytes is None or self.configured is None:
            raise RefusedError(
                "cache.use_unknown",
                "what the deployments of this host need cannot be told, so nothing is collected",
                place=str(self.cache.root),
                next_step="sbctl logs says why the accepted bundle cannot be read; sbctl apply sends it again",
            )
        return collect(self.cache, self.budget_bytes, configured=self.configured)

    def prune(self, *, dry_run: bool, everything: bool) -> Pruned:
        """Raises RefusedError `cache.locks_unreliable`."""
        pruning = prune(self.cache, dry_run=dry_run, everything=everything)
        return Pruned(
            dry_run=dry_run,
            before_bytes=pruning.before_bytes,
            reclaimed_bytes=pruning.reclaimed_bytes,
            orphan_blobs=pruning.orphan_blobs,
            unfinished=pruning.unfinished,
            quarantined=pruning.quarantined,
            collected=None if dry_run else collected(self.cache, self.budget_bytes, self.configured),
        )


def collected(
    cache: ArtifactCache, budget_bytes: int | None, configured: frozenset[str] | None, *, fresh: str | None = None
) -> Collected | None:
    """Make room within a budget; what fails is told, not raised: whoever asked has what it came for. `fresh` stays."""
    if budget_bytes is None or configured is None:
        return None
    try:
        found = collect(cache, budget_bytes, configured=configured, fresh=fresh)
    except SbctlError as error:
        return Collected(problem=f"{error.code}: {error.message}"[:_TEXT_MAX_CHARS])
    return Collected(
        before_bytes=found.before_bytes,
        after_bytes=found.after_bytes,
        reclaimed_bytes=found.reclaimed_bytes,
        deleted=found.deleted,
        skipped={artifact: str(reason) for artifact, reason in found.skipped.items()},
        unsatisfied_bytes=found.unsatisfied_bytes,
    )


def _names(cache: ArtifactCache) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(cache.quarantine)))
    except OSError:
        return ()
