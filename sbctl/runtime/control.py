"""The control socket: how node operations on the same host steer the runtime. HTTP over a UNIX socket in a 0700 directory, mode 0600.

    GET    /control/v1/status
    POST   /control/v1/bundle                            {envelope, expected_revision} → application/x-ndjson:
                                                         {"progress": …}* then {"result": …} or {"error": …}
    DELETE /control/v1/bundle
    POST   /control/v1/deployments/{id}/{load|stop|reset}
    POST   /control/v1/drain/{operator|apply}            admit nothing new → {"active_requests": …}
    DELETE /control/v1/drain/{operator|apply}

A transaction that began runs to its end even when its caller goes away: the caller finds the outcome by the next status.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any, Final, cast

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

from sbctl.base import strict_json
from sbctl.base.errors import HTTP_STATUS, InputError, SbctlError
from sbctl.base.limits import BUNDLE_MAX_BYTES
from sbctl.runtime.drain import Drain, DrainedBy
from sbctl.runtime.listeners import read_body
from sbctl.runtime.log import get_log
from sbctl.runtime.reconcile import Action, Reconciler

__all__ = ["control_app"]

_BODY_MAX_BYTES: Final = 2 * BUNDLE_MAX_BYTES
_HEARTBEAT_S: Final = 5.0


class _BundleRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    envelope: str
    expected_revision: int | None = None


def control_app(reconciler: Reconciler, status: Callable[[], dict[str, Any]], drain: Drain) -> web.Application:
    """The application behind the socket; `status` gives the status document."""
    routes = _Control(reconciler, status, drain)
    app = web.Application(client_max_size=_BODY_MAX_BYTES)
    app.add_routes(
        [
            web.get("/control/v1/status", routes.status),
            web.post("/control/v1/bundle", routes.apply),
            web.delete("/control/v1/bundle", routes.clear),
            web.post("/control/v1/deployments/{deployment}/{action:load|stop|reset}", routes.act),
            web.post("/control/v1/drain/{by:operator|apply}", routes.drain),
            web.delete("/control/v1/drain/{by:operator|apply}", routes.resume),
        ]
    )
    return app


class _Control:
    def __init__(self, reconciler: Reconciler, status: Callable[[], dict[str, Any]], drain: Drain) -> None:
        self._reconciler = reconciler
        self._drain = drain
        self._status = status
        self._running: set[asyncio.Task[Any]] = set()
        self._log = get_log("control")

    async def status(self, _request: web.Request) -> web.Response:
        return web.json_response(self._status())

    async def drain(self, request: web.Request) -> web.Response:
        self._drain.begin(cast("DrainedBy", request.match_info["by"]))
        return web.json_response({"active_requests": self._drain.active})

    async def resume(self, request: web.Request) -> web.Response:
        self._drain.end(cast("DrainedBy", request.match_info["by"]))
        return web.json_response({})

    async def apply(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
        await response.prepare(request)
        lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue(maxsize=256)

        def progress(done: int, total: int | None, note: str) -> None:
            with contextlib.suppress(asyncio.QueueFull):
                lines.put_nowait({"progress": {"done": done, "total": total, "note": note}})

        try:
            asked = _bundle_request(await read_body(request, max_bytes=_BODY_MAX_BYTES))
        except SbctlError as error:
            await _line(response, {"error": error.to_wire()})
            return response
        work = self._begin(self._reconciler.apply_bundle(asked.envelope, asked.expected_revision, progress))
        while not work.done() or not lines.empty():
            getting = asyncio.create_task(lines.get())
            try:
                await asyncio.wait({getting, work}, timeout=_HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    await _line(response, getting.result())
                elif not work.done():
                    await _line(response, {"progress": {"done": 0, "total": None, "note": "working"}})
            finally:
                getting.cancel()
        await _line(response, _outcome(work))
        return response

    async def clear(self, _request: web.Request) -> web.Response:
        work = self._begin(self._reconciler.clear())
        await asyncio.wait({work})
        return _answer(work)

    async def act(self, request: web.Request) -> web.Response:
        action = cast("Action", request.match_info["action"])
        work = self._begin(self._reconciler.act(request.match_info["deployment"], action))
        await asyncio.wait({work})
        return _answer(work)

    def _begin(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.warning("request failed", error=str(task.exception()))


def _bundle_request(body: bytes) -> _BundleRequest:
    document = strict_json.loads(body, max_bytes=_BODY_MAX_BYTES)
    try:
        return _BundleRequest.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError("invalid_body", f"{where}: {first['msg']}") from None


def _wire(error: BaseException) -> dict[str, Any]:
    if isinstance(error, SbctlError):
        return error.to_wire()
    return SbctlError("runtime.internal", f"the runtime failed unexpectedly: {type(error).__name__}: {error}").to_wire()


def _outcome(work: asyncio.Task[Any]) -> dict[str, Any]:
    error = asyncio.CancelledError("the runtime is stopping") if work.cancelled() else work.exception()
    return {"result": work.result()} if error is None else {"error": _wire(error)}


def _answer(work: asyncio.Task[Any]) -> web.Response:
    outcome = _outcome(work)
    if "error" in outcome:
        return web.json_response(outcome, status=HTTP_STATUS.status(outcome["error"]["code"]))
    result = outcome["result"]
    return web.json_response({} if result is None else result.model_dump(mode="json"))


async def _line(response: web.StreamResponse, document: dict[str, Any]) -> None:
    await response.write(json.dumps(document).encode() + b"\n")
