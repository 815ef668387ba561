"""What the store promises to the executor and to the command line."""

from __future__ import annotations

import stat
import threading
from types import MappingProxyType

import pytest

from sbctl.base.errors import ExitCode, HostError, InputError, LockedError, RefusedError, SbctlError, StateError
from sbctl.base.ids import Address
from sbctl.base.secret import Secret
from sbctl.base.truths import Recorded
from sbctl.state import journal as journal_module
from sbctl.state import location
from sbctl.state.codec import desired_from_json, desired_to_json, recorded_from_json, recorded_to_json
from sbctl.state.model import RunInfo
from tests.simulators.state_world import APPLY, SSH, StateWorld, address, change, desired, recorded, step


def test_nothing_exists_until_something_was_created(world: StateWorld) -> None:
    store = world.store()
    assert not store.exists()
    assert not world.directory.exists()
    with world.locked():
        assert not store.exists()
    with pytest.raises(StateError) as caught:
        store.read()
    assert caught.value.code == "state.absent"
    assert caught.value.exit_code == ExitCode.INVALID


def test_a_new_state_has_a_lineage_serial_0_and_a_key_of_its_own(world: StateWorld) -> None:
    with world.locked() as store:
        store.create("production-models")
    view = world.store().read()
    assert (view.serial, view.fleet_name, view.key_epoch) == (0, "production-models", 0)
    assert (dict(view.resources), dict(view.signers), view.open_intents, view.last_run) == ({}, {}, (), None)
    assert len(view.fingerprint_key) == 32
    assert view.fingerprint_key.hex() not in repr(view)
    assert len(view.lineage) == 36


def test_directory_is_0700_and_files_are_0600(world: StateWorld) -> None:
    world.applied(1)
    assert stat.S_IMODE(world.directory.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in world.directory.iterdir()}
    assert modes == dict.fromkeys(("state.db", "lock", "fence.json", "backup.json"), 0o600)


def test_an_open_directory_is_tightened(world: StateWorld) -> None:
    world.directory.mkdir(mode=0o755)
    with world.locked():
        pass
    assert stat.S_IMODE(world.directory.stat().st_mode) == 0o700


def test_what_a_run_records_is_read_back_equal(world: StateWorld) -> None:
    assert world.applied(1, 2) == 1
    view = world.store().read()
    assert view.serial == 1
    assert dict(view.resources) == {address(1): recorded(1), address(2): recorded(2)}
    assert view.last_run is not None
    assert view.last_run.info == APPLY
    assert view.last_run.status == "applied"
    assert view.last_run.counts == {"done": 2, "not_done": 0, "unknown": 0, "recorded": 2, "forgotten": 0}


def test_every_field_of_a_resource_survives(world: StateWorld) -> None:
    full = Recorded(
        Address("deployment", "gpu-1", "chat"), {"a": [1]}, 3, "f" * 64, {"b": {}}, "gpu-1", SSH,
        after=frozenset({Address("bundle", "gpu-1"), Address("runtime", "gpu-1")}), member_of=Address("bundle", "gpu-1"),
        keep=True, prevent_destroy=True, pending_delete=True,
    )  # fmt: skip
    with world.running() as run:
        run.record(full)
        run.finish("applied")
    assert world.store().read().resources == {full.address: full}
    assert recorded_from_json(recorded_to_json(full)) == full
    asked = desired(1)
    assert desired_from_json(desired_to_json(asked)) == asked


def test_a_reader_sees_each_step_as_soon_as_it_is_acknowledged(world: StateWorld) -> None:
    with world.running(desired(1)) as run:
        reader = world.store()
        run.intent(step("k#1"), change(1))
        (intent,) = reader.read().open_intents
        assert (intent.step_key, intent.address, intent.action, intent.host) == ("k#1", address(1), "create", "gpu-1")
        assert (intent.method, intent.serial) == ("engine.install", 1)
        run.outcome("k#1", "done")
        assert reader.read().open_intents == ()
        run.record(recorded(1))
        assert reader.read().resources[address(1)] == recorded(1)
        run.record(recorded(1, "new"))
        assert reader.read().resources[address(1)] == recorded(1, "new")
        run.forget(address(1))
        run.forget(address(2))
        assert reader.read().resources == {}
        view = reader.read()
        assert view.last_run is not None
        assert view.last_run.status == "running"
        run.finish("partial")


def test_the_journal_tells_in_order_what_became_durable(world: StateWorld) -> None:
    with world.running() as run:
        run.intent(step("k#1"), change(1))
        run.outcome("k#1", "not_done", HostError("host.refused", "no: --api-key sk-aaaaaaaaaaaa", place="gpu-1"))
        run.record(recorded(1))
        run.forget(address(1))
        run.allocate_revision("gpu-1")
        run.finish("failed")
    entries = world.store().journal(1)
    assert [entry.event for entry in entries] == ["intent", "outcome", "record", "forget", "revision", "close"]
    assert [entry.sequence for entry in entries] == list(range(1, 7))
    failure = entries[1].detail["error"]
    assert isinstance(failure, dict)
    assert failure["code"] == "host.refused"
    assert "sk-aaaa" not in str(failure)
    assert world.store().journal(7) == []


def test_a_run_that_died_is_closed_by_the_next_one(world: StateWorld) -> None:
    world.killed(1, 2)
    view = world.store().read()
    assert [intent.step_key for intent in view.open_intents] == ["last#1"]
    world.clock.sleep_s(3600)
    with world.running() as run:
        assert run.serial == 2
        assert world.store().read().open_intents == ()
        run.finish("applied")
    first, second = world.store().history()
    assert (first.status, first.counts["unknown"], first.resources) == ("interrupted", 1, 2)
    assert first.finished_at == first.started_at
    assert second.status == "applied"
    snapshot = world.store().snapshot(1)
    assert set(snapshot.resources) == {address(1), address(2)}
    assert snapshot.desired == (desired(1), desired(2))
    assert snapshot.run == first


def test_a_run_that_died_before_its_first_step_ended_when_it_began(world: StateWorld) -> None:
    with world.running(desired(1)):
        pass
    world.applied(1)
    assert world.store().history()[0].finished_at == world.store().history()[0].started_at


def test_intents_still_open_at_the_end_become_unknown(world: StateWorld) -> None:
    with world.running() as run:
        run.intent(step("k#1"), change(1))
        run.finish("interrupted")
    view = world.store().read()
    assert view.open_intents == ()
    assert view.last_run is not None
    assert view.last_run.counts["unknown"] == 1


def test_each_serial_keeps_its_snapshot(world: StateWorld) -> None:
    world.applied(1, content="old")
    with world.locked() as store:
        store.set_trust({"ops": "ed25519:AAAA"}, 1)
    world.applied(1, 2, content="new")
    first, trust, second = (world.store().snapshot(serial) for serial in (1, 2, 3))
    assert first.resources == {address(1): recorded(1, "old")}
    assert (first.desired, dict(first.signers), first.key_epoch) == ((desired(1, "old"),), {}, 0)
    assert trust.desired == first.desired
    assert second.desired == (desired(1, "new"), desired(2, "new"))
    assert (dict(second.signers), second.key_epoch) == ({"ops": "ed25519:AAAA"}, 1)
    assert len({snapshot.digest for snapshot in (first, trust, second)}) == 3
    assert {snapshot.lineage for snapshot in (first, trust, second)} == {world.store().read().lineage}


@pytest.mark.parametrize("serial", [0, 3, -1])
def test_a_serial_without_snapshot_is_refused_with_the_known_ones(world: StateWorld, serial: int) -> None:
    world.applied(1)
    world.applied(2)
    with pytest.raises(InputError, match="serials 1 to 2 have one") as caught:
        world.store().snapshot(serial)
    assert caught.value.code == "state.no_snapshot"


def test_before_the_first_run_there_is_no_snapshot(world: StateWorld) -> None:
    with world.locked() as store:
        store.create("fleet")
        with pytest.raises(InputError, match="no run has finished yet"):
            store.snapshot(1)


def test_the_last_serial_that_changed_a_host(world: StateWorld) -> None:
    world.applied(1, 2)
    world.applied(2)
    store = world.store()
    assert store.recorded_serials() == {address(1).scope: 1} | {address(2).scope: 2}
    with world.locked() as locked:
        locked.remove(address(1))
    assert store.recorded_serials()[address(1).scope] == 3


def test_old_snapshots_and_journals_go_and_history_stays(world: StateWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "STATE_SNAPSHOTS_KEPT", 3)
    for _ in range(6):
        world.applied(1)
    store = world.store()
    assert [run.serial for run in store.history()] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(InputError, match="serials 4 to 6"):
        store.snapshot(3)
    assert store.snapshot(4).desired == (desired(1),)
    assert store.journal(3) == []
    assert store.journal(4) != []
    store.verify()


def test_revisions_only_grow(world: StateWorld) -> None:
    with world.running() as run:
        assert [run.allocate_revision("gpu-1"), run.allocate_revision("gpu-1"), run.allocate_revision("gpu-2")] == [
            1,
            2,
            1,
        ]
        assert run.allocate_revision("gpu-2", above=41) == 42
        assert run.allocate_revision("gpu-2", above=3) == 43
        run.finish("failed")
    assert world.store().read().revisions == {"gpu-1": 2, "gpu-2": 43}
    with world.running() as run:
        assert run.allocate_revision("gpu-1") == 3


def test_nothing_can_be_recorded_after_the_end(world: StateWorld) -> None:
    with world.running() as run:
        run.finish("applied")
        for late in (
            lambda: run.record(recorded(1)),
            lambda: run.forget(address(1)),
            lambda: run.intent(step("k"), change(1)),
            lambda: run.outcome("k", "done"),
            lambda: run.allocate_revision("gpu-1"),
            lambda: run.finish("applied"),
        ):
            with pytest.raises(StateError, match="has ended") as caught:
                late()
            assert caught.value.code == "state.run_finished"
    assert world.store().read().resources == {}


def test_an_outcome_needs_an_intent(world: StateWorld) -> None:
    with world.running() as run, pytest.raises(StateError) as caught:
        run.outcome("never#1", "done")
    assert caught.value.code == "state.no_intent"


def test_a_repeated_intent_replaces_the_first(world: StateWorld) -> None:
    with world.running() as run:
        run.intent(step("k#1"), change(1))
        run.intent(step("k#1"), change(1))
        assert len(world.store().read().open_intents) == 1
        run.outcome("k#1", "done")
        run.finish("applied")


def test_a_second_run_in_the_same_process_is_refused(world: StateWorld) -> None:
    with world.locked() as store:
        store.create("fleet")
        store.begin_run(APPLY, ())
        with pytest.raises(StateError) as caught:
            store.begin_run(APPLY, ())
        assert caught.value.code == "state.run_open"
        with pytest.raises(StateError) as caught:
            store.import_document(store.export())
        assert caught.value.code == "state.run_open"


def test_writing_needs_the_lock(world: StateWorld) -> None:
    world.applied(1)
    store = world.store()
    document = store.export()
    for write in (
        lambda: store.create("fleet"),
        lambda: store.begin_run(APPLY, ()),
        lambda: store.remove(address(1)),
        lambda: store.adopt(recorded(2)),
        lambda: store.set_trust({}, 0),
        lambda: store.import_document(document),
    ):
        with pytest.raises(LockedError) as caught:
            write()
        assert caught.value.code == "state.not_locked"


def test_creating_twice_and_running_before_creating_are_refused(world: StateWorld) -> None:
    with world.locked() as store:
        with pytest.raises(StateError) as caught:
            store.begin_run(APPLY, ())
        assert caught.value.code == "state.absent"
        store.create("fleet")
        with pytest.raises(StateError) as caught:
            store.create("fleet")
        assert caught.value.code == "state.exists"


def test_state_rm_forgets_and_is_history(world: StateWorld) -> None:
    world.applied(1, 2)
    with world.locked("state rm") as store:
        store.remove(address(1))
        with pytest.raises(StateError) as caught:
            store.remove(address(1))
        assert caught.value.code == "state.no_resource"
    view = world.store().read()
    assert (view.serial, set(view.resources)) == (2, {address(2)})
    assert view.last_run is not None
    assert (view.last_run.info.command, view.last_run.info.operator) == ("state rm", "ops@desk")
    snapshot = world.store().snapshot(2)
    assert [asked.address for asked in snapshot.desired] == [address(2)]
    assert world.store().snapshot(1).resources.keys() == {address(1), address(2)}


def test_state_import_adopts_and_is_history(world: StateWorld) -> None:
    with world.locked("state import") as store:
        store.create("fleet")
        info = RunInfo("state import", "ci@runner", commit="a" * 40)
        store.adopt(recorded(1), info)
        with pytest.raises(StateError) as caught:
            store.adopt(recorded(1))
        assert caught.value.code == "state.already_recorded"
    view = world.store().read()
    assert (view.serial, dict(view.resources)) == (1, {address(1): recorded(1)})
    assert view.last_run is not None
    assert view.last_run.info == info
    (asked,) = world.store().snapshot(1).desired
    assert (asked.address, asked.spec) == (address(1), recorded(1).spec)


def test_the_signer_set_is_replaced_whole_and_only_when_it_differs(world: StateWorld) -> None:
    with world.locked("key add") as store:
        store.create("fleet")
        store.set_trust({"a": "ed25519:A", "b": "ed25519:B"}, 1)
        store.set_trust({"b": "ed25519:B", "a": "ed25519:A"}, 1)
        store.set_trust({"b": "ed25519:C"}, 2)
    view = world.store().read()
    assert (view.serial, dict(view.signers), view.key_epoch) == (2, {"b": "ed25519:C"}, 2)
    assert [run.serial for run in world.store().history()] == [1, 2]


def test_inside_an_open_run_trust_belongs_to_that_run(world: StateWorld) -> None:
    with world.locked() as store:
        store.create("fleet")
        run = store.begin_run(APPLY, ())
        store.set_trust({"ops": "ed25519:A"}, 1)
        run.record(recorded(1))
        run.finish("applied")
    assert world.store().read().serial == 1
    assert dict(world.store().snapshot(1).signers) == {"ops": "ed25519:A"}


@pytest.mark.parametrize(
    "spec",
    [
        {"password": Secret(b"hunter2")},
        {"raw": b"bytes"},
        {"number": float("nan")},
        {"number": 2**60},
        {1: "integer key"},
        {"text": "\ud800"},
        {"set": {1, 2}},
    ],
    ids=["secret", "bytes", "nan", "beyond 2^53", "integer key", "lone surrogate", "set"],
)
def test_what_is_not_json_never_reaches_the_disk(world: StateWorld, spec: dict[str, object]) -> None:
    bad = Recorded(address(1), {}, 1, "f" * 64, spec, "gpu-1", SSH)
    with world.running() as run:
        with pytest.raises(StateError) as caught:
            run.record(bad)
        assert caught.value.code == "state.not_recordable"
        assert "hunter2" not in str(caught.value)
        run.record(recorded(2))
        run.finish("partial")
    assert set(world.store().read().resources) == {address(2)}
    assert b"hunter2" not in b"".join(path.read_bytes() for path in world.directory.iterdir())


def test_a_desired_list_that_is_not_json_begins_no_run(world: StateWorld) -> None:
    asked = desired(1)
    broken = type(asked)(asked.address, {"x": b"bytes"}, "f", asked.host, asked.connection)
    with world.locked() as store:
        store.create("fleet")
        with pytest.raises(StateError) as caught:
            store.begin_run(APPLY, [broken])
        assert caught.value.code == "state.not_recordable"
        assert store.begin_run(APPLY, [asked]).serial == 1


@pytest.mark.parametrize(
    "bad",
    [
        Address("engine", "a b", "x"),
        Address("nothing", "h"),
        Address("engine", "h", "new\nline"),
        Address("engine", "h/x"),
    ],
    ids=str,
)
def test_an_address_that_would_not_come_back_is_refused(world: StateWorld, bad: Address) -> None:
    with world.running() as run, pytest.raises(StateError) as caught:
        run.record(Recorded(bad, {}, 1, "f", {}, "h", SSH))
    assert caught.value.code == "state.not_recordable"


def test_read_only_mappings_and_tuples_are_json_too(world: StateWorld) -> None:
    frozen = MappingProxyType({"files": ({"path": "a"}, MappingProxyType({"path": "b"}))})
    with world.running() as run:
        run.record(Recorded(address(1), frozen, 1, "f", frozen, "gpu-1", SSH))
        run.finish("applied")
    assert world.store().read().resources[address(1)].spec == {"files": [{"path": "a"}, {"path": "b"}]}


def test_threads_share_a_run_and_nothing_is_lost(world: StateWorld) -> None:
    errors: list[BaseException] = []

    def host(number: int) -> None:
        try:
            for turn in range(8):
                key = f"{number}#{turn}"
                run.intent(step(key), change(number))
                run.outcome(key, "done")
                run.record(recorded(number, turn))
                run.allocate_revision("shared")
        except BaseException as error:
            errors.append(error)

    with world.running() as run:
        threads = [threading.Thread(target=host, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        reads = [len(world.store().read().resources) for _ in range(10)]
        for thread in threads:
            thread.join()
        run.finish("applied")
    assert errors == []
    assert reads == sorted(reads)
    view = world.store().read()
    assert dict(view.resources) == {address(number): recorded(number, 7) for number in range(6)}
    assert view.revisions == {"shared": 48}
    assert view.last_run is not None
    assert view.last_run.counts["done"] == 48
    world.store().verify()


def test_B5_a_network_filesystem_is_refused_unless_allowed(world: StateWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location, "filesystem_type", lambda _path: 0x6969)
    store = world.store()
    with pytest.raises(RefusedError, match=r"\(NFS\)") as caught, store.lock(world.info(), 0):
        pass
    assert caught.value.code == "state.network_filesystem"
    assert caught.value.exit_code == ExitCode.REFUSED
    assert not world.directory.exists()
    with pytest.raises(RefusedError):
        store.read()
    allowed = type(store)(world.directory, world.clock, allow_network_fs=True)
    with allowed.lock(world.info(), 0):
        allowed.create("fleet")
    assert allowed.read().serial == 0


def test_a_damaged_fence_alone_is_still_something(world: StateWorld) -> None:
    world.directory.mkdir()
    world.paths.fence.write_bytes(b"{")
    assert world.store().exists()
    with pytest.raises(StateError) as caught:
        world.store().read()
    assert caught.value.code == "state.corrupt"


def test_a_lock_file_that_cannot_be_opened_is_told(world: StateWorld) -> None:
    world.directory.mkdir()
    (world.directory / "real").write_bytes(b"")
    world.paths.lock.symlink_to(world.directory / "real")
    with pytest.raises(SbctlError) as caught:
        world.store().holder()
    assert caught.value.code == "disk.symlink_refused"
