"""What operators asked, joined from what several authorities know: in any order the same, and nothing that is newer is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.base.errors import RefusedError
from sbctl.node.actions_document import ACTIONS_MAX, OperatorAction
from sbctl.placement.operator_actions import NO_ACTIONS, OperatorActions


def _action(number: int, *, over: bool = False, authority: str = "a", at: int = 0) -> OperatorAction:
    return OperatorAction(number=number, by="ops", authority=authority, at_unix_ms=at, is_over=over)


_ACTIONS = st.builds(
    _action,
    st.integers(1, 4),
    over=st.booleans(),
    authority=st.sampled_from("ab"),
    at=st.integers(0, 2),
)
_KNOWN = st.builds(
    OperatorActions,
    st.dictionaries(st.sampled_from(("w1", "w2")), _ACTIONS),
    st.dictionaries(st.sampled_from(("w1", "w2")), _ACTIONS),
    st.dictionaries(st.just("q"), _ACTIONS),
)


@pytest.mark.flow
@settings(max_examples=60)
@given(_KNOWN, _KNOWN, _KNOWN)
def test_whatever_comes_first_all_authorities_come_to_the_same(
    one: OperatorActions, two: OperatorActions, three: OperatorActions
) -> None:
    assert one.joined(two) == two.joined(one)
    assert one.joined(two).joined(three) == one.joined(two.joined(three))
    assert one.joined(one) == one
    together = one.joined(two)
    for known in (one, two):
        for subject, action in known.evacuations.items():
            assert together.evacuations[subject].number >= action.number
    assert together.next_number > max((known.next_number - 1 for known in (one, two)), default=0)


def test_the_later_word_counts_and_an_end_beats_what_it_ended() -> None:
    asked = NO_ACTIONS.having("evacuations", "w1", _action(1))
    restored = asked.having("evacuations", "w1", _action(2, over=True))
    assert (set(asked.evacuated), set(restored.evacuated)) == ({"w1"}, set())
    assert restored.joined(asked) == restored
    assert asked.joined(NO_ACTIONS.having("evacuations", "w1", _action(1, over=True))).evacuated == frozenset()
    again = restored.having("evacuations", "w1", _action(restored.next_number))
    assert again.joined(restored).evacuated == {"w1"}
    assert NO_ACTIONS.having("retries", "q", _action(7)).tried_again == {"q": 7}
    assert NO_ACTIONS.having("losses", "w1", _action(1)).confirmed == {"w1"}


def test_what_is_over_longest_gives_way_and_what_is_in_force_never_does() -> None:
    full = OperatorActions(
        evacuations={f"w{number}": _action(number + 1, over=number < 2) for number in range(ACTIONS_MAX)}
    )
    more = full.having("evacuations", "x", _action(9999))
    assert len(more.evacuations) == ACTIONS_MAX
    assert "w0" not in more.evacuations
    more = more.having("evacuations", "y", _action(10_000))
    with pytest.raises(RefusedError) as caught:
        more.having("evacuations", "z", _action(10_001))
    assert caught.value.code == "cluster.too_many_actions"
