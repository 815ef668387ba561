"""The cluster over the admin API of each of its nodes: SBproxy's routes. A host on its own answers 404 and how it becomes a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from aiohttp import web

from sbctl.base.errors import RefusedError
from sbctl.base.limits import BUNDLE_ENVELOPE_MAX_BYTES
from sbctl.runtime.admin_guard import AdminGuard
from sbctl.runtime.listeners import json_headers, read_body

__all__ = ["AdminCluster", "ClusterView"]


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
