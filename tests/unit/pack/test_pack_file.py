"""A pack is the same bytes for the same inputs, reads back as written, appears whole or not at all."""

from __future__ import annotations

import errno
import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbctl.base import fs
from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import ArtifactError, InputError, SbctlError
from sbctl.base.file_slice import FileSlice
from sbctl.pack import reader as reader_module
from sbctl.pack.layout import header
from sbctl.pack.manifest import PackEntry, PackManifest, PackTarget, parse_manifest, render_manifest
from sbctl.pack.reader import open_pack
from sbctl.pack.writer import write_pack
from sbctl.trust.keys import SigningKey
from tests.simulators.packs import FILES, digest_of, manifest_of, packed


def test_what_was_packed_is_read_back_by_digest(tmp_path: Path) -> None:
    key = SigningKey.generate()
    pack = open_pack(packed(tmp_path, key=key))
    seen: list[tuple[int, int | None]] = []
    pack.verify(lambda done, total: seen.append((done, total)))
    assert seen[-1] == (pack.manifest.total_bytes, pack.manifest.total_bytes)
    assert pack.require_signer({"ops": key.public_text}) == "ops"
    for name, (_, content) in FILES.items():
        entry = pack.entry(digest_of(name))
        assert entry is not None
        with pack.slice_of(entry).open() as reader:
            assert reader.read() == content


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    key = SigningKey.generate()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert packed(tmp_path / "a", key=key).read_bytes() == packed(tmp_path / "b", key=key).read_bytes()


def test_tar_reads_it(tmp_path: Path) -> None:
    with tarfile.open(packed(tmp_path, key=SigningKey.generate()), "r:") as archive:
        names = archive.getnames()
        assert names[:2] == ["manifest.json", "signature.json"]
        assert names[2:] == [f"blobs/{digest_of(name)}" for name in FILES]
        member = archive.extractfile(names[-2])
        assert member is not None
        assert member.read() == FILES["tiny:q4/model.gguf"][1]


@pytest.mark.parametrize("size", [0, 1, 8**11 - 1, 8**11, 300 * 2**30])
def test_a_header_of_any_size_is_what_tar_reads(size: int) -> None:
    read = tarfile.TarInfo.frombuf(header("blobs/x", size), "ascii", "strict")
    assert (read.name, read.size, read.mode, read.uid, read.mtime, read.isreg()) == ("blobs/x", size, 0o644, 0, 0, True)


class _Full(fs.FileOps):
    def __init__(self, after_bytes: int) -> None:
        self.left = after_bytes

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self.left -= len(data)
        if self.left < 0:
            raise OSError(errno.ENOSPC, "no space")
        return os.write(fd, data)


@pytest.mark.parametrize("after_bytes", [0, 600, 8000])
def test_a_disk_that_fills_up_leaves_the_old_pack_and_nothing_else(tmp_path: Path, after_bytes: int) -> None:
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "site.sbpack"
    target.write_bytes(b"old")
    sources = {}
    for number, (_, content) in enumerate(FILES.values()):
        source = tmp_path / str(number)
        source.write_bytes(content)
        sources[sha256_bytes(content)] = source
    with pytest.raises(SbctlError) as refused, fs.use_ops(_Full(after_bytes)):
        write_pack(target, manifest_of(), sources, sign=None, progress=lambda *_: None)
    assert refused.value.code == "disk.full"
    assert [path.name for path in target.parent.iterdir()] == ["site.sbpack"]
    assert target.read_bytes() == b"old"


def test_a_cached_file_that_changed_is_not_packed(tmp_path: Path) -> None:
    sources = {}
    for number, (_, content) in enumerate(FILES.values()):
        source = tmp_path / str(number)
        source.write_bytes(content.replace(b"alpha", b"alphA"))
        sources[sha256_bytes(content)] = source
    with pytest.raises(ArtifactError) as refused:
        write_pack(tmp_path / "p", manifest_of(), sources, sign=None, progress=lambda *_: None)
    assert refused.value.code == "artifact.digest_mismatch"
    assert "alpha-1.0" in refused.value.message
    assert not (tmp_path / "p").exists()


def test_a_cached_file_that_is_gone_is_named(tmp_path: Path) -> None:
    sources = {sha256_bytes(content): tmp_path / "gone" for _, content in FILES.values()}
    with pytest.raises(SbctlError) as refused:
        write_pack(tmp_path / "p", manifest_of(), sources, sign=None, progress=lambda *_: None)
    assert (refused.value.code, refused.value.place) == ("disk.missing", str(tmp_path / "gone"))


def test_a_medium_that_fails_is_no_defect_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = open_pack(packed(tmp_path))

    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(reader_module, "_opened", lambda _path: Failing())
    with pytest.raises(InputError) as refused:
        pack.verify(lambda *_: None)
    assert refused.value.code == "file.unreadable"


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "site.sbpack").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SbctlError) as refused:
        packed(tmp_path)
    assert refused.value.code == "disk.not_a_file"


digests = st.text("0123456789abcdef", min_size=64, max_size=64)
names = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=30)


@st.composite
def manifests(draw: st.DrawFn) -> PackManifest:
    entries = draw(
        st.lists(
            st.builds(
                PackEntry,
                name=names,
                sha256=digests,
                size_bytes=st.integers(0, 2**53 - 1),
                role=st.sampled_from(("runtime", "engine", "weights", "catalog")),
            ),
            min_size=1,
            max_size=6,
            unique_by=lambda entry: entry.sha256,
        )
    )
    known = [entry.sha256 for entry in entries]
    wheels = draw(st.lists(st.sampled_from(known), min_size=1, unique=True))
    target = PackTarget(arch="aarch64", libc="musl-1.2", python="3.12", wheels=tuple(wheels))
    return manifest_of(entries=tuple(entries), targets=(target,), artifacts=(), fleet=draw(names))


@pytest.mark.flow
@given(manifests())
def test_a_manifest_reads_back_as_it_was(manifest: PackManifest) -> None:
    assert parse_manifest(render_manifest(manifest), "p") == manifest


@pytest.mark.flow
@given(manifests(), st.data())
def test_any_other_manifest_bytes_are_another_manifest_or_refused(manifest: PackManifest, data: st.DataObject) -> None:
    rendered = bytearray(render_manifest(manifest))
    at = data.draw(st.integers(0, len(rendered) - 1))
    rendered[at] ^= data.draw(st.integers(1, 255))
    try:
        other = parse_manifest(bytes(rendered), "p")
    except InputError as error:
        assert error.code in ("pack.invalid", "pack.unsupported")
    else:
        assert other != manifest


@pytest.mark.flow
@given(st.binary(max_size=300), st.integers(0, 300), st.integers(0, 300), st.lists(st.integers(0, 320), max_size=6))
def test_a_slice_reads_like_a_file_of_just_those_bytes(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, start: int, size: int, seeks: list[int]
) -> None:
    path = tmp_path_factory.getbasetemp() / "slice"
    path.write_bytes(content)
    stretch = FileSlice(path, start, size)
    expected = content[start : start + size]
    assert stretch.stat().st_size == size
    with stretch.open() as reader:
        for position in seeks:
            reader.seek(position)
            assert reader.read(7) == expected[position : position + 7]
        reader.seek(0)
        assert reader.read() == expected
