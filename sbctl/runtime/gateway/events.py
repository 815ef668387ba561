"""Server-sent events of an engine on their way: complete lines pass at once, with the engine's name for the model mapped back.

The first event is parsed and shows how this engine writes the model's name; from then on a block of events that holds nothing to look at
is passed on with that text replaced, and never parsed. Inside a JSON text quotes are escaped, so what the replaced text looks like can be
a member of an object only, never part of an answer. What a caller gets does not depend on how the bytes were cut on their way.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from sbctl.base.display import display_safe
from sbctl.base.errors import EngineError, InputError, SbctlError
from sbctl.base.limits import MIB
from sbctl.runtime.gateway.answers import compact

__all__ = ["HIDDEN", "EventStream", "Usage", "engine_error", "read_json", "renamed_document", "usage_of"]

_LINE_MAX_BYTES: Final = 4 * MIB
HIDDEN: Final = ("__verbose", "generation_settings")
"""Fields of llama.cpp that name files and settings of this host."""

_LOOK_AT: Final = (b'"error"', b"error:", b"[DONE]", b'"usage":{', b'"usage": {', b'"__verbose"', b'"generation_settings"', b"\r", b" \n", b'"response.')  # fmt: skip
"""Whatever holds one of these is read line by line."""

_MODEL: Final = re.compile(rb'"model"\s*:\s*"(?:[^"\\]|\\.)*"')
_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{[^{}"]*+(?:"[a-z_]{1,64}"[^{}"]*+)*+\}')
_ENDS: Final = frozenset({"response.completed", "response.incomplete"})


class Usage(NamedTuple):
    """Tokens of one request, as the engine counted them."""

    prompt_tokens: int
    completion_tokens: int


def usage_of(document: Any) -> Usage | None:
    """Of an answer or event; None when it has none."""
    usage = document.get("usage") if isinstance(document, dict) else None
    if not isinstance(usage, dict):
        return None
    read = usage.get("prompt_tokens", usage.get("input_tokens"))
    written = usage.get("completion_tokens", usage.get("output_tokens"))
    return Usage(read if isinstance(read, int) else 0, written if isinstance(written, int) else 0)


def engine_error(status: int, document: Any) -> SbctlError:
    """An engine's refusal. Only what the caller can mend (400) is passed on in words."""
    inner = document.get("error") if isinstance(document, dict) else None
    message = inner.get("message") if isinstance(inner, dict) else None
    inner_code = inner.get("code") if isinstance(inner, dict) else None
    if status == 400 or inner_code == 400:
        text = display_safe(str(message or "the engine refused the request"), max_chars=300)
        kind = inner.get("type") if isinstance(inner, dict) else None
        return InputError("context_length_exceeded" if kind == "exceed_context_size_error" else "invalid_request", text)
    return EngineError("upstream_failed", f"the engine answered {status}", retryable=True)


class EventStream:
    """One answer's events. `keeps_usage`: the caller asked for the event with the number of tokens."""

    def __init__(self, public_name: str, *, keeps_usage: bool = True) -> None:
        self._public = public_name
        self._new = b'"model":' + json.dumps(public_name, ensure_ascii=False).encode()
        self._old = b""
        self._keeps_usage = keeps_usage
        self._rest = bytearray()
        """Of a line that has no end yet."""
        self._skips_blank = False
        self.is_done = False
        """The engine said that this was all."""
        self.usage: Usage | None = None

    def feed(self, data: bytes) -> bytes:
        """What goes on of what has arrived.

        Raises EngineError `upstream_failed` for an endless line or a broken event, and what `engine_error` makes of an error event.
        """
        cut = data.rfind(b"\n") + 1
        block = data[:cut]
        if self._rest and cut:
            self._rest += block
            block = bytes(self._rest)
            self._rest.clear()
        if cut < len(data):
            self._rest += data[cut:]
            if len(self._rest) > _LINE_MAX_BYTES:
                raise EngineError("upstream_failed", "the engine sent an event without end", retryable=True)
        if not cut:
            return b""
        if self._is_plain(block):
            return block.replace(self._old, self._new)
        return b"".join([self._line(line) for line in block.split(b"\n")[:-1]])

    def _is_plain(self, block: bytes) -> bool:
        """Whether each line of it is an event with the model's name as it is known, or holds none."""
        if not self._old or self.is_done or self._skips_blank:
            return False
        for mark in _LOOK_AT:
            if mark in block:
                return False
        named = block.count(self._old)
        return named == block.count(b"data: {") and named == block.count(b'"model"')

    def _line(self, line: bytes) -> bytes:
        line = line.removesuffix(b"\r")
        if self.is_done or self._skips_blank:
            skipped = self._skips_blank and not line
            self._skips_blank = False
            if skipped or (self.is_done and line):
                return b""
        if line.startswith(b"error:"):
            raise engine_error(500, read_json(line[6:]))
        if not line.startswith(b"data:"):
            return line + b"\n"
        payload = line[5:].strip()
        if payload == b"[DONE]":
            self.is_done = True
            return b"data: [DONE]\n"
        written = self._event(payload)
        self._skips_blank = not written
        return written and b"data: " + written + b"\n"

    def _event(self, payload: bytes) -> bytes:
        """What goes on of an event; nothing when the caller did not ask for it."""
        document = read_json(payload)
        if not isinstance(document, dict):
            raise EngineError("upstream_failed", "the engine sent an event that is no object", retryable=True)
        if document.get("error") is not None or document.get("type") in ("error", "response.failed"):
            raise engine_error(500, document if "error" in document else document.get("response"))
        hidden = [name for name in HIDDEN if name in document]
        for name in hidden:
            del document[name]
        response = document.get("response")
        inner = response if isinstance(response, dict) else document
        self.usage = usage_of(inner) or self.usage
        if document.get("type") in _ENDS:
            self.is_done = True
        if not self._keeps_usage and not document.get("choices") and isinstance(document.get("usage"), dict):
            return b""
        return self._renamed(payload, document, inner, rewrite=bool(hidden))

    def _renamed(self, payload: bytes, document: dict[str, Any], inner: dict[str, Any], *, rewrite: bool) -> bytes:
        if "model" not in inner:
            return compact(document) if rewrite else payload.replace(self._old, self._new) if self._old else payload
        found = _MODEL.search(payload)
        if not rewrite and found is not None and read_json(b"{" + found[0] + b"}") == {"model": inner["model"]}:
            if inner is document:
                self._old = found[0]
            return payload.replace(found[0], self._new)
        inner["model"] = self._public
        return compact(document)


def renamed_document(body: bytes, public_name: str) -> tuple[bytes, Usage | None]:
    """A whole answer with the model's public name, not parsed (it may hold millions of numbers), and the tokens it cost.

    Raises EngineError `upstream_failed` for what is no JSON object.
    """
    if not body.startswith(b"{") or not body.rstrip().endswith(b"}"):
        raise EngineError("upstream_failed", "the engine's answer is no JSON object", retryable=True)
    new = b'"model":' + json.dumps(public_name, ensure_ascii=False).encode()
    used = _USAGE.search(body)
    usage = None if used is None else usage_of(read_json(b"{" + used[0] + b"}"))
    return _MODEL.sub(lambda _: new, body, count=1), usage


def read_json(data: bytes) -> Any:
    """What an engine wrote, half characters included. Raises EngineError `upstream_failed` for what is no JSON."""
    try:
        return from_json(data, cache_strings="keys")
    except ValueError:
        pass
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise EngineError("upstream_failed", "the engine sent an event that is no JSON", retryable=True) from None
