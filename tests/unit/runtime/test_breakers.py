"""When an external provider and its keys are left alone."""

from __future__ import annotations

from sbctl.runtime.external.breakers import Breaker, Desk


def test_three_failures_in_a_row_are_a_rest_that_doubles_and_ends_with_one_trial() -> None:
    breaker, now_s = Breaker(), 0.0
    breaker.failed(now_s)
    breaker.failed(now_s)
    breaker.succeeded()
    for _ in range(3):
        assert breaker.admits(now_s)
        breaker.failed(now_s)
    for rest_s in (10, 20, 40, 80, 160, 300, 300):
        assert not breaker.admits(now_s + rest_s - 0.1)
        now_s += rest_s
        assert breaker.admits(now_s), rest_s
        assert not breaker.admits(now_s), "one trial at a time"
        breaker.failed(now_s)
    now_s += 300
    assert breaker.admits(now_s)
    breaker.succeeded()
    assert all(breaker.admits(now_s) for _ in range(3))


def test_a_trial_that_says_nothing_lets_the_next_one_try() -> None:
    breaker = Breaker()
    for _ in range(3):
        breaker.failed(0)
    assert breaker.admits(10)
    breaker.abandoned()
    assert breaker.admits(10)


def test_keys_rest_each_for_itself() -> None:
    desk = Desk(["a", "b", "c"])
    desk.limited("a", 0, 30)
    desk.refused("b", 0)
    assert desk.keys(0) == ["c"]
    desk.limited("c", 0, None)
    assert desk.keys(9.9) == []
    assert desk.keys(10) == ["c"]
    assert desk.keys(30) == ["a", "c"]
    assert desk.keys(300) == ["a", "b", "c"]


def test_an_exchanged_key_is_tried_at_once() -> None:
    desk = Desk(["a", "b"])
    desk.refused("a", 0)
    desk.renew("a")
    desk.renew("unknown")
    assert desk.keys(0) == ["a", "b"]


def test_a_provider_cannot_ask_for_a_rest_without_end_or_for_none() -> None:
    desk = Desk(["a"])
    desk.limited("a", 0, 10**9)
    assert desk.keys(3599) == []
    assert desk.keys(3600) == ["a"]
    desk.limited("a", 0, -5)
    assert desk.keys(0.5) == []
    assert Desk([]).keys(0) == [None], "a provider without keys is asked without one"
