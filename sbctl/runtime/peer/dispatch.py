"""One request's way to a replica of the cluster: choose, ask, and ask another one as long as no byte of an answer has gone to the caller.

    attempts        8 at most, none after the caller's queue timeout, each at another node and generation
    asked again     refusals for room, for readiness and for a way that failed; never for security, never for what the caller did wrong
    silent          a worker that says nothing for ten seconds is left for another one, which the caller's queue timeout leaves room for, once
    resting         a node whose way failed, that was silent or did not believe us comes behind all others (`resting`)
    cold            wait: one replica is woken and the request waits there; reject: nothing is started; fallback: one is woken, and
                    somebody else answers

All that is known of nodes is what the directory says, and how many requests of ours run where.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from sbctl.base.errors import EngineError, SbctlError
from sbctl.runtime.gateway.asked import Asked
from sbctl.runtime.gateway.form import AskedForm
from sbctl.runtime.gateway.ports import Client
from sbctl.runtime.gateway.relay import Relay
from sbctl.runtime.log import get_log
from sbctl.runtime.loop_time import LoopTime
from sbctl.runtime.peer.candidates import Selection
from sbctl.runtime.peer.choice import ATTEMPTS_MAX, Candidate, choose
from sbctl.runtime.peer.client import PeerClient
from sbctl.runtime.peer.codes import may_be_asked_elsewhere, retry_class, status_of
from sbctl.runtime.peer.envelope import Errand
from sbctl.runtime.peer.metrics import PeerMetrics, RouteClass
from sbctl.runtime.peer.resting import Rests
from sbctl.runtime.seldom import Seldom

__all__ = ["ClusterRequest", "Directory", "Dispatcher", "prefix_of"]

_PREFIX_CHARS: Final = 2048
_PREFIX_CHARS_MIN: Final = 256
"""A shorter prompt is read anew faster than it is waited for."""


class Directory(Protocol):
    """What this gateway last knew of the cluster."""

    region: str

    def selection(self, deployment: str) -> Selection:
        """Who may answer now."""
        ...


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """A request that passed every check of the gateway. `errand` says for each generation what a worker is asked; `relay` makes what takes
    an answer by a route; `here` asks this node's own replicas."""

    deployment: str
    cold_start: Literal["wait", "reject", "fallback"]
    prefix: bytes
    deadline_s: float
    """Loop time after which nobody else is asked."""
    client: Client
    errand: Callable[[int], Errand]
    relay: Callable[[RouteClass], Relay]
    here: Callable[[], Awaitable[Relay]]


def prefix_of(asked: Asked | AskedForm) -> bytes:
    """What the beginning of a prompt is known by; empty when it is too short to matter."""
    prompts = [] if isinstance(asked, AskedForm) else asked.prompts()
    if not prompts or len(prompts[0]) < _PREFIX_CHARS_MIN:
        return b""
    return hashlib.sha256(prompts[0][:_PREFIX_CHARS].encode("utf-8", "surrogatepass")).digest()


class Dispatcher:
    """Of one gateway."""

    def __init__(self, directory: Directory, peers: PeerClient, metrics: PeerMetrics) -> None:
        self._directory = directory
        self._peers = peers
        self._metrics = metrics
        self._running: Counter[tuple[str, str]] = Counter()
        """Requests of ours, by node and deployment."""
        self._rests = Rests(LoopTime())
        metrics.watch_failing(lambda: len(self._rests))
        self._log = get_log("dispatch")
        self._seldom = Seldom(LoopTime())

    async def ask(self, request: ClusterRequest) -> Relay:
        """The relay of an answer that has begun and ended.

        Raises EngineError `no_eligible_replica`, `no_ready_replica`, or what the last replica that was asked refused with.
        """
        loop = asyncio.get_running_loop()
        tried: set[tuple[str, int]] = set()
        refusal: SbctlError | None = None
        deadline_s, was_silent = request.deadline_s, False
        while len(tried) < ATTEMPTS_MAX and (refusal is None or loop.time() < deadline_s):
            candidate = self._choose(request, tried)
            if candidate is None:
                break
            if candidate.state == "cold" and request.cold_start == "reject":
                refusal = refusal or EngineError("no_ready_replica", "the model is not loaded", retryable=True)
                break
            if refusal is not None:
                self._metrics.failed_over(request.deployment, refusal.code)
            tried.add(candidate.key)
            asked_s = loop.time()
            try:
                return await self._attempt(request, candidate)
            except SbctlError as error:
                kind = retry_class(error.code, status_of(error))
                is_last = candidate.state != "ready" and request.cold_start == "fallback"
                if kind in ("transport", "security") and not candidate.is_local:
                    self._rests.failed(candidate.node_id, asked_s=asked_s)
                if error.code == "worker_silent" and not was_silent:
                    # Nobody's queue took that time.
                    deadline_s, was_silent = deadline_s + loop.time() - asked_s, True
                if is_last or not may_be_asked_elsewhere(kind):
                    raise
                refusal = error
        raise refusal or EngineError("no_eligible_replica", "no node serves this model now", retryable=True)

    def _choose(self, request: ClusterRequest, tried: Collection[tuple[str, int]]) -> Candidate | None:
        self._rests.forget()
        selection = self._directory.selection(request.deployment)
        if not tried:
            self._metrics.excluded(selection.excluded)
        candidates = selection.candidates
        if self._rests:
            candidates = tuple(
                replace(each, plane_is_ready=False) if each.node_id in self._rests else each for each in candidates
            )
        return choose(
            candidates,
            region=self._directory.region,
            prefix=request.prefix,
            tried=tried,
            running=lambda each: max(each.active, self._running[each.node_id, request.deployment]),
        )

    async def _ask_peer(self, request: ClusterRequest, candidate: Candidate) -> Relay:
        node_id, errand = candidate.node_id, request.errand(candidate.generation)
        with self._rests.trying(node_id):
            return await self._peers.ask(
                candidate,
                errand,
                request.client,
                lambda: request.relay("peer"),
                heard=lambda: self._rests.heard(node_id),
            )

    async def _attempt(self, request: ClusterRequest, candidate: Candidate) -> Relay:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        route: RouteClass = "local" if candidate.is_local else "peer"
        place = (candidate.node_id, request.deployment)
        self._running[place] += 1
        outcome = "cancelled"
        try:
            if candidate.is_local:
                relay = await request.here()
            else:
                relay = await self._ask_peer(request, candidate)
            outcome = "ok" if relay.problem is None else "broken"
            return relay
        except SbctlError as error:
            outcome = error.code
            self._seldom.tell(
                self._log.warning if error.next_step else self._log.info,
                "a replica did not answer",
                cause=f"{candidate.node_id} {request.deployment}",
                node=candidate.node_id,
                deployment=request.deployment,
                code=error.code,
                **({"next_step": error.next_step} if error.next_step else {}),
            )
            raise
        finally:
            self._running[place] -= 1
            if not self._running[place]:
                del self._running[place]
            self._metrics.attempted(request.deployment, route, outcome)
            if outcome == "cancelled":
                self._metrics.cancelled(route)
            if route == "peer":
                self._metrics.dispatched(outcome, loop.time() - began_s)
