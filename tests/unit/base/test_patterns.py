"""Patterns over names and addresses."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbctl.base.errors import InputError
from sbctl.base.ids import Address
from sbctl.base.patterns import AddressPattern, NamePattern, any_of

ADDRESSES = [
    "host.gpu-a",
    "host.gpu-b",
    "host.gw.corp",
    "runtime.gpu-a",
    "engine.gpu-a/llama_cpp",
    "deployment.gpu-a/chat",
    "deployment.gpu-b/chat",
    "deployment.gpu-b/code",
    "artifact.gpu-1/qwen3-8b:q4_k_m",
    "artifact.gpu-12/qwen3-8b:q4_k_m",
    "origin.gw.corp/ai.internal",
]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("host.gpu-*", ["host.gpu-a", "host.gpu-b"]),
        ("*.gpu-a", ["host.gpu-a", "runtime.gpu-a", "engine.gpu-a/llama_cpp", "deployment.gpu-a/chat"]),
        ("*.gpu-1", ["artifact.gpu-1/qwen3-8b:q4_k_m"]),
        ("deployment.*/chat", ["deployment.gpu-a/chat", "deployment.gpu-b/chat"]),
        ("deployment.gpu-b", ["deployment.gpu-b/chat", "deployment.gpu-b/code"]),
        ("artifact.gpu-[1-4]", ["artifact.gpu-1/qwen3-8b:q4_k_m"]),
        ("artifact.gpu-[1,10-12]/*:q4*", ["artifact.gpu-1/qwen3-8b:q4_k_m", "artifact.gpu-12/qwen3-8b:q4_k_m"]),
        ("host.gw.corp", ["host.gw.corp"]),
        ("*.gw.*", ["host.gw.corp", "origin.gw.corp/ai.internal"]),
        ("host.gpu-?", ["host.gpu-a", "host.gpu-b"]),
        ("host.*/x", []),
        ("host.GPU-a", []),
        ("*", ADDRESSES),
    ],
)
def test_an_address_is_matched_part_by_part(pattern: str, found: list[str]) -> None:
    matches = AddressPattern(pattern).matches
    assert [each for each in ADDRESSES if matches(Address.parse(each))] == found


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("", "no kind"),
        ("gpu-a", "no kind"),
        ("host.", "no kind"),
        ("hst.gpu-a", 'did you mean "host"'),
        ("zzz.*", 'no kind "zzz"'),
        ("host.gpu-[ab]", "a range is written"),
        ("host.gpu-[4-1]", "counts upwards"),
        ("host.gpu-[1", "brackets"),
        ("host.gpu-1]", "brackets"),
        ("host.a/", "empty"),
        ("host." + "a" * 401, "long"),
    ],
)
def test_what_is_no_pattern_is_refused_with_the_reason(pattern: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        AddressPattern(pattern)
    assert caught.value.code == "pattern.invalid"
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("n[08-10]", "n08", True),
        ("n[08-10]", "n8", False),
        ("n[8-10]", "n08", False),
        ("n[1-12]", "n12", True),
        ("n[1-4]x*", "n3xyz", True),
        ("*[1-4]", "gpu-14", True),
        ("[1-99999]*", "123456", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-b-d", False),
        ("*", "", True),
        ("?", "", False),
    ],
)
def test_names(pattern: str, name: str, matches: bool) -> None:
    assert NamePattern(pattern).matches(name) is matches


@given(st.text("ab*?", min_size=1, max_size=12), st.text("ab", max_size=12))
def test_stars_and_question_marks_mean_what_they_mean_everywhere(pattern: str, name: str) -> None:
    wanted = re.fullmatch("".join({"*": ".*", "?": "."}.get(char, char) for char in pattern), name) is not None
    assert NamePattern(pattern).matches(name) is wanted


def test_many_stars_do_not_multiply() -> None:
    assert not NamePattern("a*" * 30 + "b").matches("a" * 400)


def test_any_of_several() -> None:
    protects = any_of(("host.*", "*.gpu-b/chat"))
    assert [each for each in ADDRESSES if protects(Address.parse(each))] == [
        "host.gpu-a",
        "host.gpu-b",
        "host.gw.corp",
        "deployment.gpu-b/chat",
    ]
    assert not any_of(())(Address("host", "a"))
