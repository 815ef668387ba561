"""What this node was assigned, made to run: verified, projected on the bundle, handed to the reconciler as one transaction.

    offered     what the store shows; believed by signature, fence and bundle, in this order
    fetched     weights come in the background, each deployment by itself: what is here already waits for nobody's download
    committed   the fence moves in the transaction that makes it run, so a start without the store serves exactly that
    held up     a deployment that does not come up stays as it runs, is told with its reason, and is tried again; the others go on

A bundle of the host's own stays in force until the first assignment is committed, and is cleared with it; its fence stays. A node that no
worker is runs nothing; its gateway serves the bundle's origins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, Protocol

from sbctl.base.clock import Clock
from sbctl.base.errors import SbctlError
from sbctl.node.cluster_documents import AssignmentDocument, AssignmentMark
from sbctl.runtime.assigned import write_assigned
from sbctl.runtime.cluster.assigned_devices import refused_devices
from sbctl.runtime.cluster.assigned_parts import assigned_as, drain_seconds, reason_of, wish_of, without_deployments
from sbctl.runtime.cluster.desired import Desired
from sbctl.runtime.cluster.fences import ClusterFences
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.cluster.kept_documents import assignment_of
from sbctl.runtime.cluster.offers import Offer, Offers
from sbctl.runtime.cluster.pending import Pending
from sbctl.runtime.cluster.store import ClusterStore
from sbctl.runtime.cluster.tries import AGAIN_FIRST_S, Tries
from sbctl.runtime.generation import Generation
from sbctl.runtime.host_devices import HostDevices
from sbctl.runtime.log import get_log
from sbctl.runtime.peer.assigned import served
from sbctl.runtime.reconcile import Assigned
from sbctl.runtime.staying import AssignedAs
from sbctl.trust.bundle import BundleContent, DeploymentMember
from sbctl.trust.cluster_bundle import NodeContent, node_content, replica_digest
from sbctl.trust.peer_kinds import moment_of

__all__ = ["Obedience", "Runs"]

_SPACING: Final = 3.0
_SPACING_MAX_S: Final = 0.5
"""With many deployments a step takes a while; what comes meanwhile, one by one, is taken up together."""
_LOOK_AGAIN_S: Final = 15.0
"""At an assignment that is not believed: a clock, a list or a bundle may be another by then."""


class Runs(Protocol):
    """The reconciler, as far as it is used here."""

    generations: dict[str, Generation]

    async def apply_assigned(self, assigned: Assigned, commit: Callable[[], Awaitable[None]]) -> object: ...


@dataclass(frozen=True, slots=True)
class _Obeyed:
    """An assignment that counts here. `offer` None: it was committed."""

    document: AssignmentDocument
    offer: Offer | None = None


class Obedience:
    """`prepare` puts a member's weights and engine build in place; `changed` is told when a snapshot would say something else."""

    def __init__(
        self,
        node_id: str,
        *,
        is_worker: bool,
        runs: Runs,
        prepare: Callable[[DeploymentMember], Awaitable[object]],
        desired: Desired,
        trust: HeldTrust,
        fences: ClusterFences,
        store: ClusterStore,
        clock: Clock,
        changed: Callable[[], None],
        state: Path,
        devices: Callable[[], HostDevices],
    ) -> None:
        self._is_worker = is_worker
        self._runs = runs
        self._desired = desired
        self._fences = fences
        self._clock = clock
        self._changed = changed
        self._state = state
        self._devices = devices
        self._wake = asyncio.Event()
        self._offers = Offers(node_id, desired=desired, trust=trust, fences=fences, store=store, clock=clock)
        self._tries = Tries(prepare, self._wake.set)
        self._current: _Obeyed | None = self._kept()
        self._committed: AssignmentDocument | None = None if self._current is None else self._current.document
        self._applied: BundleContent | None = None
        self._told: Mapping[str, AssignedAs] = {}
        """How what runs was named to the reconciler."""
        self._again: frozenset[str] = frozenset()
        """What an operator wants tried again, with the assignment that is not committed yet."""
        self._pending: tuple[Pending, ...] = ()
        self._log = get_log("obey")

    # At the start

    def _kept(self) -> _Obeyed | None:
        text = self._fences.accepted("assignment")
        if text is None:
            return None
        return _Obeyed(assignment_of(text))

    def restored(self) -> Assigned | None:
        """What was committed before this process started; None where a bundle of the host's own is in force still."""
        held = self._desired.held
        if not self._is_worker:
            return None if held is None else Assigned(without_deployments(held.payload.content), {})
        if self._current is None or held is None:
            return None
        projected = self._projected(self._current.document)
        members = {name: one for name, one in projected.content.deployments.items() if name not in projected.refused}
        self._applied = content = projected.content.model_copy(update={"deployments": members})
        self._tries.are_here(members.values())
        self._told = self._names(self._current.document, members)
        return Assigned(content, self._told)

    # What others read

    @property
    def refusal(self) -> SbctlError | None:
        """Why the newest assignment that was shown is not obeyed."""
        return self._offers.refusal

    def mark(self) -> AssignmentMark | None:
        document = self._committed
        if document is None:
            return None
        failed = next((one.error.code for one in self._pending if one.error is not None), None)
        state: Literal["accepted", "prepared", "ready", "failed"] = "prepared"
        if failed is not None:
            state = "failed"
        elif self._pending:
            state = "accepted"
        elif self._is_ready():
            state = "ready"
        return AssignmentMark(
            lease_epoch=document.lease_epoch,
            counter=document.counter,
            state=state,
            reason_code=None if failed is None else reason_of(failed),
        )

    def pending(self) -> Iterable[Pending]:
        return self._pending

    def problems(self) -> dict[str, str]:
        """Why a deployment is not as it was assigned, by its name."""
        return {one.deployment: one.error.message for one in self._pending if one.error is not None}

    def serving(self, deployment: str, generation: int) -> Generation:
        """For dispatches of gateways, as `served`; former numbers are those that this node was told to keep."""
        return served(self._runs.generations, deployment, generation, kept=self._kept_generations(deployment))

    def _kept_generations(self, deployment: str) -> set[int]:
        if self._committed is None:
            return set()
        parts = self._committed.deployments.get(deployment, ())
        return {part.generation for part in parts if part.phase != "drain"}

    # At work

    def poke(self) -> None:
        """The bundle is another, or the trust by which an assignment is judged."""
        self._wake.set()

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                if self._is_worker:
                    group.create_task(self._offers.follow(self._wake.set))
                group.create_task(self._work())
        finally:
            self._tries.end()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        wait_s: float | None = None
        self._wake.set()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            self._wake.clear()
            began_s = loop.time()
            try:
                wait_s = await self.step()
            except SbctlError as error:
                self._log.error("not obeyed now", code=error.code, reason=error.message)
                wait_s = AGAIN_FIRST_S
            self._changed()
            await asyncio.sleep(min(_SPACING_MAX_S, _SPACING * (loop.time() - began_s)))

    async def step(self) -> float | None:
        """Take up what is offered and go as far as can be gone now. Seconds until something is to be tried again."""
        if not self._is_worker:
            await self._serve_origins()
            return None
        await self._look_at_offer()
        again_s = None if self.refusal is None else _LOOK_AGAIN_S
        if self._current is None or self._desired.held is None:
            return again_s
        return await self._carry_out(self._current) or again_s

    async def _serve_origins(self) -> None:
        held = self._desired.held
        content = None if held is None else without_deployments(held.payload.content)
        if content is None or content == self._applied:
            return

        async def nothing_durable() -> None: ...

        await self._runs.apply_assigned(Assigned(content, {}), nothing_durable)
        self._applied = content

    async def _look_at_offer(self) -> None:
        offer = await self._offers.take()
        if offer is None:
            return
        self._again |= self._wished_again(offer.document)
        for name in self._again:
            self._tries.forget(name)
        self._current = _Obeyed(offer.document, offer)

    def _wished_again(self, document: AssignmentDocument) -> frozenset[str]:
        before = {} if self._current is None else self._current.document.deployments
        return frozenset(
            name for name, parts in document.deployments.items() if wish_of(parts) > wish_of(before.get(name, ()))
        )

    # One assignment

    def _projected(self, document: AssignmentDocument) -> NodeContent:
        held = self._desired.held
        assert held is not None
        running = {name: generation.member for name, generation in self._runs.generations.items()}
        found = node_content(held.payload.content, document, held=self._fences.remembered(), running=running)
        members = {name: one for name, one in found.content.deployments.items() if name not in found.refused}
        beside = refused_devices(document.deployments, members, self._devices())
        return replace(found, refused={**found.refused, **beside})

    async def _carry_out(self, current: _Obeyed) -> float | None:
        projected = await asyncio.to_thread(self._projected, current.document)
        names = self._names(current.document, projected.content.deployments)
        self._tries.forget_others(projected.content.deployments)
        while True:
            content, waiting = self._possible(projected, names)
            self._pending = tuple(self._waiting(waiting, projected, names))
            told = {
                name: called for name, called in names.items() if name in content.deployments and name not in waiting
            }
            if content == self._applied and told == self._told and current.offer is None:
                return self._tries.next_s()
            try:
                drain_s = drain_seconds(current.document, self._clock.now())
                await self._commit(current, Assigned(content, told, drain_s, self._again))
            except SbctlError as error:
                name = str(error.detail.get("deployment", ""))
                if name not in told:
                    raise
                self._tries.failed(name, error)
                continue
            current = replace(current, offer=None)
            self._again = frozenset()
            for name in told:
                self._tries.forget(name)

    def _possible(
        self, projected: NodeContent, names: Mapping[str, AssignedAs]
    ) -> tuple[BundleContent, frozenset[str]]:
        """What can run now, and what waits for its weights or its next try; that stays as it runs."""
        members: dict[str, DeploymentMember] = {}
        waiting = set()
        for name, member in projected.content.deployments.items():
            running = self._runs.generations.get(name)
            is_same = running is not None and running.runs(member, names[name])
            if name not in projected.refused and (is_same or self._tries.may_begin(name, member)):
                members[name] = member
                continue
            waiting.add(name)
            if running is not None:
                members[name] = running.member
        return projected.content.model_copy(update={"deployments": members}), frozenset(waiting)

    def _waiting(
        self, waiting: frozenset[str], projected: NodeContent, names: Mapping[str, AssignedAs]
    ) -> Iterable[Pending]:
        for name in sorted(waiting):
            error = projected.refused.get(name) or self._tries.error(name)
            yield Pending(name, projected.content.deployments[name], names[name], error)

    async def _commit(self, current: _Obeyed, assigned: Assigned) -> None:
        """As one transaction. Raises what preparing and starting raise."""
        document, deployments = current.document, assigned.content.deployments

        def durable() -> None:
            self._fences.remember({replica_digest(member): member for member in deployments.values()})
            if (offer := current.offer) is not None:
                issued = moment_of(document.issued_at_unix_ms)
                self._fences.accept("assignment", offer.fence, offer.text, issued_at=issued)
            self._note_weights(deployments)

        async def commit() -> None:
            await asyncio.to_thread(durable)
            self._committed = document
            if self._current is current:
                self._current = replace(current, offer=None)

        await self._runs.apply_assigned(assigned, commit)
        self._applied, self._told = assigned.content, assigned.names
        self._changed()

    def _note_weights(self, members: Mapping[str, DeploymentMember]) -> None:
        """For who collects weights. What runs is leased in any case."""
        try:
            write_assigned(self._state, members)
        except SbctlError as error:
            self._log.warning("which weights are needed was not written", reason=error.message)

    def _names(self, document: AssignmentDocument, members: Mapping[str, DeploymentMember]) -> dict[str, AssignedAs]:
        devices = self._devices()
        parts = document.deployments
        return {name: assigned_as(parts[name], devices) for name in members if name in parts}

    def _is_ready(self) -> bool:
        """Whether all that was assigned runs, warm where it should be."""
        if self._pending:
            return False
        return all(
            not generation.member.warm or generation.ready_replicas == len(generation.replicas)
            for generation in self._runs.generations.values()
        )
