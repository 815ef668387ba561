"""Overlays merge key by key and remember where each value was written."""

from __future__ import annotations

from sbctl.config.layers import Layer, View, merged
from sbctl.config.reader import parse_yaml


def test_maps_merge_and_all_else_is_replaced() -> None:
    low = {"a": {"x": 1, "y": [1, 2]}, "b": 1}
    high = {"a": {"y": [3], "z": None}, "c": 2}
    assert merged(low, high) == {"a": {"x": 1, "y": [3], "z": None}, "b": 1, "c": 2}
    assert low == {"a": {"x": 1, "y": [1, 2]}, "b": 1}
    assert merged({"a": 1}, 5) == 5


def test_a_view_knows_the_place_of_each_value() -> None:
    document = parse_yaml(b"p: {a: 1, b: {c: 2}}\no: {b: {c: 3}}\n", "t.yml")
    view = View(document, (Layer(("p",), document.value["p"]), Layer(("o",), document.value["o"])))
    assert view.value == {"a": 1, "b": {"c": 3}}
    assert view.source(("a",)) == ("p", "a")
    assert view.source(("b", "c")) == ("o", "b", "c")
    assert view.source(("b", "missing")) == ("o", "b")
    span = view.value_span(("b", "c"))
    assert span is not None
    assert (span.line, span.column) == (2, 12)
    key = view.key_span(("a",))
    assert key is not None
    assert key.line == 1


def test_a_view_without_layers_is_empty() -> None:
    view = View(parse_yaml(b"a: 1\n", "t.yml"), ())
    assert view.value == {}
    assert view.source(("x",)) == ()
