"""An engine's answer on its way to the caller: whole or as a stream, with the engine's name for the model mapped back.

A stream that breaks ends with one error event and without `[DONE]`; it is never replayed, since the caller has seen part of it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final

import aiohttp
from aiohttp import web

from sbctl.base.display import display_safe
from sbctl.base.errors import EngineError, InputError, SbctlError
from sbctl.base.limits import MIB
from sbctl.runtime.assemble import Assembler
from sbctl.runtime.engine_client import ENGINE_ERRORS
from sbctl.runtime.http_errors import error_document

__all__ = ["SseReader", "engine_error", "line_bytes", "read_refusal", "read_whole", "relay_stream"]

_ANSWER_MAX_BYTES: Final = 64 * MIB
_EVENT_MAX_BYTES: Final = 4 * MIB
_ERROR_MAX_BYTES: Final = 64 * 1024
_HIDDEN: Final = ("__verbose", "generation_settings")
"""Fields of llama.cpp that name files and settings of this host."""

_DONE: Final = b"[DONE]"


class SseReader:
    """Cuts a byte stream into lines and parses its events."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._rest = b""
        self.is_done = False
        """The engine said `[DONE]`."""

    def feed(self, data: bytes) -> list[bytes | dict[str, Any]]:
        """The complete lines of what has arrived: an event parsed, with the model's public name; anything else as it came.

        Raises EngineError `upstream_failed` for an endless line or a broken event, and what `engine_error` makes of an error event.
        """
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > _EVENT_MAX_BYTES:
            raise EngineError("upstream_failed", "the engine sent an event without end", retryable=True)
        return [self._line(line.rstrip(b"\r")) for line in lines]

    def _line(self, line: bytes) -> bytes | dict[str, Any]:
        if line.startswith(b"error:"):
            raise engine_error(500, _parsed(line[6:]))
        if not line.startswith(b"data:"):
            return line
        payload = line[5:].strip()
        if payload == _DONE:
            self.is_done = True
            return b"data: [DONE]"
        document = _parsed(payload)
        if not isinstance(document, dict):
            raise EngineError("upstream_failed", "the engine sent an event that is no object", retryable=True)
        if "error" in document:
            raise engine_error(500, document)
        if "model" in document:
            document["model"] = self._model
        for name in _HIDDEN:
            document.pop(name, None)
        return document


def _parsed(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        raise EngineError("upstream_failed", "the engine sent an event that is no JSON", retryable=True) from None


def line_bytes(line: bytes | dict[str, Any]) -> bytes:
    """A line of `SseReader` as it goes to the caller."""
    if isinstance(line, bytes):
        return line + b"\n"
    return b"data: " + json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def engine_error(status: int, document: Any) -> SbctlError:
    """An engine's refusal. Only what the caller can mend (400) is passed on in words."""
    inner = document.get("error") if isinstance(document, dict) else None
    message = inner.get("message") if isinstance(inner, dict) else None
    inner_code = inner.get("code") if isinstance(inner, dict) else None
    if status == 400 or inner_code == 400:
        text = display_safe(str(message or "the engine refused the request"), max_chars=300)
        return InputError("invalid_request", text)
    return EngineError("upstream_failed", f"the engine answered {status}", retryable=True)


async def read_refusal(response: aiohttp.ClientResponse) -> SbctlError:
    """The error behind an answer that is not 200."""
    try:
        document = json.loads(await response.content.read(_ERROR_MAX_BYTES))
    except (*ENGINE_ERRORS, ValueError):
        document = None
    return engine_error(response.status, document)


async def _lines(
    upstream: aiohttp.ClientResponse, reader: SseReader, progressed: Callable[[], None]
) -> AsyncGenerator[list[bytes | dict[str, Any]], None]:
    """Until `[DONE]`. Raises EngineError `upstream_failed` when the engine ends or breaks off before."""
    try:
        async for data in upstream.content.iter_any():
            progressed()
            yield reader.feed(data)
            if reader.is_done:
                return
    except ENGINE_ERRORS as error:
        why = f"the engine's stream broke: {type(error).__name__}"
        raise EngineError("upstream_failed", why, retryable=True) from error
    raise EngineError("upstream_failed", "the engine closed the stream early", retryable=True)


async def read_whole(upstream: aiohttp.ClientResponse, *, model: str, progressed: Callable[[], None]) -> bytes:
    """A stream as one answer. Raises EngineError `upstream_failed`, and what the engine's error event means."""
    assembler, size = Assembler(), 0
    async with aclosing(_lines(upstream, SseReader(model), progressed)) as batches:
        async for batch in batches:
            for line in batch:
                if isinstance(line, dict):
                    assembler.add(line)
                size += len(line) if isinstance(line, bytes) else len(str(line))
            if size > _ANSWER_MAX_BYTES:
                raise EngineError("upstream_failed", "the engine's answer has no end")
    return json.dumps(assembler.answer(), ensure_ascii=False, separators=(",", ":")).encode()


async def relay_stream(
    upstream: aiohttp.ClientResponse,
    downstream: web.StreamResponse,
    *,
    model: str,
    request_id: str,
    progressed: Callable[[], None],
) -> str:
    """Pass events on as they come, until the engine is done. Returns how it ended: `done`, or the reason it broke.

    Raises ConnectionError or CancelledError when the caller is gone; leaving then closes the upstream connection.
    """
    problem: SbctlError | None = None
    batch: list[bytes | dict[str, Any]] = []
    async with aclosing(_lines(upstream, SseReader(model), progressed)) as batches:
        while True:
            try:
                batch = await anext(batches)
            except StopAsyncIteration:
                break
            except SbctlError as error:
                problem = error
                break
            await downstream.write(b"".join(map(line_bytes, batch)))
    if problem is not None:
        event = json.dumps(error_document(problem, request_id), separators=(",", ":"))
        await downstream.write(f"data: {event}\n\n".encode())
    elif batch[-1:] != [b""]:
        await downstream.write(b"\n")
    await downstream.write_eof()
    return "done" if problem is None else problem.code
