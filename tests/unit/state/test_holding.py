"""The lock on a state, and what the one who waits is told."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from sbctl.base.errors import ExitCode, LockedError
from sbctl.base.flock import FileLock
from sbctl.state.holding import read_holder
from tests.simulators.state_world import StateWorld


def test_B2_the_second_writer_is_told_who_holds_the_state(world: StateWorld) -> None:
    world.applied(1)
    with world.locked("apply"), pytest.raises(LockedError) as caught, world.locked():
        pass
    error = caught.value
    assert (error.code, error.exit_code, error.retryable) == ("state.locked", ExitCode.LOCKED, True)
    assert error.message == "the state is locked by ops@desk (pid 4711, apply) since 2026-11-29T12:00:00Z"
    assert error.detail == {"who": "ops@desk", "pid": 4711, "command": "apply", "since": "2026-11-29T12:00:00Z"}
    assert "--lock-timeout" in (error.next_step or "")


def test_before_the_first_state_the_holder_has_no_name_yet(world: StateWorld) -> None:
    with world.locked(), pytest.raises(LockedError, match="locked by another sbctl"), world.locked():
        pass


def test_the_first_apply_says_who_it_is_as_soon_as_there_is_a_state(world: StateWorld) -> None:
    with world.locked("apply") as store:
        store.create("fleet")
        with pytest.raises(LockedError, match="ops@desk"), world.locked():
            pass


def test_the_wait_is_as_long_as_asked(world: StateWorld) -> None:
    begun_s = world.clock.monotonic_s()
    with world.locked(), pytest.raises(LockedError), world.store().lock(world.info(), 60):
        pass
    assert 60 <= world.clock.monotonic_s() - begun_s < 61


def test_a_lock_that_becomes_free_in_time_is_taken(world: StateWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.directory.mkdir(mode=0o700)
    other = FileLock(world.paths.lock)
    assert other.try_acquire()
    slept: list[float] = []

    def sleep_s(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            other.release()

    monkeypatch.setattr(world.clock, "sleep_s", sleep_s)
    with world.store().lock(world.info(), 60):
        assert slept == [0.1, 0.2, 0.4]


def test_holder_names_the_one_who_holds_and_nobody_else(world: StateWorld) -> None:
    assert world.store().holder() is None
    world.applied(1)
    assert world.store().holder() is None
    with world.locked("destroy"):
        held = world.store().holder()
        assert held is not None
        assert (held.who, held.command, held.since) == ("ops@desk", "destroy", world.clock.now())
    assert world.store().holder() is None
    assert read_holder(world.paths) is None


def test_a_holder_without_a_row_is_still_a_holder(world: StateWorld) -> None:
    with world.locked():
        held = world.store().holder()
        assert held is not None
        assert held.who == "unknown"


@pytest.mark.parametrize("body", [b"{}", b"[]", b"\xff", b'{"who":"a","pid":"x","command":"c","since":"never"}'])
def test_a_holder_row_that_makes_no_sense_is_no_holder(world: StateWorld, body: bytes) -> None:
    world.applied(1)
    with contextlib.closing(sqlite3.connect(world.paths.database)) as connection, connection:
        connection.execute("INSERT INTO holder (id, body) VALUES (1, ?)", (body,))
    assert read_holder(world.paths) is None


def test_terminal_codes_in_a_holders_name_are_shown_harmless(world: StateWorld) -> None:
    world.applied(1)
    info = type(world.info())("a\x1b[2Jb", 1, "apply", world.clock.now())
    with world.store().lock(info, 0), pytest.raises(LockedError) as caught, world.locked():
        pass
    assert "\x1b" not in str(caught.value)


def test_a_damaged_state_can_be_locked(world: StateWorld) -> None:
    world.applied(1)
    world.paths.database.write_bytes(b"garbage" * 1000)
    with world.locked() as store:
        assert store.exists()


def test_the_lock_file_is_never_renamed_or_removed(world: StateWorld) -> None:
    world.applied(1)
    inode = world.paths.lock.stat().st_ino
    world.applied(2)
    assert world.paths.lock.stat().st_ino == inode


def test_what_a_crash_left_under_temporary_names_is_swept(world: StateWorld) -> None:
    world.applied(1)
    left = world.directory / ".sbctl-tmp-0123456789abcdef"
    left.write_bytes(b"half")
    with world.locked():
        assert left.exists() or world.clock.now().timestamp() - left.stat().st_mtime > 3600
    world.clock.sleep_s(400 * 24 * 3600)
    with world.locked():
        assert not left.exists()
