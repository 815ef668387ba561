"""What reaches an engine: listed fields inside their ranges, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbctl.base.errors import HostError, InputError
from sbctl.runtime.gateway.answers import error_document
from sbctl.runtime.gateway.asked import read_asked
from sbctl.runtime.gateway.form import read_form
from sbctl.runtime.gateway.surface import SURFACE, Kind, capabilities
from sbctl.runtime.routes import unknown_model

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


def _read(document: Any, kind: Kind = "chat") -> dict[str, Any]:
    asked = read_asked(json.dumps(document).encode(), kind)
    return {name: member.value for name, member in asked.members.items()}


def _sent(data: bytes | Any, kind: Kind = "chat", context_length: int = 100) -> dict[str, Any]:
    """What the engine gets."""
    asked = read_asked(data if isinstance(data, bytes) else json.dumps(data).encode(), kind)
    asked.check_bounds(context_length, asked.prompt_chars)
    document: dict[str, Any] = json.loads(asked.for_engine(model="q", context_length=context_length))
    return document


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
        read_asked(data, "chat")
    assert caught.value.code == "invalid_body"


@pytest.mark.parametrize("text", ["\\ud800", "\\uDC00 x", "ok \\ud83d"])
def test_G10_lone_surrogates_never_reach_an_engine(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_asked(f'{{"messages":[{{"role":"user","content":"{text}"}}]}}'.encode(), "chat")
    assert caught.value.code == "invalid_body"
    assert _sent(b'{"messages":[{"role":"user","content":"\\ud83d\\ude00"}]}')["messages"][0]["content"] == "\U0001f600"


def test_the_engine_gets_its_own_name_and_always_a_bound() -> None:
    sent = _sent({**CHAT, "model": "public"})
    assert (sent["model"], sent["max_tokens"], sent["stream"]) == ("q", 100, True)
    sent = _sent({**CHAT, "max_completion_tokens": 7, "max_tokens": 9, "stream": False})
    assert sent == {
        **CHAT,
        "model": "q",
        "max_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent = _sent({"input": "Hi", "max_output_tokens": 5}, "responses")
    assert sent == {"model": "q", "max_output_tokens": 5, "stream": True, "input": "Hi"}
    with pytest.raises(InputError, match="at most 100 tokens"):
        _sent({**CHAT, "max_tokens": 101})


def test_what_goes_on_is_what_came_to_the_character() -> None:
    messages = b'[ {"role" : "user","content":"caf\\u00e9 \xc3\xa9 {\\"messages\\": 1}"} ]'
    asked = read_asked(b'{"user":"me", "messages":' + messages + b' ,"temperature":0.50}', "chat")
    body = asked.for_engine(model="q", context_length=9)
    assert b',"messages":' + messages + b"," in body
    assert body.endswith(b',"temperature":0.50}')
    assert b"me" not in body.replace(b"messages", b"").replace(b"temperature", b"").replace(b"name", b"")


def test_the_developer_role_is_the_system_role_of_older_templates() -> None:
    sent = _sent({"messages": [{"role": "developer", "content": "x"}, {"role": "user", "content": "\u00e9"}]})
    assert [(message["role"], message["content"]) for message in sent["messages"]] == [
        ("system", "x"),
        ("user", "\u00e9"),
    ]


def test_37_a_prompt_that_cannot_fit_is_refused_by_its_length_alone() -> None:
    for kind, document in (
        ("chat", {"messages": [{"role": "user", "content": "x" * 900}, {"role": "user", "content": [{"type": "text", "text": "y" * 900}]}]}),
        ("completion", {"prompt": ["x", "y" * 1601]}),
        ("embeddings", {"input": ["x" * 1601]}),
        ("rerank", {"query": "q", "documents": ["x" * 1601]}),
        ("responses", {"input": "x", "instructions": "y" * 1601}),
    ):  # fmt: skip
        with pytest.raises(InputError) as caught:
            _sent(document, kind)  # type: ignore[arg-type]
        assert caught.value.code == "context_length_exceeded"
    _sent({"prompt": ["x" * 1600] * 3}, "completion")


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
        read_asked(data, "chat").for_engine(model="q", context_length=64)
    except InputError as error:
        assert error.code in ("invalid_body", "invalid_request")


@pytest.mark.parametrize(
    ("kind", "document", "accepted"),
    [
        ("embeddings", {"input": "Hi", "encoding_format": "base64", "dimensions": 64}, True),
        ("embeddings", {"input": ["a", "b"]}, True),
        ("embeddings", {"input": [1, 2, 3]}, True),
        ("embeddings", {"input": [[1, 2], [3]]}, True),
        ("embeddings", {"input": []}, False),
        ("embeddings", {"input": ["a", 1]}, False),
        ("embeddings", {"input": ["x"] * 2049}, False),
        ("embeddings", {"input": "x", "dimensions": 0}, False),
        ("embeddings", {"input": "x", "stream": True}, False),
        ("rerank", {"query": "q", "documents": ["a"], "top_n": 1}, True),
        ("rerank", {"query": "", "documents": ["a"]}, False),
        ("rerank", {"query": "q", "documents": ["a"] * 1025}, False),
        ("rerank", {"query": "q"}, False),
        (
            "responses",
            {"input": "Hi", "instructions": "be short", "store": False, "reasoning": {"effort": "low"}},
            True,
        ),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]}, True),
        ("responses", {"input": [{"type": "function_call_output", "call_id": "c", "output": "1"}]}, True),
        ("responses", {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": {}}]}, True),
        ("responses", {"input": "x", "tools": [{"type": "code_interpreter"}]}, False),
        ("responses", {"input": "x", "previous_response_id": "r"}, False),
        (
            "responses",
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "file:///"}]}]},
            False,
        ),
        ("responses", {"input": [{"type": "item_reference", "id": "x"}]}, False),
        ("responses", {"input": [5]}, False),
        ("speech", {"input": "Hi", "voice": "a", "speed": 1}, True),
        ("speech", {"input": "Hi", "speed": 9}, False),
        ("image", {"prompt": "x", "size": "64x64", "response_format": "b64_json"}, True),
        ("image", {"prompt": "x", "response_format": "url"}, False),
        ("image", {"prompt": "x", "size": "64xx"}, False),
    ],
)
def test_G21_each_kind_has_its_own_list(kind: Kind, document: dict[str, Any], accepted: bool) -> None:
    if accepted:
        assert _sent(document, kind, 4096)["model"] == "q"
    else:
        with pytest.raises(InputError):
            _read(document, kind)


def test_a_model_is_asked_for_what_it_is_for() -> None:
    assert {operation.path: operation.kind for operation in SURFACE.values()} == {
        path: SURFACE[path].kind for path in SURFACE
    }
    assert capabilities("embedding") == ["embeddings"]
    assert "chat.completions" in capabilities("chat")


FORM = "multipart/form-data; boundary=XX"


def _form(*parts: str, end: str = "--XX--\r\n") -> bytes:
    return "".join(f"--XX\r\nContent-Disposition: form-data; {part}\r\n" for part in parts).encode() + end.encode()


FILE = 'name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n--X'


def test_a_form_goes_on_with_listed_parts_and_our_boundary() -> None:
    asked = read_form(_form('name="model"\r\n\r\npublic', FILE, 'name="language"\r\n\r\nen'), FORM, "transcription")
    assert (asked.model, asked.file, asked.fields["language"]) == ("public", b"RIFF\r\n--X", "en")
    body, content_type = asked.for_engine(model="q")
    again = read_form(body, content_type, "transcription")
    assert (again.model, again.file, again.suffix) == ("q", b"RIFF\r\n--X", ".wav")
    assert b"public" not in body


@pytest.mark.parametrize(
    ("data", "content_type"),
    [
        (b"", FORM),
        (_form(FILE), "multipart/form-data"),
        (_form(FILE), 'multipart/form-data; boundary=""'),
        (_form(FILE, end=""), FORM),
        (_form('name="model"\r\n\r\nx'), FORM),
        (_form(FILE, FILE), FORM),
        (_form(FILE, 'name="path"\r\n\r\n/etc'), FORM),
        (_form(FILE, 'name="model"\r\n\r\na', 'name="model"\r\n\r\nb'), FORM),
        (_form(FILE, 'name="mod\\"el"\r\n\r\na'), FORM),
        (b"x" + _form(FILE), FORM),
        (_form(*[f'name="p{n}"\r\n\r\nx' for n in range(40)]), FORM),
    ],
)
def test_G21_a_form_that_is_not_plain_is_refused(data: bytes, content_type: str) -> None:
    with pytest.raises(InputError):
        read_form(data, content_type, "transcription")


@pytest.mark.parametrize(
    ("kind", "document", "param", "said"),
    [
        ("chat", {**CHAT, "max_token": 5}, "max_token", 'did you mean "max_tokens"?'),
        ("chat", {**CHAT, "slot\x1b[0m": 1}, "slot\\x1b[0m", "is not accepted"),
        ("chat", {**CHAT, "temperature": 9}, "temperature", "outside"),
        ("chat", {**CHAT, "max_tokens": 101}, "max_tokens", "whole context"),
        ("chat", {}, "messages", "is missing"),
        ("chat", {"messages": [{"role": "user"}, {"role": "root"}]}, "messages[1].role", "needs a role"),
        ("chat", {"messages": [{"role": "user", "conten": ""}]}, "messages[0].conten", 'did you mean "content"?'),
        ("chat", {"messages": [{"role": "user", "content": "x" * 9000}]}, "messages", "longer than"),
        ("responses", {"input": [{"type": "computer_call"}]}, "input[0].type", "is one of"),
        ("rerank", {"query": "q", "documents": "d"}, "documents", "outside"),
    ],
)
def test_a_refusal_names_the_field_as_clients_read_it(
    kind: Kind, document: dict[str, Any], param: str, said: str
) -> None:
    with pytest.raises(InputError) as caught:
        _sent(document, kind)
    assert said in caught.value.message
    assert error_document(caught.value, "r")["error"]["param"] == param


def test_what_a_caller_did_not_do_wrong_names_no_field() -> None:
    hidden = HostError("engine_spawn_failed", "no", detail={"param": "/opt/engine"})
    assert error_document(hidden, "r")["error"]["param"] is None
    assert error_document(unknown_model(), "r")["error"]["param"] == "model"
