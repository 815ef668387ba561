"""The newest placement plan that this node verified: of the store, and kept on its disk for the time without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sbctl.base.clock import Clock
from sbctl.base.errors import SbctlError
from sbctl.node.placement_document import PlacementDocument
from sbctl.runtime.cluster.fences import ClusterFences
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.cluster.kept_documents import plan_of_text
from sbctl.runtime.cluster.store import PLAN_KEY, Bucket, Changed, ClusterStore, Resync
from sbctl.runtime.log import get_log
from sbctl.trust.cluster_fences import admit_placement
from sbctl.trust.peer_kinds import PLACEMENT, moment_of

__all__ = ["PlanFeed"]


class PlanFeed:
    """`plan` is None before there was one."""

    def __init__(self, trust: HeldTrust, fences: ClusterFences, store: ClusterStore, clock: Clock) -> None:
        self._trust = trust
        self._fences = fences
        self._store = store
        self._clock = clock
        self._listeners: list[Callable[[], None]] = []
        self._log = get_log("cluster")
        kept = fences.accepted("placement")
        self.plan: PlacementDocument | None = None if kept is None else plan_of_text(kept)

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def run(self) -> None:
        async for told in self._store.watch(Bucket.ASSIGNMENTS, PLAN_KEY):
            entries = told.entries if isinstance(told, Resync) else (told.entry,) if isinstance(told, Changed) else ()
            for entry in entries:
                if entry.key == PLAN_KEY:
                    await self.offer(entry.value.decode("utf-8", "replace"))

    async def offer(self, text: str) -> bool:
        """A plan that the store shows. Durable before it counts. False: it is not newer, or not believed."""
        now = self._clock.now()
        try:
            verified = await asyncio.to_thread(
                self._trust.verifier.open, text, PLACEMENT, now=now, marks=self._fences.known()
            )
            await asyncio.to_thread(self._fences.note, verified.document.signer, verified.mark)
            obeyed = admit_placement(
                verified,
                fence=self._fences.fence("placement"),
                lease_epoch_seen=self._fences.lease_epoch_seen,
            )
            if obeyed.repeat:
                return False
            issued = moment_of(verified.document.issued_at_unix_ms)
            await asyncio.to_thread(self._fences.accept, "placement", obeyed.fence, text, issued_at=issued)
        except SbctlError as error:
            self._log.warning("plan not taken", code=error.code, reason=error.message)
            return False
        self.take(verified.document)
        return True

    async def before(self, text: str | None) -> PlacementDocument | None:
        """What a new holder begins with: the newest of what is kept here and `text`, which the store shows and which is of an epoch before
        that of this node."""
        kept = self.plan
        if text is None:
            return kept
        try:
            verified = await asyncio.to_thread(
                self._trust.verifier.open, text, PLACEMENT, now=self._clock.now(), marks=self._fences.known()
            )
            admit_placement(verified, fence=self._fences.fence("placement"), lease_epoch_seen=0)
        except SbctlError as error:
            self._log.warning("the plan in the store is not taken over", code=error.code, reason=error.message)
            return kept
        return verified.document

    def take(self, plan: PlacementDocument) -> None:
        """One that is on this node's disk."""
        self.plan = plan
        for listener in self._listeners:
            listener()
