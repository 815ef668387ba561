"""A gateway's way to its workers: kept connections by worker, a new envelope for every dispatch, and the answer as it comes.

A connection is made within five seconds and belongs to the very certificate that the worker's snapshot was signed with. Of a worker's answer
nothing but its status, the kind of its body and, of a refusal, code and time to come back are looked at; no other field goes on to a caller.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from sbctl.base.clock import Clock
from sbctl.base.display import display_safe
from sbctl.base.errors import EngineError, InputError, SbctlError
from sbctl.runtime.admission import AdmissionError
from sbctl.runtime.gateway.asking import ask_over
from sbctl.runtime.gateway.ports import Client
from sbctl.runtime.gateway.relay import Relay
from sbctl.runtime.gateway.upstream import EngineConnection, Pool
from sbctl.runtime.log import get_log
from sbctl.runtime.peer.candidates import endpoint_of
from sbctl.runtime.peer.choice import Candidate
from sbctl.runtime.peer.codes import retry_class
from sbctl.runtime.peer.envelope import Audience, Errand, body_digest, sign_dispatch
from sbctl.runtime.peer.framing import CONTENT_TYPE, DISPATCH_PATH, frame
from sbctl.runtime.peer.identity import PlaneIdentity
from sbctl.runtime.peer.listener import leaf_digest, notice_loss
from sbctl.runtime.peer.signs import SIGN_S, SILENCE_S
from sbctl.runtime.peer.worker import CODE_HEADER, PRESENT_HEADER
from sbctl.runtime.seldom import Seldom

__all__ = ["PeerClient", "RelayMaker", "refusal_of"]

_IDLE_S: Final = 60.0
"""Well below the 300 s that workers keep theirs."""
_LAST_LOOK_S: Final = 1.0
_CONNECTIONS_MAX: Final = 128
"""To one worker. Each carries one request, from its dispatch to its last byte."""
_HANDSHAKE_S: Final = 5.0
_BEHIND_MAX: Final = 4
"""A clock, a start and a generation may all be others."""
_SAME_CLOCK_MS: Final = 2_000
_BEHIND: Final = frozenset(
    {"stale_boot_epoch", "stale_deployment_generation", "dispatch_expired", "dispatch_not_yet_valid"}
)
_REFUSAL_MAX_BYTES: Final = 64 * 1024
_CODE_MAX_CHARS: Final = 64
_RETRY_AFTER_MAX_S: Final = 600
_CALLERS_FAULTS: Final = frozenset({"context_length_exceeded", "modality_mismatch", "invalid_request", "invalid_body"})


class _WorkerConnection(EngineConnection):
    """Tells whoever waits for an answer of the worker's signs of life."""

    _sign_s = 0.0

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self._parser.get_status_code() < 200 and isinstance(self._sink, _Answer):
            now_s = asyncio.get_running_loop().time()
            if now_s - self._sign_s >= SIGN_S / 2:
                # As slow as they are sent; more of them are no sign, and are too much some time.
                self._sign_s, self._bare_bytes = now_s, 0
                self._sink.sign()


class PeerPool(Pool):
    """The connections to one worker, as it is known by one certificate."""

    def __init__(self, worker: Candidate, identity: PlaneIdentity) -> None:
        super().__init__(idle_s=_IDLE_S)
        self._endpoint = endpoint_of(worker.address)
        self.address = worker.address
        self.certificate_sha256 = worker.certificate_sha256
        self.peer = worker.peer
        self._identity = identity

    def _make(self) -> EngineConnection:
        return _WorkerConnection(self)

    async def _connect(self) -> EngineConnection:
        if len(self._open) >= _CONNECTIONS_MAX:
            raise EngineError("overloaded", "too many requests are at this worker", retryable=True)
        if self._endpoint is None:
            raise ConnectionError("its address is none")
        transport, made = await asyncio.get_running_loop().create_connection(
            self._make,
            *self._endpoint,
            ssl=self._identity.client_context,
            server_hostname="",
            ssl_handshake_timeout=_HANDSHAKE_S,
        )
        if leaf_digest(transport) != self.certificate_sha256:
            transport.abort()
            raise EngineError("tls_failed", "a worker shows another certificate than it is known by", retryable=True)
        notice_loss(transport)
        return made


class _Answer:
    """Hands an answer to its relay, or turns a refusal into the error that it is. `told`: called with each word of the worker before its answer's
    body."""

    def __init__(self, relay: Relay, told: Callable[[], None]) -> None:
        self.relay = relay
        self.ending = relay.ending
        self._told = told
        self._due: asyncio.TimerHandle | None = None
        self.present: int | None = None
        """The start of its process, the generation, or the time that the worker says it has where it was asked for another."""
        self._status = 0
        self._fields: Mapping[bytes, bytes] = {}
        self._refusal = bytearray()

    @property
    def heard(self) -> bool:
        return self._status != 0

    @property
    def is_satisfied(self) -> bool:
        return self.relay.is_satisfied

    def wait(self) -> None:
        """From now on a word of the worker is due: a sign, a head, and behind that its body."""
        self.leave()
        self._due = asyncio.get_running_loop().call_later(SILENCE_S - _LAST_LOOK_S, self._look_once_more)

    def sign(self) -> None:
        """It is at it."""
        if not self.ending.is_over:
            self._told()
            self.wait()

    def leave(self) -> None:
        """Wait no longer."""
        due, self._due = self._due, None
        if due is not None:
            due.cancel()

    def _look_once_more(self) -> None:
        """This process may have stood still itself, and what came meanwhile is read now."""
        self._due = asyncio.get_running_loop().call_later(_LAST_LOOK_S, self._give_up)

    def _give_up(self) -> None:
        self.ending.end(
            EngineError(
                "worker_silent",
                f"the worker said nothing for {SILENCE_S:.0f} seconds",
                next_step="see whether its runtime is stopped or stuck: sbctl status, sbctl logs; restart it",
                retryable=True,
            )
        )

    def head(self, status: int, fields: dict[bytes, bytes]) -> None:
        if self.ending.is_over:
            return  # too late: somebody else is asked
        self._told()
        self.wait()
        self._status = status
        if status == 200:
            self.relay.head(status, fields)
            return
        self._fields = fields
        told = fields.get(PRESENT_HEADER.encode(), b"")
        if told.isdigit() and len(told) <= 15:
            self.present = int(told)

    def data(self, data: bytes) -> None:
        if self._status == 200:
            self.leave()
            if not self.ending.is_over:
                self.relay.data(data)
        elif len(self._refusal) < _REFUSAL_MAX_BYTES:
            self._refusal += data

    def end(self) -> None:
        if self._status == 200:
            self.relay.end()
        else:
            self.ending.end(refusal_of(self._status, self._fields, bytes(self._refusal)))

    def broke(self, why: str) -> None:
        if self.relay.begun:
            self.relay.broke(why)
        else:
            self.ending.end(EngineError("transport_failed", "the worker ended the connection", retryable=True))


def refusal_of(status: int, fields: Mapping[bytes, bytes], body: bytes) -> SbctlError:
    """A worker's refusal as an error of ours. Its words are passed on only where the caller can mend something."""
    code = fields.get(CODE_HEADER.encode(), b"").decode("latin-1")
    if not 0 < len(code) <= _CODE_MAX_CHARS or not code.replace("_", "").isalnum() or not code.isascii():
        code = "upstream_failed"
    kind = retry_class(code, status)
    if status == 400 and code in _CALLERS_FAULTS:
        return InputError(code, _message(body))
    if kind == "capacity" or status == 429:
        return AdmissionError(code, "the worker has no room", retry_after_s=_retry_after_s(fields))
    if kind == "terminal":
        # Nothing a caller can mend: the worker does not know what we asked.
        code = "upstream_failed"
    return EngineError(code, f"the worker refused: {code}", retryable=True)


def _message(body: bytes) -> str:
    try:
        document: Any = json.loads(body)
        return display_safe(str(document["error"]["message"]), max_chars=300)
    except (ValueError, KeyError, TypeError):
        return "the model refused the request"


def _retry_after_s(fields: Mapping[bytes, bytes]) -> float:
    told = fields.get(b"retry-after", b"1")
    return float(min(int(told), _RETRY_AFTER_MAX_S)) if told.isdigit() and len(told) <= 6 else 1.0


class _BehindError(Exception):
    """The worker is elsewhere than this gateway thinks: another start of its process, another generation, another time. By its own word, over a
    connection that proved whose it is."""

    def __init__(self, present: int, refusal: EngineError) -> None:
        super().__init__(present)
        self.present = present
        self.refusal = refusal


class RelayMaker(Protocol):
    """Makes what takes an answer on its way to the caller; once for each time a worker is asked."""

    def __call__(self) -> Relay: ...


class PeerClient:
    """All workers that a gateway asks. `boot_epoch`: of this process."""

    def __init__(self, identity: PlaneIdentity, *, boot_epoch: int, clock: Clock) -> None:
        self._identity = identity
        self._boot_epoch = boot_epoch
        self._clock = clock
        self._pools: dict[str, PeerPool] = {}
        self._starts: dict[str, tuple[str, int]] = {}
        """Starts of workers that they told us of before the directory did, by the certificate that said so."""
        self._clocks: dict[str, tuple[str, int]] = {}
        """How far ahead of ours a worker's clock is, in milliseconds, by the certificate that said so; of those that refused by it."""
        self._log = get_log("dispatch")
        self._seldom = Seldom(clock.monotonic_s)
        identity.on_change(self._renew)

    def close(self) -> None:
        """Cut all connections."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _renew(self) -> None:
        """Certificate, CA or revocation list are others. A revoked worker is cut off, whatever it answers; elsewhere what runs goes on, and new
        connections are judged anew."""
        for pool in self._pools.values():
            if pool.peer is not None and self._identity.is_refused(pool.peer, {}):
                pool.close()
            else:
                pool.retire()
        self._pools.clear()

    async def ask(
        self,
        candidate: Candidate,
        errand: Errand,
        client: Client,
        relay: RelayMaker,
        *,
        heard: Callable[[], None] = lambda: None,
    ) -> Relay:
        """The relay of an answer that has begun and ended. `heard`: called with each word of the worker, at least one where there is an answer.

        Raises InputError for what the caller did wrong, AdmissionError and EngineError with the worker's code, always before the first byte.
        """
        start, digest = self._start_of(candidate), await body_digest(errand.body)
        for _ in range(_BEHIND_MAX):
            try:
                return await self._ask_once(
                    candidate, client, relay, start=start, errand=errand, digest=digest, heard=heard
                )
            except _BehindError as behind:
                if behind.refusal.code == "stale_boot_epoch" and behind.present > start:
                    start = behind.present
                    self._starts[candidate.node_id] = (candidate.certificate_sha256, start)
                elif behind.refusal.code == "stale_deployment_generation" and behind.present > errand.generation:
                    errand = replace(errand, generation=behind.present)
                elif behind.refusal.code in ("dispatch_expired", "dispatch_not_yet_valid"):
                    self._note_clock(candidate, behind.present)
                else:
                    raise behind.refusal from None
                refusal = behind.refusal
        raise refusal

    async def _ask_once(
        self,
        candidate: Candidate,
        client: Client,
        relay: RelayMaker,
        *,
        start: int,
        errand: Errand,
        digest: str,
        heard: Callable[[], None],
    ) -> Relay:
        """Raises also _BehindError."""
        answers: list[_Answer] = []

        def listen() -> _Answer:
            answers.append(_Answer(relay(), heard))
            return answers[-1]

        def write() -> tuple[bytes, bytes]:
            answers[-1].wait()
            return self._written(candidate, start, errand, digest)

        try:
            answered = await ask_over(self._pool(candidate), client, write, listen, unreached="transport_failed")
        except EngineError as error:
            if error.code in _BEHIND and answers[-1].present is not None:
                raise _BehindError(answers[-1].present, error) from error
            raise
        finally:
            for answer in answers:
                answer.leave()
        return answered.relay

    def _start_of(self, candidate: Candidate) -> int:
        certificate, told = self._starts.get(candidate.node_id, ("", 0))
        if told <= candidate.boot_epoch or certificate != candidate.certificate_sha256:
            self._starts.pop(candidate.node_id, None)
            return candidate.boot_epoch
        return told

    def _note_clock(self, candidate: Candidate, worker_unix_ms: int) -> None:
        """A dispatch that was only long on its way is made anew, too."""
        ahead_ms = worker_unix_ms - self._now_ms()
        if abs(ahead_ms) <= _SAME_CLOCK_MS:
            self._clocks.pop(candidate.node_id, None)
            return
        self._clocks[candidate.node_id] = (candidate.certificate_sha256, ahead_ms)
        self._seldom.tell(
            self._log.warning,
            "a worker's clock is another",
            cause=candidate.node_id,
            node=candidate.node_id,
            ahead_s=round(ahead_ms / 1000),
            next_step="set the clocks of both machines (timedatectl set-ntp true)",
        )

    def _ahead_ms(self, candidate: Candidate) -> int:
        certificate, ahead_ms = self._clocks.get(candidate.node_id, ("", 0))
        return ahead_ms if certificate == candidate.certificate_sha256 else 0

    def _now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    def _pool(self, candidate: Candidate) -> PeerPool:
        """The worker's. Where it moved, or has a new certificate, what runs on the old connections goes on."""
        pool = self._pools.get(candidate.node_id)
        known = (candidate.address, candidate.certificate_sha256)
        if pool is None or (pool.address, pool.certificate_sha256) != known:
            if pool is not None:
                pool.retire()
            pool = self._pools[candidate.node_id] = PeerPool(candidate, self._identity)
        return pool

    def _written(self, candidate: Candidate, start: int, errand: Errand, digest: str) -> tuple[bytes, bytes]:
        text = sign_dispatch(
            errand,
            digest,
            Audience(candidate.node_id, start),
            self._identity.signer,
            boot_epoch=self._boot_epoch,
            now_unix_ms=self._now_ms() + self._ahead_ms(candidate),
        )
        body = frame(text.encode(), errand.body)
        head = f"POST {DISPATCH_PATH} HTTP/1.1\r\nHost: {candidate.node_id}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode("ascii"), body
