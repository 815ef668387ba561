"""The cluster over the admin API of each of its nodes: SBproxy's routes. A host on its own answers 404 and how it becomes a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from aiohttp import web

from sbctl.base.errors import InputError, RefusedError
from sbctl.base.limits import BUNDLE_ENVELOPE_MAX_BYTES, KIB
from sbctl.node.cluster_actions import REASON_MAX_CHARS, ActionName
from sbctl.runtime.actor import ACTING
from sbctl.runtime.admin_guard import AdminGuard
from sbctl.runtime.listeners import json_headers, read_body

__all__ = ["AdminCluster", "ClusterView"]

_REASON_BODY_MAX_BYTES: Final = 4 * KIB


class ClusterView(Protocol):
    """Bodies of answers. Each raises RefusedError `cluster_not_seen_here` on a node that keeps no directory, but for the bundle's."""

    async def status(self) -> dict[str, Any]: ...

    async def vram(self) -> dict[str, Any]: ...

    async def artifacts(self) -> dict[str, Any]: ...

    async def metrics(self) -> dict[str, Any]: ...

    async def placement(self, deployment: str) -> dict[str, Any]:
        """Raises RefusedError `unknown_deployment`."""
        ...

    async def deployments(self) -> dict[str, Any]:
        """The active bundle. Raises RefusedError `deployment_bundle_missing`."""
        ...

    async def publish(self, envelope: str) -> tuple[int, dict[str, Any]]:
        """Status and body. Raises RefusedError `deployment_authority_read_only`, SbctlError `store_failed` before anything began."""
        ...

    async def actions(self) -> dict[str, Any]:
        """What operators asked, and is in force. Raises RefusedError `deployment_authority_read_only`."""
        ...

    async def act(self, action: ActionName, subject: str, *, by: str, reason: str) -> tuple[int, dict[str, Any]]:
        """Status and body. Raises as `ClusterAct` says."""
        ...


class AdminCluster:
    """`view` is None on a host of no cluster."""

    def __init__(self, view: ClusterView | None, guard: AdminGuard) -> None:
        self._view = view
        self._guard = guard

    async def status(self, _request: web.Request) -> web.Response:
        return _json(await self._known().status())

    async def vram(self, _request: web.Request) -> web.Response:
        return _json(await self._known().vram())

    async def artifacts(self, _request: web.Request) -> web.Response:
        return _json(await self._known().artifacts())

    async def metrics(self, _request: web.Request) -> web.Response:
        return _json(await self._known().metrics())

    async def placement(self, request: web.Request) -> web.Response:
        return _json(await self._known().placement(request.match_info["deployment"]))

    async def deployments(self, _request: web.Request) -> web.Response:
        return _json(await self._known().deployments())

    async def publish(self, request: web.Request) -> web.Response:
        """The body is the signed envelope itself."""
        view = self._known()
        body = await read_body(request, max_bytes=BUNDLE_ENVELOPE_MAX_BYTES)
        self._guard.parse(body, max_bytes=BUNDLE_ENVELOPE_MAX_BYTES)
        status, document = await view.publish(body.decode("utf-8"))
        return _json(document, status)

    async def actions(self, _request: web.Request) -> web.Response:
        return _json(await self._known().actions())

    async def evacuate(self, request: web.Request) -> web.Response:
        return await self._act(request, "evacuate", request.match_info["node"])

    async def restore(self, request: web.Request) -> web.Response:
        return await self._act(request, "restore", request.match_info["node"])

    async def confirm_lost(self, request: web.Request) -> web.Response:
        return await self._act(request, "confirm_lost", request.match_info["node"])

    async def retry(self, request: web.Request) -> web.Response:
        return await self._act(request, "retry", request.match_info["deployment"])

    async def _act(self, request: web.Request, action: ActionName, subject: str) -> web.Response:
        view = self._known()
        body = self._guard.parse(await read_body(request, max_bytes=_REASON_BODY_MAX_BYTES) or b"{}")
        reason = body.get("reason", "")
        if not isinstance(reason, str) or len(reason) > REASON_MAX_CHARS or set(body) - {"reason"}:
            raise InputError(
                "invalid_body", f'the body is {{}} or {{"reason": "<at most {REASON_MAX_CHARS} characters>"}}'
            )
        status, document = await view.act(action, subject, by=ACTING.get().name, reason=reason)
        return _json(document, status)

    def _known(self) -> ClusterView:
        if self._view is None:
            raise RefusedError(
                "cluster_not_configured",
                "this host is no node of a cluster",
                next_step="proxy.cluster in sb.yml, and sbctl apply, make the hosts of a fleet one",
            )
        return self._view


def _json(document: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.json_response(document, status=status, headers=json_headers())
