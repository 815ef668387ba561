"""One whole answer out of a stream's events.

Engines are always asked for a stream: only then do all of them stop generating when the connection closes, and only then does every
token count as progress. A caller that asked for a whole answer gets it put together here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from sbctl.base.errors import EngineError
from sbctl.runtime.gateway.events import HIDDEN, Usage, engine_error, usage_of

__all__ = ["Assembler", "has_end", "whole_answer"]

_END: Final = re.compile(
    rb"^(?:data: ?\[DONE\]|event: ?response\.(?:completed|incomplete|failed)\r?\ndata:[^\n]*)\r?\n", re.MULTILINE
)
_EVENT: Final = re.compile(rb"^(?:data|error):[ \t]*(\{.*)$", re.MULTILINE)


def has_end(stream: bytearray, start: int) -> bool:
    """Whether an engine said behind `start` that its answer is complete."""
    return _END.search(stream, stream.rfind(b"\n", 0, start) + 1) is not None


def whole_answer(stream: bytes) -> tuple[dict[str, Any], Usage | None]:
    """The answer that a stream's events make, without its model's name changed.

    Raises EngineError `upstream_failed` for a broken event, and what `engine_error` makes of an error event.
    """
    try:
        events = json.loads(b"[" + b",".join(_EVENT.findall(stream)) + b"]")
    except (ValueError, RecursionError):
        raise EngineError("upstream_failed", "the engine sent an event that is no JSON", retryable=True) from None
    assembler, answer, usage = Assembler(), None, None
    for event in events:
        if event.get("error") is not None or event.get("type") in ("error", "response.failed"):
            raise engine_error(500, event if "error" in event else event.get("response"))
        if isinstance(event.get("response"), dict):
            answer = event["response"]
            usage = usage_of(answer) or usage
        else:
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
        self._choices: dict[int, dict[str, Any]] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """Parts of another shape than the API's are left out, never an exception."""
        self._top |= {key: value for key, value in event.items() if key != "choices" and value is not None}
        choices = event.get("choices")
        for part in choices if isinstance(choices, list) else []:
            if isinstance(part, dict) and isinstance(part.get("index", 0), int):
                self._add_choice(part)

    def _add_choice(self, part: Mapping[str, Any]) -> None:
        choice = self._choices.setdefault(part.get("index", 0), {"index": part.get("index", 0), "finish_reason": None})
        if part.get("finish_reason") is not None:
            choice["finish_reason"] = part["finish_reason"]
        if isinstance(part.get("text"), str):
            choice["text"] = choice.get("text", "") + part["text"]
        if isinstance(part.get("delta"), dict):
            _add_delta(choice.setdefault("message", {"role": "assistant", "content": None}), part["delta"])
        if isinstance(part.get("logprobs"), dict):
            _add_logprobs(choice.setdefault("logprobs", {}), part["logprobs"])

    def answer(self) -> dict[str, Any]:
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            calls = choice.get("message", {}).get("tool_calls")
            if isinstance(calls, dict):
                choice["message"]["tool_calls"] = [calls[index] for index in sorted(calls)]
        kind = str(self._top.get("object", "")).removesuffix(".chunk")
        return {**self._top, "object": kind, "choices": choices}


def _add_logprobs(logprobs: dict[str, Any], part: Mapping[str, Any]) -> None:
    for key, value in part.items():
        known = logprobs.get(key)
        logprobs[key] = [*known, *value] if isinstance(value, list) and isinstance(known, list) else value


def _add_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for key, value in delta.items():
        if key == "tool_calls":
            _add_calls(message.setdefault("tool_calls", {}), value)
        elif key == "role" or not isinstance(value, str):
            message[key] = value if value is not None else message.get(key)
        else:
            known = message.get(key)
            message[key] = known + value if isinstance(known, str) else value


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
