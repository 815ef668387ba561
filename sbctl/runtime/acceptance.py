"""Which bundles this runtime takes: those that an operator of its signer set made for it, newer than any before."""

from __future__ import annotations

import asyncio

from sbctl.base.clock import Clock
from sbctl.base.errors import RefusedError
from sbctl.runtime.store import RuntimeStore
from sbctl.trust.bundle import TrustSet
from sbctl.trust.verifier import VerifiedBundle, verify_bundle

__all__ = ["Acceptance"]


class Acceptance:
    """`trust` None: no signer set came yet. `by_hand`: a file is this runtime's desired state."""

    def __init__(
        self, scope: str, trust: TrustSet | None, store: RuntimeStore, clock: Clock, *, by_hand: bool = False
    ) -> None:
        self._scope = scope
        self._trust = trust
        self._store = store
        self._clock = clock
        self._by_hand = by_hand

    async def verified(self, envelope: str, *, is_assigned: bool) -> VerifiedBundle:
        """`is_assigned`: a cluster says what this host runs.

        Raises what `verify_bundle` raises; RefusedError `runtime.started_by_hand`, `bundle.cluster_authority`, `bundle.no_trust`.
        """
        if self._by_hand:
            raise RefusedError(
                "runtime.started_by_hand",
                "this runtime was started by hand: the file it was started with is its desired state",
                next_step="stop it, then apply again",
            )
        if is_assigned:
            raise RefusedError(
                "bundle.cluster_authority",
                "this host runs what its cluster assigns to it",
                next_step="publish the cluster's bundle at an authority: sbctl apply with proxy.cluster does",
            )
        if self._trust is None:
            raise RefusedError(
                "bundle.no_trust",
                "this runtime knows no signers yet",
                next_step="apply again: the signer set travels first",
            )
        fence = await asyncio.to_thread(self._store.fence)
        return verify_bundle(envelope, trust=self._trust, scope=self._scope, fence=fence, now=self._clock.now())
