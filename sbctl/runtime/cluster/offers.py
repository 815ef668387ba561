"""A node's own assignment as the store shows it: believed by signature, fence and bundle, in this order, or refused with its reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from sbctl.base.clock import Clock
from sbctl.base.errors import SbctlError
from sbctl.node.cluster_documents import AssignmentDocument
from sbctl.runtime.cluster.desired import Desired
from sbctl.runtime.cluster.fences import ClusterFences
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.cluster.store import Bucket, Changed, ClusterStore, Resync, node_token
from sbctl.runtime.log import get_log
from sbctl.trust.cluster_fences import LeaseFence, admit_assignment
from sbctl.trust.peer_kinds import ASSIGNMENT

__all__ = ["Offer", "Offers"]


@dataclass(frozen=True, slots=True)
class Offer:
    """One that counts from now on. It is durable when its fence is, with the text that moved it."""

    document: AssignmentDocument
    fence: LeaseFence
    text: str


class Offers:
    """`refusal`: why the newest one that was shown is not obeyed."""

    def __init__(
        self,
        node_id: str,
        *,
        desired: Desired,
        trust: HeldTrust,
        fences: ClusterFences,
        store: ClusterStore,
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._desired = desired
        self._trust = trust
        self._fences = fences
        self._store = store
        self._clock = clock
        self._shown: str | None = None
        self._log = get_log("obey")
        self.refusal: SbctlError | None = None

    async def follow(self, came: Callable[[], None]) -> None:
        """Until cancelled. `came`: told of each that is shown."""
        key = node_token(self._node_id)
        async for told in self._store.watch(Bucket.ASSIGNMENTS, key):
            entries = told.entries if isinstance(told, Resync) else (told.entry,) if isinstance(told, Changed) else ()
            for entry in entries:
                if entry.key == key:
                    self._shown = entry.value.decode("utf-8", "replace")
                    came()

    async def take(self) -> Offer | None:
        """The one that is shown, once. None: there is none, it is the one that was obeyed before, or `refusal` tells of it; a refused one is
        looked at again."""
        text = self._shown
        if text is None:
            return None
        try:
            offer = await self._admitted(text)
        except SbctlError as error:
            if self.refusal is None or self.refusal.message != error.message:
                self._log.warning("assignment not taken", code=error.code, reason=error.message)
            self.refusal = error
            return None
        self.refusal = None
        if self._shown == text:
            self._shown = None
        return offer

    async def _admitted(self, text: str) -> Offer | None:
        """None: it is the one that is committed. Its signer's mark is durable when this returns."""
        now = self._clock.now()
        verified = await asyncio.to_thread(
            self._trust.verifier.open, text, ASSIGNMENT, now=now, marks=self._fences.known()
        )
        await asyncio.to_thread(self._fences.note, verified.document.signer, verified.mark)
        obeyed = admit_assignment(
            verified,
            node_id=self._node_id,
            held=self._desired.mark,
            fence=self._fences.fence("assignment"),
            lease_epoch_seen=self._fences.lease_epoch_seen,
            now=now,
        )
        return None if obeyed.repeat else Offer(verified.document, obeyed.fence, text)
