"""A plain scalar has one meaning, or is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.base.limits import JSON_INT_MAX
from sbctl.config.scalars import ScalarRefusedError, typed_scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("true", True),
        ("FALSE", False),
        ("yes", "yes"),
        ("off", "off"),
        ("0", 0),
        ("42", 42),
        ("-7", -7),
        (str(JSON_INT_MAX), JSON_INT_MAX),
        ("0.10", 0.1),
        ("1.", 1.0),
        ("-2.5e3", -2500.0),
        ("1e3", 1000.0),
        ("0.10.0", "0.10.0"),
        ("b9905", "b9905"),
        ("127.0.0.1", "127.0.0.1"),
        ("10.0.0.1:22", "10.0.0.1:22"),
        ("1:30", "1:30"),
        ("-", "-"),
        (".", "."),
        ("--threads", "--threads"),
        ("30m", "30m"),
        ("4_k_m", "4_k_m"),
        ("0" * 64, "0" * 64),
        ("12e" + "3" * 37, "12e" + "3" * 37),
    ],
)
def test_core_schema(text: str, value: object) -> None:
    result = typed_scalar(text)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("012", "number_refused"),
        ("1_000", "number_refused"),
        ("0x1f", "number_refused"),
        ("0o17", "number_refused"),
        ("+5", "number_refused"),
        (".5", "number_refused"),
        ("-0", "number_refused"),
        ("9007199254740992", "number_refused"),
        ("-9007199254740992", "number_refused"),
        ("9" * 5000, "number_refused"),
        ("1e999", "number_refused"),
        ("0." + "1" * 80, "number_refused"),
        (".inf", "number_refused"),
        ("-.INF", "number_refused"),
        (".NaN", "number_refused"),
        ("2026-01-01", "date_refused"),
        ("2026-01-01T10:00:00Z", "date_refused"),
    ],
)
def test_what_two_readers_would_read_differently_is_refused(text: str, code: str) -> None:
    with pytest.raises(ScalarRefusedError) as caught:
        typed_scalar(text)
    assert caught.value.code == code
    assert text not in caught.value.sentence


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_typed_or_refused(text: str) -> None:
    try:
        value = typed_scalar(text)
    except ScalarRefusedError:
        return
    assert value is None or isinstance(value, (str, int, float, bool))
