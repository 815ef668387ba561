"""Where a state may live."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbctl.base import fs
from sbctl.base.errors import RefusedError, SbctlError
from sbctl.state import location
from sbctl.state.location import (
    filesystem_type,
    is_there,
    prepare_directory,
    refuse_network_filesystem,
    regular_file_size,
)


def test_the_system_says_what_a_filesystem_is() -> None:
    assert filesystem_type(Path("/proc")) == 0x9FA0
    assert filesystem_type(Path("/nonexistent")) == 0


@pytest.mark.parametrize(
    ("magic", "name"),
    [(0x6969, "NFS"), (0xFF534D42, "CIFS"), (0x65735546, "FUSE"), (0x01021997, "9P"), (0x00C36400, "Ceph")],
)
def test_B5_network_filesystems_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, magic: int, name: str
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(location, "filesystem_type", lambda path: asked.append(path) or magic)
    with pytest.raises(RefusedError, match=name) as caught:
        refuse_network_filesystem(tmp_path / "not" / "yet")
    assert asked == [tmp_path]
    assert "local disk" in (caught.value.next_step or "")


@pytest.mark.parametrize("magic", [0xEF53, 0x01021994, 0x58465342, 0x9123683E, 0x794C7630, 0])
def test_local_filesystems_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, magic: int) -> None:
    monkeypatch.setattr(location, "filesystem_type", lambda _path: magic)
    refuse_network_filesystem(tmp_path)


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / ".sbctl").symlink_to(tmp_path / "real")
    with pytest.raises(SbctlError) as caught:
        prepare_directory(tmp_path / ".sbctl")
    assert caught.value.code in ("disk.symlink_refused", "disk.failed")


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".sbctl").write_text("")
    with pytest.raises(SbctlError):
        prepare_directory(tmp_path / ".sbctl")


def test_a_directory_that_cannot_be_tightened_is_an_error(tmp_path: Path) -> None:
    class NoChmod(fs.FileOps):
        def chmod(self, fd: int, mode: int) -> None:
            raise PermissionError(1, "not yours")

    os.chmod(tmp_path, 0o755)
    with fs.use_ops(NoChmod()), pytest.raises(SbctlError) as caught:
        prepare_directory(tmp_path)
    assert caught.value.code == "disk.permission"


def test_what_has_a_name_is_there(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "file").write_bytes(b"abc")
    assert [is_there(tmp_path / name) for name in ("link", "file", "none", "file/below")] == [True, True, False, False]
    assert (regular_file_size(tmp_path / "file"), regular_file_size(tmp_path / "none")) == (3, None)
    with pytest.raises(SbctlError):
        regular_file_size(tmp_path)


def test_what_cannot_be_told_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SbctlError) as caught:
        is_there(tmp_path / ("x" * 300))
    assert caught.value.code == "disk.failed"
