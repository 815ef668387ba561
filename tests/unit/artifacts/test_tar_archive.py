"""Archives of engines: what is plain is unpacked with plain modes, whatever else is in one refuses the whole of it."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sbctl.artifacts.tar_archive import unpack_tar
from sbctl.base.errors import ArtifactError

Fill = Callable[[tarfile.TarFile], None]
MIB = 1 << 20


def add(tar: tarfile.TarFile, name: str, data: bytes = b"x", **fields: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    tar.addfile(info, io.BytesIO(data))


def link(tar: tarfile.TarFile, name: str, aim: str, kind: bytes = tarfile.SYMTYPE) -> None:
    add(tar, name, b"", type=kind, linkname=aim)


def packed(folder: Path, fill: Fill) -> Path:
    path = folder / "a.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        fill(tar)
    return path


def plain(tar: tarfile.TarFile) -> None:
    add(tar, "top/", b"", type=tarfile.DIRTYPE)
    add(tar, "top/llama-server", b"#!", mode=0o4777)
    add(tar, "top/lib/libggml.so.0.1", b"\x7fELF", mode=0o600)
    link(tar, "top/lib/libggml.so.0", "libggml.so.0.1")
    link(tar, "top/lib/libggml.so", "libggml.so.0")


def test_a_release_is_unpacked_below_its_one_directory(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    assert unpack_tar(packed(tmp_path, plain), target, max_bytes=MIB) == 2
    assert (target / "llama-server").stat().st_mode & 0o7777 == 0o755
    assert (target / "lib" / "libggml.so.0.1").stat().st_mode & 0o7777 == 0o644
    assert (target / "lib" / "libggml.so").read_bytes() == b"\x7fELF"


@pytest.mark.parametrize(
    "fill",
    [
        lambda tar: add(tar, "/top/x"),
        lambda tar: add(tar, "top/../../x"),
        lambda tar: (add(tar, "top/x"), add(tar, "other/x")),
        lambda tar: add(tar, "alone"),
        lambda tar: (add(tar, "top/x"), add(tar, "top/x")),
        lambda tar: link(tar, "top/x", "/etc/passwd"),
        lambda tar: link(tar, "top/x", "../y"),
        lambda tar: link(tar, "top/x", "nothing"),
        lambda tar: (link(tar, "top/x", "y"), link(tar, "top/y", "x")),
        lambda tar: (link(tar, "top/d", "e"), add(tar, "top/e/f"), add(tar, "top/d/f")),
        lambda tar: (add(tar, "top/x"), link(tar, "top/y", "x", tarfile.LNKTYPE)),
        lambda tar: add(tar, "top/x", b"", type=tarfile.FIFOTYPE),
        lambda tar: add(tar, "top/x", b"", type=tarfile.CHRTYPE),
        lambda tar: (add(tar, "top/x"), add(tar, "top/x/y")),
        lambda tar: add(tar, "top/x", b"0" * (MIB + 1)),
        lambda tar: add(tar, "top/x", pax_headers={"comment": "0" * (2 * MIB)}),
        lambda tar: add(tar, "top/a\\b"),
    ],
)
def test_F17_an_archive_that_is_not_plain_is_refused_and_leaves_nothing_outside(tmp_path: Path, fill: Fill) -> None:
    target = tmp_path / "in" / "out"
    target.mkdir(parents=True)
    with pytest.raises(ArtifactError) as caught:
        unpack_tar(packed(tmp_path, fill), target, max_bytes=MIB)
    assert caught.value.code == "artifact.archive_refused"
    assert [path.name for path in target.parent.iterdir()] == ["out"]
    assert not any(path.is_symlink() for path in target.rglob("*"))


@pytest.mark.parametrize("data", [b"", b"no gzip", gzip.compress(b"no tar" * 200, mtime=0)])
def test_what_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.tar.gz").write_bytes(data)
    (tmp_path / "out").mkdir()
    with pytest.raises(ArtifactError, match="not unpacked"):
        unpack_tar(tmp_path / "a.tar.gz", tmp_path / "out", max_bytes=MIB)


def test_a_cut_archive_is_refused(tmp_path: Path) -> None:
    path = packed(tmp_path, lambda tar: add(tar, "top/x", bytes(range(256)) * 64))
    path.write_bytes(path.read_bytes()[:-40])
    (tmp_path / "out").mkdir()
    with pytest.raises(ArtifactError, match="not unpacked"):
        unpack_tar(path, tmp_path / "out", max_bytes=MIB)
