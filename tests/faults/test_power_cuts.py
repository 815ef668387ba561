"""F13: a power cut anywhere in what a runtime keeps on disk. What was acknowledged is there, and nothing is half there.

The disks are those of `power_cut`: only what was synced is left, or all names with zeros behind them, or every other sector of the rest.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sbctl.artifacts import claim, partial, partial_journal
from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.claim import Claim, Claimant, own_identity
from sbctl.artifacts.collection import collect
from sbctl.artifacts.partial import Partial, Validator
from sbctl.artifacts.pull import pull
from sbctl.base import fs
from sbctl.base.limits import CLAIM_STALE_S
from sbctl.runtime import audit, store
from tests.simulators.artifact_samples import write_sources
from tests.simulators.power_cut import CutPoint, PowerCut
from tests.simulators.runtime_life import SCRIPT, golden, live, seen
from tests.simulators.sqlite_disk import is_possible, told_to
from tests.simulators.state_world import fast_directory


@pytest.fixture
def root() -> Iterator[Path]:
    with fast_directory() as path:
        yield path


def different(points: list[CutPoint]) -> list[CutPoint]:
    """The disks that differ, each with what was acknowledged."""
    found: dict[tuple[object, ...], CutPoint] = {}
    for point in points:
        found.setdefault((point.acknowledged, *point.key), point)
    return list(found.values())


@pytest.mark.skipif(not is_possible(), reason="optional: this Python brings a SQLite of its own")
@pytest.mark.parametrize("kept", [audit.ENTRIES_KEPT, 4], ids=["a whole audit", "an audit that is trimmed"])
def test_F13_after_a_power_cut_a_runtime_finds_all_that_it_acknowledged(
    root: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(store, "append_audit", functools.partial(audit.append_audit, keep=kept))
    monkeypatch.setattr(audit, "_TRIMMED_AT_ONCE", 3)
    trace = golden(root / "golden")
    assert sum(before != after for before, after in itertools.pairwise(trace)) >= len(SCRIPT) - 3
    node = root / "node"
    (node / "state").mkdir(parents=True)
    disk = PowerCut(node)
    disk.begin()

    def returned() -> None:
        disk.acknowledged += 1

    with told_to(disk), fs.use_ops(disk):
        live(node, returned)
    assert disk.acknowledged == len(SCRIPT)
    cuts = different(disk.points)
    assert len(cuts) > 200
    left = root / "left"
    for point in cuts:
        point.rebuild(left)
        for shared in left.rglob("*-shm"):
            shared.unlink()  # never more than a cache of the log: SQLite makes it anew
        found = seen(left)
        allowed = trace[point.acknowledged : point.acknowledged + 2]
        assert found in allowed, (SCRIPT[point.acknowledged - 1], point.call, point.policy, found, allowed)
        shutil.rmtree(left)


DATA = random.Random(5).randbytes(20_000)
SHA = hashlib.sha256(DATA).hexdigest()
PIECES = tuple((start, start + 4000) for start in range(0, 20_000, 4000))


class Download:
    """One file that is fetched by ranges, by a process in each of two boots."""

    def __init__(self, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.target = target
        self._patch = monkeypatch

    def boot(self, name: str) -> None:
        identity = replace(own_identity(), boot=name)
        for module in (claim, partial_journal):
            self._patch.setattr(module, "own_identity", lambda: identity)

    def open(self) -> tuple[Partial, Claim]:
        now_s = 0.0
        claimant = Claimant(self.target, lambda: now_s)
        if (holder := claimant.try_claim()) is None:
            now_s = 2 * CLAIM_STALE_S
            holder = claimant.try_claim()
        assert holder is not None
        found = Partial(self.target, holder, SHA, len(DATA))
        found.open()
        return found, holder

    def live(self, returned: Callable[[int], None]) -> None:
        """Three pieces in the first boot, the rest in the second, a sync behind every other one. Tells how many bytes it may count on."""
        self.boot("the first")
        half, holder = self.open()
        half.begin(len(DATA), Validator("s", '"1"'))
        self._fetch(half, PIECES[:3], returned)
        half._close()
        holder.release()
        self.boot("the second")
        rest, holder = self.open()
        returned(rest.pieces.done_bytes)
        self._fetch(rest, [piece for piece in PIECES if piece[0] >= rest.pieces.done_bytes], returned)
        rest.finish()
        returned(len(DATA))
        holder.release()

    def _fetch(self, half: Partial, pieces: Sequence[tuple[int, int]], returned: Callable[[int], None]) -> None:
        for number, (start, end) in enumerate(pieces):
            half.write_at(DATA[start:end], start)
            half.pieces._add(start, end)
            half.mark(start, end)
            if number % 2:
                half.sync()
                returned(end)


@pytest.mark.parametrize("is_local", [True, False])
def test_F13_after_a_power_cut_a_download_goes_on_from_what_it_synced_and_trusts_nothing_else(
    root: Path, monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    if not is_local:
        for module in (claim, partial):
            monkeypatch.setattr(module, "is_local", lambda _path: False)
    (root / "d").mkdir()
    disk = PowerCut(root / "d")
    disk.begin()

    def returned(durable: int) -> None:
        disk.acknowledged = durable

    with fs.use_ops(disk):
        Download(root / "d" / "w", monkeypatch).live(returned)
    cuts = different(disk.points)
    assert len(cuts) > 30
    for number, point in enumerate(cuts):
        point.rebuild(left := root / f"left{number}")
        if (left / "w").exists():
            assert (left / "w").read_bytes() == DATA, point
            continue
        assert point.acknowledged < len(DATA), point
        again = Download(left / "w", monkeypatch)
        again.boot("the third")
        half, holder = again.open()
        assert half.pieces.done_bytes >= point.acknowledged, (point.call, point.policy, half.pieces.done)
        content = half.path.read_bytes()
        for start, end in half.pieces.done:
            assert content[start:end] == DATA[start:end], (point.call, point.policy, start, end)
        half.discard_content()
        holder.release()


def test_F13_a_power_cut_in_a_collection_leaves_each_snapshot_whole_or_gone(tmp_path: Path) -> None:
    kept = write_sources(tmp_path / "1", {"a": b"kept", "b": b"shared"})
    gone = write_sources(tmp_path / "2", {"c": b"gone", "b": b"shared"})
    cache = ArtifactCache(tmp_path / "cache")
    for facts in (kept, gone):
        asyncio.run(pull(cache, facts))
    disk = PowerCut(cache.root)
    disk.begin()
    with fs.use_ops(disk):
        collect(cache, 1, configured=frozenset({kept.artifact}))
    cuts = different(disk.points)
    assert len(cuts) > 4
    for number, point in enumerate(cuts):
        left = ArtifactCache(tmp_path / f"left{number}")
        point.rebuild(left.root)
        assert left.verify(kept.artifact).is_good, point.call
        if left.entry(gone.artifact) is not None:
            assert left.verify(gone.artifact).is_good, point.call
        asyncio.run(pull(left, gone))
        assert left.verify(gone.artifact).is_good, point.call
