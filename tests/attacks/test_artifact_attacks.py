"""Hostile sources, archives and caches (docs/threats.md, F1 to F16): each is refused by name, and nothing bad is ever published."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import socket
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from sbctl.artifacts.archive import read_member
from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.cache_root import check_root
from sbctl.artifacts.download import fetch_file
from sbctl.artifacts.fetch_policy import FetchSettings, GuardedResolver, Origins, check_url, parse_url
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.pull import pull
from sbctl.base.errors import ArtifactError, InputError, RefusedError, SbctlError
from tests.simulators.artifact_samples import artifact_of, write_sources
from tests.simulators.hostile_http import HostileServer, Reply

DATA = b"weights " * 20_000
SHA = hashlib.sha256(DATA).hexdigest()
PUBLIC = URL("https://index.invalid/simple")


@pytest.fixture
async def server() -> AsyncIterator[HostileServer]:
    async with HostileServer() as running:
        yield running


@pytest.fixture
async def fetcher() -> AsyncIterator[Fetcher]:
    async with Fetcher(FetchSettings(index=PUBLIC, hf_endpoint=PUBLIC), stall_s=0.5) as opened:
        yield opened


async def no_pause(_seconds: float) -> None:
    return None


async def fetch(fetcher: Fetcher, url: str, target: Path) -> None:
    await fetch_file([url], target, sha256=SHA, size_bytes=len(DATA), fetcher=fetcher, sleep=no_pause)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, {}, DATA[:-1]),
        Reply(200, {}, DATA + b"!"),
        Reply(200, {}, DATA[1:] + b"!"),
        Reply(200, {}, DATA * 4, announce=None),
        Reply(200, {}, DATA, announce=len(DATA) * 2),
        Reply(200, {}, b""),
    ],
    ids=["shorter", "longer", "other bytes", "longer without length", "length lies", "empty"],
)
async def test_F1_wrong_bytes_are_never_published(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path, reply: Reply
) -> None:
    server.reply("/w", reply)
    cache = ArtifactCache(tmp_path / "cache")
    facts = artifact_of({"w.dat": DATA}, server.url("/w"))
    with pytest.raises(ArtifactError):
        await asyncio.wait_for(pull(cache, facts, fetcher=fetcher), 60)
    entry = cache.entry(facts.artifact)
    assert entry is None or entry.state == "partial"
    assert list(cache.blobs.iterdir()) == []


@pytest.fixture(autouse=True)
def _no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbctl.artifacts.download.pause_s", lambda _failures, _error: 0.0)


@pytest.mark.parametrize(
    "content_range", ["bytes 0-9/10", "bytes 5-159999/160000", "bytes */160000", "junk", ""], ids=str
)
async def test_F2_a_wrong_content_range_is_not_appended(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path, content_range: str
) -> None:
    server.serve("/w", DATA, etag='"1"', cuts=[1000, 0, 0, 0])
    with pytest.raises(ArtifactError):
        await fetch(fetcher, server.url("/w"), tmp_path / "w")
    server.reply("/w", Reply(206, {"ETag": '"1"', "Content-Range": content_range}, DATA[500:]), Reply(200, {}, DATA))
    await fetch(fetcher, server.url("/w"), tmp_path / "w")
    assert (tmp_path / "w").read_bytes() == DATA


@pytest.mark.parametrize(
    "location",
    [
        "http://plain.example/w",
        "file:///etc/passwd",
        "https://169.254.169.254/latest/meta-data",
        "https://127.0.0.1/w",
        "https://[::1]/w",
        "https://[::ffff:127.0.0.1]/w",
        "https://10.0.0.1/w",
        "https://2130706433/w",
        "//0x7f.1/w",
        "https://user@h.example/w",
        "gopher://h.example/",
        "",
    ],
)
async def test_F3_a_redirect_to_where_nothing_is_fetched_is_refused(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path, location: str
) -> None:
    server.reply("/w", Reply(302, {"Location": location} if location else {}))
    with pytest.raises(ArtifactError) as caught:
        await fetch(fetcher, server.url("/w"), tmp_path / "w")
    assert caught.value.code == "artifact.url_refused"


async def test_F3_a_redirect_to_another_loopback_port_is_refused(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path
) -> None:
    async with HostileServer() as inner:
        inner.serve("/w", DATA)
        server.reply("/w", Reply(302, {"Location": inner.url("/w")}))
        with pytest.raises(ArtifactError) as caught:
            await fetch(fetcher, server.url("/w"), tmp_path / "w")
        assert caught.value.code == "artifact.url_refused"
        assert inner.requests == []


@pytest.mark.parametrize("hops", [6, 20])
async def test_F3_redirects_end(server: HostileServer, fetcher: Fetcher, tmp_path: Path, hops: int) -> None:
    for hop in range(hops):
        server.reply(f"/{hop}", Reply(302, {"Location": f"/{hop + 1}"}))
    server.serve(f"/{hops}", DATA)
    server.reply("/loop", Reply(302, {"Location": "/loop"}))
    for start in ("/0", "/loop"):
        with pytest.raises(ArtifactError) as caught:
            await fetch(fetcher, server.url(start), tmp_path / "w")
        assert caught.value.code == "artifact.too_many_redirects"


async def test_F3_five_redirects_are_followed(server: HostileServer, fetcher: Fetcher, tmp_path: Path) -> None:
    for hop in range(5):
        server.reply(f"/{hop}", Reply(307, {"Location": f"/{hop + 1}"}))
    server.serve("/5", DATA)
    await fetch(fetcher, server.url("/0"), tmp_path / "w")
    assert (tmp_path / "w").read_bytes() == DATA


async def test_F3_a_token_goes_to_its_first_origin_only(server: HostileServer, tmp_path: Path) -> None:
    async with HostileServer() as storage:
        storage.serve("/w", DATA)
        server.reply("/start", Reply(302, {"Location": "/again"}))
        server.reply("/again", Reply(302, {"Location": storage.url("/w")}))
        settings = FetchSettings.from_environ({"HF_ENDPOINT": server.url(""), "HF_TOKEN": "hf_canary"})
        async with Fetcher(settings) as fetcher:
            fetcher.origins.add(URL(storage.url("/w")))
            await fetch(fetcher, server.url("/start"), tmp_path / "w")
        assert [request.headers.get("authorization") for request in server.requests] == ["Bearer hf_canary"] * 2
        assert "authorization" not in storage.requests[0].headers


async def test_F3_https_never_becomes_http_even_where_http_is_configured() -> None:
    fetcher = Fetcher(FetchSettings(index=URL("http://pkg.corp/simple"), hf_endpoint=PUBLIC))
    answers = {"https://h.example/w": "http://pkg.corp/w"}

    @contextlib.asynccontextmanager
    async def answered(url: URL, *_given: object) -> AsyncIterator[object]:
        yield SimpleNamespace(status=302, headers={"Location": answers[str(url)]}, url=url)

    fetcher._request = answered  # type: ignore[method-assign, assignment]
    with pytest.raises(ArtifactError) as caught:
        async with fetcher.open(URL("https://h.example/w")):
            pass
    assert caught.value.code == "artifact.url_refused"
    assert "plain http" in caught.value.message


async def test_F3_a_token_that_was_left_behind_is_not_taken_up_again(server: HostileServer, tmp_path: Path) -> None:
    async with HostileServer() as other:
        server.reply("/start", Reply(302, {"Location": other.url("/away")}))
        other.reply("/away", Reply(302, {"Location": server.url("/w")}))
        server.serve("/w", DATA)
        settings = FetchSettings.from_environ({"HF_ENDPOINT": server.url(""), "HF_TOKEN": "hf_canary"})
        async with Fetcher(settings) as fetcher:
            fetcher.origins.add(URL(other.url("/away")))
            await fetch(fetcher, server.url("/start"), tmp_path / "w")
        sent = [request.headers.get("authorization") for request in (*server.requests, *other.requests)]
        assert sent == ["Bearer hf_canary", None, None]


async def test_F26_a_token_is_in_no_error_file_or_note(server: HostileServer, tmp_path: Path) -> None:
    settings = FetchSettings.from_environ({"HF_ENDPOINT": server.url(""), "HF_TOKEN": "hf_canary"})
    notes: list[str] = []
    server.serve("/w", DATA, etag='"1"', cuts=[1000, 0, 0, 0])
    async with Fetcher(settings) as fetcher:
        for status in (401, 403, 404, 500):
            server.reply(f"/{status}", Reply(status, {}, b"hf_canary"))
        server.reply("/away", Reply(302, {"Location": "https://10.0.0.1/w?token=hf_canary"}))
        urls = [server.url(f"/{name}?sig=hf_canary") for name in ("401", "403", "404", "500", "away")]
        with pytest.raises(ArtifactError) as caught:
            await fetch_file(
                [*urls, server.url("/w?sig=hf_canary"), server.url("/w")],
                tmp_path / "w",
                sha256=SHA,
                size_bytes=len(DATA),
                fetcher=fetcher,
                sleep=no_pause,
                note=notes.append,
            )
        assert server.requests[0].headers["authorization"] == "Bearer hf_canary"
    told = f"{caught.value!r} {caught.value} {caught.value.to_wire()} {notes} {settings!r}"
    assert "canary" not in told
    assert len(notes) == 6
    kept = [path for path in tmp_path.iterdir() if path.is_file()]
    assert {path.suffix for path in kept} == {".part", ".journal"}
    assert not any(b"canary" in path.read_bytes() for path in kept)


@pytest.mark.parametrize(
    ("source", "other"),
    [
        ("https://10.0.0.5/w", "https://10.0.0.6/w"),
        ("https://169.254.1.1/w", "https://169.254.169.254/w"),
        ("https://[fd00::1]/w", "https://[fd00::2]/w"),
        ("https://10.0.0.5/w", "https://10.0.0.5:8443/w"),
    ],
)
def test_F4_a_private_address_is_fetched_from_only_where_a_source_names_it(source: str, other: str) -> None:
    origins = Origins()
    origins.add_source(parse_url(source))
    check_url(parse_url(source), origins)
    with pytest.raises(ArtifactError):
        check_url(parse_url(other), origins)


def test_F4_a_source_gives_no_right_to_plain_http_or_to_a_private_name() -> None:
    origins = Origins()
    for source in ("http://10.0.0.5/w", "http://h.example/w", "https://h.example/w"):
        origins.add_source(parse_url(source))
    for refused in ("http://10.0.0.5/w", "http://h.example/w"):
        with pytest.raises(ArtifactError):
            check_url(parse_url(refused), origins)
    assert not origins.allows_connection("h.example", 443)


class _Rebinding(AbstractResolver):
    """First public, then loopback."""

    def __init__(self) -> None:
        self.answers = ["93.184.216.34", "127.0.0.1"]

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        address = self.answers.pop(0)
        return [ResolveResult(hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=0)]

    async def close(self) -> None:
        return None


async def test_F4_a_name_that_turns_private_is_refused_when_it_is_connected_to() -> None:
    resolver = GuardedResolver(Origins(), _Rebinding())
    assert (await resolver.resolve("h.example", 443))[0]["host"] == "93.184.216.34"
    with pytest.raises(ArtifactError) as caught:
        await resolver.resolve("h.example", 443)
    assert caught.value.code == "artifact.address_refused"


async def test_F4_a_name_is_resolved_once_for_each_connection_and_that_address_is_used(
    server: HostileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Counting(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            asked.append(host)
            return [ResolveResult(hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=0, flags=0)]

        async def close(self) -> None:
            return None

    monkeypatch.setattr("sbctl.artifacts.fetcher.ThreadedResolver", Counting)
    server.serve("/w", DATA)
    named = server.url("/w").replace("127.0.0.1", "pkg.corp")
    for allowed in (False, True):
        index = URL(named if allowed else "https://index.invalid/")
        async with Fetcher(FetchSettings(index=index, hf_endpoint=PUBLIC)) as fetcher:
            if not allowed:
                with pytest.raises(ArtifactError) as caught:
                    await fetch(fetcher, "https://pkg.corp/w", tmp_path / "w")
                assert caught.value.code == "artifact.address_refused"
                assert server.requests == []
            else:
                await fetch(fetcher, named, tmp_path / "w")
    assert asked == ["pkg.corp", "pkg.corp"]


async def test_F4_only_the_configured_index_may_be_private() -> None:
    origins = FetchSettings.from_environ({"PIP_INDEX_URL": "https://pkg.corp/simple"}).origins()
    resolver = GuardedResolver(origins, _Rebinding())
    await resolver.resolve("pkg.corp", 443)
    assert (await resolver.resolve("pkg.corp", 443))[0]["host"] == "127.0.0.1"
    resolver = GuardedResolver(origins, _Rebinding())
    await resolver.resolve("pkg.corp", 8443)
    with pytest.raises(ArtifactError):
        await resolver.resolve("pkg.corp", 8443)


@pytest.mark.parametrize(
    "text",
    [
        r"https://a\@b/",
        "https://ok@evil.example/",
        "https://u:p@h.example/",
        "https://bücher.example/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:a00:1]/",
        "https://[fe80::1]/",
        "https://[64:ff9b::7f00:1%25eth0]/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://127.1/",
        "https://0177.0.0.1/",
        "https://127.0.0.1./",
        "https://localhost:0x1/",
        "https://h.example/\x00",
        "https://h.example/a b",
        "https://h.exa\tmple/",
        "https://ok%2eexample/",
        "https:///etc",
        "//h.example/",
        "javascript:alert(1)",
        "https://0.0.0.0/",
        "https://224.0.0.1/",
        "https://h.example:99999/",
        "http://h.example/",
        "https://" + "a" * 9000,
    ],
)
def test_F5_addresses_that_parsers_read_differently_are_refused(text: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        check_url(parse_url(text), Origins())
    assert caught.value.code == "artifact.url_refused"


@pytest.mark.parametrize(
    "text",
    ["https://h.example/", "https://xn--bcher-kva.example/x?y=z", "https://93.184.216.34/", "https://h.example#@evil"],
)
def test_F5_plain_addresses_are_not(text: str) -> None:
    check_url(parse_url(text), Origins())


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate"])
async def test_F6_compressed_weights_are_refused(
    server: HostileServer, fetcher: Fetcher, tmp_path: Path, encoding: str
) -> None:
    server.reply("/w", Reply(200, {"Content-Encoding": encoding}, DATA))
    with pytest.raises(ArtifactError) as caught:
        await fetch(fetcher, server.url("/w"), tmp_path / "w")
    assert caught.value.code == "artifact.encoding_refused"


def _zip(build: Callable[[zipfile.ZipFile], None]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        build(archive)
    return buffer.getvalue()


def _typed(kind: int) -> Callable[[zipfile.ZipFile], None]:
    def build(archive: zipfile.ZipFile) -> None:
        info = zipfile.ZipInfo("m")
        info.external_attr = (kind | 0o777) << 16
        archive.writestr(info, "/etc/passwd")

    return build


def _twice(archive: zipfile.ZipFile) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("m", b"a")
        archive.writestr("m", b"b")


def _patched(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    return data.replace(old, new)


ARCHIVES = {
    "symlink": _zip(_typed(stat.S_IFLNK)),
    "fifo": _zip(_typed(stat.S_IFIFO)),
    "device": _zip(_typed(stat.S_IFBLK)),
    "twice": _zip(_twice),
    "other case": _zip(lambda archive: archive.writestr("M", b"a")),
    "bomb": _zip(lambda archive: archive.writestr("m", b"\0" * 10_000_000)),
    "not a zip": b"PK\x03\x04 but no more",
    "empty": b"",
    "cut": _zip(lambda archive: archive.writestr("m", b"a" * 1000))[:-30],
    "zip64": _zip(lambda archive: archive.writestr("m", b"a"))[:-22]
    + b"PK\x06\x07"
    + b"\xff" * 16
    + b"PK\x05\x06"
    + b"\xff" * 18,
    "huge directory": _zip(lambda archive: archive.writestr("m", b"a"))[:-22]
    + b"PK\x05\x06"
    + b"\0" * 4
    + b"\xff\xff\xff\xff"
    + b"\xff\xff\xff\x7f"
    + b"\0" * 6,
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_F7_hostile_archives_give_nothing(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "a.zip"
    archive.write_bytes(ARCHIVES[name])
    with pytest.raises(ArtifactError) as caught:
        list(read_member(archive, "m", max_bytes=1000))
    assert caught.value.code in ("artifact.archive_refused", "artifact.member_missing")


def test_F7_a_member_that_claims_less_than_it_unpacks_to_gives_no_more(tmp_path: Path) -> None:
    data = _zip(lambda archive: archive.writestr("m", b"x" * 5000))
    (tmp_path / "a.zip").write_bytes(_patched(data, (5000).to_bytes(4, "little"), (500).to_bytes(4, "little")))
    pieces: list[bytes] = []
    with pytest.raises(ArtifactError):
        pieces.extend(read_member(tmp_path / "a.zip", "m", max_bytes=1000))
    assert sum(map(len, pieces)) <= 1000


@pytest.mark.parametrize("member", ["../m", "/m", "a/../m", "", "a\\m", "m\0"])
def test_F7_traversal_names_are_never_looked_up(tmp_path: Path, member: str) -> None:
    (tmp_path / "a.zip").write_bytes(_zip(lambda archive: archive.writestr("m", b"x")))
    with pytest.raises(ArtifactError):
        list(read_member(tmp_path / "a.zip", member, max_bytes=10))


def test_F8_only_the_named_member_is_read(tmp_path: Path) -> None:
    def build(archive: zipfile.ZipFile) -> None:
        archive.writestr("../../etc/passwd", b"evil")
        archive.writestr("m", b"good")
        archive.writestr("/abs", b"evil")

    (tmp_path / "a.zip").write_bytes(_zip(build))
    assert b"".join(read_member(tmp_path / "a.zip", "m", max_bytes=10)) == b"good"
    with pytest.raises(ArtifactError) as caught:
        list(read_member(tmp_path / "a.zip", "n", max_bytes=10))
    assert caught.value.code == "artifact.member_missing"


@pytest.mark.parametrize("mode", [0o777, 0o772, 0o702])
@pytest.mark.parametrize("where", ["root", "parent"])
def test_F9_a_cache_that_others_can_write_is_refused(tmp_path: Path, mode: int, where: str) -> None:
    root = tmp_path / "parent" / "cache"
    root.mkdir(parents=True)
    (root if where == "root" else root.parent).chmod(mode)
    with pytest.raises(RefusedError) as caught:
        ArtifactCache(root).prepare()
    assert caught.value.code == "cache.unsafe_permissions"
    assert caught.value.next_step is not None
    assert "chmod" in caught.value.next_step


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
@pytest.mark.parametrize("where", ["root", "parent"])
def test_F9_a_cache_of_another_user_is_refused(tmp_path: Path, where: str) -> None:
    root = tmp_path / "parent" / "cache"
    root.mkdir(parents=True)
    os.chown(root if where == "root" else root.parent, 65534, 65534)
    with pytest.raises(RefusedError):
        check_root(root)


def test_F9_a_link_in_place_of_the_root_and_a_relative_root_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(RefusedError):
        check_root(tmp_path / "link")
    with pytest.raises(InputError):
        check_root(Path("cache"))


def test_F9_a_sticky_shared_parent_is_fine(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    ArtifactCache(tmp_path / "shared" / "cache").prepare()
    assert (tmp_path / "shared" / "cache").stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("what", ["partial", "blob", "lock", "journal", "claim"])
async def test_F10_nothing_is_written_through_a_link(tmp_path: Path, what: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    cache = ArtifactCache(tmp_path / "cache")
    facts = write_sources(tmp_path / "src", {"w.dat": DATA})
    cache.prepare()
    partials = cache.partials_path(facts.artifact)
    partials.mkdir()
    place = {
        "partial": partials / f"{facts.files[0].sha256}.0123456789abcdef.part",
        "blob": cache.blob_path(facts.files[0].sha256),
        "lock": cache.root / "locks" / f"{facts.artifact}.lock",
        "journal": partials / f"{facts.files[0].sha256}.0123456789abcdef.journal",
        "claim": partials / f"{facts.files[0].sha256}.claim-1",
    }[what]
    place.symlink_to(victim)
    try:
        await pull(cache, facts)
    except SbctlError as error:
        assert error.code in ("disk.symlink_refused", "disk.not_a_file")
    else:
        assert cache.verify(facts.artifact).is_good
    assert victim.read_bytes() == b"precious"
    assert not victim.is_symlink()


async def test_F10_a_racing_attacker_gets_no_write_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    cache = ArtifactCache(tmp_path / "cache")
    facts = write_sources(tmp_path / "src", {"w.dat": DATA})
    cache.prepare()
    partials = cache.partials_path(facts.artifact)
    stop = threading.Event()

    def attack() -> None:
        while not stop.is_set():
            for part in (*partials.glob("*.part"), *partials.glob("*.journal")):
                try:
                    os.unlink(part)
                    os.symlink(victim, part)
                except OSError:
                    continue

    thread = threading.Thread(target=attack)
    thread.start()
    try:
        for _ in range(8):
            try:
                await pull(cache, facts)
                assert cache.verify(facts.artifact).is_good
                cache.remove(facts.artifact)
            except SbctlError:
                continue
    finally:
        stop.set()
        thread.join()
    assert victim.read_bytes() == b"precious"


async def test_F11_a_changed_blob_stops_the_launch_and_is_set_aside(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    facts = write_sources(tmp_path / "src", {"w.dat": DATA, "c.json": b"{}"})
    await pull(cache, facts)
    blob = cache.blob_path(facts.files[0].sha256)
    blob.chmod(0o600)
    with blob.open("r+b") as file:
        file.seek(77)
        file.write(b"!")
    with pytest.raises(ArtifactError) as caught:
        cache.require(facts.artifact)
    assert caught.value.code == "artifact.digest_mismatch"
    assert "w.dat" in caught.value.message
    [aside] = caught.value.detail["quarantined"]
    assert facts.files[0].sha256 in aside
    assert Path(aside).exists()
    assert cache.entry(facts.artifact) is None
    assert not (await pull(cache, facts)).was_present
    assert cache.require(facts.artifact)


async def test_F11_rot_that_keeps_its_times_is_found_by_reading(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    facts = write_sources(tmp_path / "src", {"w.dat": DATA})
    await pull(cache, facts)
    blob = cache.blob_path(facts.files[0].sha256)
    status = blob.stat()
    blob.chmod(0o600)
    with blob.open("r+b") as file:
        file.write(b"!")
    os.utime(blob, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert cache.require(facts.artifact)
    verification = cache.verify(facts.artifact)
    assert not verification.is_good
    assert len(verification.quarantined) == 1


_PULLER = """
import asyncio, sys
from pathlib import Path
from yarl import URL
from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.fetch_policy import FetchSettings
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.model import ArtifactFacts
from sbctl.artifacts.pull import pull
async def main():
    facts = ArtifactFacts.model_validate_json(sys.argv[2])
    async with Fetcher(FetchSettings(index=URL("https://i.invalid/"), hf_endpoint=URL("https://i.invalid/"))) as fetcher:
        print((await pull(ArtifactCache(Path(sys.argv[1])), facts, fetcher=fetcher)).downloaded_bytes)
asyncio.run(main())
"""


async def test_F12_two_processes_download_once_and_both_succeed(server: HostileServer, tmp_path: Path) -> None:
    server.serve("/w", DATA)
    facts = artifact_of({"w.dat": DATA}, server.url("/w"))

    def run() -> int:
        done = subprocess.run(
            [sys.executable, "-c", _PULLER, str(tmp_path / "cache"), facts.model_dump_json()],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            cwd=Path(__file__).parents[2],
        )
        return int(done.stdout)

    results = await asyncio.gather(*(asyncio.to_thread(run) for _ in range(3)))
    assert sorted(results) == [0, 0, len(DATA)]
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "name", ["sha256:../../x", "../" * 21 + "x", "A" * 64, "a" * 63, "a" * 65, "a" * 63 + "\n", "", "a" * 63 + "/"]
)
def test_F16_a_digest_that_is_none_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    for use in (
        cache.entry,
        cache.remove,
        cache.verify,
        cache.require,
        cache.lease,
        cache.blob_path,
        cache.snapshot_path,
    ):
        with pytest.raises(InputError):
            use(name)  # type: ignore[operator]
    assert list(tmp_path.iterdir()) == []


def test_F15_removals_that_race_pulls_take_no_shared_blob(tmp_path: Path) -> None:
    mine = write_sources(tmp_path / "1", {"w.dat": b"mine", "shared": DATA})
    theirs = write_sources(tmp_path / "2", {"v.dat": b"theirs", "shared": DATA})
    root = tmp_path / "cache"
    failures: list[BaseException] = []

    def churn(facts_of: str) -> None:
        cache = ArtifactCache(root)
        facts = mine if facts_of == "mine" else theirs
        try:
            for _ in range(15):
                asyncio.run(pull(cache, facts))
                lease = cache.lease(facts.artifact)
                assert cache.verify(facts.artifact).is_good
                lease.release()
                cache.remove(facts.artifact)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=churn, args=(name,)) for name in ("mine", "theirs")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert list(ArtifactCache(root).blobs.iterdir()) == []
