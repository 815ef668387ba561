"""The peer plane of one node, put together: what its roles need of it, over the trust and the fences that the node holds.

as a worker     `worker(assigned)`, then `listener(worker)` on the port that the node's snapshot names
as a gateway    `dispatcher(cluster)`, for `gateway.ClusterGateway`
"""

from __future__ import annotations

from sbctl.base.clock import Clock
from sbctl.runtime.cluster.fences import ClusterFences
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.drain import Drain
from sbctl.runtime.gateway.ports import Meter
from sbctl.runtime.peer.client import PeerClient
from sbctl.runtime.peer.dispatch import Directory, Dispatcher
from sbctl.runtime.peer.envelope import Audience
from sbctl.runtime.peer.identity import PlaneIdentity
from sbctl.runtime.peer.listener import PeerListener
from sbctl.runtime.peer.metrics import PeerMetrics
from sbctl.runtime.peer.worker import Assigned, PeerWorker

__all__ = ["PeerPlane"]


class PeerPlane:
    """`here`: this node and the start of this process (`cluster.boot_epoch`)."""

    def __init__(
        self, trust: HeldTrust, fences: ClusterFences, here: Audience, metrics: PeerMetrics, *, clock: Clock
    ) -> None:
        """Raises InputError `tls.unusable`, and what reading the node's key raises."""
        self.identity = PlaneIdentity(trust)
        self._fences = fences
        self._here = here
        self._metrics = metrics
        self._clock = clock
        self._client: PeerClient | None = None

    def worker(self, assigned: Assigned, drain: Drain, meter: Meter) -> PeerWorker:
        return PeerWorker(
            self.identity,
            assigned,
            self._fences,
            here=self._here,
            clock=self._clock,
            drain=drain,
            meter=meter,
            metrics=self._metrics,
        )

    def listener(self, worker: PeerWorker) -> PeerListener:
        """`listen` starts it on a bound socket."""
        return PeerListener(worker, self.identity, self._fences.known)

    def dispatcher(self, directory: Directory) -> Dispatcher:
        self._client = PeerClient(self.identity, boot_epoch=self._here.boot_epoch, clock=self._clock)
        return Dispatcher(directory, self._client, self._metrics)

    def close(self) -> None:
        """Cut what this gateway still asks."""
        if self._client is not None:
            self._client.close()
