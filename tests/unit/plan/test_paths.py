from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbctl.plan.paths import join_path, path_matches, split_path


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_any_segments_come_back_from_their_path(segments: list[str]) -> None:
    assert split_path(join_path(segments)) == tuple(segments)


@pytest.mark.parametrize(
    ("segments", "path"),
    [
        ((), ""),
        (("a", "b_c", 3), "a.b_c.3"),
        (("origins", "ai.internal", "models"), 'origins."ai.internal".models'),
        (('a"b',), '"a\\"b"'),
        (("",), '""'),
    ],
)
def test_a_path_reads_as_its_segments(segments: tuple[str | int, ...], path: str) -> None:
    assert join_path(segments) == path


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a", False),
        ("a.*.c", "a.b.c", True),
        ("a.**", "a", True),
        ("a.**", "a.b.c", True),
        ("a.**", "b", False),
        ("a.b.**", "a", False),
        ("**", "", True),
        ("", "", True),
        ("", "a", False),
        ('origins."ai.internal".*', 'origins."ai.internal".models', True),
        ("origins.*.models", 'origins."ai.internal".models', True),
    ],
)
def test_a_glob_names_one_segment_or_the_rest(glob: str, path: str, matches: bool) -> None:
    assert path_matches(glob, path) is matches
