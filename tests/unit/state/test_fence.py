"""The memory beside the lock."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbctl.base.digests import fingerprint
from sbctl.base.errors import InputError, StateError
from sbctl.state.fence import Fence, check_fence, read_fence, write_fence
from sbctl.state.location import StatePaths

FENCE = Fence("0" * 8, 41, 210)


def sealed(**content: object) -> bytes:
    return json.dumps({**content, "digest": fingerprint(content)}).encode()


@pytest.fixture
def paths(tmp_path: Path) -> StatePaths:
    return StatePaths(tmp_path)


def test_what_was_written_is_read(paths: StatePaths) -> None:
    assert read_fence(paths) is None
    write_fence(paths, FENCE)
    assert read_fence(paths) == FENCE


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "state.corrupt"),
        (b"{", "state.corrupt"),
        (b"[]", "state.corrupt"),
        (b"{}", "state.corrupt"),
        (b"\xff", "state.corrupt"),
        (b" " * 5000, "state.corrupt"),
        (b'{"schema_version": 1, "lineage": "a", "serial": 1, "changes": 1, "digest": "0"}', "state.corrupt"),
        (sealed(schema_version=1, lineage="a"), "state.corrupt"),
        (sealed(schema_version=2, lineage="a", shards=[]), "state.too_new"),
    ],
)
def test_a_damaged_fence_is_refused_by_name(paths: StatePaths, data: bytes, code: str) -> None:
    paths.fence.write_bytes(data)
    with pytest.raises(StateError) as caught:
        read_fence(paths)
    assert caught.value.code == code


def test_every_flipped_bit_of_a_fence_is_noticed(paths: StatePaths) -> None:
    write_fence(paths, FENCE)
    data = paths.fence.read_bytes()
    for position in range(len(data)):
        paths.fence.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        try:
            assert read_fence(paths) == FENCE  # white space
        except StateError as error:
            assert error.code in ("state.corrupt", "state.too_new")


def test_a_directory_in_its_place_is_damage(paths: StatePaths) -> None:
    paths.fence.mkdir()
    with pytest.raises(StateError):
        read_fence(paths)


def test_one_that_cannot_be_opened_is_no_damage(paths: StatePaths) -> None:
    paths.fence.symlink_to(paths.fence)
    with pytest.raises(InputError) as caught:
        read_fence(paths)
    assert caught.value.code == "file.unreadable"


@pytest.mark.parametrize(
    ("fence", "lineage", "serial", "changes", "code"),
    [
        (FENCE, FENCE.lineage, 41, 210, None),
        (FENCE, FENCE.lineage, 41, 211, None),
        (FENCE, FENCE.lineage, 42, 215, None),
        (FENCE, FENCE.lineage, 41, 209, "state.regressed"),
        (FENCE, FENCE.lineage, 40, 215, "state.regressed"),
        (FENCE, "f" * 8, 41, 210, "state.foreign"),
        (None, FENCE.lineage, 41, 210, "state.missing"),
    ],
)
def test_the_rule(
    paths: StatePaths, fence: Fence | None, lineage: str, serial: int, changes: int, code: str | None
) -> None:
    try:
        check_fence(paths, fence, lineage=lineage, serial=serial, changes=changes)
        found = None
    except StateError as error:
        found = error.code
    assert found == code
