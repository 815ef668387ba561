"""The public API: who asks, what they may, and which way each route goes.

What only reads is answered here; what a model answers takes off as a `flight.Flight`, by the rules of `completions`.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from typing import Final
from urllib.parse import unquote

from sbctl.base.errors import RefusedError, SbctlError
from sbctl.runtime import routes
from sbctl.runtime.drain import Drain
from sbctl.runtime.gateway.accounting import Accounts
from sbctl.runtime.gateway.answers import Answer, json_answer
from sbctl.runtime.gateway.asked import Asked, read_asked
from sbctl.runtime.gateway.completions import Completions
from sbctl.runtime.gateway.connection import ClientConnection
from sbctl.runtime.gateway.fallback import Externals, disallows_training, way_of
from sbctl.runtime.gateway.flight import Flight
from sbctl.runtime.gateway.form import AskedForm, read_form
from sbctl.runtime.gateway.head import RequestHead
from sbctl.runtime.gateway.models import Look, cold_deployments, look_at, model_rows
from sbctl.runtime.gateway.ports import Desired, Keys, Meter, Work
from sbctl.runtime.gateway.request import Request
from sbctl.runtime.gateway.surface import MODELS_PATHS, PROBE_PATHS, SURFACE, Operation
from sbctl.trust.bundle import DeploymentMember

__all__ = ["Gateway"]

_PARSE_INLINE_MAX_BYTES: Final = 128 * 1024


class Gateway(Completions):
    """As `server.App`. `bound_to_loopback`: only this machine can reach it."""

    def __init__(
        self,
        desired: Desired,
        meter: Meter,
        keys: Keys,
        drain: Drain,
        externals: Externals,
        *,
        bound_to_loopback: bool,
    ) -> None:
        super().__init__(desired, meter, Accounts(keys), externals, bound_to_loopback=bound_to_loopback)
        self._drain = drain
        self._boot = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def stop_admitting(self) -> None:
        """New requests are refused as draining; those that run go on."""
        self._stopping = True

    # Of server.App

    def check(self, head: RequestHead) -> None:
        operation = SURFACE.get(head.path)
        if operation is None:
            self._check_read(head)
            return
        if head.method != "POST":
            raise _wrong_method("POST")
        self._check_caller(head)
        content_type = head.text(b"content-type") or ""
        if content_type != operation.content_type and _bare(content_type) != operation.content_type:
            raise RefusedError("unsupported_media_type", f"the body is {operation.content_type}")

    def serve(self, head: RequestHead, body: bytes, caller: ClientConnection) -> Work | None:
        request_id = self._new_id()
        try:
            operation = SURFACE.get(head.path)
            if operation is None:
                caller.answer(self._read(head))
                return None
            if operation.is_form or len(body) > _PARSE_INLINE_MAX_BYTES:
                apart = self._serve_apart(operation, head, body, caller, request_id)
                return asyncio.get_running_loop().create_task(apart)
            counted = self._drain.request()
            began_s = self._now_s()
            asked = read_asked(body, operation.kind)
            request = self._taken_up(operation, asked, head, caller, request_id=request_id, began_s=began_s)
            flight = Flight(self, counted, request)
            flight.start()
            return flight
        except Exception as error:  # noqa: BLE001 - one request's fault ends that request
            caller.answer(self.told(error, head.path, request_id, head.caller))
            return None

    def refusal(self, error: SbctlError, head: RequestHead | None) -> Answer:
        path, caller = ("", None) if head is None else (head.path, head.caller)
        return self.told(error, path, self._new_id(), caller)

    async def _serve_apart(
        self, operation: Operation, head: RequestHead, body: bytes, caller: ClientConnection, request_id: str
    ) -> None:
        """A body whose reading would keep others waiting is read in a thread."""
        began_s = self._now_s()
        try:
            with self._drain.request():
                asked: Asked | AskedForm
                if operation.is_form:
                    content_type = head.text(b"content-type") or ""
                    asked = await asyncio.to_thread(read_form, body, content_type, operation.kind)
                else:
                    asked = await asyncio.to_thread(read_asked, body, operation.kind)
                await self.complete(
                    self._taken_up(operation, asked, head, caller, request_id=request_id, began_s=began_s)
                )
        except Exception as error:  # noqa: BLE001 - one request's fault ends that request
            caller.answer(self.told(error, head.path, request_id, head.caller))

    def _taken_up(
        self,
        operation: Operation,
        asked: Asked | AskedForm,
        head: RequestHead,
        client: ClientConnection,
        *,
        request_id: str,
        began_s: float,
    ) -> Request:
        """Its tokens are reserved. Raises RefusedError `rate_limited`."""
        caller = self._caller(head)
        return Request(
            operation,
            asked,
            head.text(b"host") or "",
            caller,
            request_id,
            client,
            began_s,
            self._accounts.reserve(caller, asked),
            disallows_training(head),
            way_of(head, self._boot),
        )

    # Routes that only read

    def _check_read(self, head: RequestHead) -> None:
        is_known = head.path in PROBE_PATHS or head.path in MODELS_PATHS or _model_of(head.path) is not None
        if not is_known:
            raise RefusedError("not_found", "there is no such route")
        if head.method not in ("GET", "HEAD"):
            raise _wrong_method("GET, HEAD")
        if head.path not in PROBE_PATHS:
            self._check_caller(head)

    def _read(self, head: RequestHead) -> Answer:
        if head.path in PROBE_PATHS:
            return self._health(head.path)
        table = self._desired.routes
        origin = table.origin(head.text(b"host") or "", bound_to_loopback=self._on_loopback)
        no_training = disallows_training(head)
        rows = model_rows(
            origin,
            self._caller(head),
            lambda deployment: self._look(table, deployment),
            lambda member: (member.no_prompt_training or not no_training) and self._externals.may_answer(member),
        )
        if head.path in MODELS_PATHS:
            return json_answer({"object": "list", "data": list(rows.values())})
        row = rows.get(_model_of(head.path) or "")
        if row is None:
            raise routes.unknown_model()
        return json_answer(row)

    def _look(self, table: routes.RouteTable, deployment: str) -> tuple[DeploymentMember, Look] | None:
        """Who may answer for a deployment, as they are now."""
        return look_at(table.generations.get(deployment))

    def _health(self, path: str) -> Answer:
        """/livez and /healthz: the process answers. /readyz and /health: every deployment that should be warm is ready,
        and the host is in service."""
        bad = path in ("/readyz", "/health") and not self._is_ready()
        return json_answer({"status": "unavailable" if bad else "ok"}, status=503 if bad else 200)

    def _is_ready(self) -> bool:
        return not (self._stopping or self._drain.is_on or cold_deployments(self._desired.generations))

    # Who asks

    def _caller(self, head: RequestHead) -> routes.Caller:
        """Of a head; looked up once, so that a request has one caller from beginning to end."""
        if head.caller is not None:
            return head.caller
        scheme, _, token = (head.text(b"authorization") or "").partition(" ")
        presented = token.strip() if scheme.lower() == "bearer" else None
        head.caller = self._desired.routes.caller(presented, bound_to_loopback=self._on_loopback)
        return head.caller

    def _check_caller(self, head: RequestHead) -> None:
        """Also counts the request against the key's own limit."""
        table, caller = self._desired.routes, self._caller(head)
        if caller.entry is None and not table.public and not table.is_own_page(head.text(b"origin")):
            raise RefusedError("cross_site_refused", "without API keys, pages of other sites are refused")
        self._accounts.take(caller)

    def _new_id(self) -> str:
        return f"{self._boot}{next(self._numbers):016x}"


def _model_of(path: str) -> str | None:
    for prefix in MODELS_PATHS:
        if path.startswith(prefix + "/") and len(path) > len(prefix) + 1:
            return unquote(path[len(prefix) + 1 :])
    return None


def _bare(content_type: str) -> str:
    return content_type.lower().partition(";")[0].strip()


def _wrong_method(allow: str) -> RefusedError:
    return RefusedError("method_not_allowed", f"this route takes {allow}", detail={"allow": allow})
