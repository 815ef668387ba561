"""The lease-holder's work: one plan after another, signed assignments for each node, and the plan itself for whoever comes after.

when        directory, bundle, operators or time ask for it: where nothing that a plan depends on changed, nothing is evaluated; never more
            often than five times what an evaluation takes
from        the plan before: of this holder, else the newest of store and disk; without any, what nodes show
asked       operators' actions count as long as they are in force; a loss that was confirmed is over once its node is heard again
order       the plan is on this disk, then in the store, before any assignment that follows from it
written     only what changed; everything once in a new epoch, since nodes refuse what is of an older one
behind      if most nodes obey what was said after all of this holder's words, its disk is of yesterday: it takes a higher epoch
fenced      nothing is written once the lease is not held, and compare-and-set keeps a holder that was asleep from writing over the next
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from sbctl.base.clock import Clock
from sbctl.base.digests import sha256_bytes
from sbctl.base.display import plural
from sbctl.base.errors import RefusedError, SbctlError
from sbctl.node.cluster_documents import BundleMark
from sbctl.node.placement_document import PlacementDocument
from sbctl.node.records import EventKind
from sbctl.placement.assignments import Assignment, assignments
from sbctl.placement.documents import Head, assignment_document, plan_document, plan_of
from sbctl.placement.model import NO_DIGEST, NO_MARK, ClusterView, DeploymentDemand, Mark, PlacementPlan
from sbctl.placement.occasion import Occasion, occasion_of
from sbctl.placement.operator_actions import OperatorActions
from sbctl.placement.reconcile import reconcile
from sbctl.runtime.cluster.actions import ClusterActions
from sbctl.runtime.cluster.desired import Desired
from sbctl.runtime.cluster.fences import ClusterFences, KeptBundle
from sbctl.runtime.cluster.happenings import happened
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.cluster.kept_documents import payload_of
from sbctl.runtime.cluster.lease import ClusterLease
from sbctl.runtime.cluster.placement_inputs import Figures, PlacementInputs
from sbctl.runtime.cluster.plan_feed import PlanFeed
from sbctl.runtime.cluster.roster import Roster
from sbctl.runtime.cluster.store import (
    PLAN_KEY,
    Bucket,
    ClusterStore,
    Gone,
    Resync,
    StoreConflictError,
    Watched,
    node_token,
)
from sbctl.runtime.event_log import NO_EVENTS, EventSink
from sbctl.runtime.log import get_log
from sbctl.trust.cluster_fences import LeaseFence
from sbctl.trust.peer_kinds import ASSIGNMENT, PLACEMENT, moment_of

__all__ = ["Controller", "spoken_for"]

_DEBOUNCE_S: Final = 0.2
_LOOK_S: Final = 2.0
_SPACING: Final = 5.0
_PARALLEL: Final = 32
_CONFLICTS_MAX: Final = 4
_WHEN: Final = {"counter": 0, "issued_at_unix_ms": 0, "directory_digest": NO_DIGEST}
"""Fields of a plan that say when it was made, not what it is."""


@dataclass(frozen=True, slots=True)
class _Basis:
    """What one evaluation is made from, beside the plan before it."""

    occasion: Occasion
    demands: tuple[DeploymentDemand, ...]
    actions: OperatorActions
    bundle: BundleMark | None
    """Assignments name it: also one that asks for nothing else is told to everybody."""


@dataclass(slots=True)
class _Reign:
    """What one holder knows while it holds one epoch. `written`: by node, what its newest assignment says; `workers`: that were ever placed on
    or heard; `gone`: that are out of the cluster; `rests_on`: from which the last evaluation made the plan that was there, and all of it is
    written."""

    epoch: int
    plan: PlacementPlan
    workers: set[str]
    gone: frozenset[str] = frozenset()
    counter: int = 0
    written: dict[str, tuple[BundleMark, tuple[Assignment, ...]]] = field(default_factory=dict)
    plan_written: PlacementDocument | None = None
    rests_on: _Basis | None = None


class Controller:
    """Of one authority."""

    def __init__(
        self,
        node_id: str,
        *,
        boot_epoch: int,
        figures: Figures,
        lease: ClusterLease,
        roster: Roster,
        desired: Desired,
        feed: PlanFeed,
        actions: ClusterActions,
        trust: HeldTrust,
        fences: ClusterFences,
        store: ClusterStore,
        clock: Clock,
        events: EventSink = NO_EVENTS,
    ) -> None:
        self._node_id = node_id
        self._boot_epoch = boot_epoch
        self._figures = figures
        self._inputs = PlacementInputs(figures)
        self._lease = lease
        self._roster = roster
        self._desired = desired
        self._feed = feed
        self._actions = actions
        self._events = events
        self._trust = trust
        self._fences = fences
        self._store = store
        self._clock = clock
        self._asked = asyncio.Event()
        self._reign: _Reign | None = None
        self._log = get_log("controller")
        self.problem: SbctlError | None = None

    @property
    def is_leading(self) -> bool:
        return self._lease.epoch is not None

    def poke(self) -> None:
        """Something that decides a placement is another."""
        self._asked.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._asked.wait()
            await asyncio.sleep(_DEBOUNCE_S)
            self._asked.clear()
            began_s = loop.time()
            try:
                await self.step()
                self.problem = None
            except SbctlError as error:
                if self.problem is None or self.problem.code != error.code:
                    self._log.warning("placement", code=error.code, reason=error.message)
                self.problem = error
            await asyncio.sleep(_SPACING * (loop.time() - began_s))

    async def step(self) -> None:
        """One evaluation, if this node holds the lease and knows enough. Raises what the store and the disk raise."""
        epoch, held = self._lease.epoch, self._desired.held
        since_ms = self._roster.watching_since_ms
        if epoch is None or held is None or since_ms is None:
            if epoch is None and self._reign is not None:
                self._events.tell(EventKind.CLUSTER_LEASE_LOST, f"epoch {self._reign.epoch} of {self._node_id} is over")
                self._reign = None
            return
        if self._reign is None or self._reign.epoch != epoch:
            await self._actions.refresh()
            prior = await self._plan_before()
            self._reign = _Reign(epoch, prior, _workers_of(prior) | self._actions.held.evacuated)
            self._events.tell(EventKind.CLUSTER_LEASE_TAKEN, f"{self._node_id} places from now on, with epoch {epoch}")
        reign = self._reign
        view = self._inputs.view(self._roster.view, since_ms=since_ms, evacuated=self._actions.held.evacuated)
        if (later := spoken_for(view, (reign.epoch, reign.counter))) is not None:
            self._log.warning("nodes obey a later word than ours: our disk is of yesterday", lease_epoch=later)
            await self._lease.surpass(later)
            return
        await self._end_losses(view)
        if (
            not reign.plan.known
            and not self._knows_all(view)
            and self._now_ms() - since_ms < self._figures.first_wait_ms
        ):
            return
        basis = await asyncio.to_thread(self._basis, view, reign, held)
        if basis == reign.rests_on:
            return
        reign.counter += 1
        plan = await asyncio.to_thread(self._evaluate, view, reign, basis)
        if self._lease.epoch != epoch:
            return
        self._tell(reign, view, plan)
        is_as_before, reign.plan, reign.rests_on = plan == reign.plan, plan, None
        is_written = await self._write(reign, view, plan, basis)
        if is_as_before and is_written:
            reign.rests_on = basis

    def _basis(self, view: ClusterView, reign: _Reign, held: KeptBundle) -> _Basis:
        occasion = occasion_of(view, self._inputs.said, reign.plan, policy=self._figures.policy, now_ms=self._now_ms())
        return _Basis(occasion, self._inputs.demands(held), self._actions.held, self._desired.mark)

    def _knows_all(self, view: ClusterView) -> bool:
        return bool(view.expected) and view.expected <= view.nodes.keys() | view.removed

    def _evaluate(self, view: ClusterView, reign: _Reign, basis: _Basis) -> PlacementPlan:
        return reconcile(
            view,
            basis.demands,
            reign.plan,
            now_ms=self._now_ms(),
            mark=(reign.epoch, reign.counter),
            policy=self._figures.policy,
            confirmed_losses=basis.actions.confirmed,
            tried_again=basis.actions.tried_again,
        )

    # What operators asked, and what they are told

    async def _end_losses(self, view: ClusterView) -> None:
        """Before a plan says that such a node is back: should it fall silent again, that is another matter. Raises what the store raises."""
        now_ms, policy = self._now_ms(), self._figures.policy
        heard = frozenset(
            name
            for name in self._actions.held.confirmed & view.nodes.keys() - view.removed
            if view.nodes[name].heard_at_ms >= view.watching_since_ms
            and now_ms - view.nodes[name].heard_at_ms < policy.unreachable_after_ms
        )
        if heard:
            await self._actions.end("losses", heard, "the node is heard again")

    def _tell(self, reign: _Reign, view: ClusterView, plan: PlacementPlan) -> None:
        if plan.waits_for:
            return
        workers = {name for name, node in view.nodes.items() if node.is_worker and name not in view.removed}
        left = (view.removed - reign.gone) & reign.workers
        joined = workers - reign.workers
        reign.workers = (reign.workers | workers) - view.removed
        reign.gone = view.removed
        for told in happened(reign.plan, plan, joined=joined, left=left):
            self._events.take(told)

    # The plan before

    async def _plan_before(self) -> PlacementPlan:
        """The newest of what the store shows and this node has on its disk."""
        entry = await self._store.get(Bucket.ASSIGNMENTS, PLAN_KEY)
        prior = await self._feed.before(None if entry is None else entry.value.decode("utf-8", "replace"))
        return PlacementPlan() if prior is None else plan_of(prior)

    # Writing

    async def _write(self, reign: _Reign, view: ClusterView, plan: PlacementPlan, basis: _Basis) -> bool:
        """What is another than what was written last. False: the store lost some of it meanwhile."""
        head = self._head(reign)
        spread = {demand.deployment: demand.spread_by for demand in basis.demands}
        document = plan_document(plan, view, head, directory_digest=self._roster.view.digest, spread_by=spread)
        told = assignments(plan, view)
        fresh = {name: parts for name, parts in told.items() if reign.written.get(name) != (head["bundle"], parts)}
        content = document.model_copy(update=_WHEN)
        if content != reign.plan_written or fresh:
            await self._keep(document, reign)
            reign.plan_written = content
        gate = asyncio.Semaphore(_PARALLEL)
        results = await asyncio.gather(
            *(self._assign(gate, reign, name, parts, head) for name, parts in fresh.items()), return_exceptions=True
        )
        failed = [result for result in results if isinstance(result, BaseException)]
        if failed:
            raise failed[0]
        return reign.plan_written == content and told.keys() <= reign.written.keys()

    def _head(self, reign: _Reign) -> Head:
        mark = self._desired.mark
        assert mark is not None
        claims = self._trust.required_signer().identity.claims
        return Head(
            cluster_id=claims.cluster_id,
            identity_epoch=claims.identity_epoch,
            boot_epoch=self._boot_epoch,
            lease_epoch=reign.epoch,
            lease_holder=self._node_id,
            counter=reign.counter,
            issued_at_unix_ms=self._now_ms(),
            bundle=mark,
        )

    async def _keep(self, document: PlacementDocument, reign: _Reign) -> None:
        text = self._signed(document)
        fence = LeaseFence(
            reign.epoch, self._node_id, document.counter, sha256_bytes(payload_of(text, max_bytes=PLACEMENT.max_bytes))
        )
        await asyncio.to_thread(
            self._fences.accept, "placement", fence, text, issued_at=moment_of(document.issued_at_unix_ms)
        )
        self._feed.take(document)
        await self._put(PLAN_KEY, text, reign)

    def _signed(self, document: PlacementDocument) -> str:
        """Raises RefusedError `placement.too_large`: nothing of this plan is written, and what was written before counts on."""
        try:
            return self._trust.required_signer().sign(PLACEMENT, document)
        except RefusedError as error:
            if error.code != "peer.too_large":
                raise
            placed = document.deployments.values()
            going = sum(len(one.retained) + len(one.draining) for one in placed)
            raise RefusedError(
                "placement.too_large",
                f"{error.message}: {plural(len(placed), 'deployment')} with {plural(sum(len(one.assignments) for one in placed), 'replica')}, "
                f"and {going} that they take the place of; so nothing of the newest bundle is placed, and what ran before runs on",
                next_step="change fewer deployments in one apply, and the others in the next: what is replaced counts twice until it is gone",
            ) from error

    async def _assign(
        self, gate: asyncio.Semaphore, reign: _Reign, name: str, parts: tuple[Assignment, ...], head: Head
    ) -> None:
        async with gate:
            text = self._trust.required_signer().sign(ASSIGNMENT, assignment_document(name, parts, head))
            await self._put(node_token(name), text, reign)
            reign.written[name] = (head["bundle"], parts)

    async def _put(self, key: str, text: str, reign: _Reign) -> None:
        """Over whatever is there, while the lease is held. Raises SbctlError `lease.lost`, and as the store."""
        for _ in range(_CONFLICTS_MAX):
            entry = await self._store.get(Bucket.ASSIGNMENTS, key)
            if self._lease.epoch != reign.epoch:
                raise SbctlError("lease.lost", "the lease went to another authority", retryable=True)
            with suppress(StoreConflictError):
                await self._store.compare_and_set(
                    Bucket.ASSIGNMENTS, key, text.encode(), expected=0 if entry is None else entry.revision
                )
                return
        raise SbctlError("store.conflict", "another holder writes to the same place", place=key, retryable=True)

    async def follow_losses(self) -> None:
        """What the store has no more is written again. Until cancelled."""
        async for told in self._store.watch(Bucket.ASSIGNMENTS):
            reign = self._reign
            lost = _keys_lost(told)
            if reign is None or lost is None:
                continue
            for name in [each for each in reign.written if lost(node_token(each))]:
                del reign.written[name]
                reign.rests_on = None
            if lost(PLAN_KEY):
                reign.plan_written = reign.rests_on = None
            self.poke()

    def _now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)


def spoken_for(view: ClusterView, ours: Mark) -> int | None:
    """The lease epoch by which most nodes obey a word that was said after all of ours: by whoever held the lease in a time that this authority
    does not remember, since its disk and the store's were brought back from copies. None: there is no such word."""
    marks = [node.acknowledged for node in view.nodes.values() if node.acknowledged != NO_MARK]
    later = sorted(mark for mark in marks if mark > ours)
    return later[(len(later) - 1) // 2][0] if 2 * len(later) > len(marks) else None


def _workers_of(plan: PlacementPlan) -> set[str]:
    """Whom a plan knows."""
    placed = (place.node_id for one in plan.deployments.values() for place in one.target)
    return {*plan.known, *plan.losses, *placed}


def _keys_lost(told: Watched) -> Callable[[str], bool] | None:
    """Which keys have no value any more, by this word of the store; None when it says nothing of that."""
    if isinstance(told, Resync):
        there = {entry.key for entry in told.entries}
        return lambda key: key not in there
    if isinstance(told, Gone):
        return lambda key: key == told.key
    return None
