"""The n-th durable operation of a state fails, or the process dies there, for every n: nothing acknowledged is lost, nothing is half."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sbctl.base import fs
from sbctl.base.errors import DurabilityUnknownError, SbctlError, StateError
from sbctl.state import database
from sbctl.state.importing import DAMAGE
from sbctl.state.migrations import MIGRATIONS
from tests.simulators.state_victim import (
    NEXT_FORMAT,
    SCRIPT,
    CountingConnection,
    CountingFiles,
    golden,
    play,
    seen,
    use_counting_connection,
)
from tests.simulators.state_world import StateWorld, address, desired, fast_directory, recorded

ROOT = Path(__file__).resolve().parents[2]
TYPED = {
    "disk.full",
    "disk.io_error",
    "disk.read_only",
    "disk.quota",
    "disk.durability_unknown",
    "state.durability_unknown",
}


@pytest.fixture
def root() -> Iterator[Path]:
    with fast_directory() as path:
        yield path


@pytest.fixture(scope="module")
def trace() -> list[object]:
    with fast_directory() as path:
        return golden(StateWorld(path))


def test_the_script_changes_what_is_seen_with_nearly_every_operation(trace: list[object]) -> None:
    assert len(trace) == len(SCRIPT) + 1
    assert sum(before != after for before, after in itertools.pairwise(trace)) >= len(SCRIPT) - 1


def check_survivor(world: StateWorld, trace: list[object], acknowledged: int) -> None:
    """Exactly the old or exactly the new, and the next apply works."""
    allowed = trace[acknowledged : acknowledged + 2]
    found = seen(world)
    assert found in allowed, (acknowledged, found, allowed)
    world.applied(7)
    view = world.store().read()
    assert view.resources[address(7)] == recorded(7)
    assert view.open_intents == ()
    world.store().verify()
    assert not [path for path in world.directory.iterdir() if path.name.endswith("-journal")]


def strike_errno(code: int) -> Callable[[], None]:
    def strike() -> None:
        raise OSError(code, os.strerror(code))

    return strike


def strike_sqlite(name: str) -> Callable[[], None]:
    def strike() -> None:
        error = sqlite3.OperationalError(name)
        error.sqlite_errorcode = getattr(sqlite3, name)
        raise error

    return strike


def stopped_life(world: StateWorld) -> tuple[int, SbctlError | None]:
    acknowledged: list[str] = []
    try:
        play(world, acknowledged.append)
    except SbctlError as error:
        return len(acknowledged), error
    return len(acknowledged), None


@pytest.mark.parametrize(
    ("code", "first", "stride"),
    [
        (errno.ENOSPC, 1, 2),
        (errno.EIO, 2, 4),
        (errno.EROFS, 4, 12),
        pytest.param(errno.ENOSPC, 1, 1, marks=pytest.mark.soak),
        pytest.param(errno.EIO, 1, 1, marks=pytest.mark.soak),
        pytest.param(errno.EROFS, 1, 1, marks=pytest.mark.soak),
    ],
)
def test_B13_B14_the_nth_file_operation_fails(
    root: Path, trace: list[object], code: int, first: int, stride: int
) -> None:
    number, struck = first - stride, True
    while struck:
        number += stride
        world = StateWorld(root / str(number))
        world.directory.parent.mkdir()
        files = CountingFiles(number, strike_errno(code))
        with fs.use_ops(files):
            acknowledged, error = stopped_life(world)
        struck = files.count >= number
        if error is not None:
            assert error.code in TYPED, error
        check_survivor(world, trace, acknowledged)
        shutil.rmtree(world.directory)
    assert number > 100


@pytest.mark.parametrize(
    ("name", "after", "first", "stride"),
    [
        ("SQLITE_FULL", False, 1, 5),
        ("SQLITE_IOERR_FSYNC", False, 2, 7),
        ("SQLITE_IOERR_FSYNC", True, 3, 5),
        ("SQLITE_READONLY", False, 4, 11),
        pytest.param("SQLITE_FULL", True, 1, 1, marks=pytest.mark.soak),
        pytest.param("SQLITE_IOERR_FSYNC", False, 1, 1, marks=pytest.mark.soak),
        pytest.param("SQLITE_IOERR_FSYNC", True, 1, 1, marks=pytest.mark.soak),
    ],
)
def test_B13_B14_the_nth_statement_fails(
    root: Path, trace: list[object], name: str, after: bool, first: int, stride: int
) -> None:
    for number in range(first, 100_000, stride):
        world = StateWorld(root / str(number))
        world.directory.parent.mkdir()

        with use_counting_connection(number, strike_sqlite(name), after=after):
            acknowledged, error = stopped_life(world)
        if error is not None:
            assert error.code in TYPED, error
        check_survivor(world, trace, acknowledged)
        shutil.rmtree(world.directory)
        if CountingConnection.count < number:
            assert number > 200
            return


def victims(root: Path, port: str, first: int, stride: int) -> list[int]:
    """Lives that were killed at every stride-th call of a port, from the first; returns their numbers."""
    argv = [sys.executable, "-m", "tests.simulators.state_victim", str(root), port, str(first), "100000", str(stride)]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    subprocess.run(argv, cwd=ROOT, env=environ, check=True, timeout=280, capture_output=True)
    return sorted(int(path.name) for path in root.iterdir() if path.is_dir())


@pytest.mark.parametrize(
    ("port", "first", "stride"),
    [
        ("files", 1, 3),
        ("before", 1, 8),
        ("after", 3, 8),
        pytest.param("files", 1, 1, marks=pytest.mark.soak),
        pytest.param("before", 1, 1, marks=pytest.mark.soak),
        pytest.param("after", 1, 1, marks=pytest.mark.soak),
    ],
)
def test_B1_killed_at_the_nth_operation_nothing_acknowledged_is_lost(
    root: Path, trace: list[object], port: str, first: int, stride: int
) -> None:
    numbers = victims(root, port, first, stride)
    assert len(numbers) > 40
    for number in numbers:
        acknowledged = (root / f"{number}.acks").stat().st_size
        check_survivor(StateWorld(root / str(number)), trace, acknowledged)


def test_B22_killed_at_every_step_of_a_migration_the_format_is_the_old_or_the_new(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = set()
    for number in victims(root, "migration", 1, 1):
        world = StateWorld(root / str(number))
        with contextlib.closing(sqlite3.connect(world.paths.database)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            extra = connection.execute("SELECT count(*) FROM extra").fetchone()[0] if "extra" in tables else None
        assert (version, extra) in {(1, None), (3, 3)}
        versions.add(version)
        if version == 3:
            kept = StateWorld(root / f"{number}-kept")
            shutil.copytree(world.directory, kept.directory)
            shutil.copy(kept.directory / "state.db.v1", kept.paths.database)
            monkeypatch.setattr(database, "MIGRATIONS", MIGRATIONS)
            assert set(kept.store().read().resources) == {address(1), address(2)}
        monkeypatch.setattr(database, "MIGRATIONS", NEXT_FORMAT)
        assert set(world.store().read().resources) == {address(1), address(2)}
        world.applied(3)
        world.store().verify()
    assert versions == {1, 3}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_repair_that_fails_anywhere_can_be_repeated(root: Path, code: int) -> None:
    origin = StateWorld(root / "origin")
    origin.directory.parent.mkdir()
    origin.applied(1, 2)
    backup = origin.paths.backup.read_bytes()
    origin.paths.database.write_bytes(b"")
    number, struck = 0, True
    while struck:
        number += 1
        world = StateWorld(root / str(number))
        shutil.copytree(origin.directory, world.directory)
        files = CountingFiles(number, strike_errno(code))
        with fs.use_ops(files), contextlib.suppress(SbctlError), world.locked() as store:
            store.import_document(backup, force=True)
        struck = files.count >= number
        try:
            assert set(world.store().read().resources) == {address(1), address(2)}
        except StateError as error:
            assert error.code in DAMAGE, error
            with world.locked() as store:
                store.import_document(backup, force=True)
        assert set(world.store().read().resources) == {address(1), address(2)}
        world.applied(3)
        world.store().verify()
    assert number > 8


def limited_life(world: StateWorld, file_bytes: int) -> int:
    """A life in a child whose files may not grow beyond `file_bytes`; returns how many resources were acknowledged."""
    reader, writer = os.pipe()
    argv = [sys.executable, "-c", LIMITED, str(world.directory.parent), str(file_bytes), str(writer)]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        argv, cwd=ROOT, env=environ, check=False, pass_fds=(writer,), capture_output=True, text=True, timeout=120
    )
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        acknowledged = len(pipe.read())
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in TYPED
    return acknowledged


LIMITED = """
import os, resource, signal, sys
from pathlib import Path
from sbctl.base.errors import SbctlError
from tests.simulators.state_world import StateWorld, recorded
world, limit, acks = StateWorld(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    with world.running() as run:
        for number in range(1000):
            run.record(recorded(number, "x" * 2000))
            os.write(acks, b".")
except SbctlError as error:
    print(error.code)
"""


def test_B13_a_file_that_may_not_grow_is_a_typed_error_and_loses_nothing(root: Path) -> None:
    world = StateWorld(root)
    acknowledged = limited_life(world, 400_000)
    assert acknowledged > 5
    view = world.store().read()
    assert set(range(acknowledged)) <= {int(key.scope.removeprefix("gpu-")) for key in view.resources}
    assert len(view.resources) in (acknowledged, acknowledged + 1)
    world.store().verify()
    world.applied(5000)
    world.store().verify()


def mounted(place: Path, options: str) -> bool:
    place.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    try:
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    if os.geteuid() != 0 or not mounted(place, "size=512k"):
        pytest.skip("needs root and mount(8) for a small disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_B13_a_full_disk_is_said_and_the_state_stays_whole(small_disk: Path) -> None:
    world = StateWorld(small_disk)
    acknowledged = -1

    def fill() -> None:
        nonlocal acknowledged
        with world.running() as run:
            for number in range(1000):
                run.record(recorded(number, "x" * 2000))
                acknowledged = number

    with pytest.raises(SbctlError) as caught:
        fill()
    assert caught.value.code in TYPED
    assert acknowledged > 5
    view = world.store().read()
    assert set(range(acknowledged + 1)) <= {int(key.scope.removeprefix("gpu-")) for key in view.resources}
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    world.applied(5000)
    world.store().verify()


def test_B14_a_read_only_disk_is_read_and_refused_for_writing(small_disk: Path) -> None:
    world = StateWorld(small_disk)
    world.applied(1)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert set(world.store().read().resources) == {address(1)}
    assert world.store().holder() is None
    with pytest.raises(SbctlError) as caught, world.running():
        pass
    assert caught.value.code == "disk.read_only"
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    world.applied(2)


TRACED = """
import sys
from pathlib import Path
from sbctl.base.errors import SbctlError
from tests.simulators.state_victim import play
from tests.simulators.state_world import StateWorld
world = StateWorld(Path(sys.argv[1]))
acks = open(sys.argv[2], "ab", buffering=0)
try:
    play(world, lambda _operation: acks.write(b"."))
except SbctlError as error:
    print(error.code)
"""


def traced_life(root: Path, injection: str, number: int) -> tuple[StateWorld, int, str]:
    world = StateWorld(root / str(number))
    world.directory.parent.mkdir()
    acks = root / f"{number}.acks"
    acks.touch()
    argv = [
        "strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64,fdatasync,fsync,ftruncate", "-e",
        f"inject={injection}:when={number}", sys.executable, "-c", TRACED, str(world.directory.parent), str(acks),
    ]  # fmt: skip
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=ROOT, env=environ, check=False, capture_output=True, text=True, timeout=120)
    return world, acks.stat().st_size, done.stdout.strip() or done.stderr[-300:]


@pytest.mark.skipif(shutil.which("strace") is None, reason="optional: strace is not installed")
@pytest.mark.parametrize(
    ("injection", "numbers"),
    [
        ("pwrite64:error=ENOSPC", (3, 40)),
        ("fdatasync:error=EIO", (2, 9)),
        ("fsync:error=ENOSPC", (1, 12)),
        ("pwrite64:signal=SIGKILL", (5, 60)),
        ("fdatasync:signal=SIGKILL", (4, 11)),
        pytest.param("pwrite64:error=ENOSPC", range(1, 200, 4), marks=pytest.mark.soak),
        pytest.param("pwrite64:signal=SIGKILL", range(2, 200, 4), marks=pytest.mark.soak),
        pytest.param("fdatasync:signal=SIGKILL", range(1, 40), marks=pytest.mark.soak),
        pytest.param("fdatasync:error=EIO", range(1, 40), marks=pytest.mark.soak),
    ],
)  # fmt: skip
def test_B1_B13_B14_the_kernel_itself_fails_or_kills_at_the_nth_call(
    tmp_path: Path, trace: list[object], injection: str, numbers: tuple[int, ...]
) -> None:
    for number in numbers:
        world, acknowledged, said = traced_life(tmp_path, injection, number)
        if "signal" not in injection and acknowledged < len(SCRIPT):
            assert said in TYPED, said
        check_survivor(world, trace, acknowledged)


def test_a_fence_that_could_not_be_written_catches_up(root: Path) -> None:
    world = StateWorld(root)
    with world.running(desired(1)) as run:
        with fs.use_ops(CountingFiles(1, strike_errno(errno.ENOSPC))), pytest.raises(SbctlError) as caught:
            run.record(recorded(1))
        assert caught.value.code == "disk.full"
        assert set(world.store().read().resources) == {address(1)}
        run.record(recorded(2))
        run.finish("applied")
    assert set(world.store().read().resources) == {address(1), address(2)}


def test_an_unknown_directory_sync_is_told_as_unknown(root: Path) -> None:
    world = StateWorld(root)
    world.applied(1)

    class LastSync(fs.FileOps):
        syncs = 0

        def fsync(self, fd: int) -> None:
            self.syncs += 1
            if self.syncs == 2:
                raise OSError(errno.EIO, "no")
            super().fsync(fd)

    with world.running() as run, fs.use_ops(LastSync()), pytest.raises(DurabilityUnknownError):
        run.record(recorded(2))
    assert set(world.store().read().resources) == {address(1), address(2)}
