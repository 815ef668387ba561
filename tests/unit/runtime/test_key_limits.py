"""What a key may do a minute, how it is told, and that what is not used comes back."""

from __future__ import annotations

import pytest

from sbctl.base.errors import RefusedError
from sbctl.runtime.key_limits import KeyLimits
from sbctl.trust.bundle import ApiKeyEntry


def _key(requests: int | None = None, tokens: int | None = None) -> ApiKeyEntry:
    return ApiKeyEntry(sha256="0" * 64, requests_per_minute=requests, tokens_per_minute=tokens)


def _refusal(work: object) -> tuple[str, float]:
    with pytest.raises(RefusedError) as caught:
        work()  # type: ignore[operator]
    return caught.value.code, round(float(caught.value.detail["retry_after_s"]), 3)


def test_requests_a_minute_refill_evenly() -> None:
    limits, key = KeyLimits(), _key(60)
    for _ in range(60):
        limits.take("app", key, now_s=0)
    assert _refusal(lambda: limits.take("app", key, now_s=0)) == ("rate_limited", 1.0)
    limits.take("app", key, now_s=1.01)
    assert _refusal(lambda: limits.take("app", key, now_s=1.02))[0] == "rate_limited"
    limits.take("other", _key(1), now_s=1.02)


def test_a_key_without_limits_is_never_refused_and_told_nothing() -> None:
    limits, key = KeyLimits(), _key()
    for _ in range(1000):
        limits.take("app", key, now_s=0)
        assert limits.reserve("app", key, 10**9, now_s=0) == 0
    assert limits.lines("app", key, now_s=0) == ""


@pytest.mark.parametrize(
    ("estimate", "used", "left"),
    [(40, 40, 60), (40, 10, 90), (40, 0, 100), (40, 95, 5), (40, 300, 0), (5000, 100, 0), (5000, 20, 80)],
    ids=["as_estimated", "less", "refused", "more", "debt", "more_than_a_minute", "large_bound_small_answer"],
)
def test_an_estimate_is_settled_by_what_was_used(estimate: int, used: int, left: int) -> None:
    limits, key = KeyLimits(), _key(tokens=100)
    reserved = limits.reserve("app", key, estimate, now_s=0)
    assert reserved == min(estimate, 100)
    limits.settle("app", key, reserved=reserved, used=used, now_s=0)
    assert f"x-ratelimit-remaining-tokens: {left}\r\n" in limits.lines("app", key, now_s=0)


def test_a_debt_is_waited_for() -> None:
    limits, key = KeyLimits(), _key(tokens=60)
    limits.settle("app", key, reserved=limits.reserve("app", key, 1, now_s=0), used=120, now_s=0)
    assert _refusal(lambda: limits.reserve("app", key, 10, now_s=0)) == ("rate_limited", 70.0)
    assert limits.reserve("app", key, 10, now_s=70.5) == 10


def test_more_than_a_minute_s_tokens_wait_for_a_full_bucket_and_not_for_ever() -> None:
    limits, key = KeyLimits(), _key(tokens=60)
    limits.reserve("app", key, 30, now_s=0)
    assert _refusal(lambda: limits.reserve("app", key, 10**6, now_s=0)) == ("rate_limited", 30.0)
    assert limits.reserve("app", key, 10**6, now_s=30) == 60


def test_headers_say_limit_rest_and_when_all_is_back() -> None:
    limits, key = KeyLimits(), _key(60, 600)
    limits.take("app", key, now_s=0)
    limits.reserve("app", key, 100, now_s=0)
    assert limits.lines("app", key, now_s=0).split("\r\n") == [
        "x-ratelimit-limit-requests: 60",
        "x-ratelimit-remaining-requests: 59",
        "x-ratelimit-reset-requests: 1.000s",
        "x-ratelimit-limit-tokens: 600",
        "x-ratelimit-remaining-tokens: 500",
        "x-ratelimit-reset-tokens: 10.000s",
        "",
    ]


def test_a_limit_that_a_reload_changed_holds_at_once() -> None:
    limits = KeyLimits()
    limits.take("app", _key(100), now_s=0)
    limits.take("app", _key(1), now_s=0)
    assert _refusal(lambda: limits.take("app", _key(1), now_s=0))[0] == "rate_limited"


def test_G22_what_is_remembered_of_keys_is_bounded() -> None:
    limits = KeyLimits()
    for number in range(10_050):
        limits.take(f"key-{number}", _key(1), now_s=0)
    limits.take("key-0", _key(1), now_s=0)
    assert _refusal(lambda: limits.take("key-10049", _key(1), now_s=0))[0] == "rate_limited"
