"""One whole answer out of a stream's events.

Engines are always asked for a stream: only then do all of them stop generating when the connection closes, and only then does every
token count as progress. A caller that asked for a whole answer gets it put together here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from sbctl.base.errors import EngineError
from sbctl.runtime.gateway.events import HIDDEN, Usage, engine_error, read_json, usage_of

__all__ = ["Assembler", "has_end", "whole_answer"]

_END: Final = re.compile(
    rb"^(?:data: ?\[DONE\]|event: ?response\.(?:completed|incomplete|failed)\r?\ndata:[^\n]*)\r?\n", re.MULTILINE
)
_NOT_OF_CHOICES: Final = frozenset({"error", "type", "response"})
_EVENT: Final = re.compile(rb"^(?:data|error):[ \t]*(\{.*)$", re.MULTILINE)


def has_end(stream: bytearray, start: int) -> tuple[bool, int]:
    """Whether an engine said in the whole lines behind `start` that its answer is complete, and where to look from next time: each line is
    looked at twice at most, however the bytes were cut on their way."""
    end = stream.rfind(b"\n", start) + 1
    if not end:
        return False, start
    said = stream.find(b"[DONE]", start, end) >= 0 or stream.find(b"response.", start, end) >= 0
    # A mark may have two lines, so the last one stays to be looked at.
    return said and _END.search(stream, start, end) is not None, max(start, stream.rfind(b"\n", start, end - 1) + 1)


def whole_answer(stream: bytes) -> tuple[dict[str, Any], Usage | None]:
    """The answer that a stream's events make, without its model's name changed.

    Raises EngineError `upstream_failed` for a broken event, and what `engine_error` makes of an error event.
    """
    assembler, answer, usage = Assembler(), None, None
    for event in read_json(b"[%b]" % b",".join(_EVENT.findall(stream))):
        if not isinstance(event, dict):
            raise EngineError("upstream_failed", "the engine sent an event that is no object", retryable=True)
        if not _NOT_OF_CHOICES.isdisjoint(event):
            if event.get("error") is not None or event.get("type") in ("error", "response.failed"):
                raise engine_error(500, event if "error" in event else event.get("response"))
            if isinstance(event.get("response"), dict):
                answer = event["response"]
                usage = usage_of(answer) or usage
                continue
        assembler.add(event)
        if "usage" in event:
            usage = usage_of(event) or usage
    document = assembler.answer() if answer is None else answer
    for name in HIDDEN:
        document.pop(name, None)
    return document, usage


class Assembler:
    """Feed it the events in order; `answer` is what a request without `stream` gets."""

    def __init__(self) -> None:
        self._top: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """Parts of another shape than the API's are left out, never an exception."""
        if None in event.values():
            event = {key: value for key, value in event.items() if value is not None}
        self._top.update(event)
        choices = event.get("choices")
        for part in choices if isinstance(choices, list) else ():
            index = part.get("index", 0) if isinstance(part, dict) else None
            if isinstance(index, int):
                choice = self._choices.get(index)
                if choice is None:
                    choice = self._choices[index] = _Choice(index)
                choice.add(part)

    def answer(self) -> dict[str, Any]:
        kind = str(self._top.get("object", "")).removesuffix(".chunk")
        choices = [self._choices[index].answer() for index in sorted(self._choices)]
        return {**self._top, "object": kind, "choices": choices}


class _Choice:
    """One of the answers. Texts that come in pieces are joined at the end, so a long answer costs no more than its length."""

    __slots__ = ("_calls", "_finish_reason", "_index", "_is_message", "_logprobs", "_pieces", "_text", "_whole")

    def __init__(self, index: int) -> None:
        self._index = index
        self._finish_reason: Any = None
        self._text: list[str] | None = None
        self._is_message = False
        self._pieces: dict[str, list[str]] = {}
        self._whole: dict[str, Any] = {"role": "assistant", "content": None}
        self._calls: dict[int, dict[str, Any]] = {}
        self._logprobs: dict[str, Any] | None = None

    def add(self, part: Mapping[str, Any]) -> None:
        if part.get("finish_reason") is not None:
            self._finish_reason = part["finish_reason"]
        delta = part.get("delta")
        if isinstance(delta, dict):
            self._is_message = True
            for key, value in delta.items():
                self._add_delta(key, value)
        if isinstance(part.get("text"), str):
            self._text = self._text or []
            self._text.append(part["text"])
        if isinstance(part.get("logprobs"), dict):
            self._logprobs = self._logprobs or {}
            _add_logprobs(self._logprobs, part["logprobs"])

    def _add_delta(self, key: str, value: Any) -> None:
        if key == "tool_calls":
            _add_calls(self._calls, value)
        elif isinstance(value, str) and key != "role":
            pieces = self._pieces.get(key)
            if pieces is None:
                pieces = self._pieces[key] = []
            pieces.append(value)
        elif value is not None:
            self._whole[key] = value
        else:
            self._whole.setdefault(key, None)

    def answer(self) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": self._index, "finish_reason": self._finish_reason}
        if self._text is not None:
            choice["text"] = "".join(self._text)
        if self._is_message:
            message = choice["message"] = self._whole | {key: "".join(self._pieces[key]) for key in self._pieces}
            if self._calls:
                message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        if self._logprobs is not None:
            choice["logprobs"] = self._logprobs
        return choice


def _add_logprobs(logprobs: dict[str, Any], part: Mapping[str, Any]) -> None:
    for key, value in part.items():
        known = logprobs.get(key)
        logprobs[key] = [*known, *value] if isinstance(value, list) and isinstance(known, list) else value


def _add_calls(calls: dict[int, dict[str, Any]], parts: Any) -> None:
    """The name comes once, the arguments in pieces."""
    for part in parts if isinstance(parts, list) else []:
        if not isinstance(part, dict) or not isinstance(part.get("index", 0), int):
            continue
        call = calls.setdefault(part.get("index", 0), {"type": "function", "function": {"name": "", "arguments": ""}})
        call |= {key: value for key, value in part.items() if key not in ("index", "function") and value is not None}
        function = part.get("function")
        if isinstance(function, dict):
            call["function"]["name"] = function.get("name") or call["function"]["name"]
            call["function"]["arguments"] += str(function.get("arguments") or "")
