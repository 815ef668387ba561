"""A defect is reported with the line of ours that it came through, never with a value."""

from __future__ import annotations

import re

import pytest

from sbctl.base.defects import where_it_failed
from sbctl.base.digests import sha256_bytes


def test_a_defect_names_the_innermost_line_of_ours_and_no_value() -> None:
    with pytest.raises(TypeError) as caught:
        sha256_bytes("hunter2")  # type: ignore[arg-type]
    assert re.fullmatch(r"TypeError at sbctl/base/digests\.py:\d+", where_it_failed(caught.value))


def test_an_error_that_never_came_through_our_code_is_its_kind_alone() -> None:
    assert where_it_failed(ValueError("hunter2")) == "ValueError"
