"""Publishing and collecting weights, cut off anywhere: no bad snapshot is ever visible, nothing that is kept loses a byte (F13, F14)."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
from pathlib import Path

import pytest

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.collection import collect, prune
from sbctl.artifacts.model import ArtifactFacts
from sbctl.artifacts.pull import import_files, pull
from sbctl.artifacts.usage import set_pinned
from sbctl.base import fs
from sbctl.base.errors import SbctlError
from tests.simulators.artifact_samples import write_sources
from tests.simulators.power_cut import PowerCut

FILES = {"a/w.dat": b"weights of the first", "b.txt": b"shared"}
OTHER = {"v.dat": b"weights of another one", "b.txt": b"shared"}


def published_is_whole(cache: ArtifactCache, facts: ArtifactFacts) -> bool:
    """Whether it is there; what has a manifest has its bytes, seal or no seal."""
    snapshot = cache.snapshot_path(facts.artifact)
    try:
        json.loads((snapshot / "artifact.json").read_bytes())
    except (OSError, ValueError):
        return False
    for file in facts.files:
        assert hashlib.sha256((snapshot / file.path).read_bytes()).hexdigest() == file.sha256, file.path
    return True


def test_F13_a_power_cut_at_any_call_of_a_publication_leaves_no_bad_snapshot(tmp_path: Path) -> None:
    facts = write_sources(tmp_path / "src", FILES)
    root = tmp_path / "cache"
    ops = PowerCut(root)
    put = {file.sha256: tmp_path / "src" / file.path for file in facts.files}
    with fs.use_ops(ops):
        asyncio.run(import_files(ArtifactCache(root), facts, put))
    assert len(ops.points) > 60
    seen, whole = set(), 0
    for number, point in enumerate(ops.points):
        key = json.dumps(
            {path: None if data is None else data.hex() for path, data in point.tree.items()}, sort_keys=True
        )
        if key in seen:
            continue
        seen.add(key)
        left = tmp_path / f"cut{number}"
        point.rebuild(left)
        cache = ArtifactCache(left)
        whole += published_is_whole(cache, facts)
        asyncio.run(pull(cache, facts))
        assert cache.verify(facts.artifact).is_good, point.call
    assert whole > 0
    last = ops.points[-2:]
    for point in last:
        assert f"snapshots/{facts.artifact}/artifact.json" in point.tree, "what returned is durable"


class FailNth(fs.FileOps):
    """From the n-th call that changes something on, nothing works."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def _tick(self) -> None:
        self.left -= 1
        if self.left <= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        self._tick()
        return super().open(path, flags, mode)

    def fsync(self, fd: int) -> None:
        self._tick()

    def rename(self, source: str, target: str) -> None:
        self._tick()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._tick()
        super().unlink(path)


@pytest.mark.parametrize("what", ["collect", "prune"])
def test_F14_a_collection_survives_a_failure_of_its_nth_call(tmp_path: Path, what: str) -> None:
    kept = write_sources(tmp_path / "1", FILES)
    gone = write_sources(tmp_path / "2", OTHER)
    for nth in range(1, 200):
        cache = ArtifactCache(tmp_path / f"cache{nth}")
        for facts in (kept, gone):
            asyncio.run(pull(cache, facts))
        set_pinned(cache.root, kept.artifact, pinned=True)
        (cache.blobs / ("0" * 64)).write_bytes(b"nobody names it")
        faulty = FailNth(nth)
        with fs.use_ops(faulty):
            try:
                if what == "collect":
                    collect(cache, 1, configured=frozenset())
                else:
                    prune(cache, dry_run=False)
            except SbctlError:
                pass
        assert published_is_whole(cache, kept)
        entry = cache.entry(gone.artifact)
        assert entry is None or published_is_whole(cache, gone)
        found = collect(cache, 1, configured=frozenset())
        assert not (cache.blobs / ("0" * 64)).exists()
        assert cache.entry(gone.artifact) is None
        assert found.skipped == {kept.artifact: "pinned"}
        assert cache.verify(kept.artifact).is_good
        if faulty.left > 0:
            break
    assert 3 < nth < 199
