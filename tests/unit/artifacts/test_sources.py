"""Sources: the forms that are read, and the place of a file in each."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.model import ArtifactFacts, ArtifactFile, artifact_id
from sbctl.artifacts.sources import locate, parse_source
from sbctl.base.errors import ArtifactError, InputError

ONE = (ArtifactFile(path="dir/w x.gguf", sha256="1" * 64, size_bytes=3),)
TWO = (*ONE, ArtifactFile(path="config.json", sha256="2" * 64, size_bytes=3))


def facts(files: tuple[ArtifactFile, ...], revision: str = "") -> ArtifactFacts:
    return ArtifactFacts(
        artifact=artifact_id("gguf", files),
        format="gguf",
        files=files,
        source="file:/x",
        revision=revision,
        model="m",
        variant="v",
        context_length=1,
    )


@pytest.mark.parametrize(
    ("source", "files", "expected"),
    [
        ("hf:Org/Repo", TWO, "https://hub.invalid/Org/Repo/resolve/abc/dir/w%20x.gguf"),
        ("hf:Org/Repo@refs/pr/1", TWO, "https://hub.invalid/Org/Repo/resolve/refs%2Fpr%2F1/dir/w%20x.gguf"),
        ("https://h.example/base/", TWO, "https://h.example/base/dir/w%20x.gguf"),
        ("https://h.example/w?sig=1", ONE, "https://h.example/w?sig=1"),
        ("https://h.example/p.zip#a/b", ONE, "https://h.example/p.zip"),
    ],
)
async def test_where_a_file_is(fetcher: Fetcher, source: str, files: tuple[ArtifactFile, ...], expected: str) -> None:
    location = await locate(parse_source(source), files[0], facts(files, "abc"), fetcher)
    assert str(location.url) == expected
    assert (location.archive.member if location.archive else None) == ("a/b" if "#" in source else None)


async def test_a_directory_and_a_single_file_are_local_sources(fetcher: Fetcher, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "w x.gguf").write_bytes(b"abc")
    inside = await locate(parse_source(f"file:{tmp_path}"), ONE[0], facts(TWO), fetcher)
    itself = await locate(parse_source(f"file://{tmp_path}/dir/w x.gguf"), ONE[0], facts(ONE), fetcher)
    assert inside.path == itself.path == tmp_path / "dir" / "w x.gguf"


@pytest.mark.parametrize("link", ["root", "directory", "file"])
async def test_symbolic_links_of_a_local_source_are_refused(fetcher: Fetcher, tmp_path: Path, link: str) -> None:
    real = tmp_path / "real"
    (real / "dir").mkdir(parents=True)
    (real / "dir" / "w x.gguf").write_bytes(b"abc")
    (tmp_path / "root").symlink_to(real)
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "dir").symlink_to(real / "dir")
    (tmp_path / "file" / "dir").mkdir(parents=True)
    (tmp_path / "file" / "dir" / "w x.gguf").symlink_to(real / "dir" / "w x.gguf")
    with pytest.raises(ArtifactError) as caught:
        await locate(parse_source(f"file:{tmp_path / link}"), ONE[0], facts(ONE), fetcher)
    assert caught.value.code in ("artifact.symlink_refused", "artifact.file_missing")


@pytest.mark.parametrize("source", ["https://h.example/w", "https://h.example/p.zip#m", "pypi:a==1#m", "pypi:a==1"])
async def test_a_source_of_one_file_does_not_fit_an_artifact_of_two(fetcher: Fetcher, source: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        await locate(parse_source(source), ONE[0], facts(TWO), fetcher)
    assert caught.value.code == "artifact.source_unsuitable"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "hf:Org",
        "hf:Org/Repo/x",
        "hf:../x",
        "hf:Org/Repo@../x",
        "ms:a/b",
        "file:rel",
        "file:/a/../b",
        "ftp://h/x",
        "https://",
        "https://u:p@",
        "https://h/x#../y",
    ],
)
def test_other_texts_are_refused_with_the_forms_that_are_read(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_source(text)
    assert caught.value.code == "artifact.source_invalid"
