"""Abuse of the recorded state: cut, emptied, flipped, swapped, fought over. B ids are those of docs/threats.md.

The one rule behind all of them: a state is read as it was written, or refused by name; never as "nothing exists".
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sbctl.base.digests import fingerprint
from sbctl.base.errors import ExitCode, SbctlError, StateError
from sbctl.state.document import dump_document
from sbctl.state.store import StateStore
from tests.simulators.state_world import StateWorld, address, desired, fast_directory, recorded

ROOT = Path(__file__).resolve().parents[2]
NAMED = {"state.corrupt", "state.empty", "state.missing", "state.regressed", "state.foreign", "state.too_new"}
FLIPS = 120
SEED = 20261129


@pytest.fixture
def world() -> Iterator[StateWorld]:
    with fast_directory() as root:
        yield StateWorld(root)


@pytest.fixture
def lived(world: StateWorld) -> StateWorld:
    """A state with some life behind it, and a run that died with its log not folded in."""
    for number in (1, 2, 3):
        world.applied(number, content="x" * 300)
    with world.locked("key add") as store:
        store.set_trust({"ops": "ed25519:AAAA"}, 1)
    world.killed(4)
    return world


def told(store: StateStore) -> tuple[object, ...]:
    """All that a state says."""
    view = store.read()
    history = store.history()
    snapshots = [store.snapshot(run.serial) for run in history if run.status != "running"]
    return (view, history, snapshots, store.export(), [store.journal(run.serial) for run in history])


def same_or_refused(world: StateWorld, truth: tuple[object, ...]) -> str:
    """Read all of it again: either every word is as it was, or a named error. Returns the code, or `same`."""
    store = world.store()
    assert store.exists()
    try:
        assert told(store) == truth
    except StateError as error:
        assert error.code in NAMED, error
        assert error.exit_code == ExitCode.INVALID
        assert str(world.directory) in (error.place or "")
        assert error.next_step
        return error.code
    return "same"


def crash_copy(world: StateWorld) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in world.directory.iterdir() if path.name != "state.db-shm"}


def lay_out(world: StateWorld, files: dict[str, bytes]) -> None:
    for path in world.directory.iterdir():
        path.unlink()
    for name, data in files.items():
        (world.directory / name).write_bytes(data)


@pytest.fixture
def crashed(world: StateWorld) -> tuple[StateWorld, dict[str, bytes], tuple[object, ...]]:
    """The files as a power cut leaves them, a long log among them, and what they say."""
    world.applied(1, content="x" * 300)
    with world.locked("key add") as store:
        store.set_trust({"ops": "ed25519:AAAA"}, 1)
    with world.running(desired(2)) as run:
        for number in (2, 3, 4):
            run.record(recorded(number, "y" * 300))
        files = crash_copy(world)
        truth = told(world.store())
    assert files["state.db-wal"]
    return world, files, truth


def test_B6_a_truncated_state_is_refused_by_name(lived: StateWorld) -> None:
    data = lived.paths.database.read_bytes()
    truth = told(lived.store())
    found = set()
    for length in range(0, len(data), 512):
        lived.paths.database.write_bytes(data[:length])
        found.add(same_or_refused(lived, truth))
    assert "same" not in found
    assert {"state.empty", "state.corrupt"} <= found
    lived.paths.database.write_bytes(data)
    assert same_or_refused(lived, truth) == "same"


def test_B6_a_cut_log_is_refused_by_name(crashed: tuple[StateWorld, dict[str, bytes], tuple[object, ...]]) -> None:
    world, files, truth = crashed
    lay_out(world, files)
    assert same_or_refused(world, truth) == "same"
    log = files["state.db-wal"]
    for length in range(0, len(log), 512):
        lay_out(world, {**files, "state.db-wal": log[:length]})
        assert same_or_refused(world, truth) in {"state.regressed", "state.corrupt"}
    lay_out(world, {name: data for name, data in files.items() if name != "state.db-wal"})
    assert same_or_refused(world, truth) == "state.regressed"


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def bits_to_flip(data: bytes, everything: bool) -> Iterator[int]:
    """A bit of each byte of the header, then a sample; or every byte."""
    chance = random.Random(SEED)
    if everything:
        yield from (byte * 8 + chance.randrange(8) for byte in range(len(data)))
    else:
        yield from range(0, 100 * 8, 7)
        yield from (chance.randrange(len(data) * 8) for _ in range(FLIPS))


@pytest.mark.parametrize("name", ["state.db", "state.db-wal", "fence.json"])
@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_B6_a_flipped_bit_is_refused_or_changes_nothing(
    crashed: tuple[StateWorld, dict[str, bytes], tuple[object, ...]], name: str, everything: bool
) -> None:
    world, files, truth = crashed
    found: dict[str, int] = {}
    for bit in bits_to_flip(files[name], everything):
        lay_out(world, {**files, name: flipped(files[name], bit % (len(files[name]) * 8))})
        code = same_or_refused(world, truth)
        found[code] = found.get(code, 0) + 1
    assert found.keys() - {"same"}, found


def test_B6_a_flipped_bit_is_refused_by_the_writer_too(lived: StateWorld) -> None:
    data = lived.paths.database.read_bytes()
    place = data.index(b'"fleet_name":"fleet"') + 15
    lived.paths.database.write_bytes(flipped(data, place * 8))
    with pytest.raises(StateError) as caught, lived.running():
        pass
    assert caught.value.code == "state.corrupt"


def test_B6_whatever_was_flipped_the_named_repair_works(lived: StateWorld) -> None:
    with lived.running(desired(1)) as run:
        run.finish("applied")
    files = crash_copy(lived)
    before = lived.store().read()
    chance = random.Random(SEED)
    repaired = 0
    for _ in range(60):
        damaged = bytearray(files["state.db"])
        for _ in range(chance.choice((3, 200))):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        lay_out(lived, {**files, "state.db": bytes(damaged)})
        try:
            lived.store().verify()
        except StateError:
            repaired += 1
            with lived.locked("state push") as store:
                store.import_document(files["backup.json"], force=True)
        store = lived.store()
        store.verify()
        assert (store.read().lineage, store.read().resources) == (before.lineage, before.resources)
    assert repaired


@pytest.mark.parametrize(
    "change", [{"serial": 2**53 - 1}, {"revisions": {"gpu-1": 2**53 - 1}}, {"key_epoch": 2**53 - 1}]
)
def test_B8_a_pushed_document_leaves_room_to_count_on(lived: StateWorld, change: dict[str, object]) -> None:
    raw = {**json.loads(lived.store().export()), **change}
    del raw["digest"]
    document = dump_document({**raw, "digest": fingerprint(raw)})
    with lived.locked("state push") as store, pytest.raises(SbctlError) as caught:
        store.import_document(document, force=True)
    assert caught.value.code == "state.document_invalid"


def rows_deleted(table: str) -> Callable[[StateWorld], None]:
    def damage(world: StateWorld) -> None:
        import sqlite3

        with contextlib.closing(sqlite3.connect(world.paths.database)) as connection, connection:
            connection.execute(f"DELETE FROM {table}")

    return damage


@pytest.mark.parametrize("table", ["resources", "signers", "intents", "runs", "head"])
def test_B6_a_state_emptied_from_inside_is_refused_by_name(lived: StateWorld, table: str) -> None:
    rows_deleted(table)(lived)
    with pytest.raises(StateError) as caught:
        told(lived.store())
    assert caught.value.code == ("state.empty" if table == "head" else "state.corrupt")


@pytest.mark.parametrize("table", ["journal", "desired", "snapshots", "revisions"])
def test_B6_vanished_history_is_noticed_by_a_full_check(lived: StateWorld, table: str) -> None:
    with lived.running() as run:
        run.allocate_revision("gpu-1")
    lived.store().verify()
    rows_deleted(table)(lived)
    with pytest.raises(StateError) as caught:
        lived.store().verify()
    assert caught.value.code == "state.corrupt"


def test_B6_rows_that_swap_places_are_noticed(lived: StateWorld) -> None:
    import sqlite3

    with contextlib.closing(sqlite3.connect(lived.paths.database)) as connection, connection:
        one, two = (str(address(number)) for number in (1, 2))
        connection.execute("UPDATE resources SET key = 'x' WHERE key = ?", (one,))
        connection.execute("UPDATE resources SET key = ? WHERE key = ?", (one, two))
        connection.execute("UPDATE resources SET key = ? WHERE key = 'x'", (two,))
    with pytest.raises(StateError) as caught:
        lived.store().read()
    assert caught.value.code == "state.corrupt"


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (("state.db",), "state.missing"),
        (("state.db", "fence.json"), "state.missing"),
        (("state.db", "backup.json"), "state.missing"),
        (("fence.json",), "state.missing"),
        (("fence.json", "backup.json"), "state.missing"),
    ],
)
def test_B7_a_deleted_state_is_missing_not_absent(lived: StateWorld, names: tuple[str, ...], code: str) -> None:
    for name in names:
        (lived.directory / name).unlink()
    store = lived.store()
    assert store.exists()
    with pytest.raises(StateError) as caught:
        store.read()
    assert caught.value.code == code
    with lived.locked() as writer, pytest.raises(StateError) as caught:
        writer.create("fleet")
    assert caught.value.code == "state.exists"


def test_B8_an_older_copy_put_back_is_refused(world: StateWorld) -> None:
    world.applied(1)
    older = world.paths.database.read_bytes()
    world.applied(2)
    world.paths.database.write_bytes(older)
    with pytest.raises(StateError, match="found serial 1") as caught:
        world.store().read()
    assert caught.value.code == "state.regressed"


def test_B8_an_older_copy_of_the_same_serial_is_refused(world: StateWorld) -> None:
    with world.running() as run:
        run.record(recorded(1))
        copy = world.keep("copy")
        run.record(recorded(2))
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (world.directory / name).unlink(missing_ok=True)
        if (copy / name).exists() and name != "state.db-shm":
            shutil.copy(copy / name, world.directory / name)
    with pytest.raises(StateError) as caught:
        world.store().read()
    assert caught.value.code == "state.regressed"


def test_B8_another_fleets_state_is_refused(world: StateWorld, tmp_path: Path) -> None:
    world.applied(1)
    other = StateWorld(tmp_path)
    other.applied(1, 2)
    shutil.copy(other.paths.database, world.paths.database)
    with pytest.raises(StateError, match="found lineage") as caught:
        world.store().read()
    assert caught.value.code == "state.foreign"


SCRIPT = """
import os, subprocess, sys, time
from pathlib import Path
from tests.simulators.state_world import StateWorld
world = StateWorld(Path(sys.argv[1]))
with world.locked() as store:
    if not store.exists():
        store.create("fleet")
    child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(child.pid, flush=True)
    time.sleep(60)
"""


@contextlib.contextmanager
def holder_with_child(world: StateWorld) -> Iterator[tuple[subprocess.Popen[str], int]]:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", SCRIPT, str(world.directory.parent)]
    with subprocess.Popen(argv, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            yield process, child
        finally:
            process.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def test_B2_two_processes_one_writes_the_other_is_told(world: StateWorld) -> None:
    with holder_with_child(world):
        with pytest.raises(SbctlError) as caught, world.locked():
            pass
        assert (caught.value.code, caught.value.exit_code) == ("state.locked", ExitCode.LOCKED)
        assert "ops@desk" in caught.value.message
        assert world.store().read().serial == 0


def test_B3_B4_a_dead_holder_frees_the_lock_though_its_child_lives(world: StateWorld) -> None:
    with holder_with_child(world) as (process, child):
        process.kill()
        process.wait()
        os.kill(child, 0)
        open_files = {os.readlink(entry) for entry in Path(f"/proc/{child}/fd").iterdir()}
        assert not any(str(world.directory) in name for name in open_files)
        assert world.store().holder() is None
        assert world.applied(1) == 1
