"""The lease as a signed document: this node's own, and what others wrote."""

from __future__ import annotations

import asyncio
from typing import Final

from sbctl.base.clock import Clock
from sbctl.base.errors import SbctlError
from sbctl.node.cluster_documents import LeaseDocument
from sbctl.runtime.cluster.fences import ClusterFences
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.cluster.store import CONTROLLER_KEY, Bucket, Changed, ClusterStore, Resync
from sbctl.runtime.log import get_log
from sbctl.trust.cluster_fences import check_epoch
from sbctl.trust.peer_kinds import LEASE, moment_of

__all__ = ["SignedLease"]

_HEARD_S: Final = 3600.0


class SignedLease:
    """As `lease.LeaseWords`."""

    def __init__(self, trust: HeldTrust, fences: ClusterFences, clock: Clock, *, boot_epoch: int) -> None:
        self._trust = trust
        self._fences = fences
        self._clock = clock
        self._boot_epoch = boot_epoch
        self._log = get_log("lease")

    def seal(self, *, epoch: int, renewal: int, acquired_at_ms: int, renewed_at_ms: int, ttl_secs: int) -> bytes:
        """Raises SbctlError while this node's identity does not count."""
        signer = self._trust.required_signer()
        claims = signer.identity.claims
        document = LeaseDocument(
            cluster_id=claims.cluster_id,
            identity_epoch=claims.identity_epoch,
            boot_epoch=self._boot_epoch,
            holder=claims.node_id,
            epoch=epoch,
            renewal=renewal,
            acquired_at_unix_ms=acquired_at_ms,
            renewed_at_unix_ms=renewed_at_ms,
            ttl_secs=ttl_secs,
        )
        return signer.sign(LEASE, document).encode()

    def open(self, value: bytes) -> LeaseDocument | None:
        try:
            text = value.decode("utf-8", "replace")
            lease = self._trust.verifier.open(text, LEASE, now=self._clock.now(), marks=self._fences.known()).document
            check_epoch(lease.epoch, lease.holder, seen=self._fences.lease_epoch_seen)
            return lease
        except SbctlError as error:
            self._log.warning("a lease is not believed", code=error.code, reason=error.message)
            return None

    async def follow(self, store: ClusterStore) -> None:
        """A lease that is renewed is a sign of an authority, also while nothing is to be done. Until cancelled."""
        heard_s: float | None = None
        loop = asyncio.get_running_loop()
        async for told in store.watch(Bucket.LEASES, CONTROLLER_KEY):
            entries = told.entries if isinstance(told, Resync) else (told.entry,) if isinstance(told, Changed) else ()
            for entry in entries:
                if heard_s is not None and loop.time() - heard_s < _HEARD_S:
                    continue
                lease = self.open(entry.value)
                if lease is not None:
                    heard_s = loop.time()
                    heard_at = min(moment_of(lease.renewed_at_unix_ms), self._clock.now())
                    await asyncio.to_thread(self._fences.hear, heard_at)
