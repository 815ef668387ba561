"""How a request gets its answer: model ► admission ► engine, and the answer back as it comes.

A permit is held from admission until the answer's last byte is written or the caller is gone; a caller that goes away cancels the request,
which closes the engine's connection. Before the first byte of an answer another replica is tried, then who stands in for the deployment
(another deployment, an external provider), after it never.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Final, Literal

from sbctl.base.errors import HTTP_STATUS, EngineError, InputError, RefusedError, SbctlError
from sbctl.runtime.external.providers import Question
from sbctl.runtime.gateway.accounting import Accounts, used_tokens
from sbctl.runtime.gateway.answers import Answer, error_answer, internal_answer
from sbctl.runtime.gateway.asked import too_long
from sbctl.runtime.gateway.asking import Attempt, ask_over
from sbctl.runtime.gateway.fallback import Externals, is_our_fault, provider_body, stand_ins
from sbctl.runtime.gateway.flight import Begun
from sbctl.runtime.gateway.form import AskedForm
from sbctl.runtime.gateway.ports import Desired, Meter, Outcome, Served
from sbctl.runtime.gateway.relay import Relay
from sbctl.runtime.gateway.relays import relay_for
from sbctl.runtime.gateway.request import Request
from sbctl.runtime.gateway.upstream import request_head
from sbctl.runtime.generation import Generation, Lease
from sbctl.runtime.log import get_log
from sbctl.runtime.loop_time import LoopTime
from sbctl.runtime.replica import Replica
from sbctl.runtime.routes import Caller
from sbctl.runtime.seldom import Seldom
from sbctl.trust.bundle import ExternalMember, LocalStandIn

__all__ = ["Completions", "RouteClass"]

RouteClass = Literal["local", "peer", "external"]

_REPLICAS_TRIED: Final = 3
_COUNT_FROM_CHARS_A_TOKEN: Final = 2
"""From so many characters a token of context on, the engine is asked how many tokens a prompt has before it may queue."""


class Completions:
    """The rules of `flight.Way`. `bound_to_loopback`: only this machine can reach it."""

    def __init__(
        self, desired: Desired, meter: Meter, accounts: Accounts, externals: Externals, *, bound_to_loopback: bool
    ) -> None:
        self._desired = desired
        self._meter = meter
        self._accounts = accounts
        self._externals = externals
        self._on_loopback = bound_to_loopback
        self._stopping = False
        self._log = get_log("data")
        self._now_s = LoopTime()
        self._seldom = Seldom(self._now_s)

    # As flight.Way

    def begin(self, request: Request) -> Begun | None:
        try:
            generation = self._route(request)
            if self._has_to_be_counted(request, generation):
                return None
            lease = generation.admit_now()
        except SbctlError:
            return None
        if lease is None:
            return None
        request.admitted_s = self._now_s()
        try:
            connection = lease.replica.client.pool.kept()
        except SbctlError:
            connection = None
        if connection is None:
            return Begun(lease, None)
        return Begun(lease, Attempt(connection, request.client, self._relay(request, lease.replica)))

    def ask(self, request: Request, attempt: Attempt[Relay]) -> None:
        attempt.send(*self._question(request))

    async def complete(self, request: Request, begun: Begun | None = None) -> None:
        relay: Relay | None = None
        status = 499
        refusal: Exception | None = None
        try:
            relay = await self._answer(request, begun)
            status = 200
        except SbctlError as error:
            status, refusal = HTTP_STATUS.status(error.code), error
        except Exception as error:  # noqa: BLE001 - one request's fault ends that request
            status, refusal = 500, error
        finally:
            self.ended(request, relay, status)
        if refusal is not None:
            request.client.answer(self.told(refusal, request.operation.path, request.id, request.caller))

    def ended(self, request: Request, relay: Relay | None, status: int) -> None:
        if request.reserved:
            used = used_tokens(request.asked, request.relay, left=status == 499)
            self._accounts.settle(request.caller, request.reserved, used)
        if request.served is not None:
            self._count(request, relay, status, self._now_s())

    # The way to an engine

    async def _answer(self, request: Request, begun: Begun | None) -> Relay:
        """By the deployment, else by who stands in for it, in order. Where nobody can, what kept the deployment from it is told."""
        try:
            return await self._ask(request, begun)
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
                try:
                    return await self._ask(request)
                except SbctlError as error:
                    self._not_instead(request, member.name, error)
                request.instead, request.served = None, first
            else:
                try:
                    return await self._ask_external(request, member)
                except EngineError as error:
                    self._not_instead(request, member.name, error)
        return None

    def _not_instead(self, request: Request, name: str, error: SbctlError) -> None:
        self._log.info(
            "who stands in cannot", request_id=request.id, provider=name, code=error.code, reason=error.message
        )

    async def _ask_external(self, request: Request, member: ExternalMember) -> Relay:
        request.admitted_s = self._now_s()
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

    async def _ask(self, request: Request, begun: Begun | None = None) -> Relay:
        """Admit, ask, and relay; another replica when one fails before its first byte."""
        while True:
            lease = await self._admit(request) if begun is None else begun.lease
            sent = None if begun is None else begun.attempt
            begun = None
            try:
                return await self._ask_replica(request, lease, sent)
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
            table = self._desired.routes
            generation = self._route(request)
            if self._has_to_be_counted(request, generation):
                await self._count_tokens(request, generation)
            try:
                lease = await generation.admit(request.priority, avoid=request.failed)
                request.admitted_s = self._now_s()
                return lease
            except SbctlError as error:
                waited_ms = (self._now_s() - request.began_s) * 1000
                is_replaced = error.code == "draining" and self._desired.routes is not table
                if not is_replaced or waited_ms > generation.member.queue_timeout_ms:
                    self._meter.rejected(generation.deployment, request.priority, error.code)
                    raise

    def _route(self, request: Request) -> Generation:
        """Raises EngineError `no_ready_replica` while this host stops, RefusedError `unknown_origin`, `unknown_model`, `model_not_allowed`."""
        if self._stopping:
            raise EngineError("no_ready_replica", "the runtime is stopping", retryable=True)
        table = self._desired.routes
        origin = table.origin(request.host, bound_to_loopback=self._on_loopback)
        request.name, generation = table.resolve(origin, request.asked.model, instead=request.instead)
        request.served = request.generation = generation
        request.stand_ins = stand_ins(origin, request)
        if not request.caller.may_use(request.name):
            raise RefusedError("model_not_allowed", "this key may not use this model", detail={"param": "model"})
        return generation

    def _has_to_be_counted(self, request: Request, served: Served) -> bool:
        """Whether the model does that at all, and whether the prompt can fit: what cannot is refused before it takes anybody's place. True
        where only the engine can tell.

        Raises InputError.
        """
        member, asked = served.member, request.asked
        if member.mode != request.operation.mode:
            told = f"this model does not answer {request.operation.path}"
            raise InputError("modality_mismatch", told, detail={"param": "model"})
        if isinstance(asked, AskedForm):
            return False
        short_chars = member.context_length * _COUNT_FROM_CHARS_A_TOKEN
        prompt_chars = asked.prompt_chars if len(asked.text) > short_chars else 0
        asked.check_bounds(member.context_length, prompt_chars)
        return prompt_chars > short_chars

    async def _count_tokens(self, request: Request, served: Served) -> None:
        """Raises InputError `context_length_exceeded`."""
        ready = next((replica for replica in served.replicas if replica.is_ready), None)
        if ready is None or isinstance(request.asked, AskedForm):
            return
        tokens = await ready.client.count_tokens(max(request.asked.prompts(), key=len))
        if tokens is not None and tokens > served.member.context_length:
            raise too_long(served.member.context_length, request.asked.kind)

    async def _ask_replica(self, request: Request, lease: Lease, sent: Attempt[Relay] | None) -> Relay:
        """Raises EngineError `upstream_failed` and what the engine refuses with, always before the first byte of an answer."""
        return await ask_over(
            lease.replica.client.pool,
            request.client,
            lambda: self._question(request),
            lambda: self._relay(request, lease.replica),
            unreached="upstream_failed",
            sent=sent,
        )

    def _question(self, request: Request) -> tuple[bytes, bytes]:
        """Head and body, as an engine gets them."""
        body, content_type = self._engine_body(request)
        return request_head("POST", request.operation.path, len(body), content_type, request.id), body

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
            f"{self._accounts.lines(request.caller)}"
        ).encode("latin-1")
        return relay_for(
            request.operation,
            request.asked,
            request.client,
            progressed,
            lines=lines,
            request_id=request.id,
            model=request.name,
            writes_whole=route == "external",
        )

    # What is told

    def _count(self, request: Request, relay: Relay | None, status: int, now_s: float) -> None:
        assert request.served is not None
        if relay is not None and relay.problem is not None:
            self._log.warning("stream broke", request_id=request.id, reason=relay.problem.message)
        elif status == 499:
            self._log.info("caller left", request_id=request.id, after_s=round(now_s - request.began_s, 3))
        self._meter.finished(
            Outcome.of(
                request.served.deployment,
                status,
                relay,
                began_s=request.began_s,
                admitted_s=request.admitted_s,
                ended_s=now_s,
                elsewhere=request.elsewhere,
            )
        )

    def told(self, error: Exception, path: str, request_id: str, caller: Caller | None) -> Answer:
        """What the caller is answered; the log hears it too, of those whom no key names seldom."""
        if isinstance(error, SbctlError):
            told = {"request_id": request_id, "path": path[:128], "code": error.code, "reason": error.message}
            if caller is None:
                self._seldom.tell(self._log.info, "refused", cause=error.code, **told)
            else:
                self._log.info("refused", **told)
            return error_answer(error, request_id, self._accounts.lines(caller))
        self._log.error("unexpected error", request_id=request_id, error=repr(error), at=_where(error))
        return internal_answer(request_id)


def _nothing() -> None:
    """Nobody watches the progress of somebody else's engine."""


def _where(error: BaseException) -> list[str]:
    """The innermost places of an error, without values."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.lineno}" for frame in frames[-4:]]
