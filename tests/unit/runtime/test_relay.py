"""An engine's stream on its way: cut anywhere, mapped, bounded, and its errors kept from the caller."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbctl.base.errors import SbctlError
from sbctl.runtime.assemble import Assembler
from sbctl.runtime.relay import SseReader, engine_error, line_bytes

STREAM = (
    b": ping\n\n"
    b'data: {"model":"q","choices":[{"delta":{"content":"\xc3\xa9 \\"model\\":\\"q\\""}}],"__verbose":{"model_path":"/secret"}}\r\n\r\n'
    b'event: x\ndata: {"model": "q"}\n\n'
    b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=6))
def test_however_it_is_cut_the_result_is_the_same(cuts: list[int]) -> None:
    whole = b"".join(map(line_bytes, SseReader("public").feed(STREAM)))
    mapper = SseReader("public")
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = b"".join(
        line_bytes(line) for start, end in itertools.pairwise(edges) for line in mapper.feed(STREAM[start:end])
    )
    assert parts == whole
    assert mapper.is_done
    assert b"/secret" not in whole
    events = [json.loads(line[6:]) for line in whole.split(b"\n") if line.startswith(b"data: {")]
    assert [event["model"] for event in events] == ["public", "public"]
    assert events[0]["choices"][0]["delta"]["content"] == 'é "model":"q"', "text of the answer is not touched"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"data: {broken\n", "upstream_failed"),
        (b"data: " + b"x" * (4 * 1024 * 1024 + 8), "upstream_failed"),
        (b'data: {"error":{"code":500,"message":"slot 3 on /var/lib exploded"}}\n', "upstream_failed"),
        (b'error: {"code":500}\n', "upstream_failed"),
        (b'data: {"error":{"code":400,"message":"context"}}\n', "invalid_request"),
    ],
)
def test_a_broken_or_failing_stream_is_an_error(data: bytes, code: str) -> None:
    with pytest.raises(SbctlError) as caught:
        SseReader("public").feed(data)
    assert caught.value.code == code
    assert "/var/lib" not in caught.value.message


@pytest.mark.parametrize(
    ("status", "document", "code", "message"),
    [
        (400, {"error": {"message": "too \x1b[31mlong"}}, "invalid_request", "too \\x1b[31mlong"),
        (400, None, "invalid_request", "the engine refused the request"),
        (500, {"error": {"message": "secret"}}, "upstream_failed", "the engine answered 500"),
        (404, "x", "upstream_failed", "the engine answered 404"),
    ],
)
def test_only_what_the_caller_can_mend_is_passed_on_in_words(
    status: int, document: Any, code: str, message: str
) -> None:
    error = engine_error(status, document)
    assert (error.code, error.message) == (code, message)


def _event(index: int = 0, **part: Any) -> dict[str, Any]:
    return {"id": "x", "object": "chat.completion.chunk", "model": "public", "choices": [{"index": index, **part}]}


def test_a_whole_answer_is_put_together_from_events() -> None:
    assembler = Assembler()
    for event in (
        _event(delta={"role": "assistant", "content": None}),
        _event(delta={"reasoning_content": "so"}),
        _event(delta={"content": "Hel"}, logprobs={"content": [{"token": "Hel"}]}),
        _event(1, delta={"content": "other"}),
        _event(delta={"content": "lo"}, logprobs={"content": [{"token": "lo"}]}),
        _event(
            delta={
                "tool_calls": [
                    {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a"'}}
                ]
            }
        ),
        _event(delta={"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}),
        _event(delta={}, finish_reason="tool_calls"),
        {"object": "chat.completion.chunk", "choices": [], "usage": {"total_tokens": 3}},
    ):
        assembler.add(event)
    answer = assembler.answer()
    assert (answer["object"], answer["usage"], answer["id"]) == ("chat.completion", {"total_tokens": 3}, "x")
    first, second = answer["choices"]
    assert first["message"] == {
        "role": "assistant",
        "content": "Hello",
        "reasoning_content": "so",
        "tool_calls": [{"type": "function", "id": "c", "function": {"name": "f", "arguments": '{"a":1}'}}],
    }
    assert first["finish_reason"] == "tool_calls"
    assert [entry["token"] for entry in first["logprobs"]["content"]] == ["Hel", "lo"]
    assert second["message"]["content"] == "other"


def test_a_whole_text_completion() -> None:
    assembler = Assembler()
    for text, reason in (("a", None), ("b", "length")):
        assembler.add({"object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": reason}]})
    assert assembler.answer() == {
        "object": "text_completion",
        "choices": [{"index": 0, "finish_reason": "length", "text": "ab"}],
    }


@given(
    st.lists(
        st.recursive(
            st.none() | st.integers() | st.text(max_size=3),
            lambda inner: st.dictionaries(
                st.sampled_from(["index", "delta", "tool_calls", "function", "logprobs", "content", "text"]),
                inner | st.lists(inner, max_size=2),
                max_size=3,
            ),
            max_leaves=6,
        ),
        max_size=4,
    )
)
@example([{"logprobs": {"index": None}}, {"logprobs": {"index": []}}])
@example([{"delta": {"content": {}}}, {"delta": {"content": "a"}}])
def test_events_of_another_shape_are_left_out(choices: list[Any]) -> None:
    assembler = Assembler()
    assembler.add({"choices": choices})
    assembler.add({"choices": choices})
    assembler.answer()
