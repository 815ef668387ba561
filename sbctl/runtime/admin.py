"""The admin API: for operators and dashboards on this machine. Guarded first (`admin_guard`), then routed by `admin_routes`.

No GET changes anything, and none asks an engine: what is told is what the runtime knows at that moment, and what lies in its cache.
Changes are jobs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from aiohttp import web

from sbctl.artifacts.cache_calls import CacheCalls
from sbctl.base.clock import Clock
from sbctl.base.errors import HTTP_STATUS, InputError, RefusedError, SbctlError
from sbctl.base.limits import ADMIN_BODY_MAX_BYTES
from sbctl.runtime.admin_access import Accounts, Sessions
from sbctl.runtime.admin_changes import AdminChanges, queued
from sbctl.runtime.admin_cluster import AdminCluster, ClusterView
from sbctl.runtime.admin_desired import AdminDesired
from sbctl.runtime.admin_events import AdminEvents
from sbctl.runtime.admin_guard import AdminGuard
from sbctl.runtime.admin_login import AdminLogin
from sbctl.runtime.admin_reach import Reach
from sbctl.runtime.admin_routes import PREFIX, ROUTES
from sbctl.runtime.admin_rows import Seen, replica_row
from sbctl.runtime.admin_weights import AdminWeights
from sbctl.runtime.audit import Note
from sbctl.runtime.config_file import ConfigFile
from sbctl.runtime.event_stream import Said, last_event_id, tell_events
from sbctl.runtime.failed_logins import FailedLogins
from sbctl.runtime.job_rows import JobRow
from sbctl.runtime.jobs import Jobs, job_document
from sbctl.runtime.listeners import Handler, json_headers, read_body
from sbctl.runtime.metrics import RuntimeMetrics
from sbctl.runtime.operator_acts import Action
from sbctl.runtime.provision import Progress
from sbctl.runtime.reconcile import Reconciler

__all__ = ["AdminPlane"]

_ULID: Final = re.compile("[0-9A-HJKMNP-TV-Z]{26}")


class AdminPlane:
    """Handlers of the admin listener."""

    def __init__(
        self,
        reconciler: Reconciler,
        jobs: Jobs,
        metrics: RuntimeMetrics,
        *,
        desired: AdminDesired,
        config_file: ConfigFile | None,
        accounts: Accounts,
        clock: Clock,
        note: Note,
        database: Path,
        weights: Callable[[], CacheCalls],
        reach: Reach,
        seen: Seen,
        requests_per_minute: int = 240,
        follow_events_s: float = 3600.0,
        cluster: ClusterView | None = None,
    ) -> None:
        self._reconciler = reconciler
        self._metrics = metrics
        self._seen = seen
        self._desired = desired
        self._jobs = jobs
        self._weights = AdminWeights(weights, lambda: reconciler.generations, jobs, note)
        sessions = Sessions(clock)
        self._guard = AdminGuard(
            accounts,
            sessions,
            reach=reach,
            requests_per_minute=requests_per_minute,
            failed_logins=FailedLogins(note, accounts.has),
        )
        self._login = AdminLogin(self._guard, accounts, sessions, note)
        self._changes = AdminChanges(desired, config_file, jobs, self._guard)
        self._cluster = AdminCluster(cluster, self._guard)
        self._events = AdminEvents(database, follow_s=follow_events_s)

    def app(self) -> web.Application:
        app = web.Application(
            middlewares=[self._answer(), self._guard.middleware()], client_max_size=ADMIN_BODY_MAX_BYTES
        )
        handlers: Mapping[str, Handler] = {
            "probe": self._probe,
            "login": self._login.login,
            "logout": self._login.logout,
            "session": self._login.session,
            "metrics": self._metrics_text,
            "status": self._status,
            "deployments": self._deployments,
            "catalog": self._catalog,
            "value": self._value,
            "files": self._weights.files,
            "remove_artifact": self._weights.remove,
            "collect": self._weights.collect,
            "replace_deployments": self._changes.replace,
            "reload": self._changes.reload,
            "list_jobs": self._list_jobs,
            "show_job": self._show_job,
            "stream_job": self._stream_job,
            "list_events": self._events.list,
            "stream_events": self._events.stream,
            "act": self._act,
            "cluster_status": self._cluster.status,
            "cluster_deployments": self._cluster.deployments,
            "publish_deployments": self._cluster.publish,
            "cluster_placement": self._cluster.placement,
            "cluster_actions": self._cluster.actions,
            "evacuate_node": self._cluster.evacuate,
            "restore_node": self._cluster.restore,
            "confirm_lost_node": self._cluster.confirm_lost,
            "retry_deployment": self._cluster.retry,
            "cluster_vram": self._cluster.vram,
            "cluster_artifacts": self._cluster.artifacts,
            "cluster_metrics": self._cluster.metrics,
        }
        for route in ROUTES:
            if route.method == "GET":
                app.router.add_get(route.path, handlers[route.handler])
            else:
                app.router.add_route(route.method, route.path, handlers[route.handler])
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
            replica_row(generations[name], replica, self._jobs.newest(name), self._seen)
            for name in sorted(generations)
            for replica in generations[name].replicas
        ]
        serving = any(generation.ready_replicas for generation in generations.values())
        blockers = [
            f"{row['deployment']}: {row['reason_code']}"
            for row in rows
            if row["reason_code"] and row["state"] == "failed"
        ]
        advice = "sbctl logs says why; sbctl models reset DEPLOYMENT once it is mended" if blockers else None
        return _json(
            {
                "serving": serving,
                "runtime_revision": self._reconciler.revision,
                "deployments": rows,
                "models": rows,
                "local_serving": {"ready": not blockers, "blockers": blockers, "recommendation": advice},
            }
        )

    async def _deployments(self, _request: web.Request) -> web.Response:
        return _json(self._desired.shown())

    async def _catalog(self, _request: web.Request) -> web.Response:
        # A large catalog takes its time, and answers are relayed meanwhile.
        return _json(await asyncio.to_thread(self._desired.catalog))

    async def _value(self, _request: web.Request) -> web.Response:
        return _json(self._metrics.value.document())

    async def _list_jobs(self, _request: web.Request) -> web.Response:
        rows = await self._jobs.rows()
        return _json({"schema_version": 1, "jobs": [job_document(row) for row in rows]})

    async def _show_job(self, request: web.Request) -> web.Response:
        row = await self._asked_job(request)
        return _json({"schema_version": 1, "job": job_document(row)})

    async def _stream_job(self, request: web.Request) -> web.StreamResponse:
        row = await self._asked_job(request)
        return await tell_events(request, self._steps(row.id, last_event_id(request) or 0))

    async def _steps(self, job: str, after: int) -> AsyncIterator[Said]:
        async for step in self._jobs.follow(job, after=after):
            yield step.number, "job", {"schema_version": 1, "job": job_document(step.row)}

    async def _asked_job(self, request: web.Request) -> JobRow:
        asked = request.match_info["job"]
        if not _ULID.fullmatch(asked):
            raise InputError("invalid_request", "a job's id is 26 characters of a ULID")
        row = await self._jobs.row(asked)
        if row is None:
            raise RefusedError("not_found", "there is no such job", detail={"job_id": asked})
        return row

    # Changing

    async def _act(self, request: web.Request) -> web.Response:
        """A job, whatever it is: an unknown deployment is told at once, everything else by the job."""
        action = cast("Action", request.path.removeprefix(f"{PREFIX}/"))
        deployment = await self._named(request)

        async def work(progress: Progress) -> Any:
            return await self._reconciler.act(deployment, action, progress)

        weights = self._reconciler.known(deployment).member.artifact.artifact
        subject = f"artifact:sha256:{weights}" if action == "pull" else deployment
        job = await self._jobs.begin(action, deployment, work, subject=subject)
        return _json(queued(job, deployment=deployment), 202)

    async def _named(self, request: web.Request) -> str:
        document = self._guard.parse(await read_body(request, max_bytes=ADMIN_BODY_MAX_BYTES))
        named = document.get("deployment", document.get("model"))
        if not isinstance(named, str) or set(document) - {"deployment", "model"}:
            raise InputError("invalid_body", 'the body is {"deployment": "<id>"}')
        self._reconciler.known(named)
        return named

    def _answer(self) -> Any:
        @web.middleware
        async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await handler(request)
            except SbctlError as error:
                status = HTTP_STATUS.status(error.code)
                headers, step = {}, {} if error.next_step is None else {"next_step": error.next_step}
                if status == 401:
                    headers["WWW-Authenticate"] = 'Basic realm="sbproxy admin"'
                if "retry_after_s" in error.detail:
                    headers["Retry-After"] = str(error.detail["retry_after_s"])
                return _json({"error": error.message, "code": error.code, **step}, status, headers)
            except web.HTTPException as error:
                code = {404: "not_found", 405: "method_not_allowed"}.get(error.status, "invalid_request")
                allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
                return _json({"error": error.reason, "code": code}, error.status, allow)

        return answer_errors


def _json(document: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response(document, status=status, headers=json_headers(headers))
