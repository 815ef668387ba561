"""Several connections for one file: faster where that pays, right whatever the server does, one where it does not."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from yarl import URL

from sbctl.artifacts import transfer
from sbctl.artifacts.download import fetch_file
from sbctl.artifacts.fetch_policy import FetchSettings
from sbctl.artifacts.fetcher import Fetcher
from sbctl.base.errors import ArtifactError
from tests.simulators.download_server import MISBEHAVIOURS, DownloadServer

pytestmark = pytest.mark.waits

DATA = random.Random(4).randbytes(1_500_000)
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions of seconds and megabytes, made in hundredths and kilobytes."""
    monkeypatch.setattr(transfer, "DOWNLOAD_PIECE_BYTES", 100_000)
    monkeypatch.setattr(transfer, "_WINDOW_S", 0.02)
    monkeypatch.setattr(transfer, "_TICK_S", 0.02)
    monkeypatch.setattr(transfer, "_WRITE_BYTES", 16_000)


@pytest.fixture
async def fetcher() -> AsyncIterator[Fetcher]:
    hub = URL("https://hub.invalid")
    async with Fetcher(FetchSettings(index=hub, hf_endpoint=hub), stall_s=1.0) as opened:
        yield opened


async def no_pause(_seconds: float) -> None:
    await asyncio.sleep(0)


async def fetch(fetcher: Fetcher, url: str, target: Path) -> int:
    return await fetch_file([url], target, sha256=SHA, size_bytes=len(DATA), fetcher=fetcher, sleep=no_pause)


async def test_a_capped_server_is_asked_by_several_connections_at_once(fetcher: Fetcher, tmp_path: Path) -> None:
    with DownloadServer({"/w": DATA}, bytes_per_s=1_000_000) as server:
        assert await fetch(fetcher, server.url("/w"), tmp_path / "w") == len(DATA)
        assert max(seen.beside for seen in server.seen) >= 1
        ranges = [seen.range for seen in server.seen]
        assert ranges[0] is None
        assert len(set(ranges)) == len(ranges)
        assert all(seen.headers["if-range"] == '"1"' for seen in server.seen[1:])
        assert server.sent_bytes < 1.5 * len(DATA)
    assert (tmp_path / "w").read_bytes() == DATA
    assert [path.name for path in tmp_path.iterdir()] == ["w"]


@pytest.mark.parametrize("change", [{"ranges": False}, {"etag": 'W/"1"'}], ids=["no ranges", "a weak ETag"])
async def test_one_connection_where_ranges_cannot_be_trusted(
    fetcher: Fetcher, tmp_path: Path, change: dict[str, object]
) -> None:
    with DownloadServer({"/w": DATA}, bytes_per_s=6_000_000, **change) as server:  # type: ignore[arg-type]
        await fetch(fetcher, server.url("/w"), tmp_path / "w")
        assert len(server.seen) == 1
    assert (tmp_path / "w").read_bytes() == DATA


@pytest.mark.parametrize("name", MISBEHAVIOURS)
async def test_F2_whatever_a_server_does_with_ranges_the_bytes_are_right_or_refused(
    fetcher: Fetcher, tmp_path: Path, name: str
) -> None:
    refused = {
        "has other bytes in ranges": "artifact.digest_mismatch",
        "compresses a range": "artifact.encoding_refused",
        "answers 404 for a range": "artifact.http_status",
    }
    with DownloadServer({"/w": DATA}, bytes_per_s=3_000_000, misbehaviour=MISBEHAVIOURS[name]) as server:
        if name in refused:
            with pytest.raises(ArtifactError) as caught:
                await fetch(fetcher, server.url("/w"), tmp_path / "w")
            assert caught.value.code == refused[name]
            assert not (tmp_path / "w").exists()
        else:
            await fetch(fetcher, server.url("/w"), tmp_path / "w")
            assert (tmp_path / "w").read_bytes() == DATA
            assert [path.name for path in tmp_path.iterdir()] == ["w"]


async def test_ranges_that_are_here_are_not_fetched_again(fetcher: Fetcher, tmp_path: Path) -> None:
    with DownloadServer({"/w": DATA}, bytes_per_s=1_000_000) as server:
        work = asyncio.create_task(fetch(fetcher, server.url("/w"), tmp_path / "w"))
        while server.sent_bytes < 700_000:
            await asyncio.sleep(0.01)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        server.bytes_per_s = None
        got = await fetch(fetcher, server.url("/w"), tmp_path / "w")
        assert got < len(DATA) - 300_000
    assert (tmp_path / "w").read_bytes() == DATA
