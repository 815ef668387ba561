"""When a store whose disk was full is started anew: with room, once in its life, less and less often."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import SbctlError
from sbctl.base.limits import MIB
from sbctl.runtime.nodeops.store_health import Health
from sbctl.runtime.store_keeper import Keeper, Restarts, room
from tests.simulators.fleet import ManualClock

WELL = Health("2.15.1", "c", "t", True, "a", frozenset(), frozenset(), None)
STUCK = replace(WELL, is_whole=False, problem="write error: no space left on device", is_stuck=True)
BEHIND = replace(WELL, is_whole=False, problem="JetStream is not current with the meta leader")


class World:
    """A server, its disk and its keeper; `pass_s` begins a new life of both after a restart."""

    def __init__(self, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data = data
        self.clock = ManualClock()
        self.health: Health | None = WELL
        self.free = 10_000 * MIB
        self.size = 20_000 * MIB
        self.said: list[str] = []
        self.looks = 0
        self.restarts: list[float] = []
        monkeypatch.setattr("sbctl.runtime.store_keeper.os.statvfs", self._statvfs)
        self.keeper = self._begin()

    def _statvfs(self, _path: Any) -> os.statvfs_result:
        return os.statvfs_result((4096, 4096, self.size // 4096, 0, self.free // 4096, 0, 0, 0, 0, 255))

    def _look(self) -> Health | None:
        self.looks += 1
        return self.health

    def _begin(self) -> Keeper:
        return Keeper(self.data, self._look, clock=self.clock, say=self.said.append)

    def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds / 15)):
            self.clock.advance(15)
            if self.keeper.is_due():
                self.restarts.append(self.clock.monotonic_s())
                self.keeper = self._begin()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.mark.parametrize("health", [WELL, BEHIND, None], ids=["well", "behind", "silent"])
def test_a_store_that_is_not_stuck_is_left_alone(world: World, health: Health | None) -> None:
    world.health = health
    world.pass_s(7200)
    assert (world.restarts, world.said, os.listdir(world.data)) == ([], [], [])


def test_a_full_disk_is_waited_for_without_a_question_to_the_server(world: World) -> None:
    world.health, world.free = STUCK, 10 * MIB
    world.pass_s(15)
    looked = world.looks
    world.pass_s(3600)
    assert (world.restarts, world.looks) == ([], looked)
    assert "no space left on device" in world.said[0]

    world.free = 65 * MIB
    world.pass_s(15)
    assert len(world.restarts) == 1
    assert Restarts.read(world.data).count == 1
    assert [path.name for path in world.data.iterdir()] == ["restarts.json"], "nothing of the try stays"


def test_a_store_that_is_stuck_again_and_again_is_started_less_and_less_often(world: World) -> None:
    world.health = STUCK
    world.pass_s(24 * 3600)
    gaps = [round(later - earlier) for earlier, later in zip(world.restarts, world.restarts[1:], strict=False)]
    assert gaps[:6] == [60, 120, 240, 480, 960, 1920]
    assert set(gaps[6:]) == {3600}


def test_an_hour_without_a_fault_forgets_what_was(world: World) -> None:
    world.health = STUCK
    world.pass_s(300)
    assert Restarts.read(world.data).count == 3
    world.health = WELL
    world.pass_s(3585)
    assert Restarts.read(world.data).count == 3
    world.pass_s(600)
    kept = Restarts.read(world.data)
    assert (kept.count, bool(kept.last_at)) == (0, True)


def test_a_disk_that_takes_nothing_has_no_room_whatever_it_says(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SbctlError("disk.quota", "the quota is used up")

    world.health = STUCK
    monkeypatch.setattr("sbctl.runtime.store_keeper.fs.write_atomic", refuse)
    world.pass_s(600)
    assert world.restarts == []


def test_a_small_filesystem_needs_a_quarter_of_itself(world: World) -> None:
    world.size, world.free = 100 * MIB, 24 * MIB
    assert room(world.data) == (24 * MIB, 25 * MIB)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"restarts": "x"}', '{"restarts": 1e999, "last_at": ""}', '{"restarts": -3}']
)
def test_a_memory_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "restarts.json").write_text(text)
    assert Restarts.read(tmp_path) == Restarts()
