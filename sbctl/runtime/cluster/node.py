"""A runtime as a node of its cluster: its parts, made once, started behind the routes of what was kept, ended before the engines.

    every node      its snapshot, the bundle, signer set and revocation list, the lease as a sign of life
    worker          its assignment, and the peer plane that gateways come through
    gateway         directory and plan, and the way to the workers
    authority       directory and plan, the lease and what its holder does, the buckets of the store

Nothing here holds up the runtime's own work: a store that is away leaves everything as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from aiohttp import web

from sbctl.base.errors import SbctlError
from sbctl.node.cluster_config import ClusterConfig
from sbctl.node.cluster_documents import ClusterNode as NodeName
from sbctl.placement.operator_actions import NO_ACTIONS
from sbctl.runtime.audit import Note
from sbctl.runtime.cluster.boot_epoch import take_boot_epoch
from sbctl.runtime.cluster.control import with_cluster
from sbctl.runtime.cluster.controller import Controller
from sbctl.runtime.cluster.desired import Desired
from sbctl.runtime.cluster.directory import Directory
from sbctl.runtime.cluster.door import ClusterDoor
from sbctl.runtime.cluster.fences import ClusterFences
from sbctl.runtime.cluster.held_signers import HeldSigners
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.cluster.host import Host, NodeStore
from sbctl.runtime.cluster.leading import Leading, leading
from sbctl.runtime.cluster.lease_words import SignedLease
from sbctl.runtime.cluster.nats_store import NatsStore, StoreServer
from sbctl.runtime.cluster.obey import Obedience
from sbctl.runtime.cluster.peer_ends import PeerEnds, Port
from sbctl.runtime.cluster.plan_feed import PlanFeed
from sbctl.runtime.cluster.publisher import Publisher, PublisherPorts
from sbctl.runtime.cluster.report import Reporter, watch_replicas
from sbctl.runtime.cluster.roster import Roster
from sbctl.runtime.cluster.roster_memory import RosterMemory
from sbctl.runtime.cluster.status import Facts
from sbctl.runtime.cluster.store import Bucket, node_key
from sbctl.runtime.cluster.store_tls import store_context
from sbctl.runtime.cluster.store_watch import watch_store
from sbctl.runtime.gateway.fallback import Externals
from sbctl.runtime.gateway.ports import Keys
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.runtime.log import get_log
from sbctl.runtime.peer.gateway import ClusterGateway
from sbctl.runtime.provision import quiet
from sbctl.runtime.reconcile import Assigned
from sbctl.runtime.watching import keep_watching
from sbctl.trust.cluster_fences import authority_stale

__all__ = ["ClusterNode"]

_PREPARE_S: Final = 10.0
_COME_BACK_S: Final = 20.0
"""The longest that a node takes to find the store again."""
_LEAVE_S: Final = 1.0
_SERVICE_AGAIN_S: Final = 1.0


def _connect(host: Host, config: ClusterConfig) -> NodeStore:
    identity = IdentityFiles(host.settings.paths)
    servers = tuple(StoreServer(each.node_id, each.address, each.port) for each in config.store)
    return NatsStore(lambda: servers, lambda: store_context(identity), node_id=config.node_id, clock=host.clock)


class ClusterNode:
    """`restored` before anything is served; `start` once it is; `leave`, then `close`."""

    def __init__(
        self, host: Host, config: ClusterConfig, *, connect: Callable[[Host, ClusterConfig], NodeStore] = _connect
    ) -> None:
        """Takes this process's boot epoch. Raises StateError `cluster.*`, InputError `file.*` and what reading the identity raises."""
        paths, clock = host.settings.paths, host.clock
        self.host, self.config, self._clock = host, config, clock
        self._log = get_log("cluster")
        self._tasks: list[asyncio.Task[None]] = []
        self._boot_epoch = take_boot_epoch(paths.state, clock.now())
        self.trust = HeldTrust(config.cluster_id, IdentityFiles(paths), paths.state, now=clock.now())
        self.fences = ClusterFences(paths.state / "cluster.db", clock)
        self.signers = HeldSigners(paths, self.fences)
        self.store = connect(host, config)
        self.desired = Desired(
            config.cluster_id,
            signers=self.signers,
            trust=self.trust,
            fences=self.fences,
            store=self.store,
            clock=clock,
            trust_file=paths.trust,
            is_authority="authority" in config.roles,
            events=host.events,
        )
        self._words = SignedLease(self.trust, self.fences, clock, boot_epoch=self._boot_epoch)
        self.peers = PeerEnds(host, config, self.trust, self.fences, boot_epoch=self._boot_epoch)
        self.feed = PlanFeed(self.trust, self.fences, self.store, clock)
        self.roster = self._make_roster()
        self.publisher = self._make_publisher_and_obedience()
        self.leading = self._make_leading()
        self._listen()

    # Parts

    def _make_roster(self) -> Roster:
        return Roster(
            Directory(self.trust, self.fences, self._clock, self.config.node_id),
            store=self.store,
            clock=self._clock,
            active=lambda: self.desired.mark,
            grace_s=_COME_BACK_S + 2 * self.config.publish_interval_ms / 1000,
            memory=RosterMemory(self.host.settings.paths.state),
        )

    def _make_publisher_and_obedience(self) -> Publisher:
        host, config = self.host, self.config
        self.obedience = Obedience(
            config.node_id,
            is_worker="worker" in config.roles,
            runs=host.reconciler,
            prepare=lambda member: host.provisioner.prepare(member, quiet),
            desired=self.desired,
            trust=self.trust,
            fences=self.fences,
            store=self.store,
            clock=self._clock,
            changed=self._changed,
            state=host.settings.paths.state,
            devices=lambda: self.reporter.devices,
        )
        self.reporter = reporter = Reporter(
            host.reconciler,
            host.drain,
            budget=host.budget,
            devices=host.devices,
            cache=host.settings.cache_directory,
            engines=host.settings.paths.engines,
            plane_is_ready=self.plane_is_ready,
            obeying=self.obedience if "worker" in config.roles else None,
        )
        ports = PublisherPorts(reporter.now, lambda: self.desired.mark, self._is_stale, host.metrics.figures)
        return Publisher(
            self._name,
            ports,
            cluster_id=config.cluster_id,
            boot_epoch=self._boot_epoch,
            trust=self.trust,
            store=self.store,
            clock=self._clock,
            interval_s=config.publish_interval_ms / 1000,
            ttl_s=config.snapshot_ttl_ms / 1000,
        )

    def _name(self) -> NodeName:
        config = self.config
        return NodeName(
            node_id=config.node_id, roles=config.roles, labels=config.labels, peer_address=self.peers.address
        )

    def _make_leading(self) -> Leading | None:
        if "authority" not in self.config.roles:
            return None
        return leading(
            self.config,
            self.host.settings,
            self._words,
            self.roster,
            self.desired,
            self.feed,
            self.trust,
            self.fences,
            self.store,
            self._clock,
            self.host.events,
            boot_epoch=self._boot_epoch,
        )

    @property
    def controller(self) -> Controller | None:
        """Of an authority."""
        return None if self.leading is None else self.leading.controller

    def _listen(self) -> None:
        """To changes of one part that others act on."""
        self.desired.on_change(self._desired_changed)
        self.publisher.on_made(self._refresh_known)
        self.roster.on_change(self._refresh_known)
        self.feed.on_change(self._refresh_known)
        if self.controller is not None:
            self.roster.on_change(self.controller.poke)

    # For the daemon

    def restored(self) -> Assigned | None:
        """As `Obedience.restored`."""
        return self.obedience.restored()

    def gateway(self, keys: Keys, externals: Externals, *, bound_to_loopback: bool) -> ClusterGateway | None:
        """The public API of a gateway; None on a node of another role."""
        gateway = self.peers.gateway(keys, externals, bound_to_loopback=bound_to_loopback)
        # The first request comes before the store is heard.
        self._refresh_known()
        return gateway

    def peer_plane(self) -> Port | None:
        """The port for gateways, bound; None on a node that is no worker. Raises HostError of binding."""
        return self.peers.port(self.obedience)

    def plane_is_ready(self) -> bool:
        """Whether gateways get in."""
        return self.peers.is_open

    def with_routes(self, app: web.Application, note: Note) -> web.Application:
        """The control socket's application with those of the cluster. `note` writes into the audit."""
        return with_cluster(app, self, note)

    def door(self, note: Note) -> ClusterDoor:
        """For the admin API."""
        return ClusterDoor(self, note)

    def reload_identity(self) -> None:
        """The identity directory has another one. Raises what reading it raises."""
        self.trust.reload(now=self._clock.now())
        self.publisher.poke()
        self.desired.poke()

    async def start(self) -> None:
        """Behind the routes of what was kept; returns at once."""
        await self.store.start()
        self._run("publisher", self.publisher.run)
        self._run("desired", self.desired.run)
        self._run("obey", self.obedience.run)
        self._run("authorities", lambda: self._words.follow(self.store))
        self._run("replicas", lambda: watch_replicas(self.host.reconciler, self.host.drain, self.publisher.poke))
        if {"gateway", "authority"} & set(self.config.roles):
            self._run("roster", self.roster.run)
            self._run("plan", self.feed.run)
        self._run("store", lambda: watch_store(self.store.status, self.host.events))
        if self.leading is not None:
            self._run("buckets", self._keep_buckets)
            for name, work in self.leading.services().items():
                self._run(name, work)

    async def leave(self) -> None:
        """Nothing new from gateways, and the last word of this process. Never raises."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2 * _LEAVE_S)
        self._tasks = []
        self.peers.stop_admitting()
        with suppress(TimeoutError, SbctlError):
            async with asyncio.timeout(_LEAVE_S):
                is_told = await self.publisher.publish()
                if is_told and self.host.drain.leaves:
                    # Out of the cluster for good: a tombstone, and no node that fell silent.
                    await self.store.delete(Bucket.NODES, node_key(self.config.node_id))

    async def close(self) -> None:
        self.peers.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self.store.close()
        self.fences.close()

    def facts(self) -> Facts:
        """What this node knows of its cluster now, from memory."""
        return Facts(
            cluster_id=self.config.cluster_id,
            node_id=self.config.node_id,
            is_authority=self.desired.is_authority,
            now_ms=int(self._clock.now().timestamp() * 1000),
            held=self.desired.held,
            trust=self.signers.trust,
            plan=self.feed.plan,
            view=self.roster.view,
            store=self.store.status(),
            problem=self._problem(),
            problems={**self.desired.problems(), **self.obedience.problems()},
            leads=self.controller is not None and self.controller.is_leading,
            actions=NO_ACTIONS if self.leading is None else self.leading.actions.held,
            expected=frozenset(self.config.expected_nodes),
        )

    def _problem(self) -> str | None:
        if (clock := self.roster.own_clock_problem()) is not None:
            return clock
        placement = None if self.controller is None else self.controller.problem
        for error in (self.fences.problem, self.trust.problem, self.obedience.refusal, placement):
            if error is not None:
                return (f"{error.message}: {error.next_step}" if error.next_step else error.message)[:512]
        return None

    # What goes on

    def _run(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A service that fails unexpectedly is begun again: one defect leaves no node without its cluster."""
        kept = keep_watching(f"cluster {name}", work, again_s=_SERVICE_AGAIN_S)
        self._tasks.append(asyncio.create_task(kept, name=f"cluster-{name}"))

    def _changed(self) -> None:
        self.publisher.poke()

    def _desired_changed(self) -> None:
        self.obedience.poke()
        self.publisher.poke()
        self._refresh_known()
        if self.controller is not None:
            self.controller.poke()

    def _refresh_known(self) -> None:
        self.peers.know(self.roster, self.desired.held, self.publisher.last, self.feed.plan)

    async def _keep_buckets(self) -> None:
        """An authority makes them, also after the store lost its disks."""
        replicas = len(self.config.store)
        while True:
            try:
                await self.store.prepare(replicas=replicas)
                await asyncio.sleep(_PREPARE_S)
            except SbctlError as error:
                self._log.info("the store's buckets", code=error.code, reason=error.message)
                await asyncio.sleep(_SERVICE_AGAIN_S)

    def _is_stale(self) -> bool:
        return authority_stale(self.fences.authority_heard_at(), self._clock.now())
