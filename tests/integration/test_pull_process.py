"""Weights come by a process of their own beside the daemon: progress, errors and ends are its, the loop's time is not."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.egress import Egress
from sbctl.artifacts.model import ArtifactFacts, ArtifactFile, artifact_id
from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import HostError, SbctlError
from sbctl.runtime import pull_program
from sbctl.runtime.pull_process import PullProcess
from tests.simulators.download_server import DownloadServer
from tests.simulators.gguf_files import tiny_gguf
from tests.simulators.runtime_world import weights

pytestmark = pytest.mark.integration


def puller(root: Path) -> PullProcess:
    return PullProcess(root / "cache", lambda: Egress(allowed_hosts=("127.0.0.1",)), root, os.environ, offline=False)


def children() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "sbctl.runtime.pull_program" in child.cmdline():
                found.append(child)
    return found


def large(server: DownloadServer, data: bytes) -> ArtifactFacts:
    files = (ArtifactFile(path="w.gguf", sha256=sha256_bytes(data), size_bytes=len(data)),)
    return ArtifactFacts(
        artifact=artifact_id("gguf", files), format="gguf", files=files, source=server.url("/w"), model="m", variant="v", context_length=512
    )  # fmt: skip


DATA = tiny_gguf(note="n" * 400_000)


def ignored(*_told: object) -> None: ...


async def test_it_brings_what_is_asked_and_tells_how_far_it_is(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    with DownloadServer({"/w": DATA}) as server:
        facts = large(server, DATA)
        done = await puller(tmp_path)(facts, progress=lambda done, total: seen.append((done, total)), note=ignored)
    assert seen[-1] == (len(DATA), len(DATA))
    assert (done.downloaded_bytes, done.quarantined) == (len(DATA), ())
    assert ArtifactCache(tmp_path / "cache").require(facts.artifact).is_dir()
    assert children() == []


async def test_its_refusals_are_the_daemons_own(tmp_path: Path) -> None:
    facts = weights(tmp_path).model_copy(update={"source": f"file:{tmp_path}/gone.gguf"})
    with pytest.raises(SbctlError) as refused:
        await puller(tmp_path)(facts, progress=ignored, note=ignored)
    assert refused.value.code.startswith(("artifact.", "file."))
    assert refused.value.place


async def _begun(server: DownloadServer) -> psutil.Process:
    async with asyncio.timeout(60):
        while not server.sent_bytes:
            await asyncio.sleep(0.02)
    (child,) = children()
    server.sent_bytes = 0
    return child


async def test_a_pull_that_is_given_up_or_killed_leaves_no_process_and_is_continued(tmp_path: Path) -> None:
    with DownloadServer({"/w": DATA}, bytes_per_s=1000) as server:
        facts = large(server, DATA)
        given_up = asyncio.create_task(puller(tmp_path)(facts, progress=ignored, note=ignored))
        assert (await _begun(server)).nice() >= 10
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert children() == []
        killed = asyncio.create_task(puller(tmp_path)(facts, progress=ignored, note=ignored))
        (await _begun(server)).send_signal(signal.SIGKILL)
        with pytest.raises(HostError) as ended:
            await killed
        assert ended.value.retryable
        assert children() == []
        server.bytes_per_s = None
        await puller(tmp_path)(facts, progress=ignored, note=ignored)
    assert ArtifactCache(tmp_path / "cache").require(facts.artifact).is_dir()


@pytest.mark.parametrize(
    "said", ["hello", '{"progress": {"done": "many"}, "result": {}}', '{"result": {"downloaded_bytes": 1}}']
)
async def test_words_that_make_no_sense_are_an_error_that_may_be_tried_again(tmp_path: Path, said: str) -> None:
    class Odd(PullProcess):
        async def _begin(self) -> asyncio.subprocess.Process:
            pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
            return await asyncio.create_subprocess_exec(sys.executable, "-c", f"print({said!r})", **pipes)

    odd = Odd(tmp_path / "cache", Egress, tmp_path, os.environ, offline=False)
    with pytest.raises(HostError) as caught:
        await odd(weights(tmp_path), progress=ignored, note=ignored)
    assert caught.value.code == "runtime.pull_failed"
    assert caught.value.retryable


async def test_a_cache_that_takes_nothing_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no directory")
    with DownloadServer({"/w": DATA}) as server, pytest.raises(SbctlError) as caught:
        await puller(tmp_path)(large(server, DATA), progress=ignored, note=ignored)
    assert "without a word" not in caught.value.message
    assert "cache" in str(caught.value.place)


def test_a_unit_that_forbids_priorities_keeps_no_weights_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goes on to its order, which this one cannot read."""

    def refused(_by: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "nice", refused)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"no order")))
    assert pull_program.main(["pull_program", str(os.getppid())]) == 0
    assert "unreadable" in json.loads(capsys.readouterr().out)["error"]["message"]
