"""The file of pinned host keys: what is written is read back, and nothing else is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbctl.base.errors import ConfigError, InputError, SbctlError
from sbctl.config.host_lock import HostLock, LockedKey, read_host_lock, write_host_lock
from tests.simulators.ssh_keys import ecdsa_key, ed25519_key, rsa_key

HEAD = "# sb.hosts.lock v1: pinned SSH host keys, written by `sbctl host trust`; commit this file"
KEY = ed25519_key("a")
LINE = f"gpu-a 10.0.0.21:22 {KEY.text} # {KEY.fingerprint}"


def lock_of(path: Path, *keys: LockedKey) -> HostLock:
    lock = HostLock(path)
    for name in {key.name for key in keys}:
        lock = lock.pinned(name, [key for key in keys if key.name == name])
    return lock


def test_it_is_sorted_one_line_a_key_and_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "sb.hosts.lock"
    keys = [
        LockedKey("gpu-b", "fe80::1", 2222, rsa_key(1)),
        LockedKey("gpu-a", "10.0.0.21", 22, ed25519_key(1)),
        LockedKey("gpu-a", "10.0.0.21", 22, ecdsa_key(1)),
    ]
    write_host_lock(lock_of(path, *keys))
    lines = path.read_text().splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["gpu-a", "10.0.0.21:22", "ecdsa-sha2-nistp256"],
        ["gpu-a", "10.0.0.21:22", "ssh-ed25519"],
        ["gpu-b", "[fe80::1]:2222", "ssh-rsa"],
    ]
    assert lines[0] == HEAD
    assert path.stat().st_mode & 0o777 == 0o644
    read = read_host_lock(path)
    assert read == lock_of(path, *keys)
    assert read.pins("gpu-b") == (rsa_key(1).text,)
    assert read.pins("gpu-z") == ()
    assert read.place("gpu-a") == f"{path}:2"


def test_a_file_that_is_not_there_pins_nothing(tmp_path: Path) -> None:
    assert read_host_lock(tmp_path / "none").keys == {}


def test_a_merge_may_leave_lines_unsorted_and_people_may_comment(tmp_path: Path) -> None:
    path = tmp_path / "l"
    path.write_text(f"{HEAD}\n\n# the old rack\n{LINE.replace('gpu-a', 'z')}\n{LINE}\n")
    assert list(read_host_lock(path).keys) == ["z", "gpu-a"]


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("", "lock.no_head", 1),
        (f"{LINE}\n", "lock.no_head", 1),
        (f"{HEAD}\n{LINE}", "lock.cut", 2),
        (f"# sb.hosts.lock v2\n{LINE}\n", "lock.unsupported_version", 1),
        (f"{HEAD}\n{LINE} \n", "lock.syntax", 2),
        (f"{HEAD}\n {LINE}\n", "lock.syntax", 2),
        (f"{HEAD}\n{LINE.replace(' ', '  ', 1)}\n", "lock.syntax", 2),
        (f"{HEAD}\ngpu-a {KEY.text}\n", "lock.syntax", 2),
        (f"{HEAD}\r\n{LINE}\r\n", "lock.text_refused", 1),
        (f"{HEAD}\n{LINE}\té\n", "lock.text_refused", 2),
        (f"{HEAD}\n{LINE}\x1b[31m\n", "lock.text_refused", 2),
        (f"{HEAD}\n<<<<<<< HEAD\n{LINE}\n", "lock.merge_conflict", 2),
        (f"{HEAD}\n{LINE.replace('gpu-a', 'gpu/a')}\n", "lock.bad_name", 2),
        (f"{HEAD}\n{LINE.replace('gpu-a', '..')}\n", "lock.bad_name", 2),
        (f"{HEAD}\n{LINE.replace(':22', ':0')}\n", "lock.bad_address", 2),
        (f"{HEAD}\n{LINE.replace(':22', ':65536')}\n", "lock.bad_address", 2),
        (f"{HEAD}\n{LINE.replace(':22', '')}\n", "lock.bad_address", 2),
        (f"{HEAD}\n{LINE.replace('ssh-ed25519', 'ssh-rsa')}\n", "lock.bad_key", 2),
        (f"{HEAD}\n{LINE.replace('ssh-ed25519', 'ssh-dss')}\n", "lock.bad_key", 2),
        (f"{HEAD}\n{LINE.replace(KEY.blob, KEY.blob[:-4])}\n", "lock.bad_key", 2),
        (f"{HEAD}\n{LINE.replace(KEY.blob, ed25519_key('b').blob)}\n", "lock.fingerprint_mismatch", 2),
        (f"{HEAD}\n{LINE}\n{LINE}\n", "lock.duplicate_key", 3),
        (f"{HEAD}\n{LINE}\ngpu-a 1.1.1.1:22 {ed25519_key(2).text} # {ed25519_key(2).fingerprint}\n", "lock.duplicate_key", 3),
    ],
)  # fmt: skip
def test_everything_else_is_an_error_with_its_line(tmp_path: Path, text: str, code: str, line: int) -> None:
    path = tmp_path / "sb.hosts.lock"
    path.write_bytes(text.encode())
    with pytest.raises(ConfigError) as caught:
        read_host_lock(path)
    first = caught.value.diagnostics[0]
    assert (first.code, first.span.line if first.span else 0) == (code, line)
    assert "\x1b" not in f"{first} {first.span}"


def test_E2_an_edited_key_under_an_old_fingerprint_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "sb.hosts.lock"
    path.write_text(f"{HEAD}\n{LINE.replace(KEY.blob, ed25519_key('impostor').blob)}\n")
    with pytest.raises(ConfigError, match="fingerprint"):
        read_host_lock(path)


@pytest.mark.parametrize("make", ["directory", "symlink"])
def test_only_a_regular_file_is_read_or_replaced(tmp_path: Path, make: str) -> None:
    path = tmp_path / "sb.hosts.lock"
    if make == "directory":
        path.mkdir()
        with pytest.raises(InputError):
            read_host_lock(path)
    else:
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SbctlError) as caught:
        write_host_lock(HostLock(path))
    assert caught.value.code == "disk.not_a_file"
    assert not (tmp_path / "elsewhere").exists()


NAMES = st.text("ab.-_09", min_size=1, max_size=12).filter(lambda text: text not in (".", ".."))
KEYS = st.builds(
    LockedKey,
    NAMES,
    st.sampled_from(["10.0.0.1", "fe80::1", "gpu.example"]),
    st.integers(1, 65535),
    st.builds(lambda make, seed: make(seed), st.sampled_from([ed25519_key, ecdsa_key, rsa_key]), st.integers()),
)


@given(st.lists(KEYS, max_size=6, unique_by=lambda each: (each.name, each.key.algorithm)))
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, keys: list[LockedKey]) -> None:
    lock = lock_of(tmp_path_factory.mktemp("lock") / "l", *keys)
    write_host_lock(lock)
    assert read_host_lock(lock.path) == lock


@given(
    st.lists(
        st.sampled_from([HEAD, LINE, *LINE.split(), " ", "\n", "#", "\r", "é", "\0"]) | st.text(max_size=8), max_size=12
    )
)
def test_A19_any_text_is_read_or_refused_with_its_place(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str]
) -> None:
    path = tmp_path_factory.mktemp("lock") / "l"
    path.write_bytes("".join(pieces).encode("utf-8", "surrogatepass"))
    try:
        read_host_lock(path)
    except ConfigError as error:
        assert all(each.code.startswith("lock.") and each.span is not None for each in error.diagnostics)


def test_A16_a_file_that_is_no_lock_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text("root:canary-77aa\nmore:canary-77aa\n")
    with pytest.raises(ConfigError) as caught:
        read_host_lock(path)
    assert [each.code for each in caught.value.diagnostics] == ["lock.no_head"]
    assert "canary" not in str(caught.value.diagnostics)
