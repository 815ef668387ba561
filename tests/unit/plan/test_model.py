from __future__ import annotations

from sbctl.plan.model import UNKNOWN, Unknown


def test_an_unknown_value_equals_only_one_with_the_same_reason() -> None:
    assert Unknown("after bootstrap") == UNKNOWN
    assert Unknown("after the first pull") != UNKNOWN
    assert UNKNOWN != "after bootstrap"
    assert len({UNKNOWN, Unknown("after bootstrap")}) == 1
    assert repr(UNKNOWN) == "(known after bootstrap)"
