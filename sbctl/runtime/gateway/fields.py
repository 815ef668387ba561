"""What a caller may ask of an engine: an allowlist with ranges. What is not listed is refused by name and never reaches an engine.

Engines accept far more than the API promises (slot ids, cache files, grammars, `n_discard`), and some of it breaks them. A field of the
OpenAI API that only its own service can use is dropped; one with the value null counts as absent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from sbctl.base.display import display_safe
from sbctl.base.errors import InputError
from sbctl.base.suggest import did_you_mean
from sbctl.runtime.gateway.checks import (
    NAME_MAX_CHARS,
    TOKENS_MAX,
    Check,
    a_flag,
    a_logit_bias,
    a_number,
    a_response_format,
    a_stop,
    a_text,
    a_tool_choice,
    a_whole_number,
    is_small,
    items,
    one_of,
    only_flags,
    only_of,
    tools,
)
from sbctl.runtime.gateway.surface import Kind

__all__ = ["DROPPED", "PROMPT_FIELD", "check_field", "check_items", "missing_field", "prompt_texts", "refused_field"]

_MESSAGES_MAX: Final = 4096
_TEXTS_MAX: Final = 64
_INPUTS_MAX: Final = 2048
_DOCUMENTS_MAX: Final = 1024
_PROMPT_MAX_CHARS: Final = 16 * 1024 * 1024
_SPOKEN_MAX_CHARS: Final = 32_768

_SAMPLING: Final[Mapping[str, Check]] = {
    "temperature": a_number(0, 2),
    "top_p": a_number(0, 1),
}
_GENERATION: Final[Mapping[str, Check]] = {
    **_SAMPLING,
    "stream": a_flag,
    "stream_options": only_flags("include_usage"),
    "max_tokens": a_whole_number(1, TOKENS_MAX),
    "top_k": a_whole_number(0, 1_000_000),
    "min_p": a_number(0, 1),
    "n": a_whole_number(1, 8),
    "stop": a_stop,
    "presence_penalty": a_number(-2, 2),
    "frequency_penalty": a_number(-2, 2),
    "repeat_penalty": a_number(0.5, 4),
    "seed": a_whole_number(-1, 2**32 - 1),
    "logit_bias": a_logit_bias,
}
_a_prompt: Final = a_text(_PROMPT_MAX_CHARS)
_some_tokens: Final = items(_PROMPT_MAX_CHARS, a_whole_number(0, TOKENS_MAX))
_AUDIO_FORM: Final[Mapping[str, Check]] = {
    "file": lambda value: isinstance(value, bytes) and bool(value),
    "language": a_text(16),
    "prompt": a_text(4096),
    "response_format": one_of("json", "text", "srt", "verbose_json", "vtt"),
    "temperature": a_text(16),
}

_ACCEPTED: Final[Mapping[Kind, Mapping[str, Check]]] = {
    "chat": {
        **_GENERATION,
        "messages": lambda value: isinstance(value, list) and 0 < len(value) <= _MESSAGES_MAX,
        "max_completion_tokens": a_whole_number(1, TOKENS_MAX),
        "logprobs": a_flag,
        "top_logprobs": a_whole_number(0, 20),
        "response_format": a_response_format,
        "tools": tools(nested=True),
        "tool_choice": a_tool_choice,
        "parallel_tool_calls": a_flag,
        "chat_template_kwargs": only_flags("enable_thinking"),
        "reasoning_effort": one_of("none", "minimal", "low", "medium", "high"),
    },
    "completion": {
        **_GENERATION,
        "prompt": only_of(_a_prompt, items(_TEXTS_MAX, _a_prompt)),
        "logprobs": a_whole_number(0, 20),
        "echo": a_flag,
        "suffix": a_text(1_000_000),
        "best_of": a_whole_number(1, 1),
    },
    "responses": {
        **_SAMPLING,
        "stream": a_flag,
        "input": only_of(_a_prompt, lambda value: isinstance(value, list) and 0 < len(value) <= _MESSAGES_MAX),
        "instructions": _a_prompt,
        "max_output_tokens": a_whole_number(1, TOKENS_MAX),
        "text": lambda value: (
            isinstance(value, dict)
            and set(value) <= {"format", "verbosity"}
            and a_response_format(value.get("format", {"type": "text"}))
        ),
        "reasoning": lambda value: isinstance(value, dict) and set(value) <= {"effort", "summary"} and is_small(value),
        "tools": tools(nested=False),
        "tool_choice": a_tool_choice,
        "parallel_tool_calls": a_flag,
    },
    "embeddings": {
        "input": only_of(_a_prompt, items(_INPUTS_MAX, _a_prompt), _some_tokens, items(_INPUTS_MAX, _some_tokens)),
        "encoding_format": one_of("float", "base64"),
        "dimensions": a_whole_number(1, 65_536),
    },
    "rerank": {
        "query": a_text(_PROMPT_MAX_CHARS, min_chars=1),
        "documents": items(_DOCUMENTS_MAX, _a_prompt),
        "top_n": a_whole_number(1, _DOCUMENTS_MAX),
        "return_documents": a_flag,
    },
    "speech": {
        "input": a_text(_SPOKEN_MAX_CHARS, min_chars=1),
        "voice": a_text(NAME_MAX_CHARS),
        "instructions": a_text(4096),
        "response_format": one_of("mp3", "opus", "aac", "flac", "wav", "pcm"),
        "speed": a_number(0.25, 4),
    },
    "transcription": _AUDIO_FORM,
    "translation": _AUDIO_FORM,
    "image": {
        "prompt": a_text(_SPOKEN_MAX_CHARS, min_chars=1),
        "n": a_whole_number(1, 8),
        "size": lambda value: (
            a_text(16)(value) and all(part.isascii() and part.isdigit() for part in (value or "x").split("x", 1))
        ),
        "response_format": one_of("b64_json"),
        "output_format": one_of("png", "jpeg", "webp"),
        "quality": one_of("auto", "low", "medium", "high", "standard", "hd"),
        "seed": a_whole_number(-1, 2**32 - 1),
    },
}
PROMPT_FIELD: Final[Mapping[Kind, str]] = {
    "chat": "messages",
    "completion": "prompt",
    "responses": "input",
    "embeddings": "input",
    "rerank": "documents",
    "speech": "input",
    "transcription": "file",
    "translation": "file",
    "image": "prompt",
}
"""The field that holds what the model reads; every request has it."""

DROPPED: Final = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "verbosity"}
)
"""Meant for the service of the API's author, harmless to leave out."""

_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_MESSAGE_FIELDS: Final = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "refusal", "function_call"}
)
_ITEM_FIELDS: Final = frozenset(
    {
        "type",
        "role",
        "content",
        "id",
        "status",
        "call_id",
        "name",
        "arguments",
        "output",
        "summary",
        "encrypted_content",
    }
)
_ITEM_TYPES: Final = frozenset({"message", "function_call", "function_call_output", "reasoning"})
_ITEM_PARTS: Final = frozenset({"input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"})
_a_name: Final = a_text(NAME_MAX_CHARS)


def refused_field(message: str, param: str) -> InputError:
    """`param` is the field as OpenAI's clients read it: `temperature`, `messages[2].role`."""
    return InputError("invalid_request", message, detail={"param": param})


def missing_field(name: str) -> InputError:
    return refused_field(f'"{name}" is missing', name)


def _unknown(name: str, known: Collection[str], param: str, where: str = "") -> InputError:
    near = did_you_mean(name, known)
    told = f'{where}"{display_safe(name, max_chars=64)}" is not accepted' + (
        f', did you mean "{near}"?' if near else ""
    )
    return refused_field(told, display_safe(param, max_chars=128))


_CHECKS: Final[Mapping[Kind, Mapping[str, Check]]] = {
    kind: {**accepted, "model": _a_name} for kind, accepted in _ACCEPTED.items()
}
"""By every name that a request of a kind may have."""


def check_field(kind: Kind, name: str, value: Any) -> None:
    """Raises InputError `invalid_request`, which names the field."""
    check = _CHECKS[kind].get(name)
    if check is None:
        raise _unknown(name, (*_ACCEPTED[kind], "model"), name)
    if not check(value):
        raise refused_field(f'"{name}" has a value outside what is accepted', name)


def check_items(kind: Kind, prompt: Any) -> None:
    """What stands in the messages of a chat, or in the items of a response. Raises InputError `invalid_request`."""
    if kind == "chat":
        for index, message in enumerate(prompt):
            if not _is_plain(message):
                _check_message(f"messages[{index}]", message)
    elif kind == "responses" and isinstance(prompt, list):
        for index, item in enumerate(prompt):
            _check_item(f"input[{index}]", item)


def _is_one_of(value: Any, known: frozenset[str]) -> bool:
    return isinstance(value, str) and value in known


def _is_plain(message: Any) -> bool:
    """Whether it is a text by somebody and nothing else, which most messages are: then there is nothing to look at."""
    return (
        isinstance(message, dict)
        and len(message) == 2
        and isinstance(message.get("content"), str)
        and _is_one_of(message.get("role"), _ROLES)
    )


def _check_message(where: str, message: Any) -> None:
    if not isinstance(message, dict) or not _is_one_of(message.get("role"), _ROLES):
        raise refused_field(f"{where} needs a role: {', '.join(sorted(_ROLES))}", f"{where}.role")
    _check_members(where, message, _MESSAGE_FIELDS)
    _check_content(f"{where}.content", message.get("content"), frozenset({"text"}))
    for field in ("name", "tool_call_id"):
        if message.get(field) is not None and not _a_name(message[field]):
            raise refused_field(f"{where}.{field} is a short text", f"{where}.{field}")
    if message.get("tool_calls") is not None and not isinstance(message["tool_calls"], list):
        raise refused_field(f"{where}.tool_calls is a list", f"{where}.tool_calls")


def _check_item(where: str, item: Any) -> None:
    if not isinstance(item, dict) or not _is_one_of(item.get("type", "message"), _ITEM_TYPES):
        raise refused_field(f"{where} is one of: {', '.join(sorted(_ITEM_TYPES))}", f"{where}.type")
    _check_members(where, item, _ITEM_FIELDS)
    if item.get("type", "message") == "message" and not _is_one_of(item.get("role"), _ROLES):
        raise refused_field(f"{where} needs a role: {', '.join(sorted(_ROLES))}", f"{where}.role")
    _check_content(f"{where}.content", item.get("content"), _ITEM_PARTS)
    if item.get("output") is not None and not isinstance(item["output"], str):
        raise refused_field(f"{where}.output is a text", f"{where}.output")


def _check_members(where: str, part: Mapping[str, Any], accepted: frozenset[str]) -> None:
    if not accepted.issuperset(part):
        unknown = min(set(part) - accepted)
        raise _unknown(unknown, accepted, f"{where}.{unknown}", f"{where}: ")


def _check_content(where: str, content: Any, types: frozenset[str]) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise refused_field(f"{where} is a text or a list of text parts", where)
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in types or not isinstance(part.get("refusal" if kind == "refusal" else "text"), str):
            raise refused_field(f"{where}: this model takes text parts only; nothing is fetched from an address", where)


def prompt_texts(kind: Kind, prompt: Any) -> Iterator[str]:
    """The texts that a model would read, of a prompt that was checked; token numbers and files have none."""
    if isinstance(prompt, str):
        yield prompt
    elif isinstance(prompt, list):
        for entry in prompt:
            content = entry.get("content") if isinstance(entry, dict) else entry
            if isinstance(content, str):
                yield content
            elif kind in ("chat", "responses") and isinstance(content, list):
                yield from (part["text"] for part in content if isinstance(part.get("text"), str))
