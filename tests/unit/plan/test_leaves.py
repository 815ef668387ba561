from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbctl.plan.leaves import LEAF_MAX_CHARS, LEAF_MAX_COUNT, LEAF_MAX_ITEMS, leaf_changes
from sbctl.plan.model import UNKNOWN, Unknown

Pair = tuple[Any, Any]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1}, {"a": 2}, {"a": (1, 2)}),
        ({"a": 1}, {"a": 1.0}, {}),
        ({"a": 1}, {"a": True}, {"a": (1, True)}),
        ({"a": None}, {"a": 0}, {"a": (None, 0)}),
        ({"a": 1}, {}, {"a": (1, None)}),
        ({}, {"a": {"b": 1, "c": [1]}}, {"a.b": (None, 1), "a.c": (None, [1])}),
        ({"a": {"b": 1}}, {"a": {}}, {"a.b": (1, None)}),
        ({"a": {"b": 1}}, {"a": 3}, {"a": ({"b": 1}, 3)}),
        ({"a": [1, 2]}, {"a": [2, 1]}, {"a": ([1, 2], [2, 1])}),
        ({"a": [1]}, {"a": [{"x": 1}]}, {"a": ([1], [{"x": 1}])}),
        ({"a": [[1], {"x": 1}]}, {"a": [[1], {"x": 2}, [3]]}, {"a.1.x": (1, 2), "a.2": (None, [3])}),
        ({"f": [{"id": "x", "v": 1}]}, {"f": [{"id": "y", "v": 9}, {"id": "x", "v": 2}]},
         {"f.x.v": (1, 2), "f.y.id": (None, "y"), "f.y.v": (None, 9)}),
        ({"f": [{"path": "p", "v": 1}]}, {"f": []}, {"f.p.path": ("p", None), "f.p.v": (1, None)}),
        ({"a": "x\ny"}, {"a": "x\nz"}, {"a": ("x\ny", "x\nz")}),
        ({"a": (1, 2)}, {"a": [1, 2]}, {}),
        ({"__class__": 1, "it's \"q\"": 1}, {"__class__": 2, "it's \"q\"": 2}, {"__class__": (1, 2), '"it\'s \\"q\\""': (1, 2)}),
        ({"a": []}, {"a": [{"username": "ann", "role": "admin"}]},
         {"a.ann.role": (None, "admin"), "a.ann.username": (None, "ann")}),
        ({"a": {}}, {"a": {"k": {"x": None, "y": 1}}}, {"a.k.y": (None, 1)}),
        ({"a": {}}, {"a": {"k": {"x": None}}}, {"a.k.x": (None, None)}),
        (None, {"a": {"b": 1}}, {"a.b": (None, 1)}),
        ({"a": {}, "c": [[1]]}, None, {"a": ({}, None), "c.0": ([1], None)}),
    ],
)  # fmt: skip
def test_leaves_are_the_values_that_differ(before: Any, after: Any, expected: dict[str, Pair]) -> None:
    leaves = leaf_changes(before, after)
    assert {leaf.path: (leaf.before, leaf.after) for leaf in leaves} == expected
    assert [leaf.path for leaf in leaves] == sorted(leaf.path for leaf in leaves)


def test_what_cannot_be_known_yet_is_a_leaf() -> None:
    (leaf,) = leaf_changes({"a": "x"}, {"a": UNKNOWN})
    assert leaf.after == UNKNOWN
    assert leaf_changes({"a": UNKNOWN}, {"a": UNKNOWN}) == ()
    assert leaf_changes({"a": UNKNOWN}, {"a": Unknown("after the first pull")})


def test_the_first_matching_reason_is_given() -> None:
    leaves = leaf_changes({"a": {"b": 1}, "c": 1}, {"a": {"b": 2}, "c": 2}, reasons={"a.*": "because", "**": "else"})
    assert [leaf.reason for leaf in leaves] == ["because", "else"]


def test_credentials_are_masked_in_any_position() -> None:
    token = "hf_abcdefghijklmnop"
    leaves = leaf_changes({"a": 1}, {"a": token, "b": [token], "c": {"d": [{"e": [token]}]}})
    assert token not in repr(leaves)


def test_more_leaves_than_anybody_reads_are_counted() -> None:
    leaves = leaf_changes({}, {f"k{index:05}": index for index in range(LEAF_MAX_COUNT * 3)})
    assert len(leaves) == LEAF_MAX_COUNT + 1
    assert [leaf.path for leaf in leaves[:2]] == ["k00000", "k00001"]
    assert leaves[-1].path == ""
    assert "more values differ" in leaves[-1].reason
    assert len(leaf_changes(None, {f"k{index}": index for index in range(LEAF_MAX_COUNT * 3)})) == LEAF_MAX_COUNT + 1


def test_long_values_keep_their_beginning_and_still_differ() -> None:
    text = "x" * (LEAF_MAX_CHARS * 2)
    (leaf,) = leaf_changes({"a": text + "1"}, {"a": text + "2"})
    assert len(leaf.before) < LEAF_MAX_CHARS + 80
    assert leaf.before != leaf.after
    (items,) = leaf_changes({"a": list(range(LEAF_MAX_ITEMS + 5))}, {"a": []})
    assert items.before[-1] == "… (5 more)"


def test_objects_that_are_no_json_are_compared_by_their_text() -> None:
    (leaf,) = leaf_changes({"a": frozenset({1})}, {"a": frozenset({2})})
    assert (leaf.before, leaf.after) == ("frozenset({1})", "frozenset({2})")


def test_deepdiff_is_only_loaded_when_something_differs() -> None:
    code = (
        "import sys; from sbctl.plan.leaves import leaf_changes as f; f({'a':1},{'a':1}); f(None,{'a':1});"
        "print('deepdiff' in sys.modules); f({'a':1},{'a':2}); print('deepdiff' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=4), _json, max_size=4), st.dictionaries(st.text(max_size=4), _json, max_size=4))
def test_leaves_exist_exactly_when_two_specs_differ(before: dict[str, Any], after: dict[str, Any]) -> None:
    from sbctl.base.digests import fingerprint

    leaves = leaf_changes(before, after)
    assert bool(leaves) == (fingerprint(before) != fingerprint(after))
    assert all(leaf.before is not None or leaf.after is not None for leaf in leaves) or _null_appears(before, after)


def _null_appears(before: Any, after: Any) -> bool:
    return "None" in repr((before, after))


@pytest.mark.parametrize("depth", [14, 15, 16, 40])
def test_what_lies_deeper_than_anybody_reads_is_named_by_a_digest(depth: int) -> None:
    def nested(last: Any) -> dict[str, Any]:
        value: Any = {"last": last, "list": [1, 2]}
        for level in range(depth):
            value = [value] if level % 2 else {"k": value}
        return {"deep": value}

    (leaf,) = leaf_changes(nested(1), nested(2))
    assert leaf.before != leaf.after
    assert ("sha256" in str(leaf.before)) is (depth > 14)
    assert leaf_changes(nested(1), nested(1)) == ()
