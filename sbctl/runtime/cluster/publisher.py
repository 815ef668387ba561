"""This node's snapshot in the store: signed, at every interval, and soon after something changed.

Whatever the store does, publishing never holds up anything else: what could not be written is written at the next turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sbctl import __version__
from sbctl.base.clock import Clock
from sbctl.base.errors import SbctlError
from sbctl.node.cluster_documents import BundleMark, ClusterNode, NodeSnapshotDocument
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.cluster.report import NodeReport
from sbctl.runtime.cluster.store import Bucket, ClusterStore, node_key
from sbctl.runtime.log import get_log
from sbctl.trust.peer_kinds import SNAPSHOT

__all__ = ["Publisher", "PublisherPorts"]

_SPACING_S: Final = 0.2
"""Changes that come together are told together."""
_AGAIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class PublisherPorts:
    """What a snapshot is made of."""

    report: Callable[[], Awaitable[NodeReport]]
    bundle: Callable[[], BundleMark | None]
    authority_stale: Callable[[], bool]
    figures: Callable[[], dict[str, int]]


class Publisher:
    """`node`: as the certificate says. `last` is the newest snapshot, also while the store does not take it."""

    def __init__(
        self,
        node: Callable[[], ClusterNode],
        ports: PublisherPorts,
        *,
        cluster_id: str,
        boot_epoch: int,
        trust: HeldTrust,
        store: ClusterStore,
        clock: Clock,
        interval_s: float,
        ttl_s: float,
    ) -> None:
        self._node = node
        self._ports = ports
        self._cluster_id = cluster_id
        self._boot_epoch = boot_epoch
        self._trust = trust
        self._store = store
        self._clock = clock
        self._interval_s = interval_s
        self._ttl_s = ttl_s
        self._counter = 0
        self._changed = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._log = get_log("publisher")
        self.last: NodeSnapshotDocument | None = None
        self.problem: SbctlError | None = None

    def poke(self) -> None:
        """Something that a snapshot tells is another."""
        self._changed.set()

    def on_made(self, listener: Callable[[], None]) -> None:
        """Told of every snapshot as soon as it is made."""
        self._listeners.append(listener)

    async def run(self) -> None:
        while True:
            self._changed.clear()
            wait_s = self._interval_s if await self.publish() else min(_AGAIN_S, self._interval_s)
            await asyncio.sleep(min(_SPACING_S, wait_s))
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, wait_s - _SPACING_S)):
                    await self._changed.wait()

    async def publish(self) -> bool:
        """Once. Whether the store took it."""
        try:
            signer = self._trust.required_signer()
            document = await self._document(signer.identity.claims.identity_epoch)
            self.last = document
            for listener in self._listeners:
                listener()
            text = signer.sign(SNAPSHOT, document)
            await self._store.put(Bucket.NODES, node_key(document.node.node_id), text.encode())
        except SbctlError as error:
            if self.problem is None or self.problem.code != error.code:
                self._log.warning("the snapshot was not published", code=error.code, reason=error.message)
            self.problem = error
            return False
        self.problem = None
        return True

    async def _document(self, identity_epoch: int) -> NodeSnapshotDocument:
        report = await self._ports.report()
        self._counter += 1
        now_ms = int(self._clock.now().timestamp() * 1000)
        revocations = self._trust.revocations
        return NodeSnapshotDocument(
            cluster_id=self._cluster_id,
            identity_epoch=identity_epoch,
            boot_epoch=self._boot_epoch,
            node=self._node(),
            counter=self._counter,
            published_at_unix_ms=now_ms,
            expires_at_unix_ms=now_ms + int(self._ttl_s * 1000),
            health=report.health,
            capacity=report.capacity,
            engines=report.engines,
            devices=report.devices,
            artifacts=report.artifacts,
            replicas=report.replicas,
            runtime_version=__version__,
            active_bundle=self._ports.bundle(),
            assignment=report.assignment,
            authority_stale=self._ports.authority_stale(),
            revocations_revision=0 if revocations is None else revocations.revision,
            figures=self._ports.figures(),
        )
