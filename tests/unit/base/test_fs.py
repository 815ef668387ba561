"""Durable files: old or new content, never half; every fault has a name."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbctl.base import fs
from sbctl.base.errors import DurabilityUnknownError, InputError, SbctlError
from sbctl.base.flock import FileLock


class FailsAt(fs.FileOps):
    """Counts calls and fails the n-th with one errno."""

    def __init__(self, n: int, code: int) -> None:
        self.calls = 0
        self.n = n
        self.code = code

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("_") or not callable(value):
            return value

        def counted(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == self.n:
                raise OSError(self.code, os.strerror(self.code))
            return value(*arguments, **named)

        return counted


def run_until_clean(code: int, act: Callable[[], object], check: Callable[[SbctlError | None], None]) -> int:
    """Fail the n-th operation for every n until a run is not hit; returns how many operations there are."""
    for n in range(1, 200):
        ops = FailsAt(n, code)
        error: SbctlError | None = None
        with fs.use_ops(ops):
            try:
                act()
            except SbctlError as caught:
                error = caught
        check(error)
        if ops.calls < n:
            return n - 1
    raise AssertionError("the action never ran clean")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
def test_every_fault_of_an_atomic_write_leaves_old_or_new(tmp_path: Path, code: int) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"old")

    def check(error: SbctlError | None) -> None:
        content = path.read_bytes()
        if error is None:
            assert content == b"new"
        elif isinstance(error, DurabilityUnknownError):
            assert content in (b"old", b"new")
        else:
            assert content == b"old"
            assert error.place == str(path)
            assert error.code.startswith("disk.")
        assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]
        path.write_bytes(b"old")

    assert run_until_clean(code, lambda: fs.write_atomic(path, b"new"), check) >= 5


def test_a_short_write_is_completed(tmp_path: Path) -> None:
    class OneByteAtATime(fs.FileOps):
        def write(self, fd: int, data: bytes | memoryview) -> int:
            return os.write(fd, data[:1])

    with fs.use_ops(OneByteAtATime()):
        fs.write_atomic(tmp_path / "f", b"whole")
    assert (tmp_path / "f").read_bytes() == b"whole"


def test_the_mode_is_exact_whatever_the_umask(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        fs.write_atomic(tmp_path / "secret", b"x")
        os.umask(0o077)
        fs.write_atomic(tmp_path / "unit", b"x", mode=0o644)
    finally:
        os.umask(previous)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "unit").stat().st_mode & 0o777 == 0o644


def test_a_link_or_directory_is_never_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "directory").mkdir()
    for name in ("link", "directory"):
        with pytest.raises(SbctlError) as caught:
            fs.write_atomic(tmp_path / name, b"x")
        assert caught.value.code == "disk.not_a_file"
    assert (tmp_path / "target").read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("make", "code"),
    [
        pytest.param(lambda path: None, "file.missing", id="missing"),
        pytest.param(lambda path: path.mkdir(), "file.not_regular", id="directory"),
        pytest.param(lambda path: os.mkfifo(path), "file.not_regular", id="fifo does not hang"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), "file.not_regular", id="device"),
        pytest.param(lambda path: path.write_bytes(b"x" * 11), "file.too_large", id="too large"),
    ],
)
def test_A7_reading_is_bounded(tmp_path: Path, make: Callable[[Path], object], code: str) -> None:
    path = tmp_path / "input"
    make(path)
    with pytest.raises(InputError) as caught:
        fs.read_bounded(path, max_bytes=10)
    assert caught.value.code == code


def test_trees_links_and_temporaries(tmp_path: Path) -> None:
    fs.ensure_directory(tmp_path / "a" / "b")
    fs.write_atomic(tmp_path / "a" / "b" / "f", b"x", mode=0o444)
    fs.link_or_copy(tmp_path / "a" / "b" / "f", tmp_path / "g")
    assert (tmp_path / "g").stat().st_ino == (tmp_path / "a" / "b" / "f").stat().st_ino
    fs.replace_symlink(tmp_path / "current", "a")
    fs.replace_symlink(tmp_path / "current", "b")
    assert os.readlink(tmp_path / "current") == "b"
    (tmp_path / "a" / "link").symlink_to(tmp_path, target_is_directory=True)
    assert fs.remove_tree(tmp_path / "a")
    assert not fs.remove_tree(tmp_path / "a")
    assert fs.remove_file(tmp_path / "g")
    assert not fs.remove_file(tmp_path / "g")
    leftover = tmp_path / ".sbctl-tmp-0011"
    leftover.write_bytes(b"")
    assert fs.sweep_temporaries(tmp_path, older_than_s=3600, now_s=leftover.stat().st_mtime + 10) == 0
    assert fs.sweep_temporaries(tmp_path, older_than_s=3600, now_s=leftover.stat().st_mtime + 4000) == 1
    assert fs.free_bytes(tmp_path / "not" / "there") is not None


def test_a_link_across_filesystems_becomes_a_copy(tmp_path: Path) -> None:
    class NoLinks(fs.FileOps):
        def link(self, source: str, target: str) -> None:
            raise OSError(errno.EXDEV, "cross-device link")

    (tmp_path / "source").write_bytes(b"weights")
    with fs.use_ops(NoLinks()):
        fs.link_or_copy(tmp_path / "source", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"weights"
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o444


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files for others")
def test_what_root_makes_in_somebodys_directory_is_theirs(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 4711, 4712)
    fs.write_atomic(theirs / "file", b"x")
    fs.ensure_directory(theirs / "below" / "deeper")
    lock = FileLock(theirs / "lock")
    assert lock.try_acquire()
    lock.release()
    fs.write_atomic(tmp_path / "mine", b"x")
    owners = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in (*theirs.rglob("*"), tmp_path / "mine")}
    assert owners.pop("mine") == (0, 0)
    assert set(owners.values()) == {(4711, 4712)}
    assert set(owners) == {"file", "below", "deeper", "lock"}


def test_a_directory_that_an_overlay_does_not_rename_is_removed_and_replaced_in_its_place(tmp_path: Path) -> None:
    class Overlay(fs.FileOps):
        def rename(self, source: str, target: str) -> None:
            if source == str(tmp_path / "image"):
                raise OSError(errno.EXDEV, "Invalid cross-device link")
            super().rename(source, target)

    for name in ("image", "staged"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner" / "file").write_text(name)
    with fs.use_ops(Overlay()):
        fs.replace_directory(tmp_path / "staged", tmp_path / "image")
        assert (tmp_path / "image/inner/file").read_text() == "staged"
        assert fs.remove_tree(tmp_path / "image")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_gets_the_mode_that_was_asked_for_whatever_the_process_masks(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        fs.ensure_directory(tmp_path / "cache" / "blobs", mode=0o755)
        fs.ensure_directory(tmp_path / "own")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("cache", "cache/blobs", "own")]
    assert modes == [0o755, 0o755, 0o700]
