"""The runtime's desired state and its generations: bundles in, routes out. One lock, so one change at a time.

A bundle: verify ► prepare ► start ► fence and desired state durable in one transaction ► routes swapped ► old generations retired.
Where the admin API owns the deployments (`admin_managed`), a bundle brings routes, keys and the first deployments; a body of that API goes
the same way, with its compare-and-set as the transaction.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sbctl.base.clock import Clock
from sbctl.base.errors import RefusedError, SbctlError
from sbctl.base.suggest import did_you_mean
from sbctl.node.records import EventKind
from sbctl.node.snapshot import BundleState, DeploymentState
from sbctl.runtime.acceptance import Acceptance
from sbctl.runtime.bringing_back import bring_back, keep, take_over, wake
from sbctl.runtime.deployments_owner import DeploymentsOwner, revision_conflict
from sbctl.runtime.deployments_revision import DeploymentsRevision
from sbctl.runtime.engine_host import Slot
from sbctl.runtime.generation import Generation
from sbctl.runtime.log import get_log
from sbctl.runtime.operator_acts import Action, carry_out
from sbctl.runtime.provision import Progress, quiet
from sbctl.runtime.replica_messages import ReplicaPorts
from sbctl.runtime.residency import Residency
from sbctl.runtime.retiring import Retiring
from sbctl.runtime.routes import RouteTable
from sbctl.runtime.staying import AssignedAs
from sbctl.runtime.store import AcceptedBundle, RuntimeStore
from sbctl.runtime.transition import Delta, Transition, nothing_durable, staged_of
from sbctl.trust.bundle import BundleContent, DeploymentMember, TrustSet, member_digest

__all__ = ["Assigned", "Reconciler"]


@dataclass(frozen=True, slots=True)
class Assigned:
    """What a cluster makes this host run. `names`: how it names the generation of each deployment; `drain_s`: so long those that are given
    up may finish, where that is not the host's own time; `again`: deployments whose failures are forgotten, and what failed is begun anew."""

    content: BundleContent
    names: Mapping[str, AssignedAs]
    drain_s: Mapping[str, float] = field(default_factory=dict)
    again: frozenset[str] = frozenset()


class Reconciler:
    """Owns generations and routes. Everything is used from one event loop. `revision` counts commits of this process."""

    def __init__(
        self,
        *,
        scope: str,
        trust: TrustSet | None,
        store: RuntimeStore,
        ports: ReplicaPorts,
        clock: Clock,
        drain_s: float,
        parallel_prepares: int,
        handoff_s: float = 60.0,
        by_hand: bool = False,
        admin_managed: bool = False,
    ) -> None:
        self.routes = RouteTable()
        self.generations: dict[str, Generation] = {}
        self.staged: dict[str, Generation] = {}
        """Of a change that is under way."""
        self.revision = 0
        self._accepted: AcceptedBundle | None = None
        self._scope = scope
        self._store = store
        self._ports = ports
        self._events = ports.events
        self._drain_s = drain_s
        self._handoff_s = handoff_s
        self._parallel_prepares = parallel_prepares
        self._acceptance = Acceptance(scope, trust, store, clock, by_hand=by_hand)
        self._owner = DeploymentsOwner(store, admin_managed=admin_managed)
        self._bringing_back = asyncio.Semaphore(parallel_prepares)
        self._numbers = itertools.count(1)
        self._lock = asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()
        self._retiring = Retiring(self._spawn)
        self._assigned: BundleContent | None = None
        """What a cluster's assignment makes this host run, as soon as there is one."""
        self._log = get_log("reconcile")

    # Reading

    def bundle(self) -> BundleState | None:
        if self._accepted is None:
            return None
        payload = self._accepted.payload
        return BundleState(
            revision=payload.revision,
            content_digest=payload.content_digest,
            key_epoch=payload.key_epoch,
            signer=self._accepted.signer,
            origins={name: member_digest(origin) for name, origin in payload.content.origins.items()},
            deployments_revision=None if self._owner.owned is None else self._owner.owned.revision,
        )

    def owned(self) -> DeploymentsRevision | None:
        """The admin API's own deployments; None before its store has any, and where it does not own them."""
        return self._owner.owned

    def accepted_content(self) -> BundleContent | None:
        """Of the accepted bundle, whoever owns what runs."""
        return None if self._accepted is None else self._accepted.payload.content

    @property
    def residency(self) -> Residency:
        """Whose memory is whose."""
        return self._ports.residency

    @property
    def leaving(self) -> tuple[Generation, ...]:
        """Generations that are not desired any more and of which something is left."""
        return tuple(self._retiring.generations)

    @property
    def is_changing(self) -> bool:
        """Whether a bundle is being applied or cleared, perhaps for an operator who is gone."""
        return self._lock.locked()

    def deployments(self) -> tuple[DeploymentState, ...]:
        return tuple(self._state(self.generations[name]) for name in sorted(self.generations))

    def _state(self, generation: Generation) -> DeploymentState:
        state = generation.state()
        owed = self._store.owes_stop(generation.deployment)
        return state.model_copy(update={"stop_is_owed": True}) if owed else state

    # Changing

    async def restore(self, adopted: Collection[Slot] = (), assigned: Assigned | None = None) -> None:
        """Serve again what was accepted before this process started: routes at once, warm engines in the background.

        `assigned`: what a cluster makes this host run; it counts instead of a bundle of the host's own. Engines that a former daemon left
        running (`adopted`) are ready when this returns, unless they take more than half a minute. Raises StateError when the accepted bundle
        is damaged.
        """
        if assigned is not None:
            self._assigned, content = assigned.content, assigned.content
        else:
            self._accepted = await asyncio.to_thread(self._store.accepted)
            if self._accepted is None:
                return
            content = await self._owner.restore(self._accepted.payload.content)
        stopped = await asyncio.to_thread(self._store.stopped)
        waiting = []
        for name, member in content.deployments.items():
            named = None if assigned is None else assigned.names.get(name)
            generation = Generation(name, next(self._numbers), member, self._ports, assigned=named)
            self.generations[name] = generation
            if name in stopped:
                for replica in generation.replicas:
                    replica.note_stopped()
            elif member.warm or member.pull == "on_boot":
                waiting.append(generation)
        if assigned is not None:
            self._release_weights()
        # What runs already has its memory: its place comes before those of engines that are to be started.
        keep(self._background, await take_over(self.generations, adopted))
        for generation in waiting:
            self._spawn(bring_back(generation, self._bringing_back, self._ports.launch.provisioner))
        self._swap(content)

    async def apply_assigned(self, assigned: Assigned, commit: Callable[[], Awaitable[None]]) -> dict[str, Any]:
        """What a cluster makes this host run, in one transaction as a bundle's; what is not in it drains in the background.

        Raises what preparing, starting and `commit` raise, with the deployment's address and name: nothing changed then.
        """
        async with self._lock:

            async def durable() -> None:
                await commit()
                if self._accepted is not None:
                    await asyncio.to_thread(self._store.forget_bundle)
                self._accepted, self._assigned = None, assigned.content

            return await self._change_to(assigned.content, durable, quiet, assigned)

    async def apply_content(
        self, content: BundleContent, progress: Progress, commit: Callable[[], Awaitable[None]] = nothing_durable
    ) -> dict[str, Any]:
        """The content of a file that the daemon was started with by hand. `commit`: what has to be durable before it serves."""
        async with self._lock:
            return await self._change_to(content, commit, progress)

    async def replace_deployments(
        self, deployments: Mapping[str, DeploymentMember], expected_revision: int | None, progress: Progress = quiet
    ) -> tuple[DeploymentsRevision, dict[str, Any]]:
        """The admin API's complete map, and the report of the change to it.

        Raises RefusedError `authority_read_only`, `revision_conflict`, `prepare_failed` before the first bundle; what preparing, starting
        and storing raise, nothing changed then; SbctlError `runtime_commit_failed` when it is stored and did not come to run.
        """
        async with self._lock:
            content = None if self._accepted is None else self._accepted.payload.content
            if content is not None:
                deployments = self._owner.built(content, deployments)
            delta = Delta.of(self.generations, deployments)
            new, report = await self._owner.replace(
                content,
                deployments,
                expected_revision,
                (*delta.preserved, *delta.adjusted),
                lambda wanted, commit: self._change_to(wanted, commit, progress),
            )
            self._events.tell(EventKind.BUNDLE_ACCEPTED, f"deployments, revision {new.revision}, by the admin API")
            return new, report

    async def apply_bundle(self, envelope: str, expected_revision: int | None, progress: Progress) -> dict[str, Any]:
        """Returns {"revision", "content_digest", "report"}.

        A repeat of the accepted bundle starts again what was stopped or failed. Raises as `Acceptance.verified`; RefusedError
        `bundle.revision_conflict` when the accepted revision is another than expected; what preparing and starting raise, with the
        deployment's address.
        """
        async with self._lock:
            try:
                return await self._take(envelope, expected_revision, progress)
            except SbctlError as error:
                self._events.tell(EventKind.BUNDLE_REFUSED, f"{error.code}: {error.message}")
                raise

    async def clear(self) -> None:
        """Desire nothing: routes gone, engines stopped, the bundle forgotten; the fence stays. What a cluster assigned stays, too."""
        async with self._lock:
            await asyncio.to_thread(self._store.forget_bundle)
            self._accepted = None
            if self._assigned is not None:
                return
            self._events.tell(EventKind.BUNDLE_CLEARED, "nothing is desired any more")
            old, self.generations, self.routes = list(self.generations.values()), {}, RouteTable()
            await self._retiring.retire(old, drain_s=self._drain_s)
            self._release_weights()

    def known(self, deployment: str) -> Generation:
        """Raises RefusedError `unknown_deployment`."""
        generation = self.generations.get(deployment)
        if generation is None:
            near = did_you_mean(deployment, self.generations)
            raise RefusedError(
                "unknown_deployment",
                f'there is no deployment "{deployment[:128]}" here',
                next_step=f'did you mean "{near}"?' if near else "sbctl models ps and the status name those that are",
            )
        return generation

    async def act(
        self, deployment: str, action: Action, progress: Progress = quiet, *, drain_s: float | None = None
    ) -> DeploymentState:
        """One of `operator_acts` now. Raises RefusedError `unknown_deployment`, and what carrying it out raises."""
        generation = self.known(deployment)
        await carry_out(action, generation, self._store, progress, stop_s=self._drain_s, drain_s=drain_s)
        return self._state(generation)

    async def shutdown(self, *, drain_s: float) -> None:
        """Drain for at most `drain_s` seconds, then stop every engine, or leave it to the next daemon where it outlives this one.

        Desired state is untouched.
        """
        for task in self._background:
            task.cancel()
        leave = self._ports.launch.host.outlives_daemon
        await self._retiring.retire([*self.generations.values(), *self.leaving], drain_s=drain_s, leave=leave)

    # Inside the lock

    async def _take(self, envelope: str, expected_revision: int | None, progress: Progress) -> dict[str, Any]:
        verified = await self._acceptance.verified(envelope, is_assigned=self._assigned is not None)
        payload, current = verified.payload, self._accepted
        if verified.repeat and current is not None and current.payload.revision == payload.revision:
            report = await self._revive(self._owner.wanted(current.payload.content), progress)
        else:
            actual = None if current is None else current.payload.revision
            if expected_revision != actual:
                raise revision_conflict(expected_revision, actual)

            async def durable() -> None:
                await self._owner.accept(verified, envelope)
                self._accepted = AcceptedBundle(payload, verified.signer)
                self._events.tell(EventKind.BUNDLE_ACCEPTED, f"revision {payload.revision}, by {verified.signer}")

            report = await self._change_to(self._owner.wanted(payload.content), durable, progress)
        return {"revision": payload.revision, "content_digest": payload.content_digest, "report": report}

    async def _change_to(
        self,
        content: BundleContent,
        commit: Callable[[], Awaitable[None]],
        progress: Progress,
        assigned: Assigned | None = None,
    ) -> dict[str, Any]:
        names = {} if assigned is None else assigned.names
        delta = Delta.of(self.generations, content.deployments, names)
        self.staged = staged = staged_of(
            delta, self.generations, content.deployments, names, self._numbers, self._ports
        )
        try:
            await self._transition(content, staged, delta, progress).carry_out(commit)
        except BaseException:
            self._retiring.end_later(staged.values())
            raise
        finally:
            self.staged = {}
        old, kept = self._put_in_place(content, staged, delta, names)
        self._log.info("committed", **delta.told())
        if assigned is not None:
            self._spawn(self._retire_later(old, assigned.drain_s))
            self._spawn(self._begin_again({name: one for name, one in kept.items() if name in assigned.again}))
            return self._report(delta, {})
        degraded = await self._retiring.retire(old, drain_s=self._handoff_s)
        self._release_weights()
        degraded |= await self._wake(kept, progress)
        return self._report(delta, degraded)

    def _transition(
        self, content: BundleContent, staged: dict[str, Generation], delta: Delta, progress: Progress
    ) -> Transition:
        return Transition(
            self._scope,
            self.generations,
            content.deployments,
            staged,
            delta,
            self._ports.launch.provisioner,
            self._handoff_s,
            self._parallel_prepares,
            progress,
            self._ports.residency,
        )

    def _put_in_place(
        self,
        content: BundleContent,
        staged: Mapping[str, Generation],
        delta: Delta,
        names: Mapping[str, AssignedAs],
    ) -> tuple[list[Generation], dict[str, Generation]]:
        """Generations and routes as they were committed. Returns those that are given up, and those that stay, by name."""
        old = [self.generations[name] for name in (*delta.changed, *delta.removed)]
        for name in delta.changed:
            staged[name].succeed(self.generations[name])
        for name in delta.adjusted:
            self.generations[name].adjust(content.deployments[name])
        kept = {name: self.generations[name] for name in (*delta.adjusted, *delta.preserved)}
        self.generations = {**kept, **staged}
        for name in names.keys() & kept.keys():
            kept[name].renamed(names[name])
        self._swap(content)
        return old, kept

    async def _revive(self, content: BundleContent, progress: Progress) -> dict[str, Any]:
        for name in () if self._owner.admin_managed else self.generations:
            await asyncio.to_thread(self._store.set_stopped, name, False)
        degraded = await self._wake(self.generations, progress)
        return self._report(Delta.of(self.generations, content.deployments), degraded)

    async def _wake(self, generations: Mapping[str, Generation], progress: Progress) -> dict[str, str]:
        return await wake(generations, progress, keep_stopped=self._owner.admin_managed)

    async def _begin_again(self, generations: dict[str, Generation]) -> None:
        degraded = await self._wake(generations, quiet)
        if degraded:
            self._log.warning("tried again, and failed", **degraded)

    async def _retire_later(self, generations: list[Generation], drain_s: Mapping[str, float]) -> None:
        await self._retiring.retire(generations, drain_s=self._handoff_s, by_name=drain_s)
        self._release_weights()

    def _release_weights(self) -> None:
        used = frozenset(
            artifact for generation in self.generations.values() for artifact in generation.member.artifacts
        )
        self._ports.launch.provisioner.keep_only(used)

    def _report(self, delta: Delta, degraded: dict[str, str]) -> dict[str, Any]:
        states = [state.model_dump(mode="json") for state in self.deployments()]
        return {
            **{key: list(names) for key, names in asdict(delta).items()},
            "degraded": degraded,
            "deployments": states,
        }

    def _swap(self, content: BundleContent) -> None:
        self.routes = RouteTable.of(content, self.generations)
        self.revision += 1

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        keep(self._background, (asyncio.create_task(work),))
