"""What reaches an engine: listed fields inside their ranges, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbctl.base.errors import InputError
from sbctl.runtime.completion_request import Kind, engine_body, read_request

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


def _read(document: Any, kind: Kind = "chat") -> dict[str, Any]:
    return read_request(json.dumps(document).encode(), kind)


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0},
        {"temperature": 2.0, "top_p": 1, "seed": -1, "n": 8, "stop": "x"},
        {"stop": ["a", "b"], "logit_bias": {"15": -100}},
        {"max_tokens": 1, "max_completion_tokens": 512},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "tool_choice": "auto",
        },
        {"chat_template_kwargs": {"enable_thinking": False}},
        {
            "messages": [
                {"role": "assistant", "content": None, "tool_calls": []},
                {"role": "tool", "content": "1", "tool_call_id": "a"},
            ]
        },
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    ],
)
def test_what_is_accepted_passes_unchanged(more: dict[str, Any]) -> None:
    assert _read({**CHAT, **more}) == {**CHAT, **more}


@pytest.mark.parametrize(
    "more",
    [
        {"n_discard": -1},
        {"id_slot": 0},
        {"grammar": "root ::= root"},
        {"cache_prompt": True},
        {"n": 9},
        {"n": 10**9},
        {"n": True},
        {"max_tokens": 2**40},
        {"max_tokens": 0},
        {"max_tokens": 1.5},
        {"temperature": 1e308},
        {"temperature": "hot"},
        {"top_logprobs": 21},
        {"stop": ["x"] * 17},
        {"stop": ["x" * 257]},
        {"logit_bias": {"a": 1}},
        {"logit_bias": {"1": 101}},
        {"stream": "yes"},
        {"stream_options": {"other": True}},
        {"response_format": {"type": "grammar"}},
        {"response_format": {"type": "json_schema", "schema": {"x": "y" * 70_000}}},
        {"tools": [{"type": "shell"}]},
        {"tools": [{"type": "function", "function": {"name": "f"}}] * 129},
        {"chat_template_kwargs": {"x": True}},
        {"messages": []},
        {"messages": "Hi"},
        {"messages": [{"role": "root", "content": "Hi"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": "Hi", "cache": 1}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}
            ]
        },
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]}
            ]
        },
        {"model": "x" * 257},
    ],
)
def test_G21_fields_and_values_outside_the_list_are_refused_by_name(more: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        _read({**CHAT, **more})
    assert caught.value.code == "invalid_request"
    assert next(iter(more)) in caught.value.message


def test_G21_a_deep_schema_is_refused() -> None:
    schema: Any = {}
    for _ in range(20):
        schema = {"properties": schema}
    with pytest.raises(InputError):
        _read({**CHAT, "response_format": {"type": "json_schema", "schema": schema}})


def test_fields_of_the_author_s_service_are_dropped_and_null_is_absent() -> None:
    assert _read({**CHAT, "user": "me", "metadata": {"a": "b"}, "store": True, "temperature": None}) == CHAT


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b'{"messages":[],"messages":[]}',
        b'{"messages":NaN}',
        b'{"seed":9007199254740993}',
        '{"a":1}'.encode("utf-16"),
        b'{"messages":[]} x',
        b'{"a":' * 70 + b"1" + b"}" * 70,
    ],
)
def test_G10_bodies_that_are_no_strict_json_are_refused(data: bytes) -> None:
    with pytest.raises(InputError) as caught:
        read_request(data, "chat")
    assert caught.value.code == "invalid_body"


def test_G10_lone_surrogates_never_reach_an_engine() -> None:
    body = read_request(b'{"messages":[{"role":"user","content":"\\ud800"}]}', "chat")
    with pytest.raises(InputError) as caught:
        engine_body(body, model="q", context_length=100)
    assert caught.value.code == "invalid_body"


def test_the_engine_gets_its_own_name_and_always_a_bound() -> None:
    sent = json.loads(engine_body(_read({**CHAT, "model": "public"}), model="q", context_length=100))
    assert (sent["model"], sent["max_tokens"]) == ("q", 100)
    sent = json.loads(
        engine_body(_read({**CHAT, "max_completion_tokens": 7, "max_tokens": 9}), model="q", context_length=100)
    )
    assert sent["max_tokens"] == 7
    assert "max_completion_tokens" not in sent
    with pytest.raises(InputError, match="at most 100 tokens"):
        engine_body(_read({**CHAT, "max_tokens": 101}), model="q", context_length=100)


def test_the_developer_role_is_the_system_role_of_older_templates() -> None:
    sent = json.loads(
        engine_body(_read({"messages": [{"role": "developer", "content": "x"}]}), model="q", context_length=9)
    )
    assert sent["messages"][0]["role"] == "system"


@pytest.mark.parametrize(
    ("document", "accepted"),
    [
        ({"prompt": "Hi"}, True),
        ({"prompt": ["a", "b"], "echo": True, "suffix": "x", "logprobs": 3}, True),
        ({"prompt": [1, 2]}, False),
        ({"prompt": ["x"] * 65}, False),
        ({"prompt": "x", "best_of": 2}, False),
        ({"messages": []}, False),
        ({}, False),
    ],
)
def test_text_completion(document: dict[str, Any], accepted: bool) -> None:
    if accepted:
        assert _read(document, "completion") == document
    else:
        with pytest.raises(InputError):
            _read(document, "completion")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_NAMES = st.sampled_from(
    ["messages", "model", "stop", "n", "tools", "logit_bias", "response_format", "stream_options", "tool_choice"]
)


@given(st.dictionaries(_NAMES, _JSON, max_size=4))
def test_no_body_makes_anything_but_a_refusal(document: dict[str, Any]) -> None:
    try:
        data = json.dumps(document).encode()
        engine_body(read_request(data, "chat"), model="q", context_length=64)
    except InputError as error:
        assert error.code in ("invalid_body", "invalid_request")
