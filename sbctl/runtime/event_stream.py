"""Server-sent events (WHATWG HTML, "Server-sent events") of the admin API: one numbered event after the other, with signs of life between them.

A stream ends with what it tells of, when its reader leaves, and when the runtime ends; a reader comes again with `Last-Event-ID` and loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from math import inf
from typing import Any, Final

from aiohttp import web

from sbctl.base.errors import SbctlError
from sbctl.runtime.listeners import ENDING, json_headers
from sbctl.runtime.log import get_log

__all__ = ["Said", "last_event_id", "tell_events"]

Said = tuple[int, str, Mapping[str, Any]]
"""Number, kind and document of one event."""
_SILENCE_S: Final = 15.0
"""Between two signs of life."""
_NUMBER_MAX_DIGITS: Final = 15


def last_event_id(request: web.Request) -> int | None:
    """Of the last event that the reader has; None where it says none, or none of ours."""
    last = request.headers.get("Last-Event-ID", "")
    return int(last) if last.isascii() and last.isdigit() and len(last) <= _NUMBER_MAX_DIGITS else None


async def tell_events(request: web.Request, told: AsyncIterator[Said], *, most_s: float = inf) -> web.StreamResponse:
    """The answer to the request, when it is over: after `most_s` seconds at the latest."""
    response = web.StreamResponse(headers=json_headers({"Content-Type": "text/event-stream"}))
    await response.prepare(request)
    if request.method != "HEAD":
        with contextlib.suppress(ConnectionError):
            await _tell(response, told, request.app[ENDING], most_s)
    return response


async def _tell(response: web.StreamResponse, told: AsyncIterator[Said], ending: asyncio.Event, most_s: float) -> None:
    """Raises ConnectionError when the reader left."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + most_s
    over = asyncio.ensure_future(ending.wait())
    pending = asyncio.ensure_future(anext(told, None))
    try:
        while loop.time() < end_s:
            silence_s = min(_SILENCE_S, end_s - loop.time())
            await asyncio.wait({pending, over}, timeout=silence_s, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                return
            if not pending.done():
                await response.write(b": nothing new\n\n")
                continue
            said = pending.result()
            if said is None:
                return
            number, kind, document = said
            await response.write(f"id: {number}\nevent: {kind}\ndata: {json.dumps(document)}\n\n".encode())
            pending = asyncio.ensure_future(anext(told, None))
    except SbctlError as error:
        get_log("http").warning("a stream of events ends", code=error.code, reason=error.message)
    finally:
        over.cancel()
        pending.cancel()
