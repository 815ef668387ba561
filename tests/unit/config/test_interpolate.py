"""`${VAR}`: one pass, after parsing, typed when it is the whole scalar."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.config.interpolate import Variables, expanded, variables_in

ENV = {
    "PORT": "8081",
    "NAME": "a",
    "EMPTY": "",
    "YES": "true",
    "NESTED": "${NAME}",
    "ZIP": "00123",
    "LINE": "a\nb",
    "BELL": "\a",
}


def one(text: str, *layers: dict[str, object]) -> object:
    result = expanded({"k": text}, Variables((*layers, ENV)))  # type: ignore[arg-type]
    assert not result.problems
    return result.value["k"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("${PORT}", 8081),
        ("${YES}", True),
        ("x${PORT}", "x8081"),
        ("${NAME}-${PORT}", "a-8081"),
        ("${NOPE:-5}", 5),
        ("${NOPE:-}", None),
        ("${EMPTY:-dflt}", "dflt"),
        ("${EMPTY}", None),
        ("${NOPE:-/var/lib}/x", "/var/lib/x"),
        ("$${NAME}", "${NAME}"),
        ("a $${b} ${NAME}", "a ${b} a"),
        ("${NESTED}", "${NAME}"),
        ("${ZIP}", "00123"),
        ("$NAME", "$NAME"),
        ("${LINE}", "a\nb"),
    ],
)
def test_expansion(text: str, value: object) -> None:
    assert one(text) == value


def test_vars_come_before_the_environment_and_keep_their_type() -> None:
    assert one("${PORT}", {"PORT": 9}) == 9
    assert one("p${PORT}-${B}", {"PORT": 9, "B": True}) == "p9-true"
    assert one("x${N}", {"N": None}) == "x"
    assert one("x${B}", {"B": False}) == "xfalse"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("${NOPE}", "config.unset_variable", "NOPE is not set"),
        ("${NAME", "config.bad_variable", "written ${NAME}"),
        ("${1A}", "config.bad_variable", "written ${NAME}"),
        ("${NAME-x}", "config.bad_variable", "written ${NAME}"),
        ("${A:-${B}}", "config.bad_variable", "no braces"),
        ("${BELL}", "config.bad_variable", "control character"),
    ],
)
def test_problems(text: str, code: str, words: str) -> None:
    result = expanded({"k": [text]}, Variables((ENV,)))
    assert result.value == {"k": [None]}
    ((path, found, sentence),) = result.problems
    assert (path, found) == (("k", 0), code)
    assert words in sentence


def test_a_value_cannot_grow_without_bound() -> None:
    result = expanded("${A}" * 10, Variables(({"A": "x" * 10_000},)))
    assert "longer than" in result.problems[0][2]


def test_texts_keep_the_text_of_retyped_scalars() -> None:
    result = expanded({"a": "${PORT}", "b": "x${PORT}"}, Variables((ENV,)))
    assert result.texts == {("a",): "8081"}


def test_names_of_variables() -> None:
    assert variables_in({"a": ["${A}", {"b": "x${B:-c}"}], "n": 1, "bad": "${1}", "esc": "$${C}"}) == {"A", "B"}


@settings(deadline=None)
@given(st.text(max_size=60))
def test_never_raises_and_never_expands_twice(text: str) -> None:
    result = expanded(text, Variables(({"X": "${X}${Y}"},)))
    assert result.problems or isinstance(result.value, (str, int, float, bool, type(None)))
