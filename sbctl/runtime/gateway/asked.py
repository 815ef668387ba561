"""One request after every check that needs no model, and what an engine gets of it.

What the caller wrote is parsed once. The engine's body is put together from the very characters of the parts that go on, so a long prompt
is copied and never written anew; only what is ours (the model's name, the bound on tokens, the wish for a stream) is written here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

from sbctl.base import strict_json
from sbctl.base.errors import InputError
from sbctl.base.limits import DATA_BODY_MAX_BYTES
from sbctl.base.strict_json import Member
from sbctl.runtime.gateway.fields import (
    DROPPED,
    PROMPT_FIELD,
    check_field,
    check_items,
    missing_field,
    prompt_texts,
    refused_field,
)
from sbctl.runtime.gateway.surface import Kind

__all__ = ["Asked", "read_asked"]

_BOUND: Final[Mapping[Kind, str]] = {
    "chat": "max_tokens",
    "completion": "max_tokens",
    "responses": "max_output_tokens",
}
_BOUND_FIELDS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_OURS: Final = frozenset({"model", "stream", "stream_options", *_BOUND_FIELDS})
_role: Final = itemgetter("role")
_CHARS_A_TOKEN_MAX: Final = 16
"""No text of people or programs has longer tokens on average: beyond this a prompt is too long whatever the tokenizer."""


@dataclass(slots=True)
class Asked:
    """A checked request. `members` are what goes on, by name, with their places in `text`."""

    kind: Kind
    text: str
    members: Mapping[str, Member]

    def value(self, name: str) -> Any:
        member = self.members.get(name)
        return None if member is None else member.value

    @property
    def model(self) -> str | None:
        name: str | None = self.value("model")
        return name

    @property
    def wants_stream(self) -> bool:
        return self.value("stream") is True

    @property
    def wants_usage(self) -> bool:
        """Whether the caller asked for the event with the number of tokens."""
        return bool((self.value("stream_options") or {}).get("include_usage"))

    @property
    def prompt_chars(self) -> int:
        """Of what one pass of the model reads: a chat's messages together, of a list of texts the longest. Never more than `text` has."""
        return max(map(len, self.prompts()), default=0)

    def prompts(self) -> list[str]:
        """The texts that have to fit a context, each for itself."""
        texts = list(prompt_texts(self.kind, self.value(PROMPT_FIELD[self.kind])))
        if self.kind == "responses" and self.value("instructions"):
            texts.append(self.value("instructions"))
        return ["\n".join(texts)] if self.kind in ("chat", "responses") else texts

    def check_bounds(self, context_length: int, prompt_chars: int) -> None:
        """Raises InputError `invalid_request` for more tokens than the context has, `context_length_exceeded` for a prompt that cannot fit."""
        asked = self.tokens_asked
        if asked is not None and asked > context_length:
            raise refused_field(
                f"at most {context_length} tokens: that is the model's whole context", self._bound_field
            )
        if prompt_chars > context_length * _CHARS_A_TOKEN_MAX:
            raise too_long(context_length, self.kind)

    @property
    def _bound_field(self) -> str:
        return next((name for name in _BOUND_FIELDS if self.value(name) is not None), _BOUND_FIELDS[0])

    @property
    def tokens_asked(self) -> int | None:
        """How many the caller wants at most."""
        for name in _BOUND_FIELDS:
            if name in self.members:
                return int(self.members[name].value)
        return None

    def for_engine(self, *, model: str, context_length: int) -> bytes:
        """Its own name for the model; for generated text always a bound on tokens, always a stream, and the number of tokens at its end."""
        parts = ['{"model":', _quoted(model)]
        bound = _BOUND.get(self.kind)
        if bound is not None:
            parts.append(f',"{bound}":{self.tokens_asked or context_length},"stream":true')
            if self.kind != "responses":
                parts.append(',"stream_options":{"include_usage":true}')
        for name, member in self.members.items():
            if name in _OURS:
                continue
            if name == "messages" and "developer" in map(_role, member.value):
                parts.append(f',"messages":{_with_system_role(member.value)}')
            else:
                parts += (',"', name, '":', self.text[member.start : member.end])
        parts.append("}")
        return "".join(parts).encode()

    def for_provider(self, *, model: str) -> bytes:
        """For somebody else's API: what the caller asked, under that API's name for the model; of a stream the number of tokens at its end."""
        parts = [f'{{"model":{json.dumps(model)}']
        if self.wants_stream:
            parts.append(',"stream":true')
            if self.kind != "responses":
                parts.append(',"stream_options":{"include_usage":true}')
        for name, member in self.members.items():
            if name not in ("model", "stream", "stream_options"):
                parts.append(f',"{name}":{self.text[member.start : member.end]}')
        parts.append("}")
        return "".join(parts).encode()


def too_long(context_length: int, kind: Kind) -> InputError:
    return InputError(
        "context_length_exceeded",
        f"the prompt is longer than the model's context of {context_length} tokens",
        detail={"param": PROMPT_FIELD[kind]},
    )


def _with_system_role(messages: list[dict[str, Any]]) -> str:
    """The developer's role is the system's in the templates of most models."""
    renamed = [{**message, "role": "system"} if message["role"] == "developer" else message for message in messages]
    return json.dumps(renamed, ensure_ascii=True, separators=(",", ":"))


def read_asked(data: bytes, kind: Kind) -> Asked:
    """Raises InputError `invalid_body` when it is no strict JSON object, `invalid_request` naming the field."""
    try:
        text, found = strict_json.members(data, max_bytes=DATA_BODY_MAX_BYTES)
    except InputError as error:
        raise InputError("invalid_body", error.message) from None
    absent = [name for name, member in found.items() if member[0] is None or name in DROPPED]
    for name in absent:
        del found[name]
    for name, member in found.items():
        check_field(kind, name, member[0])
    prompt = found.get(PROMPT_FIELD[kind])
    if prompt is None:
        raise missing_field(PROMPT_FIELD[kind])
    check_items(kind, prompt.value)
    return Asked(kind, text, found)


@lru_cache(maxsize=1024)
def _quoted(name: str) -> str:
    return json.dumps(name)
