"""Whoever tries passwords waits longer and longer, also when he has one of his own."""

from __future__ import annotations

import pytest

from sbctl.base.errors import RefusedError
from sbctl.runtime.guessing import Guessing


def _waits(guessing: Guessing, now_s: float, source: str = "10.0.0.1") -> bool:
    try:
        guessing.check(source, now_s=now_s)
    except RefusedError:
        return True
    return False


def test_the_wait_doubles_from_the_fifth_failure_and_ends_at_a_minute() -> None:
    guessing, now_s, waits = Guessing(), 0.0, []
    for _ in range(14):
        guessing.failed("10.0.0.1", "admin", now_s=now_s)
        began_s = now_s
        while _waits(guessing, now_s):
            now_s += 1
        waits.append(now_s - began_s)
    assert waits == [0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert not _waits(guessing, 0, source="10.0.0.2")


@pytest.mark.parametrize("victim", ["admin", ""], ids=["another account", "names that nobody has"])
def test_G1_a_password_of_ones_own_does_not_pay_for_guesses_at_anothers(victim: str) -> None:
    guessing, guesses = Guessing(), 0
    for _ in range(100):
        if not _waits(guessing, 0):
            guessing.failed("10.0.0.1", victim, now_s=0)
            guesses += 1
            guessing.succeeded("10.0.0.1", "viewer")
    assert guesses == 5


def test_who_mistyped_and_then_got_it_right_starts_anew() -> None:
    guessing = Guessing()
    for _ in range(3):
        for _ in range(4):
            guessing.failed("10.0.0.1", "ops", now_s=0)
        guessing.succeeded("10.0.0.1", "ops")
    assert not _waits(guessing, 0)


def test_failures_are_forgotten_in_time_and_sources_are_bounded() -> None:
    guessing = Guessing()
    for hour in range(20):
        guessing.failed("10.0.0.1", "", now_s=hour * 3600)
        assert not _waits(guessing, hour * 3600)
    for number in range(5000):
        guessing.failed(f"source {number}", "", now_s=0)
    assert len(guessing._sources) == 1024
