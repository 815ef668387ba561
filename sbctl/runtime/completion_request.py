"""What a caller may ask of an engine: an allowlist with ranges. What is not listed is refused by name and never reaches an engine.

Engines accept far more than the API promises (slot ids, cache files, grammars, `n_discard`), and some of it breaks them. A field of the
OpenAI API that only its own service can use is dropped; one with the value null counts as absent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from sbctl.base import strict_json
from sbctl.base.display import display_safe
from sbctl.base.errors import InputError
from sbctl.base.limits import DATA_BODY_MAX_BYTES

__all__ = ["Kind", "engine_body", "read_request"]

Kind = Literal["chat", "completion"]

_Check = Callable[[Any], bool]

_MESSAGES_MAX: Final = 4096
_TEXTS_MAX: Final = 64
_TOOLS_MAX: Final = 128
_SCHEMA_MAX_BYTES: Final = 64 * 1024
_SCHEMA_MAX_DEPTH: Final = 16
_NAME_MAX_CHARS: Final = 256
_TOKENS_MAX: Final = 2**31 - 1
_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


def _whole(low: int, high: int) -> _Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _number(low: float, high: float) -> _Check:
    return lambda value: (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and low <= value <= high
    )


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _one_of(*names: str) -> _Check:
    return lambda value: isinstance(value, str) and value in names


def _text(max_chars: int) -> _Check:
    return lambda value: isinstance(value, str) and len(value) <= max_chars


def _stop(value: Any) -> bool:
    texts = value if isinstance(value, list) else [value]
    return len(texts) <= 16 and all(isinstance(text, str) and 0 < len(text) <= 256 for text in texts)


def _logit_bias(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= 1024
        and all(key.isascii() and key.isdigit() and _number(-100, 100)(bias) for key, bias in value.items())
    )


def _small(value: Any) -> bool:
    """A JSON Schema that a grammar is made of: bounded, since its size multiplies in the engine."""

    def depth(part: Any) -> int:
        if isinstance(part, dict):
            return 1 + max((depth(entry) for entry in part.values()), default=0)
        if isinstance(part, list):
            return 1 + max((depth(entry) for entry in part), default=0)
        return 0

    return depth(value) <= _SCHEMA_MAX_DEPTH and len(json.dumps(value)) <= _SCHEMA_MAX_BYTES


def _response_format(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("type") not in ("text", "json_object", "json_schema"):
        return False
    return set(value) <= {"type", "json_schema", "schema"} and _small(value)


def _tools(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _TOOLS_MAX
        and all(isinstance(tool, dict) and tool.get("type") == "function" for tool in value)
        and all(isinstance(tool.get("function"), dict) and _small(tool) for tool in value)
    )


def _tool_choice(value: Any) -> bool:
    return _one_of("none", "auto", "required")(value) or (isinstance(value, dict) and _small(value))


def _template_kwargs(value: Any) -> bool:
    return (
        isinstance(value, dict) and set(value) <= {"enable_thinking"} and all(_flag(entry) for entry in value.values())
    )


def _stream_options(value: Any) -> bool:
    return isinstance(value, dict) and set(value) <= {"include_usage"} and all(_flag(entry) for entry in value.values())


_SHARED: Final[Mapping[str, _Check]] = {
    "model": _text(_NAME_MAX_CHARS),
    "stream": _flag,
    "stream_options": _stream_options,
    "max_tokens": _whole(1, _TOKENS_MAX),
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "top_k": _whole(0, 1_000_000),
    "min_p": _number(0, 1),
    "n": _whole(1, 8),
    "stop": _stop,
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repeat_penalty": _number(0.5, 4),
    "seed": _whole(-1, 2**32 - 1),
    "logit_bias": _logit_bias,
}
_ACCEPTED: Final[Mapping[Kind, Mapping[str, _Check]]] = {
    "chat": {
        **_SHARED,
        "messages": lambda value: isinstance(value, list) and 0 < len(value) <= _MESSAGES_MAX,
        "max_completion_tokens": _whole(1, _TOKENS_MAX),
        "logprobs": _flag,
        "top_logprobs": _whole(0, 20),
        "response_format": _response_format,
        "tools": _tools,
        "tool_choice": _tool_choice,
        "parallel_tool_calls": _flag,
        "chat_template_kwargs": _template_kwargs,
        "reasoning_effort": _one_of("none", "minimal", "low", "medium", "high"),
    },
    "completion": {
        **_SHARED,
        "prompt": lambda value: (
            isinstance(value, str)
            or (
                isinstance(value, list)
                and 0 < len(value) <= _TEXTS_MAX
                and all(isinstance(text, str) for text in value)
            )
        ),
        "logprobs": _whole(0, 20),
        "echo": _flag,
        "suffix": _text(1_000_000),
        "best_of": _whole(1, 1),
    },
}
_REQUIRED: Final[Mapping[Kind, str]] = {"chat": "messages", "completion": "prompt"}
_DROPPED: Final = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "verbosity"}
)
"""Meant for the service of the API's author, harmless to leave out."""

_MESSAGE_FIELDS: Final = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "refusal", "function_call"}
)


def _refuse(message: str) -> InputError:
    return InputError("invalid_request", message)


def _check_message(index: int, message: Any) -> None:
    where = f"messages[{index}]"
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise _refuse(f"{where} needs a role: {', '.join(sorted(_ROLES))}")
    if unknown := sorted(set(message) - _MESSAGE_FIELDS):
        raise _refuse(f"{where} has a field that is not accepted: {display_safe(unknown[0], max_chars=64)}")
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise _refuse(f"{where}.content: this model takes text parts only; nothing is fetched from an address")
    if content is not None and not isinstance(content, str | list):
        raise _refuse(f"{where}.content is a text or a list of text parts")
    for field in ("name", "tool_call_id"):
        if message.get(field) is not None and not _text(_NAME_MAX_CHARS)(message[field]):
            raise _refuse(f"{where}.{field} is a short text")
    if message.get("tool_calls") is not None and not isinstance(message["tool_calls"], list):
        raise _refuse(f"{where}.tool_calls is a list")


def read_request(data: bytes, kind: Kind) -> dict[str, Any]:
    """The body, every field checked. Raises InputError `invalid_body` when it is no JSON object, `invalid_request` naming the field."""
    try:
        document = strict_json.loads(data, max_bytes=DATA_BODY_MAX_BYTES)
    except InputError as error:
        raise InputError("invalid_body", error.message) from None
    if not isinstance(document, dict):
        raise InputError("invalid_body", "the body is a JSON object")
    accepted = _ACCEPTED[kind]
    body: dict[str, Any] = {}
    for name, value in document.items():
        if value is None or name in _DROPPED:
            continue
        if name not in accepted:
            raise _refuse(f'"{display_safe(name, max_chars=64)}" is not accepted')
        if not accepted[name](value):
            raise _refuse(f'"{name}" has a value outside what is accepted')
        body[name] = value
    if _REQUIRED[kind] not in body:
        raise _refuse(f'"{_REQUIRED[kind]}" is missing')
    for index, message in enumerate(body.get("messages", ())):
        _check_message(index, message)
    return body


def engine_body(body: Mapping[str, Any], *, model: str, context_length: int) -> bytes:
    """What the engine gets: its own name for the model, always a bound on tokens, and always the wish for a stream.

    Raises InputError `invalid_body` for text that is no Unicode (lone surrogates), `invalid_request` for more tokens than the context has.
    """
    asked = body.get("max_completion_tokens", body.get("max_tokens"))
    if asked is not None and asked > context_length:
        raise _refuse(f"at most {context_length} tokens: that is the model's whole context")
    forwarded = {name: value for name, value in body.items() if name != "max_completion_tokens"}
    forwarded |= {"model": model, "max_tokens": asked or context_length, "stream": True}
    if not body.get("stream"):
        forwarded["stream_options"] = {"include_usage": True}
    for message in forwarded.get("messages", ()):
        if message["role"] == "developer":
            message["role"] = "system"
    try:
        return json.dumps(forwarded, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError("invalid_body", "the body holds characters that are no Unicode (lone surrogates)") from None
