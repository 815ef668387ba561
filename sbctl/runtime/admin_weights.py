"""The weights of this host over the admin API: what lies in the cache, what goes (SBproxy, "GC, prune, remove").

Removing and collecting are jobs that are waited for; a caller that leaves does not stop them. What a deployment of this host is configured
with stays, and so does what an engine runs on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from aiohttp import web

from sbctl.artifacts.answers import CachedArtifact
from sbctl.artifacts.cache_calls import CacheCalls
from sbctl.base.errors import HTTP_STATUS, InputError, RefusedError, SbctlError
from sbctl.base.ids import is_digest
from sbctl.runtime.admin_changes import unwritten
from sbctl.runtime.audit import Note
from sbctl.runtime.generation import Generation
from sbctl.runtime.jobs import Jobs
from sbctl.runtime.listeners import json_headers
from sbctl.runtime.provision import Progress

__all__ = ["AdminWeights"]

_REMOVAL: Final = "delete"


class AdminWeights:
    """`calls` gives the cache as this host is configured now."""

    def __init__(
        self,
        calls: Callable[[], CacheCalls],
        generations: Callable[[], Mapping[str, Generation]],
        jobs: Jobs,
        note: Note,
    ) -> None:
        self._calls = calls
        self._generations = generations
        self._jobs = jobs
        self._note = note

    async def files(self, _request: web.Request) -> web.Response:
        resident = self._resident()
        listing = await asyncio.to_thread(lambda: self._calls().listing())
        return _json(
            {
                "schema_version": 1,
                "cache_root": listing.root,
                "total_bytes": listing.disk_bytes,
                "budget_bytes": listing.budget_bytes,
                "free_bytes": listing.free_bytes,
                "artifacts": [_shown(one, resident) for one in listing.artifacts],
            }
        )

    async def remove(self, request: web.Request) -> web.Response:
        """Raises InputError `invalid_request`, RefusedError `not_found`."""
        artifact = request.match_info["digest"]
        if not is_digest(artifact):
            raise InputError("invalid_request", "an artifact is named by 64 lowercase hexadecimal digits")
        calls = await asyncio.to_thread(self._calls)
        if await asyncio.to_thread(calls.cache.entry, artifact) is None:
            raise RefusedError("not_found", "there is no such artifact in this host's cache")
        if reason := self._stays(artifact, calls):
            return _json({"error": reason[1], "code": "artifact_in_use", "reason": reason[0]}, 409)

        async def work(progress: Progress) -> Any:
            progress(0, None, f"removing {artifact[:12]}")
            return await asyncio.to_thread(calls.remove, artifact)

        job = await self._jobs.begin(_REMOVAL, None, work, subject=f"artifact:sha256:{artifact}")
        try:
            removed = await asyncio.shield(job.done)
        except SbctlError as error:
            return _refused(error, job.id)
        return _json(
            {
                "artifact_digest": artifact,
                "removed": removed.removed,
                "reclaimed_bytes": removed.reclaimed_bytes,
                "job_id": job.id,
                **unwritten(job),
            }
        )

    async def collect(self, _request: web.Request) -> web.Response:
        """Raises RefusedError `no_cache_budget`."""
        calls = await asyncio.to_thread(self._calls)
        if calls.budget_bytes is None:
            raise RefusedError(
                "no_cache_budget",
                "the cache of this host has no budget, so there is nothing to bring it within",
                next_step="set proxy.model_host.cache.budget_gib and apply, or remove single artifacts",
            )

        async def work(progress: Progress) -> Any:
            progress(0, None, "collecting")
            return await asyncio.to_thread(self._collected, calls)

        job = await self._jobs.begin(_REMOVAL, None, work, subject="cache")
        try:
            report = await asyncio.shield(job.done)
        except SbctlError as error:
            return _refused(error, job.id)
        return _json({**report, "job_id": job.id, **unwritten(job)})

    def _collected(self, calls: CacheCalls) -> dict[str, Any]:
        found = calls.collect()
        self._note("cache.collect", "cache", {"deleted": len(found.deleted), "reclaimed_bytes": found.reclaimed_bytes})
        return {
            "before_bytes": found.before_bytes,
            "after_bytes": found.after_bytes,
            "reclaimed_bytes": found.reclaimed_bytes,
            "deleted_artifacts": list(found.deleted),
            "skipped_artifacts": dict(found.skipped),
            "budget_unsatisfied_bytes": found.unsatisfied_bytes,
        }

    def _resident(self) -> frozenset[str]:
        """What an engine runs on now."""
        return frozenset(
            artifact
            for generation in self._generations().values()
            if any(replica.launched is not None for replica in generation.replicas)
            for artifact in generation.member.artifacts
        )

    def _stays(self, artifact: str, calls: CacheCalls) -> tuple[str, str] | None:
        """Why it may not go: reason and sentence."""
        if artifact in self._resident():
            return "resident", "an engine runs on these weights: stop the deployment, and take it out, first"
        if calls.configured is None or artifact in calls.configured:
            return "configured", "a deployment of this host is configured with these weights: take it out first"
        return None


def _shown(one: CachedArtifact, resident: frozenset[str]) -> dict[str, Any]:
    return {
        "logical_model": one.model,
        "variant_id": one.variant,
        "artifact_digest": one.artifact,
        "total_size_bytes": one.size_bytes,
        "last_accessed_ms": one.last_accessed_ms,
        "state": one.state,
        "resident": one.artifact in resident,
        "configured": one.configured,
        "pinned": one.pinned,
    }


def _refused(error: SbctlError, job_id: str) -> web.Response:
    """A removal that was begun and did not succeed: somebody uses it (409), or the disk or its locks refuse (502)."""
    if error.code == "artifact.in_use":
        reason = str(error.detail.get("reason", "leased"))
        return _json({"error": error.message, "code": "artifact_in_use", "reason": reason, "job_id": job_id}, 409)
    status = HTTP_STATUS.by_code.get(error.code, 502)
    return _json({"error": error.message, "code": error.code, "job_id": job_id}, status)


def _json(document: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.json_response(document, status=status, headers=json_headers())
