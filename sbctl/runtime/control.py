"""The control socket: how node operations on the same host steer the runtime. HTTP over a UNIX socket in a 0700 directory, mode 0600.

    GET    /control/v1/status
    POST   /control/v1/bundle                            {envelope, expected_revision} → application/x-ndjson:
                                                         {"progress": …}* then {"result": …} or {"error": …}
    DELETE /control/v1/bundle
    POST   /control/v1/deployments/{id}/{action}         {by?, drain_s?} → application/x-ndjson as a bundle; it is a job
                                                         action: load, stop, drain, evict, pull, reset
    POST   /control/v1/drain/{operator|apply|leave}      admit nothing new, or leave the cluster → {"active_requests": …}
    DELETE /control/v1/drain/{operator|apply|leave}

A transaction that began runs to its end even when its caller goes away: the caller finds the outcome by the next status.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl.base import strict_json
from sbctl.base.defects import where_it_failed
from sbctl.base.errors import HTTP_STATUS, InputError, SbctlError
from sbctl.base.limits import BUNDLE_MAX_BYTES
from sbctl.node.snapshot import DeploymentState
from sbctl.runtime.actor import ACTING, Actor
from sbctl.runtime.admin_routes import ACTIONS
from sbctl.runtime.audit import Note
from sbctl.runtime.drain import Drain, DrainedBy
from sbctl.runtime.jobs import Jobs
from sbctl.runtime.listeners import read_body
from sbctl.runtime.log import get_log
from sbctl.runtime.operator_acts import Action
from sbctl.runtime.provision import Progress
from sbctl.runtime.reconcile import Reconciler

__all__ = ["ControlRoutes", "control_app", "followed"]

_BODY_MAX_BYTES: Final = 2 * BUNDLE_MAX_BYTES
_HEARTBEAT_S: Final = 5.0

_Asked = TypeVar("_Asked", bound=BaseModel)


class _BundleRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    envelope: str
    expected_revision: int | None = None


class _ActionRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    by: str | None = Field(default=None, max_length=200)
    drain_s: float | None = Field(default=None, ge=0, le=86_400)


def control_app(
    reconciler: Reconciler, jobs: Jobs, status: Callable[[], dict[str, Any]], drain: Drain, note: Note
) -> web.Application:
    """The application behind the socket; `status` gives the status document, `note` writes into the audit and never raises: a host
    is taken out of service also while its disk is full."""
    routes = ControlRoutes(reconciler, jobs, status, drain, note)
    app = web.Application(client_max_size=_BODY_MAX_BYTES)
    app.add_routes(
        [
            web.get("/control/v1/status", routes.status),
            web.post("/control/v1/bundle", routes.apply),
            web.delete("/control/v1/bundle", routes.clear),
            web.post(f"/control/v1/deployments/{{deployment}}/{{action:{'|'.join(ACTIONS)}}}", routes.act),
            web.post("/control/v1/drain/{by:operator|apply|leave}", routes.drain),
            web.delete("/control/v1/drain/{by:operator|apply|leave}", routes.resume),
        ]
    )
    return app


class ControlRoutes:
    """Handlers of the socket."""

    def __init__(
        self, reconciler: Reconciler, jobs: Jobs, status: Callable[[], dict[str, Any]], drain: Drain, note: Note
    ) -> None:
        self._reconciler = reconciler
        self._jobs = jobs
        self._drain = drain
        self._note = note
        self._status = status
        self._running: set[asyncio.Task[Any]] = set()
        self._log = get_log("control")

    async def status(self, _request: web.Request) -> web.Response:
        return web.json_response(self._status())

    async def drain(self, request: web.Request) -> web.Response:
        by = cast("DrainedBy", request.match_info["by"])
        self._drain.begin(by)
        await self._noted("host.drain", self._who(by))
        return web.json_response({"active_requests": self._drain.active})

    async def resume(self, request: web.Request) -> web.Response:
        by = cast("DrainedBy", request.match_info["by"])
        who = self._who(by)
        self._drain.end(by)
        await self._noted("host.resume", who)
        return web.json_response({})

    def _who(self, by: DrainedBy) -> str:
        told = self._drain.state() or {}
        return str(told["by"]) if by == "operator" and told.get("persistent") else by

    async def _noted(self, action: str, who: str) -> None:
        ACTING.set(Actor(who, "admin", "control"))
        await asyncio.to_thread(self._note, action, "host", {"active_requests": self._drain.active})

    async def apply(self, request: web.Request) -> web.StreamResponse:
        async def begun(progress: Progress) -> asyncio.Task[Any]:
            asked = _read(_BundleRequest, await read_body(request, max_bytes=_BODY_MAX_BYTES))
            return self._begin(self._reconciler.apply_bundle(asked.envelope, asked.expected_revision, progress))

        return await followed(request, begun)

    async def act(self, request: web.Request) -> web.StreamResponse:
        deployment, action = request.match_info["deployment"], cast("Action", request.match_info["action"])

        async def begun(progress: Progress) -> asyncio.Task[Any]:
            asked = _read(_ActionRequest, await read_body(request, max_bytes=_BODY_MAX_BYTES) or b"{}")
            self._reconciler.known(deployment)

            async def work(noted: Progress) -> DeploymentState:
                def both(done: int, total: int | None, note: str) -> None:
                    noted(done, total, note)
                    progress(done, total, note)

                return await self._reconciler.act(deployment, action, both, drain_s=asked.drain_s)

            ACTING.set(Actor(asked.by or "node interface", "admin", "control"))
            return (await self._jobs.begin(action, deployment, work)).done

        return await followed(request, begun)

    async def clear(self, _request: web.Request) -> web.Response:
        work = self._begin(self._reconciler.clear())
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


async def followed(
    request: web.Request, begin: Callable[[Progress], Awaitable[asyncio.Task[Any]]]
) -> web.StreamResponse:
    """Lines of progress as they come, then how it ended."""
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
    await response.prepare(request)
    lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue(maxsize=256)

    def progress(done: int, total: int | None, note: str) -> None:
        with contextlib.suppress(asyncio.QueueFull):
            lines.put_nowait({"progress": {"done": done, "total": total, "note": note}})

    try:
        work = await begin(progress)
    except SbctlError as error:
        await _line(response, {"error": error.to_wire()})
        return response
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


def _read(model: type[_Asked], body: bytes) -> _Asked:
    document = strict_json.loads(body, max_bytes=_BODY_MAX_BYTES)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError("invalid_body", f"{where}: {first['msg']}") from None


def _wire(error: BaseException) -> dict[str, Any]:
    if isinstance(error, SbctlError):
        return error.to_wire()
    return SbctlError(
        "runtime.internal",
        f"the runtime failed unexpectedly: {where_it_failed(error)}: {error}",
        next_step="report it with this message and what `sbctl logs` shows; the next apply reads the host before it acts",
    ).to_wire()


def _outcome(work: asyncio.Task[Any]) -> dict[str, Any]:
    error = asyncio.CancelledError("the runtime is stopping") if work.cancelled() else work.exception()
    if error is not None:
        return {"error": _wire(error)}
    result = work.result()
    return {"result": result.model_dump(mode="json") if isinstance(result, BaseModel) else result}


def _answer(work: asyncio.Task[Any]) -> web.Response:
    outcome = _outcome(work)
    if "error" in outcome:
        return web.json_response(outcome, status=HTTP_STATUS.status(outcome["error"]["code"]))
    result = outcome["result"]
    return web.json_response(result or {})


async def _line(response: web.StreamResponse, document: dict[str, Any]) -> None:
    await response.write(json.dumps(document).encode() + b"\n")
