"""A standalone Python is read by one policy on both sides: what is not an install_only build, or would leave its directory, is never unpacked."""

from __future__ import annotations

import gzip
import io
import os
import stat
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import InputError
from sbctl.node import python_archive
from sbctl.node.python_archive import PythonArchive, inspect_python, unpack_python

Member = tuple[str, bytes | str | None, dict[str, Any]]


def program(machine: int = 62, loader: bytes = b"/lib64/ld-linux-x86-64.so.2\0") -> bytes:
    """The beginning of an ELF program that names its loader."""
    head = struct.pack(
        "<6sH8sHHIQQQIHHHHHH", b"\x7fELF\x02\x01", 1, bytes(8), 3, machine, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    return head + struct.pack("<IIQQQQQQ", 3, 4, 120, 0, 0, len(loader), len(loader), 1) + loader


def whole(minor: str = "3.12", **changed: Any) -> list[Member]:
    return [
        ("python/bin/" + "python" + minor, program(**changed), {"mode": 0o4755}),
        ("python/bin/python3", "python" + minor, {}),
        (f"python/lib/python{minor}/os.py", b"import sys", {"mode": 0o664}),
        (f"python/include/python{minor}/patchlevel.h", f'#define PY_VERSION   "{minor}.7"\n'.encode(), {}),
    ]


def packed(members: list[Member], **options: Any) -> bytes:
    """bytes: a file; str: a symbolic link; None: a directory, or whatever `type` says."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", **options) as archive:
        for name, content, more in members:
            info = tarfile.TarInfo(name)
            info.type = {bytes: tarfile.REGTYPE, str: tarfile.SYMTYPE}.get(type(content), tarfile.DIRTYPE)
            if isinstance(content, str):
                info.linkname = content
            for key, value in more.items():
                setattr(info, key, value)
            if isinstance(content, bytes):
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return buffer.getvalue()


def refusal(data: bytes, target: Path | None = None) -> InputError:
    opened = io.BytesIO(data)
    with pytest.raises(InputError) as caught:
        inspect_python(opened, "x.tar.gz") if target is None else unpack_python(opened, "x.tar.gz", target)
    return caught.value


def test_what_an_archive_says_of_itself_is_read_from_its_members() -> None:
    found = inspect_python(io.BytesIO(packed(whole())), "x")
    assert (found.version, found.minor, found.arch, found.libc, found.program) == (
        "3.12.7",
        "3.12",
        "x86_64",
        "glibc",
        "bin/python3.12",
    )
    musl = inspect_python(
        io.BytesIO(packed(whole("3.13", machine=183, loader=b"/lib/ld-musl-aarch64.so.1\0")[:3])), "x"
    )
    assert (musl.version, musl.arch, musl.libc) == ("3.13", "aarch64", "musl")


def test_it_is_unpacked_without_owners_and_special_rights(tmp_path: Path) -> None:
    found = unpack_python(io.BytesIO(packed(whole())), "x", tmp_path)
    assert isinstance(found, PythonArchive)
    assert stat.S_IMODE((tmp_path / "bin/python3.12").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "lib/python3.12/os.py").stat().st_mode) == 0o644
    assert os.readlink(tmp_path / "bin/python3") == "python3.12"
    assert (tmp_path / "bin/python3.12").stat().st_uid == os.geteuid()


HOSTILE: list[tuple[str, list[Member], str]] = [
    ("outside", [("other/file", b"", {})], "below python/"),
    ("absolute", [("/etc/passwd", b"", {})], "plain relative path"),
    ("dots", [("python/../../x", b"", {})], "plain relative path"),
    ("here", [("python/./x", b"", {})], "plain relative path"),
    ("control", [("python/a\nb", b"", {})], "plain relative path"),
    ("link out", [("python/bin/l", "../../x", {})], "out of the archive"),
    ("link absolute", [("python/bin/l", "/etc/passwd", {})], "out of the archive"),
    ("link round", [("python/bin/l", "a/../../../x", {})], "out of the archive"),
    ("link to the top", [("python/l", "..", {})], "out of the archive"),
    ("below a link", [("python/l", "bin", {}), ("python/l/x", b"", {})], "no directory"),
    ("below a file", [("python/f", b"", {}), ("python/f/x", b"", {})], "no directory"),
    ("twice", [("python/f", b"", {}), ("python/f", b"", {})], "twice"),
    ("link over a directory", [("python/d/x", b"", {}), ("python/d", "bin", {})], "twice"),
    ("hard link", [("python/h", None, {"type": tarfile.LNKTYPE, "linkname": "python/bin/python3.12"})], "neither"),
    ("device", [("python/d", None, {"type": tarfile.CHRTYPE})], "neither"),
    ("pipe", [("python/p", None, {"type": tarfile.FIFOTYPE})], "neither"),
]


@pytest.mark.parametrize(("members", "words"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_a_member_that_is_not_plain_is_refused_before_it_is_written(
    tmp_path: Path, members: list[Member], words: str
) -> None:
    target = tmp_path / "in"
    target.mkdir()
    error = refusal(packed([*members, *whole()]), target)
    assert (error.code, words in error.message) == ("python.archive_refused", True), error.message
    assert os.listdir(tmp_path) == ["in"]
    assert refusal(packed([*members, *whole()])).message == error.message


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda: b"\x28\xb5\x2f\xfd rest", "python.archive_refused", "zstd"),
        (lambda: b"PK\x03\x04", "python.archive_refused", "not a .tar.gz"),
        (lambda: b"", "python.archive_refused", "not a .tar.gz"),
        (lambda: packed(whole())[:-40], "python.archive_refused", "damaged"),
        (lambda: gzip.compress(b"no tar" * 500), "python.archive_refused", "damaged"),
        (lambda: packed([]), "python.archive_refused", "found: none"),
        (lambda: packed([*whole(), whole("3.13")[0]]), "python.archive_refused", "python3.12, python/bin/python3.13"),
        (lambda: packed(whole()[:2]), "python.archive_refused", "no standard library"),
        (lambda: packed(whole("3.10")), "python.unsupported", "3.11 or newer"),
        (lambda: packed(whole(machine=243)), "python.unsupported", "another machine"),
        (
            lambda: packed([("python/bin/python3.12", b"#!/bin/sh", {}), *whole()[2:]]),
            "python.unsupported",
            "Linux program",
        ),
        (
            lambda: packed([("python/" + "a" * 3_000_000, b"", {})], format=tarfile.PAX_FORMAT),
            "python.archive_refused",
            "header",
        ),
    ],
)
def test_what_is_no_standalone_python_is_refused_by_name(make: Callable[[], bytes], code: str, words: str) -> None:
    error = refusal(make())
    assert error.code == code
    assert words in error.message
    assert error.next_step


def test_a_bomb_is_given_up_at_the_bound_and_a_long_list_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = packed([*whole(), ("python/zeros", bytes(1 << 21), {})])
    monkeypatch.setattr(python_archive, "_MAX_BYTES", 1 << 20)
    assert "unpacks to more" in refusal(data, tmp_path).message
    monkeypatch.undo()
    monkeypatch.setattr(python_archive, "_MAX_MEMBERS", 5)
    assert "members" in refusal(packed([*whole(), ("python/a", b"", {}), ("python/b", b"", {})])).message
