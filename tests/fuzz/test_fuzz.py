"""Every door, knocked at: what was found once stays found, and damaged copies of good inputs are taken or refused, never answered by a defect.

make test     the kept corpus, then some hundred mutants of a fixed seed for each door
make soak     minutes for each, from a seed of the day, which a failure names
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import structlog

from tests.fuzz.door import CORPUS, Door
from tests.fuzz.doors import DOORS, WANTED
from tests.fuzz.mutation import mutants

SOAK_S = 120.0


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Refusals are the point here, and there are thousands."""
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(wrapper_class=before)


def knock(door: Door, folder: Path, inputs: Iterable[bytes]) -> None:
    with door.open(folder) as call:
        for number, data in enumerate(inputs):
            try:
                door.knock(call, data)
            except BaseException:
                print(f"{door.name}, input {number}: {data[:2000]!r}")
                raise


def seeds_of(door: Door) -> list[bytes]:
    return [*door.seeds(), *(path.read_bytes() for path in door.corpus())]


def test_each_door_that_is_wanted_has_a_fuzzer_and_a_kept_corpus() -> None:
    named = set(itertools.chain.from_iterable(WANTED.values()))
    assert named == set(DOORS), "one list: doors.WANTED names each door once and no other"
    assert {door.name for door in DOORS.values() if not list(door.corpus())} == set()
    kept = {path for door in DOORS.values() for path in door.corpus()}
    assert sorted(path.name for path in CORPUS.rglob("*") if path.is_file() and path not in kept) == []


@pytest.mark.parametrize("name", list(DOORS))
def test_good_inputs_are_taken(name: str, tmp_path: Path) -> None:
    """Else the mutants of a seed would be refused at the first step, and nothing behind it be reached."""
    door = DOORS[name]
    with door.open(tmp_path) as call:
        taken = 0
        for seed in door.seeds():
            try:
                call(seed)
                taken += 1
            except door.refusals:
                continue
        assert taken


@pytest.mark.parametrize("name", list(DOORS))
def test_what_is_kept_and_what_is_made_of_it(name: str, tmp_path: Path) -> None:
    door = DOORS[name]
    seeds = seeds_of(door)
    knock(
        door, tmp_path, itertools.chain(seeds, itertools.islice(mutants(seeds, random.Random(20261130)), door.rounds))
    )


@pytest.mark.soak
@pytest.mark.parametrize("name", list(DOORS))
def test_for_minutes(name: str, tmp_path: Path) -> None:
    door, seed = DOORS[name], random.randrange(2**32)
    print(f"seed {seed}")
    end_s = time.monotonic() + SOAK_S
    inputs = mutants(seeds_of(door), random.Random(seed))
    knock(door, tmp_path, itertools.takewhile(lambda _data: time.monotonic() < end_s, inputs))
