"""PUT of the deployments and reload over the admin API: each is a job, so whoever lost the answer finds out how it ended.

The answer is waited for and reads as SBproxy has it; with `Prefer: respond-async` it is 202 and the job, as for an action. What can be
refused at once is refused without a job: another owner, a body that makes no sense, an expected revision that is not the one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiohttp import web

from sbctl.base.errors import RefusedError, SbctlError
from sbctl.base.limits import ADMIN_BODY_MAX_BYTES
from sbctl.runtime.admin_desired import AdminDesired, plan_of, refusal
from sbctl.runtime.admin_guard import AdminGuard
from sbctl.runtime.admin_routes import PREFIX
from sbctl.runtime.config_file import ConfigFile
from sbctl.runtime.jobs import Job, Jobs
from sbctl.runtime.listeners import json_headers, read_body
from sbctl.runtime.provision import Progress

__all__ = ["AdminChanges", "queued", "unwritten"]

_KIND: Final = "rollout"
_ASYNC: Final = "respond-async"
_UNWRITTEN: Final = (
    "the runtime's database takes no write, so a restart forgets this job, its audit entry and a stop; they are written as soon as the disk "
    "has room (df)"
)
Work = Callable[[Progress], Awaitable[dict[str, Any]]]


class AdminChanges:
    """`config_file` is that of a runtime that was started by hand."""

    def __init__(self, desired: AdminDesired, config_file: ConfigFile | None, jobs: Jobs, guard: AdminGuard) -> None:
        self._desired = desired
        self._config_file = config_file
        self._jobs = jobs
        self._guard = guard

    async def replace(self, request: web.Request) -> web.Response:
        """Raises RefusedError `authority_read_only`, InputError `invalid_body`, SbctlError `store_failed` before anything began."""
        self._desired.refuse_foreign()
        document = self._guard.parse(await read_body(request, max_bytes=ADMIN_BODY_MAX_BYTES))
        try:
            asked = await asyncio.to_thread(self._desired.asked, document)
        except SbctlError as error:
            return _refused(error)
        return await self._carried_out(request, "deployments", lambda progress: self._desired.replace(asked, progress))

    async def reload(self, request: web.Request) -> web.Response:
        """Raises RefusedError `authority_read_only`, `reload_in_progress`, SbctlError `store_failed` before anything began."""
        file = self._config_file
        if file is None:
            sentence = "no file of its own rules this runtime: what it serves changes by sbctl apply"
            raise RefusedError("authority_read_only", sentence)
        if file.is_reloading:
            raise RefusedError("reload_in_progress", "the file is being taken up at this moment", retryable=True)

        async def work(progress: Progress) -> dict[str, Any]:
            report = await file.reload("the admin API", progress)
            return {"schema_version": 1, "plan": plan_of(report), "degraded": report["degraded"]}

        return await self._carried_out(request, "config", work)

    async def _carried_out(self, request: web.Request, subject: str, work: Work) -> web.Response:
        job = await self._jobs.begin(_KIND, None, work, subject=subject)
        if _wants_no_wait(request):
            return web.json_response(queued(job), status=202, headers=json_headers({"Preference-Applied": _ASYNC}))
        try:
            # A caller that leaves does not cancel a change that is half done.
            answer = await asyncio.shield(job.done)
        except SbctlError as error:
            return _refused(error)
        return web.json_response(answer, headers=json_headers())


def queued(job: Job, **more: str) -> dict[str, Any]:
    """The body of 202."""
    body = {"schema_version": 1, **more, "state": "queued", "job_id": job.id, "poll_url": f"{PREFIX}/jobs/{job.id}"}
    return body | unwritten(job)


def unwritten(job: Job) -> dict[str, Any]:
    """What the answer says beside the rest where the disk took no write; nothing where it did."""
    return {} if job.is_durable else {"warning": _UNWRITTEN}


def _wants_no_wait(request: web.Request) -> bool:
    """RFC 7240: preferences are a list, also over several fields; their parameters do not matter here."""
    asked = ",".join(request.headers.getall("Prefer", []))
    return any(one.partition(";")[0].strip().lower() == _ASYNC for one in asked.split(","))


def _refused(error: SbctlError) -> web.Response:
    status, body = refusal(error)
    told: Mapping[str, Any] = body
    return web.json_response(told, status=status, headers=json_headers())
