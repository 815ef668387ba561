"""One identity source and its mirrors: tried in order, each for what is still missing, the wrong and the slow named and left."""

from __future__ import annotations

import asyncio
import hashlib
import random
from pathlib import Path

import pytest

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.download import fetch_file
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.pull import pull
from sbctl.base.errors import ArtifactError
from tests.simulators.artifact_samples import artifact_of
from tests.simulators.hostile_http import HostileServer, Reply

pytestmark = pytest.mark.waits

DATA = random.Random(7).randbytes(300_000)
SHA = hashlib.sha256(DATA).hexdigest()


async def no_pause(_seconds: float) -> None:
    await asyncio.sleep(0)


async def fetch(fetcher: Fetcher, urls: list[str], target: Path, notes: list[str] | None = None) -> int:
    return await fetch_file(
        urls, target, sha256=SHA, size_bytes=len(DATA), fetcher=fetcher, sleep=no_pause, note=(notes or []).append
    )


async def test_a_mirror_brings_only_what_the_source_did_not(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    server.serve("/source", DATA, etag='"a"', cuts=[200_000, 0, 0, 0, 0])
    server.serve("/mirror", DATA, etag='"b"')
    assert await fetch(fetcher, [server.url("/source"), server.url("/mirror")], tmp_path / "w") == len(DATA)
    assert (tmp_path / "w").read_bytes() == DATA
    [asked] = server.asked("/mirror")
    assert asked.headers["range"] == "bytes=200000-"
    assert "if-range" not in asked.headers


async def test_wrong_bytes_of_an_earlier_source_do_not_spoil_the_mirrors(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    server.serve("/source", DATA[::-1], etag='"a"', cuts=[200_000, 0, 0, 0, 0])
    server.serve("/mirror", DATA, etag='"b"')
    await fetch(fetcher, [server.url("/source"), server.url("/mirror")], tmp_path / "w")
    assert (tmp_path / "w").read_bytes() == DATA
    assert [request.headers.get("range") for request in server.asked("/mirror")] == ["bytes=200000-", None]


async def test_each_source_is_named_with_what_was_wrong(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    server.serve("/wrong", DATA[::-1])
    server.serve("/short", DATA[:-1])
    notes: list[str] = []
    urls = [server.url(path) for path in ("/wrong", "/short", "/none")]
    with pytest.raises(ArtifactError) as caught:
        await fetch_file(
            urls, tmp_path / "w", sha256=SHA, size_bytes=len(DATA), fetcher=fetcher, sleep=no_pause, note=notes.append
        )
    assert caught.value.code == "artifact.http_status"
    tried = caught.value.detail["sources"]
    assert [entry["source"] for entry in tried] == urls
    assert [entry["code"] for entry in tried] == [
        "artifact.digest_mismatch",
        "artifact.size_mismatch",
        "artifact.http_status",
    ]
    assert all(url in caught.value.message for url in urls[:2])
    assert [note.partition(" is left")[0] for note in notes] == urls[:2]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_last", [False, True])
async def test_a_slow_source_is_left_while_there_is_another(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path, is_last: bool
) -> None:
    async def drip(send: object) -> None:
        for at in range(0, 2000, 100):
            await send(DATA[at : at + 100])  # type: ignore[operator]
            await asyncio.sleep(0.05)

    server.reply("/slow", Reply(200, {"ETag": '"s"'}, b"", announce=len(DATA), drip=drip))
    server.serve("/fast", DATA)
    urls = [server.url("/slow")] if is_last else [server.url("/slow"), server.url("/fast")]
    notes: list[str] = []
    if is_last:
        with pytest.raises(ArtifactError) as caught:
            await fetch(fetcher, urls, tmp_path / "w")
        assert caught.value.code == "artifact.transport"
    else:
        await fetch_file(
            urls, tmp_path / "w", sha256=SHA, size_bytes=len(DATA), fetcher=fetcher, sleep=no_pause, note=notes.append
        )
        assert len(server.asked("/slow")) == 1
        assert "KiB/s" in notes[0]


async def test_a_pull_goes_through_the_mirrors_of_an_artifact(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    server.serve("/m/w.dat", DATA)
    facts = artifact_of({"w.dat": DATA}, "pypi:absent==1#w.dat").model_copy(
        update={"mirrors": ("ms:not/known", server.url("/other"), server.url("/m/"))}
    )
    notes: list[str] = []
    await pull(ArtifactCache(tmp_path / "cache"), facts, fetcher=fetcher, note=notes.append)
    assert [note.split()[0] for note in notes] == ["pypi:absent==1#w.dat", "ms:not/known", server.url("/other")]
