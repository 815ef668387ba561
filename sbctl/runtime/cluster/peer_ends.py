"""A node's ends of the peer plane: the port of a worker that gateways come through, and the way of a gateway to the workers that it knows."""

from __future__ import annotations

import socket
import ssl

from sbctl.node.cluster_config import ClusterConfig
from sbctl.node.cluster_documents import NodeSnapshotDocument
from sbctl.node.placement_document import PlacementDocument
from sbctl.runtime.binding import bind_tcp
from sbctl.runtime.cluster.fences import ClusterFences, KeptBundle
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.cluster.host import Host
from sbctl.runtime.cluster.roster import Roster
from sbctl.runtime.gateway.fallback import Externals
from sbctl.runtime.gateway.ports import Keys
from sbctl.runtime.peer.candidates import KnownNode
from sbctl.runtime.peer.client import PeerClient
from sbctl.runtime.peer.dispatch import Dispatcher
from sbctl.runtime.peer.envelope import Audience
from sbctl.runtime.peer.gateway import ClusterGateway
from sbctl.runtime.peer.identity import PlaneIdentity
from sbctl.runtime.peer.known import KnownCluster, serving_of
from sbctl.runtime.peer.listener import PeerListener
from sbctl.runtime.peer.worker import Assigned as AssignedHere
from sbctl.runtime.peer.worker import PeerWorker
from sbctl.trust.peer_documents import Peer

__all__ = ["PeerEnds", "Port"]

Port = tuple[PeerListener, socket.socket, ssl.SSLContext]


class PeerEnds:
    """Of one node, whatever its roles. `address`: at which gateways reach it, once its port is bound."""

    def __init__(
        self, host: Host, config: ClusterConfig, trust: HeldTrust, fences: ClusterFences, *, boot_epoch: int
    ) -> None:
        self._host, self._config = host, config
        self._trust, self._fences = trust, fences
        self._boot_epoch = boot_epoch
        self._plane = PlaneIdentity(trust)
        self._listener: PeerListener | None = None
        self._worker: PeerWorker | None = None
        self._client: PeerClient | None = None
        self._known = KnownCluster(config.node_id, config.labels)
        self.address: str | None = None

    # Of a worker

    def port(self, here: AssignedHere) -> Port | None:
        """The port for gateways, bound; None on a node that is no worker. `here`: what is served. Raises HostError of binding."""
        peer, host = self._config.peer, self._host
        if peer is None or "worker" not in self._config.roles:
            return None
        self._worker = PeerWorker(
            self._plane,
            here,
            self._fences,
            here=Audience(self._config.node_id, self._boot_epoch),
            clock=host.clock,
            drain=host.drain,
            meter=host.metrics,
            metrics=host.metrics.peers,
        )
        self._listener = PeerListener(self._worker, self._plane, self._fences.known)
        sock = bind_tcp(peer.bind, peer.port)
        host_part = f"[{peer.advertise}]" if ":" in peer.advertise else peer.advertise
        self.address = f"{host_part}:{sock.getsockname()[1]}"
        return self._listener, sock, self._plane.server_context

    @property
    def is_open(self) -> bool:
        """Whether gateways get in."""
        return self._listener is not None and self._listener.is_bound and self._trust.signer is not None

    def stop_admitting(self) -> None:
        """Nothing new from gateways."""
        if self._worker is not None:
            self._worker.stop_admitting()
            self._listener = None

    # Of a gateway

    def gateway(self, keys: Keys, externals: Externals, *, bound_to_loopback: bool) -> ClusterGateway | None:
        """The public API; None on a node of another role. It knows nobody before `know`."""
        if "gateway" not in self._config.roles:
            return None
        host = self._host
        self._client = PeerClient(self._plane, boot_epoch=self._boot_epoch, clock=host.clock)
        return ClusterGateway(
            host.reconciler,
            host.metrics,
            keys,
            host.drain,
            externals,
            bound_to_loopback=bound_to_loopback,
            cluster=self._known,
            dispatcher=Dispatcher(self._known, self._client, host.metrics.peers),
        )

    def know(
        self, roster: Roster, held: KeptBundle | None, own: NodeSnapshotDocument | None, plan: PlacementDocument | None
    ) -> None:
        """What the gateway chooses from: the directory, with this node's own newest word. Nothing on a node of another role."""
        if self._client is None or held is None:
            return
        nodes = [
            KnownNode(row.snapshot, row.peer, is_silent=not roster.is_asked(row))
            for row in roster.view.rows.values()
            if row.node_id != self._config.node_id and row.snapshot is not None and row.peer is not None
            if roster.is_asked(row) or roster.may_answer(row)
        ]
        if own is not None and (signer := self._trust.signer) is not None:
            identity = signer.identity
            nodes.append(KnownNode(own, Peer(identity.claims, identity.certificate.fingerprint, identity.until)))
        self._known.take(
            nodes,
            held.payload.content.deployments,
            {} if plan is None else serving_of(plan),
            policy_revision=held.payload.revision,
            has_origins=bool(held.payload.content.origins),
        )

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
