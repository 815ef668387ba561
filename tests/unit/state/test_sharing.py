"""Which of working copy and shared document goes on: the table of `sbctl.state.sharing`, row by row."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import SbctlError, StateError
from sbctl.state.location import StatePaths
from sbctl.state.refusals import recovery
from sbctl.state.settings import EncryptionSettings, StateSettings, stays_here
from sbctl.state.sharing import Seen, Side, decide, forget_seen, goes_on_from, read_seen, write_seen

HERE = StateSettings("http", "https://state.example/one")
ELSEWHERE = StateSettings("http", "https://state.example/two")


def lines(*serials: int, by: str = "ops") -> dict[int, dict[str, Any]]:
    return {serial: {"started_at": f"t{serial}", "info": {"operator": by}} for serial in serials}


def side(
    serial: int, changes: int, *, lineage: str = "L", digest: str = "", moved: str | None = None, by: str = "ops"
) -> Side:
    return Side(lineage, serial, changes, lines(*range(1, serial + 1), by=by), moved, digest or f"d{changes}")


def seen(changes: int, *, settings: StateSettings = HERE, sending: str = "", lineage: str = "L") -> Seen:
    return Seen(lineage, changes // 10, changes, f"d{changes}" if changes else "", settings, sending)


@pytest.mark.parametrize(
    ("local", "remote", "known", "answer"),
    [
        pytest.param(None, None, None, "nothing", id="a new fleet"),
        pytest.param(None, None, seen(0), "nothing", id="a new fleet whose first run died early"),
        pytest.param(side(1, 10), None, seen(0), "send", id="made for this place, never sent"),
        pytest.param(side(1, 10), None, None, "state.not_migrated", id="local until now"),
        pytest.param(side(1, 10), None, seen(10, settings=ELSEWHERE), "state.not_migrated", id="shared elsewhere"),
        pytest.param(side(1, 10), None, seen(10), "state.remote_missing", id="gone from there"),
        pytest.param(None, None, seen(10), "state.remote_missing", id="gone from both"),
        pytest.param(None, side(3, 30), None, "take", id="a fresh checkout"),
        pytest.param(None, side(3, 30), seen(40), "state.remote_regressed", id="older than seen, nothing here"),
        pytest.param(side(3, 30), side(3, 30, moved="there"), seen(30), "state.moved", id="moved"),
        pytest.param(side(3, 30), side(3, 30, lineage="M"), seen(30), "state.foreign", id="another fleet"),
        pytest.param(side(3, 30), side(2, 20), seen(30), "state.remote_regressed", id="rolled back"),
        pytest.param(side(3, 30), side(3, 30), seen(30), "same", id="in step"),
        pytest.param(side(3, 30), side(3, 30), None, "same", id="in step, forgotten"),
        pytest.param(side(3, 30), side(4, 40), seen(30), "take", id="another operator went on"),
        pytest.param(side(3, 30), side(4, 40), None, "take", id="another operator went on, forgotten"),
        pytest.param(side(3, 30), side(4, 40), seen(30, settings=ELSEWHERE), "take", id="another operator migrated"),
        pytest.param(side(4, 45), side(3, 30), seen(30), "send", id="a run here was not written"),
        pytest.param(side(4, 45), side(3, 30), None, "send", id="a run here was not written, forgotten"),
        pytest.param(side(4, 45), side(4, 40), seen(30, sending="d40"), "send", id="the answer to our write was lost"),
        pytest.param(side(4, 45), side(4, 40), seen(30), "state.diverged", id="both went on"),
        pytest.param(side(4, 40), side(4, 40, digest="x"), seen(30), "state.diverged", id="both went on, by as much"),
        pytest.param(side(3, 30), side(4, 40, by="eve"), None, "state.diverged", id="no common history"),
        pytest.param(side(4, 45), side(3, 30, by="eve"), None, "state.diverged", id="no common history, ahead"),
        pytest.param(side(3, 30), side(4, 40), seen(5, lineage="M"), "take", id="what was seen is of another fleet"),
        pytest.param(side(0, 1), side(2, 20), None, "take", id="nothing was run here"),
    ],
)  # fmt: skip
def test_the_table(local: Side | None, remote: Side | None, known: Seen | None, answer: str) -> None:
    try:
        assert decide(local, remote, known, HERE.place) == answer
    except SbctlError as error:
        assert error.code == answer
        assert error.next_step
        assert error.place == HERE.place


def test_B8_a_rolled_back_document_is_told_with_both_numbers() -> None:
    with pytest.raises(StateError, match=r"write 20 \(serial 2\).*write 30 \(serial 3\)"):
        decide(side(3, 30), side(2, 20), seen(30), HERE.place)


def test_going_on_needs_the_same_fleet_and_the_last_run() -> None:
    assert goes_on_from(side(3, 30), side(2, 20))
    assert not goes_on_from(side(2, 20), side(3, 30))
    assert not goes_on_from(side(3, 30), side(2, 40))
    assert not goes_on_from(side(3, 30, lineage="M"), side(2, 20))


FULL = StateSettings(
    "postgres", "postgresql:///x", "ops", "env:PW", "/ca.pem", table="t", schema="s",
    encryption=EncryptionSettings(("sbx1a", "sbx1b"), "env:P", "file:k"),
)  # fmt: skip


@pytest.mark.parametrize("settings", [StateSettings(), HERE, FULL])
def test_what_was_seen_is_remembered(tmp_path: Path, settings: StateSettings) -> None:
    paths = StatePaths(tmp_path)
    assert read_seen(paths) is None
    known = dataclasses.replace(seen(30, sending="d40"), settings=settings)
    write_seen(paths, known)
    assert read_seen(paths) == known
    assert paths.seen.stat().st_mode & 0o777 == 0o600
    forget_seen(paths)
    assert read_seen(paths) is None


def test_B6_a_damaged_memory_is_refused_by_name(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path)
    write_seen(paths, seen(30))
    whole = paths.seen.read_bytes()
    for cut in range(0, len(whole) - 1, 17):
        paths.seen.write_bytes(whole[:cut])
        with pytest.raises(SbctlError) as refused:
            read_seen(paths)
        assert refused.value.code == "state.corrupt"
    paths.seen.write_bytes(whole.replace(b"30", b"31"))
    with pytest.raises(StateError):
        read_seen(paths)
    paths.seen.write_bytes(b"[]")
    with pytest.raises(StateError):
        read_seen(paths)


@pytest.mark.parametrize(
    ("host", "local"),
    [("", True), ("/run/pg", True), ("localhost", True), ("127.0.0.3", True), ("[::1]", True), ("10.0.0.1", False), ("db.example", False)],
)  # fmt: skip
def test_what_stays_on_this_machine(host: str, local: bool) -> None:
    assert stays_here(host) is local


def test_places_are_told_apart_by_table() -> None:
    assert FULL.place == "postgresql:///x (s.t)"
    assert StateSettings().place == "local"
    assert not StateSettings().shared


def test_B6_a_damaged_working_copy_is_taken_in_anew(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path)
    assert "state push --force" in recovery(paths)
    write_seen(paths, seen(30))
    assert "takes the shared state in anew" in recovery(paths)
