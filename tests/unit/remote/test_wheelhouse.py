"""Wheels come from the index once, are what the lock says, and a damaged cache is noticed."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sbctl.base.errors import ArtifactError, RefusedError, SbctlError
from sbctl.remote import wheelhouse
from sbctl.remote.own_wheel import own_wheel_name
from sbctl.remote.wheelhouse import Wheelhouse
from tests.simulators.hostile_http import HostileServer, Reply

WHEELS = {"alpha-1.0-py3-none-any.whl": b"alpha" * 1000, "uv-9.9-py3-none-manylinux_2_17_x86_64.whl": b"uv" * 9000}
DEBIAN_12 = ("x86_64", "glibc-2.36", "3.11.2")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _publish(server: HostileServer, filename: str, content: bytes, *, served: bytes | None = None) -> None:
    project = filename.split("-", maxsplit=1)[0]
    entry = {
        "filename": filename,
        "url": server.url(f"/files/{filename}"),
        "hashes": {"sha256": _sha256(content)},
        "size": len(content),
    }
    page = json.dumps({"meta": {"api-version": "1.1"}, "name": project, "files": [entry]}).encode()
    server.reply(f"/simple/{project}/", Reply(200, {"Content-Type": "application/vnd.pypi.simple.v1+json"}, page))
    server.serve(f"/files/{filename}", content if served is None else served)


@pytest.fixture
async def index() -> AsyncIterator[HostileServer]:
    async with HostileServer() as server:
        for filename, content in WHEELS.items():
            _publish(server, filename, content)
        yield server


@pytest.fixture
def ensure(
    index: HostileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., asyncio.Future[dict[str, Path]]]:
    monkeypatch.setattr(wheelhouse, "build_own_wheel", lambda: b"our own wheel")
    lock = tmp_path / "runtime.txt"
    pins = [
        f"{name.split('-')[0]}=={name.split('-')[1]} --hash=sha256:{_sha256(data)}" for name, data in WHEELS.items()
    ]
    lock.write_text("\n".join(pins) + "\n")

    def call(
        *kind: str, progress: Callable[[int, int | None], None] = lambda _done, _total: None
    ) -> asyncio.Future[dict[str, Path]]:
        house = Wheelhouse(tmp_path / "cache", {"SBCTL_PACKAGE_INDEX": index.url("/simple/")}, lock=lock)
        return asyncio.get_running_loop().run_in_executor(None, lambda: house.ensure(*(kind or DEBIAN_12), progress))

    return call


async def test_every_wheel_is_there_by_its_digest_ours_among_them(
    ensure: Callable[..., asyncio.Future[dict[str, Path]]],
) -> None:
    seen: list[tuple[int, int | None]] = []
    wheels = await ensure(progress=lambda *step: seen.append(step))
    assert set(wheels) == {*WHEELS, own_wheel_name()}
    for name, path in wheels.items():
        assert path.name == name
        assert path.parent.name == _sha256(path.read_bytes())
    total = sum(map(len, WHEELS.values()))
    assert seen[-1] == (total, total)


async def test_a_second_time_touches_no_network(
    ensure: Callable[..., asyncio.Future[dict[str, Path]]], index: HostileServer
) -> None:
    first = await ensure()
    index.requests.clear()
    assert await ensure() == first
    assert index.requests == []


async def test_a_damaged_file_in_the_cache_is_fetched_again(
    ensure: Callable[..., asyncio.Future[dict[str, Path]]], index: HostileServer
) -> None:
    wheels = await ensure()
    victim = wheels["alpha-1.0-py3-none-any.whl"]
    victim.chmod(0o600)
    victim.write_bytes(b"rot")
    assert (await ensure())["alpha-1.0-py3-none-any.whl"].read_bytes() == WHEELS[victim.name]


@pytest.mark.flow
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"../x.whl": "' + b"a" * 64 + b'"}', b'{"x.whl": "../../etc"}']
)
async def test_a_damaged_list_in_the_cache_is_made_again(
    ensure: Callable[..., asyncio.Future[dict[str, Path]]], tmp_path: Path, content: bytes
) -> None:
    first = await ensure()
    (listing,) = (tmp_path / "cache/wheelhouse").iterdir()
    listing.write_bytes(content)
    assert await ensure() == first


async def test_an_index_with_other_bytes_than_the_lock_is_refused(
    ensure: Callable[..., asyncio.Future[dict[str, Path]]], index: HostileServer
) -> None:
    _publish(index, "alpha-1.0-py3-none-any.whl", b"other bytes")
    with pytest.raises(ArtifactError) as caught:
        await ensure()
    assert caught.value.code == "artifact.digest_mismatch"
    assert index.asked("/files/alpha-1.0-py3-none-any.whl") == []


async def test_a_file_with_other_bytes_than_the_index_says_is_refused(
    ensure: Callable[..., asyncio.Future[dict[str, Path]]], index: HostileServer, tmp_path: Path
) -> None:
    name = "alpha-1.0-py3-none-any.whl"
    _publish(index, name, WHEELS[name], served=WHEELS[name][:-1] + b"!")
    with pytest.raises(ArtifactError) as caught:
        await ensure()
    assert caught.value.code == "artifact.digest_mismatch"
    assert not list((tmp_path / "cache/wheelhouse").glob("*"))


async def test_no_wheel_for_the_platform_is_named(ensure: Callable[..., asyncio.Future[dict[str, Path]]]) -> None:
    with pytest.raises(SbctlError) as caught:
        await ensure("aarch64", "glibc-2.36", "3.11.2")
    assert caught.value.code == "artifact.not_in_index"


async def test_a_host_of_an_unknown_kind_is_refused_before_anything_is_asked(
    ensure: Callable[..., asyncio.Future[dict[str, Path]]], index: HostileServer
) -> None:
    with pytest.raises(RefusedError):
        await ensure("s390x", "glibc-2.36", "3.11.2")
    assert index.requests == []


async def test_a_pinned_wheel_is_the_one_with_that_name_and_digest(index: HostileServer, tmp_path: Path) -> None:
    house = Wheelhouse(tmp_path, {"SBCTL_PACKAGE_INDEX": index.url("/simple/")})
    name = "alpha-1.0-py3-none-any.whl"

    def pinned(sha256: str) -> asyncio.Future[Path]:
        def call() -> Path:
            return house.pinned_wheel("alpha", "1.0", name, sha256, lambda _done, _total: None)

        return asyncio.get_running_loop().run_in_executor(None, call)

    assert (await pinned(_sha256(WHEELS[name]))).read_bytes() == WHEELS[name]
    index.requests.clear()
    await pinned(_sha256(WHEELS[name]))
    assert index.requests == []
    with pytest.raises(ArtifactError) as caught:
        await pinned("0" * 64)
    assert caught.value.code == "artifact.digest_mismatch"
