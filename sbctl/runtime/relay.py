"""An engine's answer on its way to the caller: whole or as a stream, with the engine's name for the model mapped back.

A stream that breaks ends with one error event and without `[DONE]`; it is never replayed, since the caller has seen part of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import aiohttp
from aiohttp import web

from sbctl.base.display import display_safe
from sbctl.base.errors import EngineError, InputError, SbctlError
from sbctl.base.limits import MIB
from sbctl.runtime.engine_client import ENGINE_ERRORS
from sbctl.runtime.http_errors import error_document

__all__ = ["SseMapper", "engine_error", "read_refusal", "read_whole", "relay_stream"]

_ANSWER_MAX_BYTES: Final = 64 * MIB
_EVENT_MAX_BYTES: Final = 4 * MIB
_ERROR_MAX_BYTES: Final = 64 * 1024
_HIDDEN: Final = ("__verbose", "generation_settings")
"""Fields of llama.cpp that name files and settings of this host."""

_DONE: Final = b"[DONE]"


def _mapped(document: Any, model: str) -> Any:
    if isinstance(document, dict):
        if "model" in document:
            document["model"] = model
        for name in _HIDDEN:
            document.pop(name, None)
    return document


def _parsed(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        raise EngineError("upstream_failed", "the engine sent an event that is no JSON") from None


class SseMapper:
    """Cuts a byte stream into events and maps each; comments (keep-alive pings) pass unchanged."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._rest = b""
        self.is_done = False
        """The engine said `[DONE]`."""

    def feed(self, data: bytes) -> bytes:
        """The complete lines of what has arrived. Raises EngineError `upstream_failed` for an endless line or a broken event."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > _EVENT_MAX_BYTES:
            raise EngineError("upstream_failed", "the engine sent an event without end")
        return b"".join(self._line(line) + b"\n" for line in lines)

    def _line(self, line: bytes) -> bytes:
        line = line.rstrip(b"\r")
        if line.startswith(b"error:"):
            raise engine_error(500, _parsed(line[6:]))
        if not line.startswith(b"data:"):
            return line
        payload = line[5:].strip()
        if payload == _DONE:
            self.is_done = True
            return b"data: [DONE]"
        document = _parsed(payload)
        if isinstance(document, dict) and "error" in document:
            raise engine_error(500, document)
        mapped = json.dumps(_mapped(document, self._model), ensure_ascii=False, separators=(",", ":"))
        return b"data: " + mapped.encode()


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


async def read_whole(response: aiohttp.ClientResponse, model: str) -> bytes:
    """A unary answer, mapped. Raises EngineError `upstream_failed`."""
    parts, total = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        total += len(part)
        if total > _ANSWER_MAX_BYTES:
            raise EngineError("upstream_failed", "the engine's answer has no end")
    try:
        document = json.loads(b"".join(parts))
    except ValueError:
        raise EngineError("upstream_failed", "the engine's answer is no JSON") from None
    return json.dumps(_mapped(document, model), ensure_ascii=False, separators=(",", ":")).encode()


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
    mapper = SseMapper(model)
    problem: SbctlError | None = None
    data = b""
    chunks = upstream.content.iter_any()
    while not mapper.is_done:
        try:
            data = mapper.feed(await anext(chunks))
        except StopAsyncIteration:
            problem = EngineError("upstream_failed", "the engine closed the stream early", retryable=True)
            break
        except ENGINE_ERRORS as error:
            problem = EngineError(
                "upstream_failed", f"the engine's stream broke: {type(error).__name__}", retryable=True
            )
            break
        except SbctlError as error:
            problem = error
            break
        progressed()
        if data:
            await downstream.write(data)
    if problem is not None:
        event = json.dumps(error_document(problem, request_id), separators=(",", ":"))
        await downstream.write(f"data: {event}\n\n".encode())
    elif not data.endswith(b"\n\n"):
        await downstream.write(b"\n")
    await downstream.write_eof()
    return "done" if problem is None else problem.code
