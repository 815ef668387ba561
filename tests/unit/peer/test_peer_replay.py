"""The fence against a dispatch that comes twice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.base.errors import RefusedError
from sbctl.runtime.peer.replay import FENCE_ENTRIES, ReplayFence


def told(fence: ReplayFence, issuer: str, nonce: str, expires_ms: int, *, wall_ms: int, now_s: float) -> str:
    try:
        fence.accept(issuer, nonce, expires_at_unix_ms=expires_ms, now_unix_ms=wall_ms, now_s=now_s)
    except RefusedError as error:
        return error.code
    return "accepted"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["gw-a", "gw-b"]),
        st.integers(0, 5),
        st.integers(1, 30_000),
        st.integers(0, 12_000),
        st.integers(-60_000, 60_000),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_G13_whatever_the_clocks_do_nothing_is_accepted_twice_before_its_end_has_passed(
    steps: list[tuple[str, int, int, int, int]],
) -> None:
    """Each step: who, which nonce, how long it lives, how much later it comes, and a step of the wall clock before it."""
    fence, mono_ms, offset_ms = ReplayFence(8), 0, 0
    accepted: dict[tuple[str, str], int] = {}
    for issuer, number, lives_ms, later_ms, jump_ms in steps:
        mono_ms += later_ms
        offset_ms = max(0, offset_ms + jump_ms)
        wall_ms = 1_000_000 + mono_ms + offset_ms
        nonce = str(number)
        accepted = {key: ends_ms for key, ends_ms in accepted.items() if ends_ms >= wall_ms}
        before = accepted.get((issuer, nonce))
        expires_ms = wall_ms + lives_ms if before is None else before
        answer = told(fence, issuer, nonce, expires_ms, wall_ms=wall_ms, now_s=mono_ms / 1000)
        if before is not None:
            assert answer == "replay_detected"
        if answer == "accepted":
            accepted[issuer, nonce] = expires_ms
        assert len(fence) <= 8


@pytest.mark.parametrize(("jump_ms", "answer"), [(0, "replay_detected"), (-600_000, "replay_detected")])
def test_an_entry_outlives_a_step_of_the_wall_clock(jump_ms: int, answer: str) -> None:
    fence = ReplayFence()
    assert told(fence, "gw", "n", 10_000, wall_ms=0, now_s=0) == "accepted"
    assert told(fence, "gw", "n", 10_000, wall_ms=9_000 + jump_ms, now_s=9) == answer
    assert told(fence, "gw", "other", 30_000, wall_ms=11_000 + jump_ms, now_s=11) == "accepted"
    assert len(fence) == (1 if not jump_ms else 2)


def test_G17_its_size_is_bounded_and_it_empties_itself() -> None:
    fence = ReplayFence()
    share = FENCE_ENTRIES * 3 // 4
    for number in range(share):
        assert told(fence, "gw-a", str(number), 10_000, wall_ms=0, now_s=0) == "accepted"
    assert told(fence, "gw-a", "more", 10_000, wall_ms=0, now_s=0) == "replay_fence_full"
    for number in range(FENCE_ENTRIES - share):
        assert told(fence, "gw-b", str(number), 10_000, wall_ms=0, now_s=0) == "accepted"
    assert told(fence, "gw-c", "first", 10_000, wall_ms=0, now_s=0) == "replay_fence_full"
    assert told(fence, "gw-a", "0", 10_000, wall_ms=9_999, now_s=9.9) == "replay_detected"
    assert told(fence, "gw-c", "first", 30_000, wall_ms=10_001, now_s=10.1) == "accepted"
    assert len(fence) == 1
