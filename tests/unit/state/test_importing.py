"""The table of pushes, row by row, and how a damaged state is rebuilt."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from sbctl.base.digests import fingerprint
from sbctl.base.errors import InputError, SbctlError, StateError
from sbctl.state.document import parse_document
from sbctl.state.fence import Fence, read_fence
from tests.simulators.state_world import StateWorld, address, desired, recorded

Document = dict[str, Any]


def sealed(raw: Document, **changes: Any) -> bytes:
    content = {key: value for key, value in {**raw, **changes}.items() if key != "digest"}
    return json.dumps({**content, "digest": fingerprint(content)}).encode()


def exported(world: StateWorld) -> Document:
    return dict(json.loads(world.store().export()))


def push(world: StateWorld, data: bytes, *, force: bool = False) -> int:
    with world.locked("state push") as store:
        return store.import_document(data, force=force)


def refused(world: StateWorld, data: bytes, *, force: bool = False) -> SbctlError:
    before = {path.name: path.read_bytes() for path in world.directory.iterdir()}
    with pytest.raises(SbctlError) as caught:
        push(world, data, force=force)
    after = {path.name: path.read_bytes() for path in world.directory.iterdir()}
    assert {name: data for name, data in after.items() if name in before and name != "state.db"} == {
        name: data for name, data in before.items() if name != "state.db"
    }
    return caught.value


@pytest.fixture
def three(world: StateWorld) -> StateWorld:
    """A state at serial 3 with three resources."""
    for number in (1, 2, 3):
        world.applied(number)
    return world


def test_where_nothing_is_a_push_creates_the_state(three: StateWorld, tmp_path: Any) -> None:
    document = three.store().export()
    other = StateWorld(tmp_path)
    assert push(other, document) == 3
    there, here = other.store().read(), three.store().read()
    assert (there.lineage, there.serial, there.fleet_name) == (here.lineage, 3, here.fleet_name)
    assert there.resources == here.resources
    assert there.fingerprint_key != here.fingerprint_key
    assert [run.info.command for run in other.store().history()] == ["state push"]
    assert other.store().export() == document


def test_the_same_document_again_changes_nothing(three: StateWorld) -> None:
    document = three.store().export()
    assert push(three, document) == 3
    assert push(three, document, force=True) == 3
    assert len(three.store().history()) == 3


def test_a_higher_serial_of_the_same_lineage_is_taken(three: StateWorld) -> None:
    raw = exported(three)
    raw["resources"] = raw["resources"][:1]
    key = three.store().read().fingerprint_key
    assert push(three, sealed(raw, serial=9, signers={"ops": "ed25519:A"}, key_epoch=2)) == 9
    view = three.store().read()
    assert (view.serial, set(view.resources), dict(view.signers), view.key_epoch) == (
        9,
        {address(1)},
        {"ops": "ed25519:A"},
        2,
    )
    assert view.fingerprint_key == key
    assert [run.serial for run in three.store().history()] == [1, 2, 3, 9]
    assert [asked.address for asked in three.store().snapshot(9).desired] == [address(1)]
    assert three.applied(1) == 10


def lower(raw: Document) -> Document:
    return {**raw, "serial": raw["serial"] - 1}


def differing(raw: Document) -> Document:
    return {**raw, "resources": raw["resources"][:1]}


def foreign(raw: Document) -> Document:
    return {**raw, "lineage": str(uuid.UUID(int=7))}


def emptied(raw: Document) -> Document:
    return {**raw, "serial": raw["serial"] + 1, "resources": []}


@pytest.mark.parametrize(
    ("change", "code", "forced_serial"),
    [
        (lower, "state.regressed", 4),
        (differing, "state.conflict", 4),
        (foreign, "state.foreign", 3),
        (emptied, "state.would_empty", 4),
    ],
)
def test_B8_what_a_push_may_not_replace_needs_force(
    three: StateWorld, change: Callable[[Document], Document], code: str, forced_serial: int
) -> None:
    raw = change(exported(three))
    error = refused(three, sealed(raw))
    assert (error.code, int(error.exit_code)) == (code, 3)
    assert "--force" in (error.next_step or "")
    assert three.store().read().serial == 3
    assert push(three, sealed(raw), force=True) == forced_serial
    view = three.store().read()
    assert (view.lineage, view.serial, len(view.resources)) == (raw["lineage"], forced_serial, len(raw["resources"]))
    three.store().verify()
    assert three.applied(1) == forced_serial + 1


def test_a_forced_push_of_another_lineage_sets_the_old_state_aside(three: StateWorld) -> None:
    old = (three.directory / "state.db").read_bytes()
    push(three, sealed(foreign(exported(three))), force=True)
    aside = three.directory / "state.db.aside-1"
    assert len(aside.read_bytes()) == len(old)
    assert [run.info.command for run in three.store().history()] == ["state push"]


def test_bundle_revisions_never_go_back(three: StateWorld) -> None:
    old = exported(three)
    with three.running(desired(1)) as run:
        for _ in range(5):
            run.allocate_revision("gpu-1")
        run.finish("applied")
    push(three, sealed(old, revisions={"gpu-1": 2, "gpu-2": 7}), force=True)
    assert three.store().read().revisions == {"gpu-1": 5, "gpu-2": 7}


def test_a_dead_run_is_closed_by_a_push(world: StateWorld) -> None:
    world.applied(1)
    raw = exported(world)
    world.killed(2)
    assert push(world, sealed(raw, serial=5)) == 5
    assert [run.status for run in world.store().history()] == ["applied", "interrupted", "applied"]
    assert world.store().read().open_intents == ()


def empty_file(world: StateWorld) -> None:
    world.paths.database.write_bytes(b"")


def gone(world: StateWorld) -> None:
    world.paths.database.unlink()


def garbage(world: StateWorld) -> None:
    world.paths.database.write_bytes(b"\x00\xff" * 4096)


def head_flipped(world: StateWorld) -> None:
    data = bytearray(world.paths.database.read_bytes())
    data[data.index(b'"fleet_name":"fleet"') + 15] ^= 1
    world.paths.database.write_bytes(bytes(data))


def fence_gone(world: StateWorld) -> None:
    world.paths.fence.unlink()


def fence_broken(world: StateWorld) -> None:
    world.paths.fence.write_bytes(b"{")


DAMAGES = [
    (empty_file, "state.empty"),
    (gone, "state.missing"),
    (garbage, "state.corrupt"),
    (head_flipped, "state.corrupt"),
    (fence_gone, "state.missing"),
    (fence_broken, "state.corrupt"),
]


@pytest.mark.parametrize(("damage", "code"), DAMAGES)
def test_a_damaged_state_accepts_no_push_silently_and_the_backup_by_force(
    three: StateWorld, damage: Callable[[StateWorld], None], code: str
) -> None:
    before = three.store().read()
    document = exported(three)
    damage(three)
    with pytest.raises(StateError) as caught:
        three.store().read()
    assert caught.value.code == code
    assert f"sbctl state push --force {three.paths.backup}" in (caught.value.next_step or "")
    assert refused(three, sealed(document, serial=99)).code == code
    serial = push(three, three.paths.backup.read_bytes(), force=True)
    after = three.store().read()
    assert after.serial == serial > 0
    assert (after.lineage, after.resources, after.fingerprint_key) == (
        before.lineage,
        before.resources,
        before.fingerprint_key,
    )
    fence = read_fence(three.paths)
    assert fence is not None
    assert (fence.lineage, fence.serial) == (before.lineage, serial)
    three.store().verify()
    assert three.applied(4) == serial + 1


@pytest.mark.parametrize(("damage", "keeps_history"), [(fence_gone, True), (head_flipped, True), (gone, False)])
def test_what_its_digests_still_prove_survives_a_repair(
    three: StateWorld, damage: Callable[[StateWorld], None], keeps_history: bool
) -> None:
    with three.running(desired(1)) as run:
        run.allocate_revision("gpu-1")
        run.allocate_revision("gpu-1")
        run.finish("applied")
    document = exported(three)
    damage(three)
    push(three, sealed(document, revisions={}), force=True)
    store = three.store()
    serials = [run.serial for run in store.history()]
    assert serials == ([1, 2, 3, 4, 5] if keeps_history else [5])
    assert store.read().revisions == ({"gpu-1": 2} if keeps_history else {})
    if keeps_history:
        assert store.snapshot(2).resources == {address(1): recorded(1), address(2): recorded(2)}


def test_a_repair_goes_above_every_serial_that_was_known(three: StateWorld) -> None:
    old_backup = three.paths.backup.read_bytes()
    three.applied(4)
    three.applied(5)
    gone(three)
    assert push(three, old_backup, force=True) == 6
    fence = read_fence(three.paths)
    assert fence is not None
    assert fence.serial == 6


def test_a_log_left_behind_never_meets_a_new_database(three: StateWorld) -> None:
    three.killed(4)
    copy = three.keep("copy")
    with three.running(desired(5)) as run:
        run.record(recorded(5))
        log = three.paths.write_ahead_log.read_bytes()
        assert log
    backup = (copy / "backup.json").read_bytes()
    gone(three)
    three.paths.write_ahead_log.write_bytes(log)
    push(three, backup, force=True)
    assert (three.directory / "state.db.aside-1-wal").read_bytes() == log
    assert set(three.store().read().resources) == {address(1), address(2), address(3)}
    three.store().verify()


def test_two_repairs_keep_both_damaged_files(three: StateWorld) -> None:
    for _ in range(2):
        garbage(three)
        push(three, three.paths.backup.read_bytes(), force=True)
    assert (three.directory / "state.db.aside-1").exists()
    assert (three.directory / "state.db.aside-2").exists()


def test_an_export_holds_no_key_and_the_backup_does(three: StateWorld) -> None:
    key = three.store().read().fingerprint_key.hex()
    assert key.encode() not in three.store().export()
    assert parse_document(three.paths.backup.read_bytes()).fingerprint_key == key


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "json.invalid"),
        (b"[]", "state.document_invalid"),
        (b'{"format": "other"}', "state.document_invalid"),
        (b'{"format": "sbctl.state", "format": "sbctl.state"}', "json.invalid"),
        (b'{"format": "sbctl.state", "schema_version": 2}', "state.too_new"),
        (b'{"format": "sbctl.state", "schema_version": 1}', "state.document_corrupt"),
        (b'{"format": "sbctl.state", "schema_version": 1, "digest": 7}', "state.document_corrupt"),
        (sealed({"format": "sbctl.state", "schema_version": 1}), "state.document_invalid"),
    ],
)
def test_what_is_not_a_document_is_refused(three: StateWorld, data: bytes, code: str) -> None:
    error = refused(three, data, force=True)
    assert (error.code, int(error.exit_code)) == (code, 3)


def changed_resource(raw: Document, **fields: Any) -> list[Document]:
    return [{**raw["resources"][0], **fields}]


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: {"resources": raw["resources"] + raw["resources"][:1]},
        lambda raw: {"resources": changed_resource(raw, address="pod.x/y")},
        lambda raw: {"resources": changed_resource(raw, extra=1)},
        lambda raw: {"resources": changed_resource(raw, after=["nonsense"])},
        lambda raw: {"resources": changed_resource(raw, keep="yes")},
        lambda raw: {"serial": -1},
        lambda raw: {"serial": "7"},
        lambda raw: {"lineage": "../../etc"},
        lambda raw: {"lineage": raw["lineage"] + "\n"},
        lambda raw: {"fingerprint_key": "short"},
        lambda raw: {"unknown": 1},
    ],
)  # fmt: skip
def test_a_document_with_a_right_digest_and_wrong_content_is_refused(
    three: StateWorld, change: Callable[[Document], Document]
) -> None:
    raw = exported(three)
    with pytest.raises(InputError) as caught:
        push(three, sealed(raw, **change(raw)), force=True)
    assert caught.value.code == "state.document_invalid"


def test_a_document_edited_by_hand_is_refused(three: StateWorld) -> None:
    data = three.store().export().replace(b"/opt/1", b"/opt/9")
    assert refused(three, data, force=True).code == "state.document_corrupt"


def test_equal_states_export_equal_bytes(three: StateWorld) -> None:
    assert three.store().export() == three.store().export()


def test_serial_0_is_created_as_serial_1(world: StateWorld, tmp_path: Any) -> None:
    with world.locked() as store:
        store.create("fleet")
        document = store.export()
    other = StateWorld(tmp_path)
    assert push(other, document) == 1
    assert other.store().read().lineage == world.store().read().lineage


def test_a_push_that_was_cut_off_before_its_fence_is_nothing_yet(world: StateWorld, tmp_path: Any) -> None:
    world.applied(1)
    document = world.store().export()
    other = StateWorld(tmp_path)
    with other.locked() as store:
        from sbctl.state.fence import write_fence

        write_fence(other.paths, Fence(str(uuid.uuid4()), 0, 0))
        assert not store.exists()
        assert store.import_document(document) == 1
    assert other.store().read().resources == {address(1): recorded(1)}
