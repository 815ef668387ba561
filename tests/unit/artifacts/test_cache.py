"""The cache: one snapshot per artifact, found by its seal, verified by its bytes, shared blobs kept."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.collection import collect, disk_bytes
from sbctl.artifacts.model import ArtifactFacts, ArtifactFile, artifact_id
from sbctl.artifacts.pull import import_files, pull
from sbctl.base.errors import ArtifactError, InputError, RefusedError
from tests.simulators.artifact_samples import artifact_of, write_sources


async def test_a_pull_publishes_links_to_read_only_blobs(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    facts = write_sources(tmp_path / "src", {"a/w.weights": b"weights", "config.json": b"{}"})
    result = await pull(cache, facts)
    assert (result.was_present, result.downloaded_bytes) == (False, 0)
    snapshot = cache.require(facts.artifact)
    assert (snapshot / "a/w.weights").read_bytes() == b"weights"
    blob = cache.blob_path(hashlib.sha256(b"weights").hexdigest())
    assert blob.stat().st_ino == (snapshot / "a/w.weights").stat().st_ino
    assert blob.stat().st_mode & 0o777 == 0o444
    assert not list(cache.partials.iterdir())
    assert [entry.state for entry in cache.entries()] == ["ready"]
    assert cache.facts(facts.artifact) == facts


async def test_a_second_pull_finds_it_without_any_source(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    facts = write_sources(tmp_path / "src", {"w.weights": b"weights"})
    await pull(cache, facts)
    (tmp_path / "src" / "w.weights").unlink()
    assert (await pull(cache, facts)).was_present


async def test_progress_is_of_the_whole_artifact(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    facts = write_sources(tmp_path / "src", {"a": b"x" * 10, "w.weights": b"y" * 30})
    seen: list[tuple[int, int | None]] = []
    await pull(cache, facts, progress=lambda *at: seen.append(at))
    assert all(total == 40 for _, total in seen)


async def test_mirrors_are_tried_after_the_source(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    facts = write_sources(tmp_path / "src", {"w.weights": b"weights"})
    moved = facts.model_copy(update={"source": "file:/nowhere/w.weights", "mirrors": ("nonsense", facts.source)})
    assert not (await pull(cache, moved)).was_present


async def test_bytes_put_on_the_host_are_published_by_their_digest(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    facts = artifact_of({"w.weights": b"weights"}, "hf:No/Where")
    put = tmp_path / "put"
    put.write_bytes(b"weights")
    result = await import_files(cache, facts, {facts.files[0].sha256: put})
    assert not result.was_present
    blob = cache.blob_path(facts.files[0].sha256)
    assert blob.stat().st_ino == put.stat().st_ino
    put.unlink()
    assert cache.verify(facts.artifact).is_good
    put.write_bytes(b"garbage")
    other = artifact_of({"v.weights": b"others!"}, "hf:No/Where")
    with pytest.raises(ArtifactError) as caught:
        await import_files(cache, other, {other.files[0].sha256: put})
    assert caught.value.code == "artifact.digest_mismatch"
    with pytest.raises(ArtifactError) as caught:
        await import_files(cache, other, {})
    assert caught.value.code == "artifact.file_missing"


async def test_a_touched_file_is_read_once_and_sealed_again(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    facts = write_sources(tmp_path / "src", {"w.weights": b"weights"})
    await pull(cache, facts)
    os.utime(cache.snapshot_path(facts.artifact) / "w.weights", ns=(1, 1))
    entry = cache.entry(facts.artifact)
    assert entry is not None
    assert entry.state == "corrupt"
    cache.require(facts.artifact)
    entry = cache.entry(facts.artifact)
    assert entry is not None
    assert entry.state == "ready"


async def test_removing_keeps_what_others_share(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    first = write_sources(tmp_path / "1", {"w.weights": b"one", "shared.txt": b"shared"})
    second = write_sources(tmp_path / "2", {"v.weights": b"two!", "shared.txt": b"shared"})
    await pull(cache, first)
    await pull(cache, second)
    removal = cache.remove(first.artifact)
    assert (removal.removed, removal.reclaimed_bytes) == (True, 3)
    assert cache.verify(second.artifact).is_good
    assert not cache.remove(first.artifact).removed
    assert cache.remove(second.artifact).reclaimed_bytes == 10
    assert list(cache.blobs.iterdir()) == []


async def test_a_leased_artifact_is_not_removed(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    facts = write_sources(tmp_path / "src", {"w.weights": b"weights"})
    await pull(cache, facts)
    first, second = cache.lease(facts.artifact), cache.lease(facts.artifact)
    first.release()
    with pytest.raises(RefusedError) as caught:
        cache.remove(facts.artifact)
    assert caught.value.code == "artifact.in_use"
    second.release()
    assert cache.remove(facts.artifact).removed


def test_removing_from_a_cache_that_is_not_there_creates_nothing(tmp_path: Path) -> None:
    assert not ArtifactCache(tmp_path / "cache").remove("0" * 64).removed
    assert list(tmp_path.iterdir()) == []
    assert ArtifactCache(tmp_path / "cache").entries() == ()


async def test_an_empty_cache_can_be_taken_away_and_a_full_one_cannot(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    facts = write_sources(tmp_path / "src", {"w.weights": b"weights"})
    await pull(cache, facts)
    assert not cache.dismantle_if_empty()
    cache.require(facts.artifact)
    cache.remove(facts.artifact)
    (cache.root / "foreign").write_text("not ours")
    assert not cache.dismantle_if_empty()
    assert [path.name for path in cache.root.iterdir()] == ["foreign"]
    (cache.root / "foreign").unlink()
    assert cache.dismantle_if_empty()
    assert not cache.root.exists()


async def test_a_damaged_manifest_is_corrupt_and_repaired_by_a_pull(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    facts = write_sources(tmp_path / "src", {"w.weights": b"weights"})
    await pull(cache, facts)
    manifest = cache.snapshot_path(facts.artifact) / "artifact.json"
    good = json.loads(manifest.read_bytes())
    for damage in ("{", json.dumps({**good, "seals": {}}), json.dumps({**good, "schema_version": 2})):
        manifest.unlink()
        manifest.write_text(damage)
        entry = cache.entry(facts.artifact)
        assert entry is not None
        assert entry.state == "corrupt"
        await pull(cache, facts)
        assert cache.require(facts.artifact)


@pytest.mark.parametrize(
    "files",
    [
        {"../w.weights": b"x"},
        {"/w.weights": b"x"},
        {"a/./w.weights": b"x"},
        {"artifact.json": b"x"},
        {"w.weights": b"x", "W.weights": b"y"},
    ],
)
async def test_unsafe_paths_are_never_stored(tmp_path: Path, files: dict[str, bytes]) -> None:
    with pytest.raises(InputError) as caught:
        await pull(ArtifactCache(tmp_path / "cache"), artifact_of(files, "file:/x"))
    assert caught.value.code == "artifact.invalid"


async def test_a_name_that_does_not_belong_to_the_files_is_refused(tmp_path: Path) -> None:
    facts = artifact_of({"w.weights": b"x"}, "file:/x").model_copy(update={"artifact": "0" * 64})
    with pytest.raises(InputError):
        await pull(ArtifactCache(tmp_path / "cache"), facts)


class SharedCache(RuleBasedStateMachine):
    """Pulls, removals, leases and rot in any order: what is ready has its bytes, what is leased stays, shared blobs survive."""

    CONTENTS = (b"alpha", b"beta", b"gamma")

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.root = Path(tempfile.mkdtemp(dir="/tmp"))
        self.cache = ArtifactCache(self.root / "cache")
        self.leases: dict[str, object] = {}
        self.facts: dict[str, ArtifactFacts] = {}

    def teardown(self) -> None:
        import shutil

        shutil.rmtree(self.root)

    @rule(picks=st.sets(st.integers(0, 2), min_size=1))
    def pull(self, picks: set[int]) -> None:
        import asyncio

        files = {f"{number}.weights": self.CONTENTS[number] for number in picks}
        facts = write_sources(self.root / "src" / "-".join(map(str, sorted(picks))), files)
        asyncio.run(pull(self.cache, facts))
        self.facts[facts.artifact] = facts
        entry = self.cache.entry(facts.artifact)
        assert entry is not None
        assert entry.state == "ready"

    @rule(data=st.data())
    def lease(self, data: st.DataObject) -> None:
        if self.facts:
            artifact = data.draw(st.sampled_from(sorted(self.facts)))
            self.leases.setdefault(artifact, self.cache.lease(artifact))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.facts:
            artifact = data.draw(st.sampled_from(sorted(self.facts)))
            if artifact in self.leases:
                with pytest.raises(RefusedError):
                    self.cache.remove(artifact)
            else:
                self.cache.remove(artifact)
                assert self.cache.entry(artifact) is None
                del self.facts[artifact]

    @rule(share=st.floats(0, 1), data=st.data())
    def collect(self, share: float, data: st.DataObject) -> None:
        configured = frozenset(data.draw(st.sets(st.sampled_from(sorted(self.facts))))) if self.facts else frozenset()
        budget = max(1, int(disk_bytes(self.cache) * share))
        found = collect(self.cache, budget, configured=configured)
        assert not set(found.deleted) & (configured | set(self.leases))
        assert found.unsatisfied_bytes == max(0, disk_bytes(self.cache) - budget)
        for artifact in found.deleted:
            del self.facts[artifact]

    @rule(number=st.integers(0, 2))
    def rot(self, number: int) -> None:
        blob = self.cache.root / "blobs" / "sha256" / hashlib.sha256(self.CONTENTS[number]).hexdigest()
        if blob.exists() and not self.leases:
            blob.chmod(0o600)
            blob.write_bytes(bytes(reversed(self.CONTENTS[number])))
            for artifact in list(self.facts):
                if any(file.path == f"{number}.weights" for file in self.facts[artifact].files):
                    with pytest.raises(ArtifactError):
                        self.cache.require(artifact)
                    del self.facts[artifact]

    @invariant()
    def everything_known_is_ready_with_its_bytes(self) -> None:
        for artifact, facts in self.facts.items():
            snapshot = self.cache.require(artifact)
            for file in facts.files:
                assert hashlib.sha256((snapshot / file.path).read_bytes()).hexdigest() == file.sha256


SharedCache.TestCase.settings = settings(
    max_examples=25, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
test_shared_cache = SharedCache.TestCase


def _pull_in_a_process(root: str, source: str, results: multiprocessing.SimpleQueue[bool]) -> None:
    import asyncio

    facts = ArtifactFacts.model_validate_json(source)
    results.put(asyncio.run(pull(ArtifactCache(Path(root)), facts)).was_present)


def test_the_artifact_id_is_of_the_content_alone() -> None:
    files = (
        ArtifactFile(path="w.weights", sha256="1" * 64, size_bytes=1),
        ArtifactFile(path="a", sha256="2" * 64, size_bytes=1),
    )
    assert artifact_id("gguf", files) == artifact_id("gguf", files[::-1])
    assert artifact_id("gguf", files) != artifact_id("safetensors", files)


def test_space_that_an_unfinished_download_reserved_is_told_before_a_byte_came(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    partials = cache.partials_path("a" * 64)
    partials.mkdir(parents=True)
    assert cache.entry("a" * 64) is None
    with (partials / f"{'b' * 64}.token.part").open("wb") as part:
        os.posix_fallocate(part.fileno(), 0, 1 << 20)
    entry = cache.entry("a" * 64)
    assert entry is not None
    assert (entry.state, entry.size_bytes) == ("partial", 0)
    assert entry.taken_bytes >= 1 << 20
    (partials / ("c" * 64)).write_bytes(b"x" * 8192)
    (whole,) = cache.entries()
    assert whole.size_bytes == 8192
    assert whole.taken_bytes >= (1 << 20) + 8192
