"""The guarded YAML reader: what it gives, what it refuses, and where."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.base.errors import InputError
from sbctl.config.document import Document
from sbctl.config.reader import parse_yaml, read_yaml


def parsed(text: str) -> Document:
    return parse_yaml(text.encode(), "t.yml")


def places(document: Document) -> list[tuple[str, int, int]]:
    return [(each.code, each.span.line, each.span.column) for each in document.findings if each.span is not None]


def test_values_and_places() -> None:
    document = parsed("a: 1\nb:\n  - x\n  - {c: true, 'd': [2]}\ne:\n")
    assert document.complete
    assert document.value == {"a": 1, "b": ["x", {"c": True, "d": [2]}], "e": None}
    expected = {
        ("a",): (1, 1, 1, 4),
        ("b",): (2, 1, 3, 3),
        ("b", 0): (3, 5, 3, 5),
        ("b", 1, "d"): (4, 15, 4, 20),
        ("e",): (5, 1, 5, 1),
    }
    for path, (key_line, key_column, line, column) in expected.items():
        key, value = document.key_span(path), document.value_span(path)
        assert key is not None
        assert value is not None
        assert (key.line, key.column) == (key_line, key_column), path
        assert (value.line, value.column) == (line, column), path


def test_a_path_without_a_place_has_that_of_its_nearest_parent() -> None:
    document = parsed("a:\n  b: 1\n")
    span = document.value_span(("a", "missing", "deeper"))
    assert span is not None
    assert (span.line, span.column) == (1, 1)
    assert Document("t", "").key_span(("x",)) is None


def test_written_gives_plain_scalars_as_they_stand() -> None:
    document = parsed("a: 0.10\nb: '0.10'\nc: [1]\n")
    assert document.written(("a",)) == "0.10"
    assert document.written(("b",)) is None
    assert document.written(("c",)) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: &x 1\nb: *x\n", [("yaml.alias_refused", 1, 4), ("yaml.alias_refused", 2, 4)]),
        ("*x : 1\n", [("yaml.alias_refused", 1, 1)]),
        ("a: [*x]\n", [("yaml.alias_refused", 1, 5)]),
        ("<<: {a: 1}\n", [("yaml.merge_refused", 1, 1)]),
        ("a: !!str b\n", [("yaml.tag_refused", 1, 4)]),
        ("a: ! b\n", [("yaml.tag_refused", 1, 4)]),
        ("!!map {a: 1}\n", [("yaml.tag_refused", 1, 1)]),
        ("%YAML 1.1\n---\na: 1\n", [("yaml.directive_refused", 1, 1)]),
        ("# c\n%FOO x\n---\na: 1\n", [("yaml.directive_refused", 2, 1)]),
        ("a: 1\n---\nb: 1\n", [("yaml.multiple_documents", 2, 1)]),
        ("a: 1\na: 2\n", [("yaml.duplicate_key", 2, 1)]),
        ("1: a\ntrue: b\n~: c\n012: d\n", [("yaml.key_refused", line, 1) for line in (1, 2, 3, 4)]),
        ("? [a, {b: c}]\n: d\n", [("yaml.key_refused", 1, 3)]),
        ("{[a]: b, c: d}\n", [("yaml.key_refused", 1, 2)]),
        ("a: 012\nb: 2026-01-01\n", [("yaml.number_refused", 1, 4), ("yaml.date_refused", 2, 4)]),
        ('a: "\\e[31m"\n', [("yaml.text_refused", 1, 4)]),
        ('a: "\\u202e"\n', [("yaml.text_refused", 1, 4)]),
        ('"\\0": 1\n', [("yaml.text_refused", 1, 1)]),
        ("a: 1\n\tb: 2\n", [("yaml.syntax", 2, 1)]),
        ("a: [1\nb: 2\n", [("yaml.syntax", 2, 2)]),
        ("- " * 65 + "x", [("yaml.too_deep", 1, 129)]),
    ],
)
def test_refusals_name_their_place(text: str, expected: list[tuple[str, int, int]]) -> None:
    assert places(parsed(text)) == expected


def test_several_findings_of_one_file_come_together_and_are_capped() -> None:
    assert len(parsed("a: &x 1\nb: !t 2\nc: 0x1\n").findings) == 3
    assert len(parsed("\n".join(f"k{i}: 0x1" for i in range(200))).findings) == 50


def test_a_variable_inside_flow_style_is_told_to_be_quoted() -> None:
    (finding,) = parsed("a: {b: ${X}}\n").findings
    assert finding.notes == ("inside { } and [ ], write a variable in quotes",)


def test_a_repeated_key_keeps_its_first_value_and_names_the_first_place() -> None:
    document = parsed("a: 1\na: 2\na: 3\n")
    assert document.value == {"a": 1}
    assert document.findings[0].notes == ("it stands first at t.yml:1:1",)


def test_refused_values_are_poisoned_so_that_nothing_more_is_said_of_them() -> None:
    document = parsed("a: 0x1\nb: {<<: {x: 1}, y: 2}\nc: 3\n")
    assert document.is_poisoned(("a",))
    assert document.is_poisoned(("b", "y"))
    assert not document.is_poisoned(("c",))


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (b"\xef\xbb\xbfa: 1", "yaml.encoding", "byte order mark"),
        ("a: 1".encode("utf-16"), "yaml.encoding", "UTF-16"),
        ("a: 1".encode("utf-16-le"), "yaml.encoding", "UTF-16"),
        ("a: 1".encode("utf-32"), "yaml.encoding", "UTF-16"),
        (b"a: 1\nb: \xff", "yaml.encoding", "line 2"),
        (b"ab: 1\nb: \x00", "yaml.text_refused", "U+0000"),
        ("a: 1 # \u2066".encode(), "yaml.text_refused", "U+2066"),
        ("a: 1\u2028b: 2".encode(), "yaml.text_refused", "U+2028"),
    ],
)
def test_only_clean_utf8_is_read(data: bytes, code: str, words: str) -> None:
    finding = parse_yaml(data, "t.yml").findings[0]
    assert finding.code == code
    assert words in finding.message


def test_the_place_of_a_refused_character_counts_lines_and_columns() -> None:
    assert places(parsed("a: 1\r\nb: 2\rcc: \x07\n")) == [("yaml.text_refused", 3, 5)]


def test_size_and_kind_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"file\.too_large"):
        parse_yaml(b"a" * 11, "t.yml", max_bytes=10)
    with pytest.raises(InputError, match=r"file\.missing"):
        read_yaml(tmp_path / "none.yml")
    big = tmp_path / "big.yml"
    big.write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(InputError, match=r"file\.too_large"):
        read_yaml(big)
    small = tmp_path / "small.yml"
    small.write_text("a: b\n")
    assert read_yaml(small).value == {"a": "b"}


def test_a_thousand_hosts_are_read() -> None:
    lines = ["fleet:", "  hosts:"]
    for number in range(1000):
        lines += [f"    h{number}:", f"      address: 10.0.{number // 250}.{number % 250}", "      labels: {zone: a}"]
    document = parsed("\n".join(lines))
    assert document.complete
    assert len(document.value["fleet"]["hosts"]) == 1000


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_give_a_document(data: bytes) -> None:
    document = parse_yaml(data, "t.yml")
    assert document.complete or document.findings


@settings(deadline=None)
@given(st.text(alphabet=" \n-:?[]{}&*!|>'\"%#abc01.<~\t", max_size=80))
def test_any_yaml_like_text_gives_a_document(text: str) -> None:
    document = parsed(text)
    assert document.complete or document.findings
    for path in document.nodes:
        document.key_span(path)
        document.value_span(path)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a:\n  b 1\n  c: {}\n", "a line just above may lack its colon"),
        ("a:\n   b: 1\n  c: 2\n", "indented unlike those it belongs to"),
        ('a: "x\nb: 2\n', "a quoted scalar, which began at 1:4"),
        ("a: [1, 2\nb: 3\n", "a flow sequence, which began at 1:4"),
    ],
)
def test_a_syntax_error_says_where_to_look_when_the_fault_is_above(tmp_path: Path, text: str, hint: str) -> None:
    path = tmp_path / "sb.yml"
    path.write_text(text)
    (finding,) = read_yaml(path).findings
    assert any(hint in note for note in finding.notes)
