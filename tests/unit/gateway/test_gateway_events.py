"""An engine's stream on its way: cut anywhere, mapped, bounded, and its errors kept from the caller."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbctl.base.errors import SbctlError
from sbctl.runtime.gateway.assemble import Assembler
from sbctl.runtime.gateway.events import EventStream, Usage, engine_error, renamed_document

STREAM = (
    b": ping\n\n"
    b'data: {"model":"q","choices":[{"delta":{"content":"\xc3\xa9 \\"model\\":\\"q\\""}}],"__verbose":{"model_path":"/secret"}}\r\n\r\n'
    b'event: x\ndata: {"model": "q"}\n\n'
    b"data: [DONE]\n\n"
)


def _chunk(text: str, **more: Any) -> bytes:
    document = {"choices": [{"index": 0, "delta": {"content": text}}], "id": "x", "model": "q", **more}
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


PLAIN = (
    b"".join(map(_chunk, ["a", 'say "model":"q"', "data: {", '\\"error\\"', "[DONE]", "b", "c"])) + b"data: [DONE]\n\n"
)
MIXED = b'data: {"model":"q","choices":[]}\n\n' + _chunk("x") + b'data: {"choices":[],"model": "q"}\n\n' + _chunk("y") + b": ping\n\n" + _chunk("z")  # fmt: skip


@pytest.mark.parametrize("stream", [STREAM, PLAIN, MIXED])
def test_however_it_is_cut_the_result_is_the_same(stream: bytes) -> None:
    whole = EventStream("public").feed(stream)

    @given(st.lists(st.integers(0, len(stream)), max_size=6))
    def cut_anywhere(cuts: list[int]) -> None:
        events = EventStream("public")
        edges = [0, *sorted(cuts), len(stream)]
        parts = b"".join(events.feed(stream[start:end]) for start, end in itertools.pairwise(edges))
        assert parts == whole
        assert events.is_done is (b"data: [DONE]" in stream.splitlines())

    cut_anywhere()
    assert b"/secret" not in whole
    before = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]
    after = [json.loads(line[6:]) for line in whole.splitlines() if line.startswith(b"data: {")]
    assert {event["model"] for event in after} == {"public"}
    for old, new in zip(before, after, strict=True):
        old.pop("__verbose", None)
        assert new == {**old, "model": "public"}, "text of the answer is not touched"


def test_a_complete_event_is_never_held_back() -> None:
    events = EventStream("public")
    for text in ("one", "two", "three"):
        chunk = _chunk(text)
        assert events.feed(chunk[:20]) == b""
        assert text.encode() in events.feed(chunk[20:])


def test_the_number_of_tokens_is_read_and_goes_on_only_to_who_asked() -> None:
    usage = b'data: {"choices":[],"model":"q","usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
    for keeps in (True, False):
        events = EventStream("public", keeps_usage=keeps)
        events.feed(_chunk("a"))
        rest = events.feed(_chunk("b") + usage + b"data: [DONE]\n\n")
        assert events.usage == Usage(3, 4)
        assert (b"usage" in rest) is keeps
        assert rest.count(b"\n\n") == (3 if keeps else 2)


def test_events_of_responses_are_renamed_and_their_end_is_known() -> None:
    events = EventStream("public")
    head = b'event: response.created\ndata: {"type":"response.created","response":{"model":"q"}}\n\n'
    text = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"\\"model\\":\\"q\\""}\n\n'
    end = b'event: response.completed\ndata: {"type":"response.completed","response":{"model":"q","usage":{"input_tokens":1,"output_tokens":2}}}\n\n'
    assert b'"model":"public"' in events.feed(head)
    assert events.feed(text) == text
    assert not events.is_done
    assert events.feed(end) == end.replace(b'"q"', b'"public"')
    assert (events.is_done, events.usage) == (True, Usage(1, 2))
    with pytest.raises(SbctlError):
        EventStream("public").feed(b'data: {"type":"response.failed","response":{"error":{"code":500}}}\n\n')


def test_a_document_is_renamed_without_being_written_anew() -> None:
    body = b'{"object":"list","model" : "q","data":[{"embedding":[0.10,1e-7]}],"usage":{"prompt_tokens":5,"details":{"x":1}}}'
    assert renamed_document(body, "pub\u00e9")[0] == body.replace(b'"model" : "q"', '"model":"pub\u00e9"'.encode())
    assert renamed_document(b'{"a":1,"usage":{"prompt_tokens":5}}', "p") == (
        b'{"a":1,"usage":{"prompt_tokens":5}}',
        Usage(5, 0),
    )
    for broken in (b"", b"[]", b'{"a":1', b"<html>"):
        with pytest.raises(SbctlError):
            renamed_document(broken, "p")


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
        EventStream("public").feed(data)
    assert caught.value.code == code
    assert "/var/lib" not in caught.value.message


@pytest.mark.parametrize(
    ("status", "document", "code", "message"),
    [
        (400, {"error": {"message": "too \x1b[31mlong"}}, "invalid_request", "too \\x1b[31mlong"),
        (400, None, "invalid_request", "the engine refused the request"),
        (500, {"error": {"message": "secret"}}, "upstream_failed", "the engine answered 500"),
        (404, "x", "upstream_failed", "the engine answered 404"),
        (400, {"error": {"type": "exceed_context_size_error", "message": "long"}}, "context_length_exceeded", "long"),
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
