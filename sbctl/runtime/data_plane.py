"""The OpenAI-compatible API: key ► origin ► model ► admission ► engine, and the answer back as it comes.

A permit is held from admission until the answer's last byte is sent or the caller is gone; a caller that goes away cancels the handler,
which closes the engine's connection.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from sbctl.base.errors import HTTP_STATUS, EngineError, RefusedError, SbctlError
from sbctl.base.limits import DATA_BODY_MAX_BYTES
from sbctl.runtime.admission import Priority
from sbctl.runtime.completion_request import Kind, engine_body, read_request
from sbctl.runtime.drain import Drain
from sbctl.runtime.engine_client import ENGINE_ERRORS
from sbctl.runtime.generation import Generation, Lease
from sbctl.runtime.http_errors import error_response
from sbctl.runtime.listeners import PROBE_ROUTES, Handler, json_headers, read_body
from sbctl.runtime.log import get_log
from sbctl.runtime.metrics import RuntimeMetrics
from sbctl.runtime.rate_limit import RateLimiter
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.relay import read_refusal, read_whole, relay_stream
from sbctl.runtime.routes import Caller

__all__ = ["DataPlane"]

_PARSE_INLINE_MAX_BYTES: Final = 128 * 1024
_ENGINE_PATHS: Final[dict[Kind, str]] = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}
_SWAPS_FOLLOWED: Final = 4
_ID: Final = web.RequestKey("sbctl_request_id", str)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that passed every check before admission."""

    body: dict[str, Any]
    kind: Kind
    host: str
    caller: Caller
    request_id: str

    @property
    def priority(self) -> Priority:
        return self.caller.entry.priority if self.caller.entry is not None else "standard"


class DataPlane:
    """Handlers of the public listener. `bound_to_loopback`: only this machine can reach it."""

    def __init__(
        self, reconciler: Reconciler, metrics: RuntimeMetrics, drain: Drain, *, bound_to_loopback: bool
    ) -> None:
        self._drain = drain
        self._reconciler = reconciler
        self._metrics = metrics
        self._on_loopback = bound_to_loopback
        self._limiter = RateLimiter()
        self._stopping = False
        self._log = get_log("data")

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._errors()], client_max_size=DATA_BODY_MAX_BYTES)
        app.add_routes([web.get(path, self._health) for path in PROBE_ROUTES])
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completion),
                web.get("/v1/models", self._models),
                web.get("/models", self._models),
            ]
        )
        return app

    def stop_admitting(self) -> None:
        """New requests are refused as draining; those that run go on."""
        self._stopping = True

    # Handlers

    async def _health(self, request: web.Request) -> web.Response:
        """/livez and /healthz: the process answers. /readyz and /health: every deployment that should be warm is ready,
        and the host is in service."""
        cold = [
            name
            for name, generation in self._reconciler.generations.items()
            if generation.member.warm and not generation.ready_replicas
        ]
        bad = request.path in ("/readyz", "/health") and (bool(cold) or self._stopping or self._drain.is_on)
        document = {"status": "unavailable" if bad else "ok"}
        return web.json_response(document, status=503 if bad else 200, headers=json_headers())

    async def _models(self, request: web.Request) -> web.Response:
        table = self._reconciler.routes
        caller = self._caller(request)
        origin = table.origin(request.headers.get("Host", ""), bound_to_loopback=self._on_loopback)
        rows = [
            _model_row(name, table.generations[deployment])
            for name, deployment in sorted(origin.models.items())
            if deployment in table.generations and caller.may_use(name)
        ]
        return web.json_response({"object": "list", "data": rows}, headers=json_headers())

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, "chat")

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, "completion")

    async def _complete(self, request: web.Request, kind: Kind) -> web.StreamResponse:
        caller = self._caller(request)
        with self._drain.request():
            return await self._complete_for(caller, request, kind)

    async def _complete_for(self, caller: Caller, request: web.Request, kind: Kind) -> web.StreamResponse:
        if request.content_type != "application/json":
            raise RefusedError("unsupported_media_type", "the body is application/json")
        data = await read_body(request, max_bytes=DATA_BODY_MAX_BYTES)
        if len(data) > _PARSE_INLINE_MAX_BYTES:
            body = await asyncio.to_thread(read_request, data, kind)
        else:
            body = read_request(data, kind)
        asked = _Asked(body, kind, request.headers.get("Host", ""), caller, request[_ID])
        name, generation, lease = await self._admit(asked)
        try:
            response = await self._ask_engine(request, asked, name, generation, lease)
            self._metrics.answered(generation.deployment, response.status)
            return response
        except SbctlError as error:
            self._metrics.answered(generation.deployment, HTTP_STATUS.status(error.code))
            raise
        finally:
            lease.release()

    # Steps

    def _caller(self, request: web.Request) -> Caller:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        presented = token.strip() if scheme.lower() == "bearer" else None
        table = self._reconciler.routes
        caller = table.caller(presented, bound_to_loopback=self._on_loopback)
        if caller.entry is None and not table.public and not table.is_own_page(request.headers.get("Origin")):
            raise RefusedError("cross_site_refused", "without API keys, pages of other sites are refused")
        if caller.name is not None and caller.entry is not None and caller.entry.requests_per_minute is not None:
            now_s = asyncio.get_running_loop().time()
            self._limiter.take(caller.name, per_minute=caller.entry.requests_per_minute, now_s=now_s)
        return caller

    async def _admit(self, asked: _Asked) -> tuple[str, Generation, Lease]:
        """A commit may replace the generation while the request waits for it: follow it then, so that a rollout refuses nobody."""
        for _ in range(_SWAPS_FOLLOWED):
            if self._stopping:
                raise EngineError("no_ready_replica", "the runtime is stopping", retryable=True)
            table = self._reconciler.routes
            origin = table.origin(asked.host, bound_to_loopback=self._on_loopback)
            name, generation = table.resolve(origin, asked.body.get("model"))
            if not asked.caller.may_use(name):
                raise RefusedError("model_not_allowed", "this key may not use this model")
            try:
                return name, generation, await generation.admit(asked.priority)
            except SbctlError as error:
                if error.code != "draining" or self._reconciler.routes is table:
                    self._metrics.rejected(generation.deployment, asked.priority, error.code)
                    raise
        raise EngineError("no_ready_replica", "the model is being replaced", retryable=True)

    async def _ask_engine(
        self, request: web.Request, asked: _Asked, name: str, generation: Generation, lease: Lease
    ) -> web.StreamResponse:
        data = engine_body(asked.body, model=generation.deployment, context_length=generation.member.context_length)
        headers = {
            "X-Request-Id": asked.request_id,
            "x-sbproxy-logical-model": name,
            "x-sbproxy-route-class": "local",
        }
        try:
            async with lease.replica.client.post(_ENGINE_PATHS[asked.kind], data) as upstream:
                if upstream.status != 200:
                    raise await read_refusal(upstream)
                if not asked.body.get("stream"):
                    answer = await read_whole(upstream, model=name, progressed=lease.replica.progressed)
                    return web.Response(body=answer, content_type="application/json", headers=json_headers(headers))
                downstream = web.StreamResponse(
                    headers=json_headers({**headers, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
                )
                await downstream.prepare(request)
                ended = await relay_stream(
                    upstream,
                    downstream,
                    model=name,
                    request_id=asked.request_id,
                    progressed=lease.replica.progressed,
                )
                if ended != "done":
                    self._metrics.stream_broke(generation.deployment)
                    self._log.warning("stream broke", request_id=asked.request_id, reason=ended)
                return downstream
        except ENGINE_ERRORS as error:
            if request.transport is None or request.transport.is_closing():
                raise
            raise EngineError(
                "upstream_failed", f"the engine did not answer: {type(error).__name__}", retryable=True
            ) from error

    def _errors(self) -> Any:
        @web.middleware
        async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
            request[_ID] = request_id = uuid.uuid4().hex
            try:
                return await handler(request)
            except SbctlError as error:
                self._log.info(
                    "refused", request_id=request_id, path=request.path[:128], code=error.code, reason=error.message
                )
                return error_response(error, request_id)
            except web.HTTPException as error:
                code = {404: "not_found", 405: "method_not_allowed", 413: "request_body_too_large"}.get(error.status)
                return error_response(RefusedError(code or "invalid_request", error.reason), request_id)

        return answer_errors


def _model_row(name: str, generation: Generation) -> dict[str, Any]:
    ready = generation.ready_replicas
    failed = all(replica.crash_looping or replica.stopped_by == "operator" for replica in generation.replicas)
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "sbproxy",
        "context_window": generation.member.context_length,
        "availability": {
            "state": "ready" if ready else "unavailable" if failed else "cold",
            "ready_replicas": ready,
            "desired_replicas": len(generation.replicas),
        },
    }
