"""A database in two files: damage of one loses nothing, damage of both is told, a disk that takes no write stops no read."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from sbctl.base import fs
from sbctl.base.errors import SbctlError
from sbctl.runtime.cluster.twin_files import Schema, TwinFiles
from tests.simulators.state_world import fast_directory

SCHEMA = Schema(
    3, {"mark": "name TEXT PRIMARY KEY, epoch INTEGER NOT NULL, said TEXT"}, first=(("mark", ("a", 1, None)),)
)
ROWS = [("a", 7, "one"), ("b", 8, None)]


def refused(error: Exception) -> SbctlError:
    return SbctlError("cluster.state_not_written", str(error), retryable=True)


@pytest.fixture
def root() -> Iterator[Path]:
    with fast_directory() as path:
        yield path


def twin(root: Path) -> TwinFiles:
    return TwinFiles(root / "one.db", root / "two.db", SCHEMA, refused=refused)


def written(root: Path) -> None:
    with twin(root) as files:
        with files.transaction() as db:
            db.put("mark", ROWS[:1])
        with files.transaction() as db:
            db.put("mark", ROWS[1:])


def shown(files: TwinFiles) -> list[tuple[object, ...]]:
    return files.rows("SELECT name, epoch, said FROM mark ORDER BY name")


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(b"one") + 1
    data[at] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def statement(sql: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(sql)

    return change


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped bit": flipped,
    "cut short": cut,
    "emptied": lambda path: path.write_bytes(b""),
    "noise": lambda path: path.write_bytes(os.urandom(20_000)),
    "gone": Path.unlink,
    "an older version": statement("PRAGMA user_version=1"),
    "a newer version": statement("PRAGMA user_version=9"),
    "a mark that was lowered": statement("UPDATE mark SET epoch = 1"),
    "a table less": statement("DROP TABLE mark"),
}


@pytest.mark.parametrize("name", ["one.db", "two.db"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_of_one_file_loses_nothing_and_is_mended(
    root: Path, damage: Callable[[Path], object], name: str
) -> None:
    written(root)
    damage(root / name)
    with twin(root) as files:
        assert (shown(files), files.lost, files.not_written) == (ROWS, "", "")
        with files.transaction() as db:
            db.put("mark", [("c", 9, "more")])
    (root / ("two.db" if name == "one.db" else "one.db")).unlink()
    with twin(root) as files:
        assert shown(files) == [*ROWS, ("c", 9, "more")]
    assert (root / f"{name}.damaged").exists() == (damage is not Path.unlink)


@pytest.mark.parametrize("damage", [each for each in DAMAGE.values() if each is not Path.unlink])
def test_damage_of_both_is_told_and_nothing_is_taken_until_somebody_acts(
    root: Path, damage: Callable[[Path], object]
) -> None:
    written(root)
    for name in ("one.db", "two.db"):
        damage(root / name)
    before = (root / "one.db").read_bytes()
    for _ in range(2):
        with twin(root) as files:
            assert "one.db: " in files.lost
            assert "two.db: " in files.lost
            assert shown(files) == [("a", 1, None)]
            with pytest.raises(SbctlError), files.transaction() as db:
                db.put("mark", ROWS)
    assert (root / "one.db").read_bytes() == before


def test_no_single_flipped_bit_changes_what_is_read(root: Path) -> None:
    written(root)
    whole = (root / "one.db").read_bytes()
    chance = random.Random(7)
    for _ in range(150):
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        (root / "one.db").write_bytes(data)
        with twin(root) as files:
            assert (shown(files), files.lost) == (ROWS, "")


def test_of_two_that_a_crash_left_apart_the_one_ahead_counts(root: Path) -> None:
    written(root)
    older = (root / "one.db").read_bytes()
    with twin(root) as files, files.transaction() as db:
        db.put("mark", [("c", 9, None)])
    (root / "one.db").write_bytes(older)
    with twin(root) as files:
        assert shown(files) == [*ROWS, ("c", 9, None)]
    assert not list(root.glob("*.damaged"))


def test_nothing_of_a_block_that_fails_stays(root: Path) -> None:
    with twin(root) as files:
        with pytest.raises(ZeroDivisionError), files.transaction() as db:
            db.put("mark", [*ROWS, ("c", 1 // 0, None)])
        assert shown(files) == [("a", 1, None)]
        with pytest.raises(SbctlError), files.transaction() as db:
            db.put("mark", [("a", None, None)])
        with files.transaction() as db:
            db.put("mark", ROWS)
    with twin(root) as files:
        assert shown(files) == ROWS


def test_a_file_that_goes_while_it_is_used_is_made_anew_from_memory(root: Path) -> None:
    written(root)
    with twin(root) as files:
        files._end("as after a failed write")
        for name in ("one.db", "two.db"):
            (root / name).write_bytes(b"damaged while the node ran")
        with files.transaction() as db:
            db.put("mark", [("c", 9, None)])
    with twin(root) as files:
        assert shown(files) == [*ROWS, ("c", 9, None)]


def mounted(place: Path, *options: str) -> bool:
    return subprocess.run(["mount", *options, str(place)], capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or not mounted(place, "-t", "tmpfs", "-o", "size=256k", "twin"):
        pytest.skip("a disk of its own needs root and the right to mount")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def test_what_a_read_only_disk_has_is_read_and_what_comes_later_is_refused(small_disk: Path) -> None:
    written(small_disk)
    assert mounted(small_disk, "-o", "remount,ro")
    with twin(small_disk) as files:
        assert (shown(files), files.lost, bool(files.not_written)) == (ROWS, "", True)
        with pytest.raises(SbctlError, match="written"), files.transaction() as db:
            db.put("mark", [("c", 9, None)])
        assert shown(files) == ROWS
        assert mounted(small_disk, "-o", "remount,rw")
        with files.transaction() as db:
            db.put("mark", [("c", 9, None)])
        assert files.not_written == ""
    with twin(small_disk) as files:
        assert shown(files) == [*ROWS, ("c", 9, None)]


def test_what_a_full_disk_has_is_read_and_writes_go_on_once_there_is_room(small_disk: Path) -> None:
    written(small_disk)
    full = small_disk / "full"
    fd = os.open(full, os.O_WRONLY | os.O_CREAT)
    with suppress(OSError):
        while os.write(fd, b"x" * 4096):
            pass
    os.close(fd)
    with twin(small_disk) as files:
        assert (shown(files), files.lost) == (ROWS, "")
        with pytest.raises(SbctlError), files.transaction() as db:
            db.put("mark", [("c", 9, "x" * 50_000)])
        assert shown(files) == ROWS
        fs.remove_file(full)
        with files.transaction() as db:
            db.put("mark", [("c", 9, "x" * 5_000)])
    with twin(small_disk) as files:
        assert len(shown(files)) == 3


class _Torn(sqlite3.Connection):
    """Reads well while it is looked at, and no more after."""

    def backup(self, *_: object, **__: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")


def torn(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    def opening(path: Path) -> sqlite3.Connection:
        factory = _Torn if path.name in names else sqlite3.Connection
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=factory)

    monkeypatch.setattr("sbctl.runtime.cluster.twin_files.opened", opening)


def test_a_file_that_breaks_while_it_is_read_leaves_the_other_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(root)
    torn(monkeypatch, "one.db")
    with twin(root) as files:
        assert (shown(files), files.lost) == (ROWS, "")


def test_files_that_both_break_while_they_are_read_are_lost_and_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(root)
    torn(monkeypatch, "one.db", "two.db")
    with twin(root) as files:
        assert "disk I/O error" in files.lost
        assert shown(files) == [("a", 1, None)]
        with pytest.raises(SbctlError), files.transaction():
            pass


def test_what_is_in_memory_outlives_files_that_break_later(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(root)
    with twin(root) as files:
        files._end("a write failed")
        torn(monkeypatch, "one.db", "two.db")
        assert shown(files) == ROWS
        with suppress(SbctlError), files.transaction() as db:
            db.put("mark", [("c", 1, None)])
        assert [row for row in shown(files) if row[0] != "c"] == ROWS
        assert files.lost == ""
