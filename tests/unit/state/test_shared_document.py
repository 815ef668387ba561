"""The shared document: another checkout becomes exactly this one, and nothing that is not whole is taken."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.digests import canonical_json, fingerprint
from sbctl.base.errors import SbctlError
from sbctl.base.limits import SHARED_SNAPSHOTS
from sbctl.state import shared_document
from sbctl.state.shared_document import dump_shared, parse_shared, with_move
from tests.simulators.state_victim import seen as what_is_seen
from tests.simulators.state_world import APPLY, StateWorld, address, change, desired, recorded, step


def one_step(world: StateWorld) -> bytes:
    return world.store().share()[1]


def taken(world: StateWorld, data: bytes) -> None:
    with world.locked() as store:
        store.mirror(parse_shared(data, place="x"))


def test_another_checkout_becomes_this_one(tmp_path: Path) -> None:
    mine, theirs = StateWorld(tmp_path / "a"), StateWorld(tmp_path / "b")
    for world in (mine, theirs):
        world.directory.parent.mkdir()
    mine.applied(1, 2)
    taken(theirs, one_step(mine))
    mine.applied(2, 3, content="new")
    taken(theirs, one_step(mine))
    assert what_is_seen(theirs) == what_is_seen(mine)
    assert theirs.store().position() == mine.store().position()
    assert theirs.store().read().fingerprint_key == mine.store().read().fingerprint_key
    assert theirs.store().snapshot(1).desired == mine.store().snapshot(1).desired
    theirs.store().verify()
    assert theirs.applied(4) == 3


def test_a_run_that_died_elsewhere_is_closed_here_by_the_next(tmp_path: Path) -> None:
    mine, theirs = StateWorld(tmp_path / "a"), StateWorld(tmp_path / "b")
    for world in (mine, theirs):
        world.directory.parent.mkdir()
    mine.applied(1)
    mine.killed(1, 2)
    taken(theirs, one_step(mine))
    assert what_is_seen(theirs) == what_is_seen(mine)
    (intent,) = theirs.store().read().open_intents
    assert intent.step_key == "last#1"
    assert theirs.applied(5) == 3
    assert [run.status for run in theirs.store().history()] == ["applied", "interrupted", "applied"]
    assert set(map(str, theirs.store().snapshot(2).resources)) == {str(address(1)), str(address(2))}
    theirs.store().verify()


def test_what_is_recorded_in_the_middle_of_a_run_is_shared(tmp_path: Path) -> None:
    world = StateWorld(tmp_path)
    with world.running(desired(1)) as run:
        run.intent(step("a#1"), change(1))
        shared = parse_shared(one_step(world), place="x")
        assert shared.raw["open_run"]["serial"] == shared.serial == 1
        assert [intent["step_key"] for intent in shared.raw["intents"]] == ["a#1"]
        before = shared.changes
        run.record(recorded(1))
        assert parse_shared(one_step(world), place="x").changes == before + 1


def test_only_the_newest_serials_travel_and_never_more_than_is_handy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = StateWorld(tmp_path)
    for _ in range(SHARED_SNAPSHOTS + 2):
        world.applied(1)
    kept = [entry["serial"] for entry in parse_shared(one_step(world), place="x").raw["kept"]]
    assert kept == list(range(3, SHARED_SNAPSHOTS + 3))
    monkeypatch.setattr(shared_document, "_ROOMY_BYTES", 10)
    assert [entry["serial"] for entry in parse_shared(one_step(world), place="x").raw["kept"]] == [kept[-1]]


def test_a_document_that_nobody_would_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = StateWorld(tmp_path)
    world.applied(1)
    monkeypatch.setattr(shared_document, "STATE_DOCUMENT_MAX_BYTES", 100)
    with pytest.raises(SbctlError) as refused:
        one_step(world)
    assert refused.value.code == "state.too_large"


def test_a_moved_document_says_where_and_is_a_later_write(tmp_path: Path) -> None:
    world = StateWorld(tmp_path)
    world.applied(1)
    before = parse_shared(one_step(world), place="x")
    after = parse_shared(dump_shared(with_move(before.raw, "there")), place="x")
    assert (after.moved_to, after.changes, after.state) == ("there", before.changes + 1, before.state)


def test_touch_counts_a_write_and_changes_nothing(tmp_path: Path) -> None:
    world = StateWorld(tmp_path)
    world.applied(1)
    seen = what_is_seen(world)
    with world.locked() as store:
        store.touch(above=500)
    assert world.store().position() == (world.store().read().lineage, 1, 501)
    assert what_is_seen(world) == seen


def _resealed(raw: dict[str, Any]) -> bytes:
    raw.pop("digest", None)
    return canonical_json({**raw, "digest": fingerprint(raw)})


def _in_state(raw: dict[str, Any], **fields: object) -> None:
    state = {**raw["state"], **fields}
    state.pop("digest")
    raw["state"] = {**state, "digest": fingerprint(state)}


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (lambda raw: raw.update(format="terraform"), "state.document_invalid", "another program"),
        (lambda raw: raw.update(version=2), "state.too_new", "format 2"),
        (lambda raw: raw.update(extra=1), "state.document_invalid", "extra"),
        (lambda raw: raw.update(lineage="M"), "state.document_invalid", "lineages"),
        (lambda raw: _in_state(raw, fingerprint_key=None), "state.document_invalid", "fingerprint key"),
        (lambda raw: _in_state(raw, serial=3), "state.document_invalid", "history"),
        (lambda raw: raw["history"].reverse(), "state.document_invalid", "history"),
        (lambda raw: raw["history"].pop(), "state.document_invalid", "history"),
        (lambda raw: raw["kept"].pop(), "state.document_invalid", "own serial"),
        (lambda raw: raw["history"].pop(0), "state.document_invalid", "kept serial"),
        (lambda raw: raw["kept"][0].update(snapshot=None), "state.document_invalid", "no snapshot"),
        (lambda raw: raw["kept"][0]["snapshot"].update(serial=9), "state.document_invalid", "another serial"),
        (lambda raw: raw.update(open_run={"serial": 1, "counts": {}, "last_at": None}), "state.document_invalid", "open run"),
        (lambda raw: raw["intents"].append(_INTENT), "state.document_invalid", "intent"),
        (lambda raw: raw["history"][0].update(started_at="yesterday"), "state.document_invalid", "started_at"),
        (lambda raw: raw["history"][0].update(started_at="2026-01-01T00:00:00"), "state.document_invalid", "offset"),
        (lambda raw: raw["state"].update(digest="0" * 64), "state.document_corrupt", "digest"),
    ],
)  # fmt: skip
def test_parts_that_do_not_belong_together_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], code: str, says: str
) -> None:
    world = StateWorld(tmp_path)
    world.applied(1)
    world.applied(1, 2)
    raw = copy.deepcopy(json.loads(one_step(world)))
    change(raw)
    with pytest.raises(SbctlError, match=says) as refused:
        parse_shared(_resealed(raw), place="x")
    assert refused.value.code == code


_INTENT = {
    "step_key": "a#1", "address": "engine.gpu-1/llama_cpp", "action": "create", "host": "gpu-1", "method": "m", "title": "t",
    "serial": 1, "at": "2026-01-01T00:00:00+00:00",
}  # fmt: skip


def test_B6_a_cut_or_edited_document_is_refused(tmp_path: Path) -> None:
    world = StateWorld(tmp_path)
    world.applied(1)
    data = one_step(world)
    for number in range(0, len(data), 97):
        edited = bytearray(data)
        edited[number] ^= 1
        for broken in (bytes(edited), data[:number]):
            with pytest.raises(SbctlError):
                parse_shared(broken, place="x")


def test_a_start_that_cannot_be_shared_begins_nothing(tmp_path: Path) -> None:
    world = StateWorld(tmp_path)
    world.applied(1)

    def refuse() -> None:
        raise SbctlError("state.unreachable", "no")

    with world.locked() as store:
        store.on_begin = refuse
        with pytest.raises(SbctlError, match="no"):
            store.begin_run(APPLY, [desired(2)])
        store.on_begin = None
        run = store.begin_run(APPLY, [])
        run.finish("applied")
    assert [entry.status for entry in world.store().history()] == ["applied", "failed", "applied"]


def test_nothing_is_shared_of_nothing(tmp_path: Path) -> None:
    store = StateWorld(tmp_path).store()
    assert store.position() is None
    assert store.side() is None
