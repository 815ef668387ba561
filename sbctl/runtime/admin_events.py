"""What happened on this node, over the admin API: what `sbctl events` shows, asked once or followed.

It is read from the database, where events of other processes are too (an activation, a removal of weights); whoever follows hears of one
within a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from sbctl.base.errors import InputError, RefusedError
from sbctl.node.records import EVENTS_MAX, EventsAnswer, NodeEvent
from sbctl.runtime.event_log import read_events
from sbctl.runtime.event_stream import Said, last_event_id, tell_events
from sbctl.runtime.listeners import json_headers

__all__ = ["AdminEvents"]

_LIMIT: Final = 100
_LOOK_S: Final = 0.5
_STREAMS_MAX: Final = 16
_NAME_MAX_CHARS: Final = 128
_NUMBER_MAX_DIGITS: Final = 15


class AdminEvents:
    """Handlers, over the database of the runtime's store."""

    def __init__(self, database: Path, *, follow_s: float) -> None:
        """`follow_s`: how long one stream goes on, so that nobody listens much longer than the account may."""
        self._database = database
        self._follow_s = follow_s
        self._streams = 0

    async def list(self, request: web.Request) -> web.Response:
        _only(request, "after", "limit", "deployment")
        after, limit = _number(request, "after"), _number(request, "limit")
        if limit is not None and not 1 <= limit <= EVENTS_MAX:
            raise InputError("invalid_request", f"limit is 1 to {EVENTS_MAX}")
        answer = await self._read(after, limit or _LIMIT, _deployment(request))
        body = {
            "schema_version": 1,
            "events": [_document(one) for one in answer.events],
            "cursor": answer.cursor,
            "more": answer.more,
        }
        return web.json_response(body, headers=json_headers())

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """From `Last-Event-ID` on; without it from now on."""
        _only(request, "deployment")
        deployment, after = _deployment(request), last_event_id(request)
        if after is None:
            after = (await self._read(None, 1, None)).cursor
        if self._streams >= _STREAMS_MAX:
            raise RefusedError(
                "overloaded",
                f"{_STREAMS_MAX} readers follow the events already",
                next_step="end one of them, or ask GET /admin/events?after=CURSOR from time to time",
                detail={"retry_after_s": 5},
            )
        self._streams += 1
        try:
            return await tell_events(request, self._follow(after, deployment), most_s=self._follow_s)
        finally:
            self._streams -= 1

    async def _follow(self, after: int, deployment: str | None) -> AsyncIterator[Said]:
        while True:
            answer = await self._read(after, EVENTS_MAX, deployment)
            for one in answer.events:
                yield one.seq, one.kind, {"schema_version": 1, "event": _document(one)}
            after = answer.cursor
            if not answer.more:
                await asyncio.sleep(_LOOK_S)

    async def _read(self, after: int | None, limit: int, deployment: str | None) -> EventsAnswer:
        return await asyncio.to_thread(read_events, self._database, after=after, limit=limit, deployment=deployment)


def _document(event: NodeEvent) -> dict[str, Any]:
    return event.model_dump(mode="json")


def _only(request: web.Request, *names: str) -> None:
    for name in request.query:
        if name not in names or len(request.query.getall(name)) > 1:
            raise InputError("invalid_request", f"the query has {', '.join(names)}, each once at most")


def _number(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _NUMBER_MAX_DIGITS):
        raise InputError("invalid_request", f"{name} is a whole number, from 0")
    return int(text)


def _deployment(request: web.Request) -> str | None:
    name = request.query.get("deployment")
    if name is not None and not 1 <= len(name) <= _NAME_MAX_CHARS:
        raise InputError("invalid_request", f"deployment has 1 to {_NAME_MAX_CHARS} characters")
    return name
