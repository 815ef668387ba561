"""The n-th write fails, for every n (docs/threats.md, F13 and F14): never a visible bad snapshot, and the next run completes."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import signal
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from yarl import URL

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.fetch_policy import FetchSettings
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.model import ArtifactFacts
from sbctl.artifacts.pull import pull
from sbctl.base import fs
from sbctl.base.clock import SystemClock
from sbctl.base.errors import SbctlError
from tests.simulators.artifact_samples import artifact_of, write_sources
from tests.simulators.hostile_http import HostileServer

FILES = {"a/w.dat": b"weights " * 60_000, "config.json": b"{}"}


class HoursLater(SystemClock):
    """Temporary names of a crash are swept once they are old."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=2)


class Unsynced(fs.FileOps):
    """What the other runs use: the order of calls is under test, not the disk."""

    def fsync(self, fd: int) -> None:
        return None


class FailNth(fs.FileOps):
    """Counts the calls; the n-th, and for a disk that stays broken every later one, fails with `number`."""

    def __init__(self, nth: int, number: int, *, stays: bool) -> None:
        self.count = 0
        self.nth = nth
        self.number = number
        self.stays = stays

    def _tick(self) -> None:
        self.count += 1
        if self.count == self.nth or (self.stays and self.count > self.nth):
            raise OSError(self.number, os.strerror(self.number))

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        self._tick()
        return super().open(path, flags, mode)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._tick()
        return super().write(fd, data)

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        self._tick()
        return super().write_at(fd, data, offset)

    def fsync(self, fd: int) -> None:
        self._tick()

    def rename(self, source: str, target: str) -> None:
        self._tick()
        super().rename(source, target)

    def link(self, source: str, target: str) -> None:
        self._tick()
        super().link(source, target)

    def unlink(self, path: str) -> None:
        self._tick()
        super().unlink(path)

    def mkdir(self, path: str, mode: int) -> None:
        self._tick()
        super().mkdir(path, mode)

    def chmod(self, fd: int, mode: int) -> None:
        self._tick()
        super().chmod(fd, mode)


def nothing_bad_is_visible(cache: ArtifactCache, facts: ArtifactFacts) -> None:
    """What claims to be ready has its bytes."""
    entry = cache.entry(facts.artifact)
    if entry is not None and entry.state == "ready":
        snapshot = cache.snapshot_path(facts.artifact)
        for file in facts.files:
            assert hashlib.sha256((snapshot / file.path).read_bytes()).hexdigest() == file.sha256
    assert entry is None or entry.state != "corrupt"


def completes(cache: ArtifactCache, facts: ArtifactFacts) -> None:
    later = ArtifactCache(cache.root, HoursLater())
    with fs.use_ops(Unsynced()):
        asyncio.run(pull(later, facts))
    assert cache.verify(facts.artifact).is_good
    assert not list(cache.partials.iterdir())
    assert [path.name for path in cache.snapshots.iterdir() if path.name.startswith(".staging")] == []


@pytest.mark.parametrize("stays", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=["ENOSPC", "EIO", "EROFS"])
def test_F14_a_pull_survives_a_failure_of_its_nth_write(tmp_path: Path, number: int, stays: bool) -> None:
    facts = write_sources(tmp_path / "src", FILES)
    for nth in range(1, 500):
        cache = ArtifactCache(tmp_path / f"cache{nth}")
        faulty = FailNth(nth, number, stays=stays)
        with fs.use_ops(faulty):
            try:
                asyncio.run(pull(cache, facts))
                reached = faulty.count >= nth
            except SbctlError as error:
                assert error.code.startswith("disk.")
                reached = True
        nothing_bad_is_visible(cache, facts)
        completes(cache, facts)
        if not reached:
            break
    assert 20 < nth < 499


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=["ENOSPC", "EIO", "EROFS"])
def test_F14_a_removal_survives_a_failure_of_its_nth_write(tmp_path: Path, number: int) -> None:
    first = write_sources(tmp_path / "1", FILES)
    second = write_sources(tmp_path / "2", {"v.dat": b"# other", "config.json": b"{}"})
    cache = ArtifactCache(tmp_path / "cache")
    for nth in range(1, 100):
        asyncio.run(pull(cache, first))
        asyncio.run(pull(cache, second))
        faulty = FailNth(nth, number, stays=True)
        with fs.use_ops(faulty):
            try:
                cache.remove(first.artifact)
                reached = faulty.count >= nth
            except SbctlError:
                reached = True
        nothing_bad_is_visible(cache, first)
        assert cache.verify(second.artifact).is_good
        cache.remove(first.artifact)
        assert cache.entry(first.artifact) is None
        if not reached:
            break
    assert 2 < nth < 99


async def test_F14_a_full_disk_keeps_what_was_fetched(tmp_path: Path) -> None:
    data = FILES["a/w.dat"]
    settings = FetchSettings(index=URL("https://i.invalid/"), hf_endpoint=URL("https://i.invalid/"))
    async with HostileServer() as server, Fetcher(settings) as fetcher:
        server.serve("/w", data, etag='"1"')
        facts = artifact_of({"w.dat": data}, server.url("/w"))
        cache = ArtifactCache(tmp_path / "cache")
        cache.prepare()

        class Full(fs.FileOps):
            def write_at(self, fd: int, chunk: bytes | memoryview, offset: int) -> int:
                if offset >= 200_000:
                    raise OSError(errno.ENOSPC, "full")
                return super().write_at(fd, chunk, offset)

        with fs.use_ops(Full()), pytest.raises(SbctlError) as caught:
            await pull(cache, facts, fetcher=fetcher)
        assert caught.value.code == "disk.full"
        assert len(server.requests) == 1
        entry = cache.entry(facts.artifact)
        assert entry is not None
        assert entry.state == "partial"
        assert 0 < caught.value.detail["need_bytes"] <= len(data)
        assert str(tmp_path) in str(caught.value.place)
        result = await pull(cache, facts, fetcher=fetcher)
        assert result.downloaded_bytes == len(data) - entry.size_bytes < len(data)


_VICTIM = """
import asyncio, os, signal, sys
from pathlib import Path
from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.model import ArtifactFacts
from sbctl.artifacts.pull import pull
from sbctl.base import fs
nth, count = int(sys.argv[3]), 0
def dying(call):
    def wrapped(*args, **kwargs):
        global count
        count += 1
        if count == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)
    return wrapped
ops = fs.FileOps()
for name in ("open", "write", "write_at", "fsync", "rename", "link", "unlink", "mkdir", "chmod"):
    setattr(ops, name, dying(getattr(ops, name)))
facts = ArtifactFacts.model_validate_json(sys.argv[2])
with fs.use_ops(ops):
    asyncio.run(pull(ArtifactCache(Path(sys.argv[1])), facts))
"""


@pytest.mark.parametrize("nth", range(3, 60, 6))
def test_F13_a_killed_pull_leaves_no_bad_snapshot_and_is_finished_later(tmp_path: Path, nth: int) -> None:
    facts = write_sources(tmp_path / "src", FILES)
    cache = ArtifactCache(tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, "-c", _VICTIM, str(cache.root), facts.model_dump_json(), str(nth)],
        capture_output=True,
        check=False,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode in (-signal.SIGKILL, 0), done.stderr
    nothing_bad_is_visible(cache, facts)
    completes(cache, facts)
