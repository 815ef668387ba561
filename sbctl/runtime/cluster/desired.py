"""What should run in the cluster, as this node knows it: signer set, revocation list and bundle, wherever they come from.

    order       a signer set first, then the revocation list, then the bundle: each is judged by what came before it
    believed    by signature and fence alone; what is refused is said once, and what is held goes on
    kept        on this node's disk before it counts, so a start needs no store

Authorities also keep every bundle, and give the store back what it lost: they are the memory, the store is the way.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from sbctl.base.clock import Clock
from sbctl.base.errors import InputError, RefusedError, SbctlError, UnreachableError
from sbctl.base.fs import read_bounded
from sbctl.base.limits import BUNDLE_MAX_BYTES
from sbctl.node.cluster_documents import BundleMark
from sbctl.node.records import EventKind
from sbctl.runtime.cluster.fences import ClusterFences, KeptBundle
from sbctl.runtime.cluster.held_signers import HeldSigners
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.cluster.store import (
    BUNDLE_KEY,
    REVOCATIONS_KEY,
    TRUST_KEY,
    Bucket,
    Changed,
    ClusterStore,
    Gone,
    Resync,
    StoreConflictError,
    Watched,
)
from sbctl.runtime.event_log import NO_EVENTS, EventSink
from sbctl.runtime.log import get_log
from sbctl.trust.cluster_bundle import VerifiedClusterBundle, bundle_mark, verify_cluster_bundle

__all__ = ["Desired"]

_ORDER: Final = (TRUST_KEY, REVOCATIONS_KEY, BUNDLE_KEY)
_LOOK_AGAIN_S: Final = 30.0
_GIVE_AGAIN_S: Final = 1.0
"""A store that comes back empty has no buckets yet."""
_CONFLICTS_MAX: Final = 8


class Desired:
    """Of one node; `is_authority`: that others may publish at. Used from one event loop."""

    def __init__(
        self,
        cluster_id: str,
        *,
        signers: HeldSigners,
        trust: HeldTrust,
        fences: ClusterFences,
        store: ClusterStore,
        clock: Clock,
        trust_file: Path,
        is_authority: bool = False,
        events: EventSink = NO_EVENTS,
    ) -> None:
        self._cluster_id = cluster_id
        self._signers = signers
        self._trust = trust
        self._fences = fences
        self._store = store
        self._clock = clock
        self._trust_file = trust_file
        self.is_authority = is_authority
        self._events = events
        self._listeners: list[Callable[[], None]] = []
        self._lock = asyncio.Lock()
        self._shown: dict[str, str] = {}
        """What the store shows, by key."""
        self._heard = False
        self._asked_to_give = asyncio.Event()
        self._not_given = ""
        self._said: dict[str, str] = {}
        self._log = get_log("cluster")
        self.held: KeptBundle | None = fences.bundle()

    @property
    def mark(self) -> BundleMark | None:
        """Of the bundle that is held."""
        return None if self.held is None else bundle_mark(self.held.payload)

    @property
    def in_store(self) -> bool:
        """Whether the store shows the bundle that is held."""
        return self.held is not None and self._shown.get(BUNDLE_KEY) == self.held.envelope

    def on_change(self, listener: Callable[[], None]) -> None:
        """Told after another bundle, signer set or revocation list was taken up."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Follow the store until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            if self.is_authority:
                group.create_task(self._keep_giving())

    async def _follow(self) -> None:
        async for told in self._store.watch(Bucket.DESIRED):
            async with self._lock:
                for key in self._seen(told):
                    await self._take(key)
                self._heard = True
                if not await self._give_back():
                    self.poke()

    def poke(self) -> None:
        """Something that the store should have is another here, or was not taken by it."""
        self._asked_to_give.set()

    async def _keep_giving(self) -> None:
        """A write that failed while the store was whole again a moment later is tried once more."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await self._asked_to_give.wait()
            self._asked_to_give.clear()
            async with self._lock:
                is_given = await self._give_back()
            if not is_given:
                self.poke()
                await asyncio.sleep(_GIVE_AGAIN_S)

    def _seen(self, told: Watched) -> tuple[str, ...]:
        if isinstance(told, Resync):
            shown = {entry.key: entry.value for entry in told.entries if entry.key in _ORDER}
            self._shown = {key: value.decode("utf-8", "replace") for key, value in shown.items()}
            return tuple(key for key in _ORDER if key in self._shown)
        if isinstance(told, Changed) and told.entry.key in _ORDER:
            self._shown[told.entry.key] = told.entry.value.decode("utf-8", "replace")
            # A bundle that was refused may be good by what came now.
            return tuple(key for key in _ORDER[_ORDER.index(told.entry.key) :] if key in self._shown)
        if isinstance(told, Gone):
            self._shown.pop(told.key, None)
        return ()

    async def _take(self, key: str) -> None:
        text = self._shown[key]
        try:
            if key == TRUST_KEY:
                changed = await asyncio.to_thread(self._signers.offer, text)
            elif key == REVOCATIONS_KEY:
                changed = await asyncio.to_thread(self._trust.offer_revocations, text, now=self._clock.now())
            else:
                changed = await self._accept(text)
        except SbctlError as error:
            if self._said.get(key) != error.message:
                self._said[key] = error.message
                self._log.warning("what the store shows is not taken", key=key, code=error.code, reason=error.message)
                if key == BUNDLE_KEY:
                    said = f"of the cluster, from the store: {error.code}: {error.message}"
                    self._events.tell(EventKind.BUNDLE_REFUSED, said)
            return
        self._said.pop(key, None)
        if changed:
            self._tell()

    def problems(self) -> dict[str, str]:
        """Why what the store shows is not taken, by key."""
        return dict(self._said)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    # The bundle

    async def _verified(self, envelope: str) -> VerifiedClusterBundle:
        trust = self._signers.trust
        if trust is None:
            raise RefusedError(
                "bundle.no_trust",
                "this runtime knows no signers yet",
                next_step="apply again: the signer set travels first",
            )
        fence = await asyncio.to_thread(self._fences.bundle_fence)
        # A bundle of some thousand deployments takes longer than requests may wait.
        verify = functools.partial(verify_cluster_bundle, envelope, trust=trust, cluster_id=self._cluster_id)
        return await asyncio.to_thread(verify, fence=fence, now=self._clock.now())

    async def _accept(self, envelope: str) -> bool:
        """Durable before it counts. False: it is the one that is held. Raises as `verify_cluster_bundle`, and what keeping raises."""
        verified = await self._verified(envelope)
        if verified.repeat and self.held is not None:
            return False
        await asyncio.to_thread(self._fences.accept_bundle, verified, envelope)
        self.held = KeptBundle(verified.payload, verified.signer, envelope)
        self._log.info("bundle of the cluster taken up", revision=verified.payload.revision, signer=verified.signer)
        said = f"of the cluster, revision {verified.payload.revision}, by {verified.signer}"
        self._events.tell(EventKind.BUNDLE_ACCEPTED, said)
        return True

    async def publish(self, envelope: str, *, expected_revision: int | None = None) -> VerifiedClusterBundle:
        """By an operator at this authority: kept here, then in the store. `in_store` says whether the store has it; if not, it gets it as soon
        as it can.

        Raises RefusedError `cluster.not_authority`, `bundle.*`, InputError `bundle.*`, SbctlError `cluster.state_not_written`.
        """
        if not self.is_authority:
            raise RefusedError(
                "cluster.not_authority",
                "this node is no authority of its cluster",
                next_step="publish at a host with the role authority",
            )
        async with self._lock:
            verified = await self._verified(envelope)
            actual = None if self.held is None else self.held.payload.revision
            if not verified.repeat and expected_revision != actual:
                raise RefusedError(
                    "bundle.revision_conflict",
                    f"the cluster is at revision {actual or 'none'}, the bundle was made for {expected_revision or 'none'}",
                    next_step="plan again: somebody applied in between",
                    detail={"expected_revision": expected_revision, "actual_revision": actual},
                )
            await self._refuse_older_than_store(verified)
            if await self._accept(envelope):
                self._tell()
            await self._give_back()
        return verified

    async def _refuse_older_than_store(self, verified: VerifiedClusterBundle) -> None:
        """Another authority may have published while this one did not hear of it."""
        try:
            entry = await self._store.get(Bucket.DESIRED, BUNDLE_KEY)
        except UnreachableError:
            return
        if entry is None:
            return
        self._shown[BUNDLE_KEY] = entry.value.decode("utf-8", "replace")
        await self._take(BUNDLE_KEY)
        await self._verified_again(verified)

    async def _verified_again(self, verified: VerifiedClusterBundle) -> None:
        held = self.held
        if held is None:
            return
        shown, wanted = held.payload, verified.payload
        if (shown.key_epoch, shown.revision) > (wanted.key_epoch, wanted.revision):
            raise RefusedError(
                "bundle.stale_revision",
                f"revision {wanted.revision} is behind revision {shown.revision}, which another authority published",
                next_step="plan again from the newest state",
                detail={"revision": wanted.revision, "accepted_revision": shown.revision},
            )

    # What the store lost

    async def _give_back(self) -> bool:
        """Put into the store what it lacks, or has older. Nothing on nodes that are no authority. False: it did not take all of it."""
        if not self.is_authority or not self._heard:
            return True
        for key, text in (
            (TRUST_KEY, await asyncio.to_thread(self._trust_text)),
            (REVOCATIONS_KEY, self._trust.files.revocations),
            (BUNDLE_KEY, None if self.held is None else self.held.envelope),
        ):
            if text is None or self._shown.get(key) == text:
                continue
            try:
                await self._put(key, text)
            except SbctlError as error:
                if self._not_given != error.code:
                    self._not_given = error.code
                    self._log.warning("the store does not take it now", key=key, code=error.code, reason=error.message)
                return False
        self._not_given = ""
        return True

    def _trust_text(self) -> str | None:
        """The installed set as it was signed; None where a newer one came over the store, which has it."""
        try:
            return read_bounded(self._trust_file, max_bytes=BUNDLE_MAX_BYTES).decode()
        except (InputError, UnicodeDecodeError):
            return None

    async def _put(self, key: str, text: str) -> None:
        """Unless what is there is as good or better by what this node holds: then it was taken up, or is not believed and is replaced."""
        for _ in range(_CONFLICTS_MAX):
            entry = await self._store.get(Bucket.DESIRED, key)
            if entry is not None:
                self._shown[key] = entry.value.decode("utf-8", "replace")
                if self._shown[key] == text or await self._is_newer(key, self._shown[key]):
                    return
            try:
                await self._store.compare_and_set(
                    Bucket.DESIRED, key, text.encode(), expected=0 if entry is None else entry.revision
                )
            except StoreConflictError:
                continue
            self._shown[key] = text
            self._log.info("given to the store", key=key)
            return

    async def _is_newer(self, key: str, text: str) -> bool:
        """Whether what the store shows counts here, so that ours is not put over it."""
        judge: dict[str, Callable[[], Awaitable[object]]] = {
            TRUST_KEY: lambda: asyncio.to_thread(self._signers.offer, text),
            REVOCATIONS_KEY: lambda: asyncio.to_thread(self._trust.offer_revocations, text, now=self._clock.now()),
            BUNDLE_KEY: lambda: self._accept(text),
        }
        try:
            await judge[key]()
        except SbctlError:
            return False
        return True
