"""What a worker does with a dispatch: who sends it, whether it counts, and then the same way to an engine that its own callers have.

Admission here is the authority: a gateway chooses by what it last heard, and this worker says whether there is room. While a dispatch waits or
its prompt is read, the gateway hears that it is in hand. The answer goes back as it comes; a gateway that leaves ends the request at the engine and
gives the permit back.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, cast

from sbctl.base.clock import Clock
from sbctl.base.errors import EngineError, InputError, RefusedError, SbctlError
from sbctl.node.cluster_documents import DispatchEnvelope
from sbctl.runtime.admission import AdmissionError
from sbctl.runtime.drain import Drain
from sbctl.runtime.gateway.answers import Answer, json_answer
from sbctl.runtime.gateway.asked import Asked, read_asked
from sbctl.runtime.gateway.asking import ask_over
from sbctl.runtime.gateway.connection import ClientConnection
from sbctl.runtime.gateway.form import AskedForm, read_form
from sbctl.runtime.gateway.head import RequestHead
from sbctl.runtime.gateway.ports import Meter, Outcome, Work
from sbctl.runtime.gateway.relay import Relay
from sbctl.runtime.gateway.relays import relay_for
from sbctl.runtime.gateway.surface import SURFACE, Operation
from sbctl.runtime.gateway.upstream import request_head
from sbctl.runtime.generation import Generation
from sbctl.runtime.log import get_log
from sbctl.runtime.peer.codes import retry_class, status_of
from sbctl.runtime.peer.envelope import Audience, body_digest, check_dispatch
from sbctl.runtime.peer.framing import CONTENT_TYPE, DISPATCH_PATH, unframe
from sbctl.runtime.peer.identity import PlaneIdentity
from sbctl.runtime.peer.listener import PeerConnection
from sbctl.runtime.peer.metrics import PeerMetrics
from sbctl.runtime.peer.replay import ReplayFence
from sbctl.runtime.replica import Replica
from sbctl.runtime.seldom import Seldom
from sbctl.trust.peer_documents import PeerMark, VerifiedDocument
from sbctl.trust.peer_kinds import DISPATCH

__all__ = [
    "CODE_HEADER",
    "PRESENT_HEADER",
    "RETRYABLE_HEADER",
    "Assigned",
    "PeerMarks",
    "PeerWorker",
    "other_generation",
]

CODE_HEADER: Final = "x-sbproxy-error-code"
RETRYABLE_HEADER: Final = "x-sbproxy-error-retryable"
PRESENT_HEADER: Final = "x-sbproxy-present"
"""With a refusal for another start of the process or another generation: the one that counts now."""
_FIELDS_MAX: Final = 16
_HEAD_MAX_BYTES: Final = 8 * 1024
_CREDENTIALS: Final = (b"authorization", b"x-api-key", b"proxy-authorization", b"cookie")
_REPLICAS_TRIED: Final = 3
_PARSE_INLINE_MAX_BYTES: Final = 128 * 1024


class Assigned(Protocol):
    """What this worker serves for the cluster."""

    def serving(self, deployment: str, generation: int) -> Generation:
        """Raises RefusedError `deployment_not_assigned`, and what `other_generation` makes of the one that is served."""
        ...


def other_generation(served: int) -> RefusedError:
    """The worker serves `served` of the deployment, and says so: a change reaches it before the gateway hears of it."""
    return RefusedError(
        "stale_deployment_generation", f"generation {served} is served here", detail={"generation": served}
    )


class PeerMarks(Protocol):
    """The newest that was accepted of each peer; whoever keeps it over restarts does so in `note`, before it returns."""

    def known(self) -> Mapping[str, PeerMark]: ...

    def note(self, node_id: str, mark: PeerMark) -> None: ...


@dataclass(slots=True)
class _Work:
    """One accepted dispatch."""

    envelope: DispatchEnvelope
    operation: Operation
    asked: Asked | AskedForm
    generation: Generation
    client: ClientConnection
    began_s: float
    admitted_s: float | None = None
    relay: Relay | None = None


class PeerWorker:
    """The application behind `PeerListener`. `here`: this node, and the start of this process."""

    def __init__(
        self,
        identity: PlaneIdentity,
        assigned: Assigned,
        marks: PeerMarks,
        *,
        here: Audience,
        clock: Clock,
        drain: Drain,
        meter: Meter,
        metrics: PeerMetrics,
        fence: ReplayFence | None = None,
    ) -> None:
        self._identity = identity
        self._assigned = assigned
        self._marks = marks
        self._here = here
        self._clock = clock
        self._drain = drain
        self._meter = meter
        self._metrics = metrics
        self._fence = ReplayFence() if fence is None else fence
        self._stopping = False
        self._log = get_log("peer")
        self._seldom = Seldom(clock.monotonic_s)

    def stop_admitting(self) -> None:
        """New dispatches go elsewhere; those that run go on."""
        self._stopping = True

    # Of gateway.server.App

    def check(self, head: RequestHead) -> None:
        if head.path != DISPATCH_PATH:
            raise RefusedError("not_found", "there is no such route")
        if head.method != "POST":
            raise RefusedError("method_not_allowed", "this route takes POST")
        if any(name in head.fields for name in _CREDENTIALS):
            raise RefusedError("peer_authentication_failed", "callers' credentials have no place between nodes")
        size = sum(len(name) + len(value) + 4 for name, value in head.fields.items())
        if len(head.fields) > _FIELDS_MAX or size > _HEAD_MAX_BYTES:
            raise InputError(
                "invalid_request", f"a dispatch has {_FIELDS_MAX} fields and {_HEAD_MAX_BYTES} bytes of head"
            )
        if (head.text(b"content-type") or "") != CONTENT_TYPE:
            raise RefusedError("unsupported_media_type", f"the body is {CONTENT_TYPE}")

    def serve(self, head: RequestHead, body: bytes, caller: ClientConnection) -> Work:  # noqa: ARG002 - as App
        return asyncio.get_running_loop().create_task(self._serve(body, caller))

    async def _serve(self, body: bytes, caller: ClientConnection) -> None:
        connection = cast("PeerConnection", caller)
        connection.show_life()
        try:
            if self._stopping:
                raise EngineError("listener_shutdown", "this runtime is stopping", retryable=True)
            with self._drain.request():
                await self._dispatch(body, connection)
        except SbctlError as error:
            if error.code == "peer_revoked":
                connection.condemn()
            caller.answer(self._refused(error, connection))
        except asyncio.CancelledError:
            self._metrics.cancelled("peer")
            raise
        except Exception as error:  # noqa: BLE001 - one dispatch's fault ends that dispatch
            self._log.error("unexpected error", error=repr(error))
            caller.answer(self._refused(EngineError("internal", "unexpected error"), connection))

    def refusal(self, error: SbctlError, head: RequestHead | None) -> Answer:  # noqa: ARG002 - as App
        return self._refused(error, None)

    # One dispatch

    async def _dispatch(self, data: bytes, connection: PeerConnection) -> None:
        text, body = unframe(data)
        verified = self._authenticated(text, connection)
        envelope = verified.document
        digest = await body_digest(body)
        now_ms = int(self._clock.now().timestamp() * 1000)
        check_dispatch(
            envelope,
            digest,
            here=self._here,
            certificate_sha256=connection.certificate_sha256,
            signed_with=verified.peer.certificate_sha256,
            now_unix_ms=now_ms,
        )
        connection.peer = verified.peer
        loop = asyncio.get_running_loop()
        self._fence.accept(
            envelope.issuer_node_id,
            envelope.nonce,
            expires_at_unix_ms=envelope.expires_at_unix_ms,
            now_unix_ms=now_ms,
            now_s=loop.time(),
        )
        if self._marks.known().get(envelope.issuer_node_id) != verified.mark:
            # Once for each start of a gateway: the disk may take its time, and others are served meanwhile.
            await asyncio.to_thread(self._marks.note, envelope.issuer_node_id, verified.mark)
        generation = self._assigned.serving(envelope.deployment, envelope.deployment_generation)
        operation = SURFACE[envelope.path]
        asked = await _read(operation, body, envelope.content_type or "")
        work = _Work(envelope, operation, asked, generation, connection, loop.time())
        await self._answer(work)

    def _authenticated(self, text: bytes, connection: PeerConnection) -> VerifiedDocument[DispatchEnvelope]:
        """Raises RefusedError `peer_revoked`, `peer_authentication_failed`, `envelope_too_large`, `invalid_envelope`."""
        try:
            return self._identity.verifier.open(
                text.decode("utf-8", "replace"), DISPATCH, now=self._clock.now(), marks=self._marks.known()
            )
        except SbctlError as error:
            code = _told(error.code)
            shown = connection.certificate_sha256[:16]
            self._seldom.tell(
                self._log.warning, "dispatch refused", cause=shown, code=code, reason=str(error), certificate=shown
            )
            raise RefusedError(code, error.message, next_step=error.next_step) from error

    async def _answer(self, work: _Work) -> None:
        status = 499
        try:
            await self._ask(work)
            status = 200
        except SbctlError as error:
            status = status_of(error)
            raise
        finally:
            self._meter.finished(
                Outcome.of(
                    work.generation.deployment,
                    status,
                    work.relay,
                    began_s=work.began_s,
                    admitted_s=work.admitted_s,
                    ended_s=asyncio.get_running_loop().time(),
                )
            )

    async def _ask(self, work: _Work) -> None:
        """Admit, ask and relay; another replica of this node when one fails before its first byte."""
        generation, failed = work.generation, set[Replica]()
        _check_fit(work)
        while True:
            try:
                lease = await generation.admit(work.envelope.priority, avoid=failed)
            except SbctlError as error:
                successor = self._successor(work) if error.code == "draining" else None
                if successor is None:
                    self._meter.rejected(generation.deployment, work.envelope.priority, error.code)
                    raise
                work.generation = generation = successor
                continue
            work.admitted_s = asyncio.get_running_loop().time()
            try:
                await self._ask_replica(work, lease.replica)
                return
            except SbctlError as error:
                failed.add(lease.replica)
                others = [each for each in generation.replicas if each.is_ready and each not in failed]
                if error.code != "upstream_failed" or not others or len(failed) >= _REPLICAS_TRIED:
                    raise
            finally:
                lease.release()

    def _successor(self, work: _Work) -> Generation | None:
        """What took the place of a generation that was replaced while the dispatch waited for it, within the time that it may wait.

        Raises as `Assigned.serving`: a successor that has another number is told to the gateway.
        """
        waited_ms = (asyncio.get_running_loop().time() - work.began_s) * 1000
        if waited_ms > work.generation.member.queue_timeout_ms:
            return None
        found = self._assigned.serving(work.envelope.deployment, work.envelope.deployment_generation)
        return None if found is work.generation else found

    async def _ask_replica(self, work: _Work, replica: Replica) -> None:
        model, asked = work.generation.deployment, work.asked
        if isinstance(asked, AskedForm):
            body, content_type = asked.for_engine(model=model)
        else:
            body = asked.for_engine(model=model, context_length=work.generation.member.context_length)
            content_type = "application/json"
        head = request_head("POST", work.operation.path, len(body), content_type, work.envelope.request_id)

        def listen() -> Relay:
            relay = work.relay = _relay(work, replica)
            return relay

        await ask_over(replica.client.pool, work.client, lambda: (head, body), listen, unreached="upstream_failed")

    # What is told

    def _refused(self, error: SbctlError, connection: PeerConnection | None) -> Answer:
        status = status_of(error)
        code = "body_too_large" if error.code == "request_body_too_large" else error.code
        kind = retry_class(code, status)
        self._metrics.refused(code, kind)
        issuer = None if connection is None or connection.peer is None else connection.peer.claims.node_id
        self._seldom.tell(
            self._log.info,
            "dispatch answered",
            cause=f"{issuer or '-'} {code}",
            code=code,
            retry_class=kind,
            issuer=issuer,
            reason=error.message,
        )
        retryable = error.retryable or kind in ("capacity", "readiness", "transport")
        headers = {CODE_HEADER: code, RETRYABLE_HEADER: "true" if retryable else "false"}
        if code == "stale_boot_epoch":
            headers[PRESENT_HEADER] = str(self._here.boot_epoch)
        elif code == "stale_deployment_generation":
            headers[PRESENT_HEADER] = str(error.detail.get("generation", 0))
        elif "now_unix_ms" in error.detail:
            headers[PRESENT_HEADER] = str(error.detail["now_unix_ms"])
        if status in (429, 503):
            after_s = error.retry_after_s if isinstance(error, AdmissionError) else error.detail.get("retry_after_s", 1)
            headers["Retry-After"] = str(max(1, math.ceil(float(after_s))))
        document = {"code": code, "message": error.message} if status == 400 else {"code": code}
        return json_answer({"error": document}, status=status, headers=headers)


async def _read(operation: Operation, body: bytes, content_type: str) -> Asked | AskedForm:
    """Whatever a gateway lets pass is checked again: this host's engines are this worker's to protect."""
    if operation.is_form:
        return await asyncio.to_thread(read_form, body, content_type, operation.kind)
    if len(body) > _PARSE_INLINE_MAX_BYTES:
        return await asyncio.to_thread(read_asked, body, operation.kind)
    return read_asked(body, operation.kind)


def _check_fit(work: _Work) -> None:
    member = work.generation.member
    if str(member.mode) != work.operation.mode:
        raise InputError("modality_mismatch", f"this model does not answer {work.operation.path}")
    if isinstance(work.asked, Asked):
        work.asked.check_bounds(member.context_length, work.asked.prompt_chars)


def _relay(work: _Work, replica: Replica) -> Relay:
    """The model has its public name from here on; the gateway has nothing to rename."""
    return relay_for(
        work.operation,
        work.asked,
        work.client,
        replica.progressed,
        lines=b"",
        request_id=work.envelope.request_id,
        model=work.envelope.logical_model,
    )


def _told(code: str) -> str:
    """What a peer is told of why its envelope was not believed."""
    if code == "identity.revoked":
        return "peer_revoked"
    if code in ("identity.clock_skew", "certificate.not_yet_valid"):
        return "dispatch_not_yet_valid"
    if code in ("peer.too_large", "json.too_large", "envelope.too_large"):
        return "envelope_too_large"
    if code in ("peer.malformed", "peer.too_new", "json.invalid", "envelope.invalid", "envelope.wrong_type"):
        return "invalid_envelope"
    return "peer_authentication_failed"
