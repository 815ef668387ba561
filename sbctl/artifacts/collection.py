"""Making room in a cache: `prune` takes what nothing names, `collect` takes artifacts, the longest unused first, until a budget holds.

Never taken: what a deployment of this host is configured with, what is pinned, what a process leases, what somebody is fetching or verifying.
Every artifact goes by the same removal as `models remove`, under the same locks, so a collection may run beside pulls and launches.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.locks import artifact_lock_path, hold, is_free, lease_path, mutation_lock_path, require_locks
from sbctl.artifacts.usage import read_usage
from sbctl.base import fs
from sbctl.base.errors import RefusedError
from sbctl.base.flock import held
from sbctl.base.ids import is_digest

__all__ = ["Collection", "Pruning", "Skipped", "collect", "disk_bytes", "is_leased", "prune"]

Skipped = Literal["configured", "fresh", "pinned", "leased", "locked"]

_STAGING: Final = ".staging-"


@dataclass(frozen=True, slots=True)
class Collection:
    """`skipped` says why an artifact stayed though the budget wanted it gone; `unsatisfied_bytes` is what is still above the budget."""

    before_bytes: int
    after_bytes: int
    deleted: tuple[str, ...] = ()
    skipped: Mapping[str, Skipped] = field(default_factory=dict)
    unsatisfied_bytes: int = 0

    @property
    def reclaimed_bytes(self) -> int:
        return max(0, self.before_bytes - self.after_bytes)


@dataclass(frozen=True, slots=True)
class Pruning:
    """`reclaimed_bytes` were, or with a dry run would be, freed."""

    before_bytes: int
    orphan_blobs: tuple[str, ...]
    unfinished: tuple[str, ...]
    quarantined: tuple[str, ...]
    reclaimed_bytes: int
    dry_run: bool


def disk_bytes(cache: ArtifactCache) -> int:
    """What the cache takes on its disk: blobs, snapshots, unfinished downloads, quarantine; a file with two names counts once, and one that
    is still filling up by what is in it."""
    return sum(_taken(status) for status in _inodes(cache.blobs, cache.snapshots, cache.partials, cache.quarantine))


def _taken(status: os.stat_result) -> int:
    return min(status.st_size, status.st_blocks * 512)


def _inodes(*directories: Path) -> Iterator[os.stat_result]:
    seen: set[tuple[int, int]] = set()
    for top in directories:
        for directory, _, names in os.walk(top):
            for name in names:
                with contextlib.suppress(OSError):
                    status = os.lstat(os.path.join(directory, name))
                    if stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) not in seen:
                        seen.add((status.st_dev, status.st_ino))
                        yield status


def collect(
    cache: ArtifactCache, budget_bytes: int, *, configured: frozenset[str], fresh: str | None = None
) -> Collection:
    """Bring the cache within `budget_bytes`, as far as what must stay allows. `configured` are the artifacts of this host's deployments,
    `fresh` is the one that somebody has just asked for.

    Raises RefusedError `cache.locks_unreliable`, `cache.unsafe_permissions`; SbctlError `disk.*`.
    """
    if not cache.root.is_dir():
        return Collection(0, 0)
    before = disk_bytes(cache)
    if before <= budget_bytes:
        return Collection(before, before)
    cache.prepare()
    require_locks(cache.root)
    with hold(mutation_lock_path(cache.root), cache.clock):
        for sha256 in _orphans(cache):
            fs.remove_file(cache.blob_path(sha256))
    deleted: list[str] = []
    skipped: dict[str, Skipped] = {}
    after = disk_bytes(cache)
    for artifact in _longest_unused(cache):
        if after <= budget_bytes:
            break
        reason = "fresh" if artifact == fresh else _reason_to_stay(cache, artifact, configured)
        reason = reason or _removed(cache, artifact)
        if reason is None:
            deleted.append(artifact)
            after = disk_bytes(cache)
        else:
            skipped[artifact] = reason
    return Collection(before, after, tuple(deleted), skipped, max(0, after - budget_bytes))


def _longest_unused(cache: ArtifactCache) -> list[str]:
    return sorted(
        (entry.artifact for entry in cache.entries()),
        key=lambda artifact: (read_usage(cache.root, artifact).last_accessed_ms, artifact),
    )


def _reason_to_stay(cache: ArtifactCache, artifact: str, configured: frozenset[str]) -> Skipped | None:
    if artifact in configured:
        return "configured"
    return "pinned" if read_usage(cache.root, artifact).pinned else None


def _removed(cache: ArtifactCache, artifact: str) -> Skipped | None:
    """None: it is gone."""
    try:
        cache.remove(artifact)
    except RefusedError as error:
        if error.code != "artifact.in_use":
            raise
        return "leased" if error.detail.get("reason") == "leased" else "locked"
    return None


def prune(cache: ArtifactCache, *, dry_run: bool, everything: bool = False) -> Pruning:
    """Remove blobs that no artifact names, and staging directories of killed runs; with `everything` also unfinished downloads that nobody
    works on, and what was quarantined. Blobs that an artifact with an unreadable manifest may use stay.

    Raises RefusedError `cache.locks_unreliable`, `cache.unsafe_permissions`; SbctlError `disk.*`.
    """
    if not cache.root.is_dir():
        return Pruning(0, (), (), (), 0, dry_run)
    before = disk_bytes(cache)
    if not dry_run:
        cache.prepare()
        require_locks(cache.root)
    with contextlib.ExitStack() as held:
        if not dry_run:
            held.enter_context(hold(mutation_lock_path(cache.root), cache.clock))
        orphans = tuple(_orphans(cache))
        unfinished = tuple(_unfinished(cache)) if everything else ()
        quarantined = tuple(_listed(cache.quarantine)) if everything else ()
        doomed = [cache.blob_path(sha256) for sha256 in orphans]
        doomed += [cache.quarantine / name for name in quarantined]
        stagings = [cache.snapshots / name for name in _listed(cache.snapshots) if _is_abandoned(cache, name)]
        trees = [*stagings, *(cache.partials / name for name in unfinished)]
        reclaimed = sum(_taken(status) for status in _freed(doomed, trees))
        if not dry_run:
            for path in doomed:
                fs.remove_file(path)
            for path in stagings:
                fs.remove_tree(path)
            for artifact in unfinished:
                _remove_unfinished(cache, artifact)
    return Pruning(before, orphans, unfinished, quarantined, reclaimed, dry_run)


def _orphans(cache: ArtifactCache) -> Iterator[str]:
    """The caller holds the mutation lock, or only looks."""
    named: set[str] = set()
    readable: set[str] = set()
    for artifact, manifest in cache.manifests():
        readable.add(artifact)
        named |= {file.sha256 for file in manifest.facts.files}
    unread = any(is_digest(name) and name not in readable for name in _listed(cache.snapshots))
    for sha256 in _listed(cache.blobs):
        if not is_digest(sha256) or sha256 in named:
            continue
        with contextlib.suppress(OSError):
            if not (unread and os.lstat(cache.blobs / sha256).st_nlink > 1):
                yield sha256


def _unfinished(cache: ArtifactCache) -> Iterator[str]:
    for artifact in _listed(cache.partials):
        if is_digest(artifact) and is_free(artifact_lock_path(cache.root, artifact)):
            yield artifact


def _remove_unfinished(cache: ArtifactCache, artifact: str) -> None:
    """Unless somebody began to work on it meanwhile."""
    with held(artifact_lock_path(cache.root, artifact)) as got:
        if got:
            fs.remove_tree(cache.partials / artifact)


def _is_abandoned(cache: ArtifactCache, name: str) -> bool:
    """A staging directory whose publisher is gone: it would hold the artifact's lock."""
    artifact = name.removeprefix(_STAGING)[:64]
    return name.startswith(_STAGING) and is_digest(artifact) and is_free(artifact_lock_path(cache.root, artifact))


def _freed(files: list[Path], trees: list[Path]) -> Iterator[os.stat_result]:
    """Inodes whose last name goes."""
    for path in files:
        with contextlib.suppress(OSError):
            yield os.lstat(path)
    yield from (status for status in _inodes(*trees) if status.st_nlink == 1)


def is_leased(cache: ArtifactCache, artifact: str) -> bool:
    """Whether some process leases it at the moment."""
    return not is_free(lease_path(cache.root, artifact))


def _listed(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
