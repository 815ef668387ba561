"""An engine's stream on its way: cut anywhere, mapped, bounded, and its errors kept from the caller."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbctl.base.errors import SbctlError
from sbctl.runtime.relay import SseMapper, engine_error

STREAM = (
    b": ping\n\n"
    b'data: {"model":"q","choices":[{"delta":{"content":"\xc3\xa9 \\"model\\":\\"q\\""}}],"__verbose":{"model_path":"/secret"}}\r\n\r\n'
    b'event: x\ndata: {"model": "q"}\n\n'
    b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=6))
def test_however_it_is_cut_the_result_is_the_same(cuts: list[int]) -> None:
    whole = SseMapper("public").feed(STREAM)
    mapper = SseMapper("public")
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = b"".join(mapper.feed(STREAM[start:end]) for start, end in itertools.pairwise(edges))
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
        SseMapper("public").feed(data)
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
