"""The admin API: for operators and dashboards on this machine. Guarded first (`admin_guard`), then routed; no GET changes anything."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from sbctl.base.clock import Clock
from sbctl.base.errors import HTTP_STATUS, InputError, RefusedError, SbctlError
from sbctl.base.limits import ADMIN_BODY_MAX_BYTES
from sbctl.base.secret import Secret
from sbctl.runtime.admin_desired import AdminDesired, refusal
from sbctl.runtime.admin_guard import AdminGuard
from sbctl.runtime.generation import Generation
from sbctl.runtime.jobs import Jobs
from sbctl.runtime.listeners import PROBE_ROUTES, Handler, json_headers, read_body
from sbctl.runtime.log import get_log
from sbctl.runtime.metrics import RuntimeMetrics
from sbctl.runtime.reconcile import Action, Reconciler
from sbctl.runtime.replica import Replica
from sbctl.runtime.store import JobRow, RuntimeStore

__all__ = ["AdminPlane"]

_PREFIX: Final = "/admin/model-host"


class AdminPlane:
    """Handlers of the admin listener."""

    def __init__(
        self,
        reconciler: Reconciler,
        store: RuntimeStore,
        metrics: RuntimeMetrics,
        *,
        clock: Clock,
        desired: AdminDesired,
        username: str,
        password: Secret,
        bind: str,
        port: int,
    ) -> None:
        self._reconciler = reconciler
        self._metrics = metrics
        self._desired = desired
        self._jobs = Jobs(store, clock)
        self._guard = AdminGuard(username, password, bind=bind, port=port)
        self._log = get_log("admin")

    def app(self) -> web.Application:
        app = web.Application(
            middlewares=[self._answer(), self._guard.middleware()], client_max_size=ADMIN_BODY_MAX_BYTES
        )
        app.add_routes([web.get(path, self._probe) for path in PROBE_ROUTES])
        app.add_routes(
            [
                web.get("/metrics", self._metrics_text),
                web.get(f"{_PREFIX}/status", self._status),
                web.get(f"{_PREFIX}/deployments", self._deployments),
                web.put(f"{_PREFIX}/deployments", self._replace_deployments),
                web.get(f"{_PREFIX}/jobs", self._list_jobs),
                web.get(f"{_PREFIX}/jobs/{{job}}", self._show_job),
                web.post(f"{_PREFIX}/load", self._load),
                web.post(f"{_PREFIX}/stop", self._stop),
                web.post(f"{_PREFIX}/reset", self._reset),
            ]
        )
        return app

    # Reading

    async def _probe(self, request: web.Request) -> web.Response:
        cold = any(
            generation.member.warm and not generation.ready_replicas
            for generation in self._reconciler.generations.values()
        )
        bad = cold and request.path in ("/readyz", "/health")
        return _json({"status": "unavailable" if bad else "ok"}, 503 if bad else 200)

    async def _metrics_text(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.render(),
            headers=json_headers({"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}),
        )

    async def _status(self, _request: web.Request) -> web.Response:
        generations = self._reconciler.generations
        rows = [
            _row(generations[name], replica) for name in sorted(generations) for replica in generations[name].replicas
        ]
        serving = any(generation.ready_replicas for generation in generations.values())
        return _json({"serving": serving, "runtime_revision": self._reconciler.revision, "deployments": rows})

    async def _deployments(self, _request: web.Request) -> web.Response:
        return _json(self._desired.shown())

    async def _list_jobs(self, _request: web.Request) -> web.Response:
        jobs = await asyncio.to_thread(self._jobs.rows)
        return _json({"schema_version": 1, "jobs": [_job(row) for row in jobs]})

    async def _show_job(self, request: web.Request) -> web.Response:
        asked = request.match_info["job"]
        for row in await asyncio.to_thread(self._jobs.rows):
            if row.id == asked:
                return _json({"schema_version": 1, "job": _job(row)})
        raise RefusedError("not_found", "there is no such job")

    # Changing

    async def _replace_deployments(self, request: web.Request) -> web.Response:
        self._desired.refuse_foreign()
        document = self._guard.parse(await read_body(request, max_bytes=ADMIN_BODY_MAX_BYTES))
        try:
            # A caller that leaves does not cancel a change that is half done.
            return _json(await asyncio.shield(self._desired.replace(document)))
        except SbctlError as error:
            status, body = refusal(error)
            return _json(body, status)

    async def _load(self, request: web.Request) -> web.Response:
        return await self._queued(request, "load")

    async def _stop(self, request: web.Request) -> web.Response:
        return await self._queued(request, "stop")

    async def _reset(self, request: web.Request) -> web.Response:
        deployment = await self._named(request)
        job = self._jobs.begin("reset", deployment, self._reconciler.act(deployment, "reset"))
        await job.done
        self._audit(request, "reset", deployment)
        return _json({"deployment": deployment, "state": "configured", "job_id": job.id})

    async def _queued(self, request: web.Request, action: Action) -> web.Response:
        deployment = await self._named(request)
        job = self._jobs.begin(action, deployment, self._reconciler.act(deployment, action))
        self._audit(request, action, deployment)
        return _json(
            {
                "schema_version": 1,
                "deployment": deployment,
                "state": "queued",
                "job_id": job.id,
                "poll_url": f"{_PREFIX}/jobs/{job.id}",
            },
            202,
        )

    async def _named(self, request: web.Request) -> str:
        document = self._guard.parse(await read_body(request, max_bytes=ADMIN_BODY_MAX_BYTES))
        named = document.get("deployment", document.get("model"))
        if not isinstance(named, str) or set(document) - {"deployment", "model"}:
            raise InputError("invalid_body", 'the body is {"deployment": "<id>"}')
        if named not in self._reconciler.generations:
            raise RefusedError("unknown_deployment", "there is no such deployment")
        return named

    def _audit(self, request: web.Request, action: str, deployment: str) -> None:
        self._log.info("audit", action=action, deployment=deployment, method=request.method, source=request.remote)

    def _answer(self) -> Any:
        @web.middleware
        async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await handler(request)
            except SbctlError as error:
                status = HTTP_STATUS.status(error.code)
                headers = {}
                if status == 401:
                    headers["WWW-Authenticate"] = 'Basic realm="sbproxy admin"'
                if "retry_after_s" in error.detail:
                    headers["Retry-After"] = str(error.detail["retry_after_s"])
                return _json({"error": error.message, "code": error.code}, status, headers)
            except web.HTTPException as error:
                code = {404: "not_found", 405: "method_not_allowed"}.get(error.status, "invalid_request")
                allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
                return _json({"error": error.reason, "code": code}, error.status, allow)

        return answer_errors


def _json(document: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response(document, status=status, headers=json_headers(headers))


def _row(generation: Generation, replica: Replica) -> dict[str, Any]:
    state = replica.state()
    engine = generation.member.engine
    return {
        "deployment": generation.deployment,
        "replica": state.replica,
        "generation": generation.number,
        "state": state.state,
        "active_requests": state.active_requests,
        "queued_requests": state.queued_requests,
        "engine": engine.engine,
        "engine_version": engine.version,
        "driver_availability": "available",
        "artifact_digest": generation.member.artifact.artifact,
        "selected_devices": [],
        "memory": None,
        "port": replica.port,
        "restarts": state.restarts,
        "stopped_by": replica.stopped_by,
        "reason_code": state.reason_code,
        "job_id": None,
        "last_error": state.last_error,
    }


def _job(row: JobRow) -> dict[str, Any]:
    ended = row.state != "running"
    return {
        "id": row.id,
        "kind": row.kind,
        "subject": row.subject,
        "state": row.state,
        "created_at_ms": row.created_at_ms,
        "updated_at_ms": row.updated_at_ms,
        "terminal_at_ms": row.updated_at_ms if ended else None,
        "error": row.error,
    }
