"""A line may be shown; a secret on it may not."""

from __future__ import annotations

import pytest

from sbctl.config.document import ABSENT, child, is_reference, mask_line, names_secret
from sbctl.config.reader import parse_yaml

SECRET = "hunter2-canary"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"password: {SECRET}\n", 0),
        (f"admin: {{enabled: true, password: '{SECRET}', port: 1}}\n", 0),
        (f"secrets: {{hf: {SECRET}}}\n", 0),
        (f"a:\n  api_key: |\n    {SECRET}\n    {SECRET}\n", 2),
        (f"a:\n  credentials:\n    - {{id: x, value: {SECRET}}}\n", 2),
        (f"a:\n  token:\n    - {SECRET}\n", 2),
        (f"password: ${{PW:-{SECRET}}}\n", 0),
        (f"password: {SECRET}\nbroken: [\n", 0),
        (f"x: {{shared_key: {SECRET}, y: [\n", 0),
    ],
)
def test_no_source_line_shows_a_secret(text: str, line: int) -> None:
    document = parse_yaml(text.encode(), "t.yml")
    assert SECRET not in document.source_line(line)
    assert SECRET not in document.span_at(line, 0).source_line


@pytest.mark.parametrize(
    "text", ["password: env:PW\n", "password: ${PW}\n", "password: 'secret:pw'\n", "shared_key: file:./gossip.key\n"]
)
def test_a_reference_is_no_secret(text: str) -> None:
    document = parse_yaml(text.encode(), "t.yml")
    assert document.source_line(0) == text.rstrip("\n")


def test_columns_stay_where_they_are() -> None:
    document = parse_yaml(b"admin: {password: abc, port: x}\n", "t.yml")
    assert document.source_line(0) == "admin: {password: ***, port: x}"


def test_lines_outside_the_file_are_empty() -> None:
    document = parse_yaml(b"a: 1\n", "t.yml")
    assert document.source_line(99) == ""
    assert document.span_at(99, 3).length == 1


def test_words() -> None:
    assert names_secret("hf_token")
    assert not names_secret("models")
    assert is_reference("env:HF_TOKEN")
    assert not is_reference("hunter2")
    assert mask_line("  password: a b  c") == "  password: ******"
    assert mask_line("a: 1") == "a: 1"


def test_child() -> None:
    assert child({"a": 1}, "a") == 1
    assert child([5], 0) == 5
    for value, part in (({}, "a"), ([5], 1), ([5], "a"), ("text", 0), (None, "a")):
        assert child(value, part) is ABSENT
