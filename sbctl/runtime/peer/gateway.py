"""The public API of a gateway in a cluster: the same checks and the same answers, and whichever node is best asked.

What a gateway knows of the cluster comes through `Cluster`: the accepted bundle's deployments, and a directory of verified snapshots. What this
host runs itself is asked in the way of a host without a cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from sbctl.base.errors import EngineError, RefusedError, SbctlError
from sbctl.runtime import routes
from sbctl.runtime.drain import Drain
from sbctl.runtime.gateway.completions import RouteClass
from sbctl.runtime.gateway.fallback import Externals, stand_ins
from sbctl.runtime.gateway.flight import Begun
from sbctl.runtime.gateway.gateway import Gateway
from sbctl.runtime.gateway.head import RequestHead
from sbctl.runtime.gateway.models import Availability, Look
from sbctl.runtime.gateway.ports import Desired, Keys, Meter
from sbctl.runtime.gateway.relay import Relay
from sbctl.runtime.gateway.request import Request
from sbctl.runtime.peer.codes import REFUSALS
from sbctl.runtime.peer.dispatch import ClusterRequest, Directory, Dispatcher, prefix_of
from sbctl.runtime.peer.envelope import Errand
from sbctl.runtime.replica import Replica
from sbctl.trust.bundle import DeploymentMember

__all__ = ["Cluster", "ClusterGateway"]

_KNOWS_AGAIN_S: Final = 10
"""A gateway that just joined hears of its bundle within seconds."""


class Cluster(Directory, Protocol):
    """The cluster as this gateway knows it."""

    @property
    def is_known(self) -> bool:
        """False before there is a bundle of the cluster: until then this host serves by itself."""
        ...

    @property
    def has_origins(self) -> bool:
        """Whether that bundle names any: then this host answers by them as soon as it has taken it up."""
        ...

    @property
    def policy_revision(self) -> str:
        """Of the bundle by which callers are let pass."""
        ...

    def member(self, deployment: str) -> DeploymentMember | None:
        """What the bundle says of a deployment."""
        ...


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """A deployment as `ports.Served`."""

    deployment: str
    member: DeploymentMember
    replicas: Sequence[Replica] = field(default=())


class ClusterGateway(Gateway):
    """See the module."""

    def __init__(
        self,
        desired: Desired,
        meter: Meter,
        keys: Keys,
        drain: Drain,
        externals: Externals,
        *,
        bound_to_loopback: bool,
        cluster: Cluster,
        dispatcher: Dispatcher,
    ) -> None:
        super().__init__(desired, meter, keys, drain, externals, bound_to_loopback=bound_to_loopback)
        self._cluster = cluster
        self._dispatcher = dispatcher

    def _is_ready(self) -> bool:
        """One that knows no bundle knows no caller and no model either: whoever balances load keeps off it."""
        serves = self._cluster.is_known or bool(self._desired.generations)
        return super()._is_ready() and serves and self._knows_callers()

    def _knows_callers(self) -> bool:
        table = self._desired.routes
        return bool(table.origins or table.api_keys) or (self._cluster.is_known and not self._cluster.has_origins)

    def _caller(self, head: RequestHead) -> routes.Caller:
        """Nobody gets in by a bundle that is not there; whose key would be good is told none of his own fault. Raises EngineError
        `desired_state_unknown`."""
        if head.caller is None and not self._knows_callers():
            raise EngineError(
                "desired_state_unknown",
                "this gateway does not know yet what its cluster serves, and whom",
                next_step="ask another gateway; the operator sees in sbctl status what this one lacks",
                detail={"retry_after_s": _KNOWS_AGAIN_S},
                retryable=True,
            )
        return super()._caller(head)

    def begin(self, request: Request) -> Begun | None:
        return None if self._cluster.is_known else super().begin(request)

    async def _ask(self, request: Request, begun: Begun | None = None) -> Relay:
        """The relay of an answer that has begun and ended, from the best replica that would give one."""
        if begun is not None or not self._cluster.is_known:
            return await super()._ask(request, begun)
        served = self._found(request)
        if self._has_to_be_counted(request, served):
            await self._count_tokens(request, served)
        loop = asyncio.get_running_loop()
        request.admitted_s = loop.time()
        try:
            return await self._dispatcher.ask(self._cluster_request(request, served))
        except SbctlError as error:
            raise _in_public(error) from error

    def _cluster_request(self, request: Request, served: _Elsewhere) -> ClusterRequest:
        member = served.member
        return ClusterRequest(
            deployment=served.deployment,
            cold_start=member.cold_start,
            prefix=prefix_of(request.asked),
            deadline_s=request.began_s + member.queue_timeout_ms / 1000,
            client=request.client,
            errand=lambda generation: self._errand(request, generation),
            relay=lambda route: self._peer_relay(request, route),
            here=lambda: self._ask_here(request, served),
        )

    def _found(self, request: Request) -> _Elsewhere:
        """Raises RefusedError `unknown_origin`, `unknown_model`, `model_not_allowed`; EngineError `no_ready_replica` while this host stops."""
        if self._stopping:
            raise EngineError("no_ready_replica", "the runtime is stopping", retryable=True)
        table = self._desired.routes
        origin = table.origin(request.host, bound_to_loopback=self._on_loopback)
        request.name, deployment = table.named(origin, request.asked.model, instead=request.instead)
        member = self._cluster.member(deployment)
        if member is None:
            raise routes.unknown_model()
        served = request.served = _Elsewhere(deployment, member)
        request.stand_ins = stand_ins(origin, request)
        if not request.caller.may_use(request.name):
            raise RefusedError("model_not_allowed", "this key may not use this model", detail={"param": "model"})
        return served

    async def _ask_here(self, request: Request, served: _Elsewhere) -> Relay:
        request.admitted_s, request.failed = None, set()
        try:
            return await super()._ask(request)
        except RefusedError as error:
            if error.code != "unknown_model":
                raise
            # The directory is behind: this host gave the deployment up a moment ago.
            raise EngineError("deployment_not_assigned", "no longer served on this host", retryable=True) from None
        finally:
            request.served = served

    def _errand(self, request: Request, generation: int) -> Errand:
        body, content_type = self._engine_body(request)
        assert request.served is not None
        return Errand(
            deployment=request.served.deployment,
            generation=generation,
            logical_model=request.name,
            path=request.operation.path,
            content_type=content_type,
            body=body,
            request_id=request.id,
            priority=request.priority,
            policy_revision=self._cluster.policy_revision,
            key_name=request.caller.name,
        )

    def _peer_relay(self, request: Request, route: RouteClass) -> Relay:
        relay = request.relay = self._new_relay(request, route, _nothing)
        return relay

    def _look(self, table: routes.RouteTable, deployment: str) -> tuple[DeploymentMember, Look] | None:
        if not self._cluster.is_known:
            return super()._look(table, deployment)
        member = self._cluster.member(deployment)
        if member is None:
            return None
        found = self._cluster.selection(deployment).candidates
        ready = sum(candidate.replicas for candidate in found if candidate.state == "ready")
        state: Availability = "ready" if ready else "cold" if found else "unavailable"
        return member, Look(state, member.cold_start == "wait", ready, member.replicas)


def _in_public(error: SbctlError) -> SbctlError:
    """Words that nodes have among themselves are nobody else's: before a first byte all of them mean that nobody is left to ask."""
    if error.code not in REFUSALS and error.code != "upstream_failed":
        return error
    return EngineError("no_eligible_replica", "no node serves this model now", retryable=True)


def _nothing() -> None:
    """Progress at a peer's engine is watched by that peer."""
