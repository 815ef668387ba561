"""A request's way: key ► origin ► model ► admission ► engine, and the answer back as it comes.

A permit is held from admission until the answer's last byte is written or the caller is gone; a caller that goes away cancels the request,
which closes the engine's connection. Before the first byte of an answer another replica is tried, then who stands in for the deployment
(another deployment, an external provider), after it never.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import traceback
from collections.abc import Callable
from typing import Final, Literal
from urllib.parse import unquote

from sbctl.base.errors import HTTP_STATUS, EngineError, InputError, RefusedError, SbctlError
from sbctl.runtime import routes
from sbctl.runtime.drain import Drain
from sbctl.runtime.external.providers import Question
from sbctl.runtime.gateway.accounting import Accounts, used_tokens
from sbctl.runtime.gateway.answers import Answer, error_answer, header_lines, json_answer
from sbctl.runtime.gateway.asked import Asked, read_asked, too_long
from sbctl.runtime.gateway.asking import ask_over
from sbctl.runtime.gateway.connection import ClientConnection
from sbctl.runtime.gateway.fallback import (
    Externals,
    disallows_training,
    is_our_fault,
    provider_body,
    stand_ins,
    way_of,
)
from sbctl.runtime.gateway.form import AskedForm, read_form
from sbctl.runtime.gateway.head import RequestHead
from sbctl.runtime.gateway.models import Look, cold_deployments, look_at, model_rows
from sbctl.runtime.gateway.ports import Desired, Keys, Meter, Outcome, Served
from sbctl.runtime.gateway.relay import BytesRelay, DocumentRelay, Relay, StreamRelay, WholeRelay
from sbctl.runtime.gateway.request import Request
from sbctl.runtime.gateway.surface import MODELS_PATHS, PROBE_PATHS, SURFACE, Operation
from sbctl.runtime.gateway.upstream import request_head
from sbctl.runtime.generation import Lease
from sbctl.runtime.log import get_log
from sbctl.runtime.replica import Replica
from sbctl.trust.bundle import DeploymentMember, ExternalMember, LocalStandIn

__all__ = ["Gateway"]

RouteClass = Literal["local", "peer", "external"]

_PARSE_INLINE_MAX_BYTES: Final = 128 * 1024
_REPLICAS_TRIED: Final = 3
_COUNT_FROM_CHARS_A_TOKEN: Final = 2
"""From so many characters a token of context on, the engine is asked how many tokens a prompt has before it may queue."""


class Gateway:
    """The public API. `bound_to_loopback`: only this machine can reach it."""

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
        self._desired = desired
        self._meter = meter
        self._accounts = Accounts(keys)
        self._drain = drain
        self._externals = externals
        self._on_loopback = bound_to_loopback
        self._stopping = False
        self._log = get_log("data")
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
        content_type = (head.text(b"content-type") or "").lower()
        wanted = "multipart/form-data" if operation.is_form else "application/json"
        if content_type.partition(";")[0].strip() != wanted:
            raise RefusedError("unsupported_media_type", f"the body is {wanted}")

    async def serve(self, head: RequestHead, body: bytes, caller: ClientConnection) -> None:
        request_id = self._new_id()
        try:
            operation = SURFACE.get(head.path)
            if operation is None:
                caller.answer(self._read(head))
                return
            with self._drain.request():
                await self._complete(operation, head, body, caller, request_id)
        except SbctlError as error:
            self._refused(error, head, request_id)
            caller.answer(error_answer(error, request_id, self._accounts.headers(head.caller)))
        except Exception as error:  # noqa: BLE001 - one request's fault ends that request
            self._log.error("unexpected error", request_id=request_id, error=repr(error), at=_where(error))
            caller.answer(_internal(request_id))

    def refusal(self, error: SbctlError, head: RequestHead | None) -> Answer:
        request_id = self._new_id()
        self._refused(error, head, request_id)
        return error_answer(error, request_id, None if head is None else self._accounts.headers(head.caller))

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
        bad = path in ("/readyz", "/health") and (
            self._stopping or self._drain.is_on or bool(cold_deployments(self._desired.generations))
        )
        return json_answer({"status": "unavailable" if bad else "ok"}, status=503 if bad else 200)

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

    # The way to an engine

    async def _complete(
        self, operation: Operation, head: RequestHead, body: bytes, client: ClientConnection, request_id: str
    ) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        asked: Asked | AskedForm
        if operation.is_form:
            asked = await asyncio.to_thread(read_form, body, head.text(b"content-type") or "", operation.kind)
        elif len(body) > _PARSE_INLINE_MAX_BYTES:
            asked = await asyncio.to_thread(read_asked, body, operation.kind)
        else:
            asked = read_asked(body, operation.kind)
        host = head.text(b"host") or ""
        caller = self._caller(head)
        request = Request(
            operation,
            asked,
            host,
            caller,
            request_id,
            client,
            began_s,
            disallows_training(head),
            way_of(head, self._boot),
        )
        reserved = self._accounts.reserve(caller, asked)
        relay: Relay | None = None
        status = 499
        try:
            relay = await self._answer(request)
            status = 200
        except SbctlError as error:
            status = HTTP_STATUS.status(error.code)
            raise
        finally:
            if reserved:
                self._accounts.settle(caller, reserved, used_tokens(asked, request.relay, left=status == 499))
            if request.served is not None:
                self._count(request, relay, status, loop.time())

    async def _answer(self, request: Request) -> Relay:
        """By the deployment, else by who stands in for it, in order. Where nobody can, what kept the deployment from it is told."""
        try:
            return await self._ask(request)
        except SbctlError as error:
            if not request.stand_ins or self._stopping or not is_our_fault(error):
                raise
            relay = await self._ask_stand_ins(request, error.code)
            if relay is None:
                raise
            return relay

    async def _ask_stand_ins(self, request: Request, reason: str) -> Relay | None:
        """None when none of them could. Raises InputError for what the caller did wrong, as an external provider says it."""
        first = request.served
        assert first is not None
        for member in request.stand_ins:
            self._log.info("somebody stands in", request_id=request.id, provider=member.name, reason=reason)
            self._meter.fell_back(first.deployment, member.name, reason)
            if isinstance(member, LocalStandIn):
                request.instead, request.failed, request.elsewhere = member.deployment, set(), False
                with contextlib.suppress(SbctlError):
                    return await self._ask(request)
                request.instead, request.served = None, first
            else:
                with contextlib.suppress(EngineError):
                    return await self._ask_external(request, member)
        return None

    async def _ask_external(self, request: Request, member: ExternalMember) -> Relay:
        request.admitted_s = asyncio.get_running_loop().time()
        body, content_type = provider_body(request.asked, model=member.models[request.name])
        path = request.operation.path.removeprefix("/v1")
        question = Question(
            path,
            body,
            content_type,
            request.id,
            request.client,
            lambda: self._external_relay(request),
            way=request.way,
        )
        return await self._externals.ask(member, question)

    async def _ask(self, request: Request) -> Relay:
        """Admit, ask, and relay; another replica when one fails before its first byte."""
        while True:
            lease = await self._admit(request)
            try:
                return await self._ask_replica(request, lease)
            except SbctlError as error:
                if not self._tries_another(request, lease.replica, error):
                    raise
            finally:
                lease.release()

    def _tries_another(self, request: Request, failed: Replica, error: SbctlError) -> bool:
        request.failed.add(failed)
        generation = request.generation
        if error.code != "upstream_failed" or generation is None or len(request.failed) >= _REPLICAS_TRIED:
            return False
        others = [replica for replica in generation.replicas if replica.is_ready and replica not in request.failed]
        if others:
            self._log.warning("another replica is tried", request_id=request.id, reason=error.message)
        return bool(others)

    async def _admit(self, request: Request) -> Lease:
        """A commit may replace the generation while the request waits for it: follow it then, so that a rollout refuses nobody, however many
        follow each other while the request may wait.
        """
        while True:
            if self._stopping:
                raise EngineError("no_ready_replica", "the runtime is stopping", retryable=True)
            table = self._desired.routes
            origin = table.origin(request.host, bound_to_loopback=self._on_loopback)
            request.name, generation = table.resolve(origin, request.asked.model, instead=request.instead)
            request.served = request.generation = generation
            request.stand_ins = stand_ins(origin, request)
            if not request.caller.may_use(request.name):
                raise RefusedError("model_not_allowed", "this key may not use this model", detail={"param": "model"})
            await self._check_fit(request, generation)
            try:
                lease = await generation.admit(request.priority, avoid=request.failed)
                request.admitted_s = asyncio.get_running_loop().time()
                return lease
            except SbctlError as error:
                waited_ms = (asyncio.get_running_loop().time() - request.began_s) * 1000
                is_replaced = error.code == "draining" and self._desired.routes is not table
                if not is_replaced or waited_ms > generation.member.queue_timeout_ms:
                    self._meter.rejected(generation.deployment, request.priority, error.code)
                    raise

    async def _check_fit(self, request: Request, served: Served) -> None:
        """Whether the model does that at all, and whether the prompt can fit: what cannot is refused before it takes anybody's place."""
        member, asked = served.member, request.asked
        if str(member.mode) != request.operation.mode:
            told = f"this model does not answer {request.operation.path}"
            raise InputError("modality_mismatch", told, detail={"param": "model"})
        if isinstance(asked, AskedForm):
            return
        prompt_chars = asked.prompt_chars
        asked.check_bounds(member.context_length, prompt_chars)
        if prompt_chars > member.context_length * _COUNT_FROM_CHARS_A_TOKEN:
            ready = next((replica for replica in served.replicas if replica.is_ready), None)
            if ready is not None:
                tokens = await ready.client.count_tokens(max(asked.prompts(), key=len))
                if tokens is not None and tokens > member.context_length:
                    raise too_long(member.context_length, asked.kind)

    async def _ask_replica(self, request: Request, lease: Lease) -> Relay:
        """Raises EngineError `upstream_failed` and what the engine refuses with, always before the first byte of an answer."""
        body, content_type = self._engine_body(request)
        head = request_head("POST", request.operation.path, len(body), content_type, request.id)
        return await ask_over(
            lease.replica.client.pool,
            request.client,
            lambda: (head, body),
            lambda: self._relay(request, lease.replica),
            unreached="upstream_failed",
        )

    def _engine_body(self, request: Request) -> tuple[bytes, str]:
        assert request.served is not None
        model = request.served.deployment
        if isinstance(request.asked, AskedForm):
            return request.asked.for_engine(model=model)
        context_length = request.served.member.context_length
        return request.asked.for_engine(model=model, context_length=context_length), "application/json"

    def _relay(self, request: Request, replica: Replica) -> Relay:
        relay = request.relay = self._new_relay(request, "local", replica.progressed)
        return relay

    def _external_relay(self, request: Request) -> Relay:
        request.elsewhere = True
        relay = request.relay = self._new_relay(request, "external", _nothing)
        return relay

    def _new_relay(self, request: Request, route: RouteClass, progressed: Callable[[], None]) -> Relay:
        lines = (
            f"X-Request-Id: {request.id}\r\nx-sbproxy-logical-model: {request.name}\r\nx-sbproxy-route-class: {route}\r\n"
        ).encode("latin-1") + header_lines(self._accounts.headers(request.caller))
        asked = request.asked
        if request.operation.answers == "bytes" or isinstance(asked, AskedForm):
            return BytesRelay(request.client, lines, progressed, request_id=request.id)
        if request.operation.answers == "json":
            return DocumentRelay(request.client, lines, progressed, request_id=request.id, model=request.name)
        if not asked.wants_stream and route == "external":
            return DocumentRelay(request.client, lines, progressed, request_id=request.id, model=request.name)
        if not asked.wants_stream:
            return WholeRelay(request.client, lines, progressed, request_id=request.id, model=request.name)
        return StreamRelay(
            request.client,
            lines,
            progressed,
            request_id=request.id,
            model=request.name,
            keeps_usage=asked.wants_usage,
        )

    # What is told

    def _count(self, request: Request, relay: Relay | None, status: int, now_s: float) -> None:
        assert request.served is not None
        broke = relay is not None and relay.problem is not None
        if relay is not None and relay.problem is not None:
            self._log.warning("stream broke", request_id=request.id, reason=relay.problem.message)
        elif status == 499:
            self._log.info("caller left", request_id=request.id, after_s=round(now_s - request.began_s, 3))
        first_s = None if relay is None or relay.first_byte_s is None else relay.first_byte_s - request.began_s
        self._meter.finished(
            Outcome(
                request.served.deployment,
                status,
                (request.admitted_s or now_s) - request.began_s,
                first_s,
                now_s - request.began_s,
                None if relay is None else relay.usage,
                broke,
                request.elsewhere,
            )
        )

    def _refused(self, error: SbctlError, head: RequestHead | None, request_id: str) -> None:
        path = "" if head is None else head.path[:128]
        self._log.info("refused", request_id=request_id, path=path, code=error.code, reason=error.message)

    def _new_id(self) -> str:
        return f"{self._boot}{next(self._numbers):016x}"


def _model_of(path: str) -> str | None:
    for prefix in MODELS_PATHS:
        if path.startswith(prefix + "/") and len(path) > len(prefix) + 1:
            return unquote(path[len(prefix) + 1 :])
    return None


def _nothing() -> None:
    """Nobody watches the progress of somebody else's engine."""


def _wrong_method(allow: str) -> RefusedError:
    return RefusedError("method_not_allowed", f"this route takes {allow}", detail={"allow": allow})


def _internal(request_id: str) -> Answer:
    error = {"message": "internal error", "type": "managed_model_error", "param": None, "code": "internal"}
    return json_answer(
        {"error": {**error, "request_id": request_id, "retryable": False}},
        status=500,
        headers={"X-Request-Id": request_id},
    )


def _where(error: BaseException) -> list[str]:
    """The innermost places of an error, without values."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.lineno}" for frame in frames[-4:]]
