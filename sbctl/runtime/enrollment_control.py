"""What root may ask a running enrollment server on this host, over a socket in its runtime directory: tokens, hosts that enrolled, status.

GET    /control/v1/status          {listen, certificate_until, delegation_until, open_tokens, enrolled}
GET    /control/v1/tokens          {tokens: [row…]}
POST   /control/v1/tokens          {roles, labels, node_id, ttl_s} → {token, row}; the only time a token's text is told
DELETE /control/v1/tokens/{id}     {row}
GET    /control/v1/nodes           {nodes: [ledger line…]}
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from sbctl.base import strict_json
from sbctl.base.clock import Clock, rfc3339
from sbctl.base.errors import InputError, SbctlError
from sbctl.runtime.listeners import read_body
from sbctl.trust.certificates import certificate_facts
from sbctl.trust.delegated_files import DelegatedFiles
from sbctl.trust.enrollment import Enrollment
from sbctl.trust.token_store import TokenRow

__all__ = ["enrollment_control", "row_document"]

_BODY_MAX_BYTES: Final = 64 * 1024


def row_document(row: TokenRow) -> dict[str, Any]:
    """A token as it travels: nothing that opens anything."""
    return {
        "id": row.id,
        "roles": list(row.roles),
        "labels": dict(row.labels),
        "node_id": row.node_id,
        "created_at": rfc3339(row.created_at),
        "not_after": rfc3339(row.not_after),
        "revoked_at": None if row.revoked_at is None else rfc3339(row.revoked_at),
        "consumed_at": None if row.consumed_at is None else rfc3339(row.consumed_at),
        "node": row.node,
        "issued": row.issued,
    }


def enrollment_control(enrollment: Enrollment, files: DelegatedFiles, clock: Clock) -> web.Application:
    """The application of the control socket."""
    routes = _Routes(enrollment, files, clock)
    app = web.Application(client_max_size=_BODY_MAX_BYTES)
    app.router.add_get("/control/v1/status", _answered(routes.status))
    app.router.add_get("/control/v1/tokens", _answered(routes.tokens))
    app.router.add_post("/control/v1/tokens", _answered(routes.create))
    app.router.add_delete("/control/v1/tokens/{id}", _answered(routes.revoke))
    app.router.add_get("/control/v1/nodes", _answered(routes.nodes))
    return app


@dataclass(frozen=True, slots=True)
class _Routes:
    enrollment: Enrollment
    files: DelegatedFiles
    clock: Clock

    async def status(self, _request: web.Request) -> dict[str, Any]:
        now, server = self.clock.now(), self.files.settings_of_server
        rows = await asyncio.to_thread(self.enrollment.tokens)
        nodes = await asyncio.to_thread(self.enrollment.enrolled)
        return {
            "listen": f"{server.bind_address}:{server.port}",
            "certificate_until": rfc3339(certificate_facts(self.files.text("node.pem")).not_after),
            "delegation_until": rfc3339(certificate_facts(self.files.text("ca.pem")).not_after),
            "open_tokens": sum(row.state(now) == "open" for row in rows),
            "enrolled": len(nodes),
        }

    async def tokens(self, _request: web.Request) -> dict[str, Any]:
        return {"tokens": [row_document(row) for row in await asyncio.to_thread(self.enrollment.tokens)]}

    async def create(self, request: web.Request) -> dict[str, Any]:
        body = await read_body(request, max_bytes=_BODY_MAX_BYTES, deadline_s=10.0)
        asked = strict_json.loads(body, max_bytes=_BODY_MAX_BYTES, max_depth=4)
        try:
            wanted = {
                "roles": [str(role) for role in asked["roles"]],
                "labels": {str(key): str(value) for key, value in asked["labels"].items()},
                "node_id": asked["node_id"],
                "ttl_s": int(asked["ttl_s"]),
            }
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(
                "invalid_request",
                "a token is asked for with {roles, labels, node_id, ttl_s}",
                next_step="use the same version of sbctl here and on the host",
            ) from None
        token, row = await asyncio.to_thread(self.enrollment.create_token, now=self.clock.now(), **wanted)
        return {"token": token.text().reveal().decode(), "row": row_document(row)}

    async def revoke(self, request: web.Request) -> dict[str, Any]:
        now = self.clock.now()
        row = await asyncio.to_thread(self.enrollment.revoke_token, request.match_info["id"], now=now)
        return {"row": row_document(row)}

    async def nodes(self, _request: web.Request) -> dict[str, Any]:
        found = await asyncio.to_thread(self.enrollment.enrolled)
        return {"nodes": [record.model_dump(mode="json") for record in found.values()]}


def _answered(
    handler: Callable[[web.Request], Awaitable[dict[str, Any]]],
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return web.json_response(await handler(request))
        except SbctlError as error:
            return web.json_response({"error": error.to_wire()}, status=409)

    return answer
