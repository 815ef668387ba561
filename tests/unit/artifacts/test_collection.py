"""Making room: the longest unused goes first, what is needed stays and says why, what nothing names goes before anything else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.collection import collect, disk_bytes, prune
from sbctl.artifacts.locks import artifact_lock_path
from sbctl.artifacts.model import ArtifactFacts
from sbctl.artifacts.pull import pull
from sbctl.artifacts.usage import note_use, read_usage, set_pinned, usage_path
from sbctl.base import flock
from sbctl.base.errors import RefusedError
from sbctl.base.flock import FileLock
from tests.simulators.artifact_samples import write_sources

NONE: frozenset[str] = frozenset()


async def filled(tmp_path: Path) -> tuple[ArtifactCache, list[ArtifactFacts]]:
    """Three artifacts of 4096 bytes, used one after the other."""
    cache = ArtifactCache(tmp_path / "cache")
    found = []
    for number in range(3):
        facts = write_sources(tmp_path / str(number), {"w.dat": bytes([65 + number]) * 4096})
        await pull(cache, facts)
        usage_path(cache.root, facts.artifact).unlink()
        note_use(cache.root, facts.artifact, 1_000_000 * (number + 1))
        found.append(facts)
    return cache, found


def test_a_cache_within_its_budget_and_one_that_is_not_there_are_left_alone(tmp_path: Path) -> None:
    assert collect(ArtifactCache(tmp_path / "none"), 1, configured=NONE).before_bytes == 0
    assert prune(ArtifactCache(tmp_path / "none"), dry_run=False).reclaimed_bytes == 0
    assert not (tmp_path / "none").exists()


async def test_the_longest_unused_goes_until_the_budget_holds(tmp_path: Path) -> None:
    cache, (first, second, third) = await filled(tmp_path)
    assert collect(cache, disk_bytes(cache), configured=NONE).deleted == ()
    note_use(cache.root, first.artifact, 9_000_000)
    found = collect(cache, disk_bytes(cache) - 1, configured=NONE)
    assert found.deleted == (second.artifact,)
    assert found.reclaimed_bytes >= 4096
    assert found.unsatisfied_bytes == 0
    assert [entry.artifact for entry in cache.entries()] == sorted((first.artifact, third.artifact))
    assert not usage_path(cache.root, second.artifact).exists()


async def test_what_is_needed_stays_whatever_the_budget_and_says_why(tmp_path: Path) -> None:
    cache, (first, second, third) = await filled(tmp_path)
    set_pinned(cache.root, second.artifact, pinned=True)
    lease = cache.lease(third.artifact)
    try:
        found = collect(cache, 1, configured=frozenset({first.artifact}))
    finally:
        lease.release()
    assert found.skipped == {first.artifact: "configured", second.artifact: "pinned", third.artifact: "leased"}
    assert found.deleted == ()
    assert found.unsatisfied_bytes == found.after_bytes - 1
    working = FileLock(artifact_lock_path(cache.root, third.artifact))
    assert working.try_acquire()
    assert collect(cache, 1, configured=NONE).skipped[third.artifact] == "locked"
    working.release()
    assert third.artifact in collect(cache, 1, configured=NONE).deleted


async def test_a_note_that_cannot_be_read_counts_as_a_pin(tmp_path: Path) -> None:
    cache, (first, *_) = await filled(tmp_path)
    usage_path(cache.root, first.artifact).write_bytes(b"{")
    assert read_usage(cache.root, first.artifact).pinned
    assert first.artifact not in collect(cache, 1, configured=NONE).deleted


async def test_pruning_takes_what_nothing_names_and_says_so_beforehand(tmp_path: Path) -> None:
    cache, (first, *_) = await filled(tmp_path)
    orphan, partial = "0" * 64, "1" * 64
    (cache.blobs / orphan).write_bytes(b"x" * 4096)
    (cache.partials / partial).mkdir()
    (cache.partials / partial / "some.part").write_bytes(b"y" * 4096)
    (cache.snapshots / f".staging-{first.artifact}-aaaa").mkdir()
    cache.quarantine.mkdir()
    (cache.quarantine / "bad").write_bytes(b"z" * 4096)
    before = disk_bytes(cache)
    told = prune(cache, dry_run=True, everything=True)
    assert (told.orphan_blobs, told.unfinished, told.quarantined) == ((orphan,), (partial,), ("bad",))
    assert told.reclaimed_bytes == 3 * 4096
    assert disk_bytes(cache) == before
    assert prune(cache, dry_run=False).reclaimed_bytes == 4096
    assert (cache.partials / partial).exists()
    assert not list(cache.snapshots.glob(".staging-*"))
    working = FileLock(artifact_lock_path(cache.root, partial))
    assert working.try_acquire()
    assert prune(cache, dry_run=False, everything=True).unfinished == ()
    working.release()
    assert prune(cache, dry_run=False, everything=True).unfinished == (partial,)
    assert disk_bytes(cache) == before - 3 * 4096
    assert all(cache.verify(entry.artifact).is_good for entry in cache.entries())


async def test_blobs_that_an_unreadable_artifact_may_use_stay(tmp_path: Path) -> None:
    cache, (first, *_) = await filled(tmp_path)
    manifest = cache.snapshot_path(first.artifact) / "artifact.json"
    manifest.chmod(0o600)
    manifest.write_bytes(b"{")
    assert prune(cache, dry_run=False).orphan_blobs == ()
    assert cache.blob_path(first.files[0].sha256).exists()


async def test_fault_75_nothing_is_removed_where_locks_hold_nobody_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, (first, *_) = await filled(tmp_path)
    monkeypatch.setattr(flock.fcntl, "flock", lambda *_: None)
    for attempt in (
        lambda: collect(cache, 1, configured=NONE),
        lambda: prune(cache, dry_run=False),
        lambda: cache.remove(first.artifact),
    ):
        with pytest.raises(RefusedError) as caught:
            attempt()
        assert caught.value.code == "cache.locks_unreliable"
    facts = write_sources(tmp_path / "late", {"w.dat": b"still fetched"})
    await pull(cache, facts)
    assert cache.verify(facts.artifact).is_good
    assert len(os.listdir(cache.snapshots)) == 4
