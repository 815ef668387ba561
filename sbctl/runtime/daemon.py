"""`sbctl-runtime serve`: one daemon a state directory.

    lock ► settings ► stop what a dead daemon left ► ports ► routes of the accepted bundle ► accept ► ready ► …
    … ► accept no more ► see callers off ► drain ► stop engines ► exit 0

Ports that systemd keeps open lose no connection between two daemons: nothing is accepted before it can be served, and what comes while we
end waits for the next one.

Engines come up in the background: a model that does not start never keeps the others, or the control socket, from answering.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any

from aiohttp import web

from sbctl import __version__
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import LockedError, SbctlError
from sbctl.base.flock import FileLock
from sbctl.base.fs import remove_file
from sbctl.node.paths import NodePaths, node_paths
from sbctl.node.records import EventKind
from sbctl.runtime.admin_listener import admin_app, admin_tls
from sbctl.runtime.binding import HandedOver, base_url, bind_unix
from sbctl.runtime.config_file import ConfigFile
from sbctl.runtime.control import control_app
from sbctl.runtime.credentials import Credentials
from sbctl.runtime.drain import Drain
from sbctl.runtime.egress import host_fetch_settings
from sbctl.runtime.engine_host import Slot
from sbctl.runtime.event_log import EventLog
from sbctl.runtime.event_loop import run_in_loop, settle
from sbctl.runtime.external.providers import ExternalProviders
from sbctl.runtime.free_memory import free_memory
from sbctl.runtime.gateway.gateway import Gateway
from sbctl.runtime.gateway.server import App, GatewayServer
from sbctl.runtime.host_engines import HostEngines
from sbctl.runtime.https_only import HttpsOnly
from sbctl.runtime.jobs import Jobs
from sbctl.runtime.joining import joined
from sbctl.runtime.key_limits import KeyLimits
from sbctl.runtime.launch import LaunchPorts
from sbctl.runtime.listeners import Listener
from sbctl.runtime.locked_models import refuse_drifted_models
from sbctl.runtime.log import configure_logging, get_log
from sbctl.runtime.metrics import RuntimeMetrics
from sbctl.runtime.notify import Notifier
from sbctl.runtime.observed_memory import ObservedMemory, running_engines
from sbctl.runtime.open_ports import OpenPorts, cut_off
from sbctl.runtime.provision import quiet
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.replica_messages import ReplicaPorts
from sbctl.runtime.residency import Residency
from sbctl.runtime.routes import is_loopback
from sbctl.runtime.settings import Settings, load_settings, load_trust, prepare_directories
from sbctl.runtime.store import RuntimeStore
from sbctl.runtime.supervise import die_with_supervisor
from sbctl.runtime.watching import keep_watching
from sbctl.runtime.weight_watch import WeightWatch
from sbctl.trust.bundle import TrustSet

__all__ = ["Daemon", "run_serve"]


class Daemon:
    """Everything between the lock and the exit."""

    def __init__(
        self,
        settings: Settings,
        notifier: Notifier,
        handed_over: HandedOver,
        read_again: Callable[[], Settings] | None = None,
    ) -> None:
        """Its parts, each made once. Raises InputError, StateError and SbctlError `disk.*`."""
        paths = settings.paths
        self._settings = settings
        self._notifier = notifier
        self._log = get_log("daemon")
        trust, self._trust_digest = load_trust(paths)
        prepare_directories(paths, (paths.engine_records, paths.state / "run"))
        self._metrics = RuntimeMetrics()
        self._store = RuntimeStore(paths.database, paths.bundle)
        self._jobs = Jobs(self._store, SYSTEM_CLOCK)
        self._events = EventLog(paths.database, SYSTEM_CLOCK)
        self._drain = Drain(paths, self._events)
        self._engines = HostEngines.found(settings, os.environ, self._events, self._metrics.weights)
        self._reconciler = self._make_reconciler(trust)
        self._observed = ObservedMemory(
            paths.state, lambda: running_engines(self._reconciler.generations, self._engines.provisioner)
        )
        self._config_file: ConfigFile | None = None
        if settings.file is not None and read_again is not None:
            self._config_file = ConfigFile(
                settings, read_again, self._reconciler, events=self._events, audit=self._store.audit
            )
        self._credentials = Credentials.taken_up(settings, os.environ, self._events)
        if self._credentials.certificate is not None:
            self._metrics.watch_certificate(self._credentials.certificate.tls)
        self._externals = self._make_externals()
        self._cluster = joined(
            settings,
            self._reconciler,
            self._engines,
            self._drain,
            self._metrics,
            self._credentials.identity,
            self._events,
        )
        self._gateway = self._make_gateway()
        self._ports = OpenPorts(handed_over)
        self._control: Listener | None = None
        self._restored = False
        self._reloads: set[asyncio.Task[None]] = set()
        self._http_url = ""
        self._https_url: str | None = None
        self._admin_url: str | None = None

    # Parts

    def _make_reconciler(self, trust: TrustSet | None) -> Reconciler:
        config, by_hand = self._settings.config, self._settings.started_by_hand
        reconciler = Reconciler(
            scope=config.host,
            trust=trust,
            store=self._store,
            ports=ReplicaPorts(
                LaunchPorts(self._engines.processes, self._engines.provisioner),
                Residency(self._engines.budget, free_memory),
                launched=self._metrics.launched,
                evicted=self._metrics.evicted,
                events=self._events,
                device_numbers=self._engines.devices.numbers,
            ),
            clock=SYSTEM_CLOCK,
            drain_s=config.shutdown_deadline_ms / 1000,
            handoff_s=config.handoff_timeout_ms / 1000,
            parallel_prepares=config.max_parallel_prepares,
            by_hand=by_hand,
            admin_managed=config.authority == "admin_managed" and not by_hand,
        )
        self._metrics.watch(reconciler)
        return reconciler

    def _make_externals(self) -> ExternalProviders:
        config, paths = self._settings.config, self._settings.paths
        keys = self._credentials.provider_keys
        externals = ExternalProviders(lambda: host_fetch_settings(config, paths, os.environ), keys.secret, SYSTEM_CLOCK)
        keys.on_exchange(externals.renew)
        return externals

    def _make_gateway(self) -> Gateway:
        keys, on_loopback = KeyLimits(), is_loopback(self._settings.config.http_bind_address)
        if self._cluster is not None:
            gateway = self._cluster.gateway(keys, self._externals, bound_to_loopback=on_loopback)
            if gateway is not None:
                return gateway
        return Gateway(
            self._reconciler, self._metrics, keys, self._drain, self._externals, bound_to_loopback=on_loopback
        )

    def _weight_watch(self) -> WeightWatch:
        provisioner = self._engines.provisioner
        return WeightWatch(
            lambda: tuple(self._reconciler.generations.values()),
            provisioner,
            provisioner.weights_now,
            self._events,
            self._metrics.weights,
            drain_s=self._settings.config.handoff_timeout_ms / 1000,
        )

    # What others ask

    def status(self) -> dict[str, Any]:
        """The document of GET /control/v1/status."""
        bundle = self._reconciler.bundle()
        identity, certificate = self._credentials.identity, self._credentials.certificate
        return {
            "healthy": self._restored and self._ports.are_open,
            "pid": os.getpid(),
            "version": __version__,
            "config_sha256": self._settings.config_sha256,
            "trust_digest": self._trust_digest,
            "http_url": self._http_url,
            "https_url": self._https_url,
            "tls": None if certificate is None else certificate.status(),
            "admin_url": self._admin_url,
            "started_by_hand": self._settings.started_by_hand,
            "changing": self._reconciler.is_changing,
            "identity": None if identity is None else identity.status(),
            "drain": self._drain.state(),
            "bundle": None if bundle is None else bundle.model_dump(mode="json"),
            "deployments": [state.model_dump(mode="json") for state in self._reconciler.deployments()],
        }

    # From begin to end

    async def serve(self) -> None:
        """Until SIGTERM or SIGINT. Raises what binding and restoring raise."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        adopted = await self._engines.processes.adopt()
        try:
            await self._bind()
            await self._restore(adopted)
            await self._ports.serve()
            self._tell_ready()
            if self._cluster is not None:
                await self._cluster.start()
            watching = [asyncio.create_task(keep_watching(what, watch)) for what, watch in self._watches().items()]
            await self._wait(stop)
            for task in watching:
                task.cancel()
        finally:
            await self._shut_down()

    async def _restore(self, adopted: Collection[Slot]) -> None:
        if self._settings.content is not None:
            await self._reconciler.apply_content(self._settings.content, quiet)
        else:
            await self._reconciler.restore(adopted, None if self._cluster is None else self._cluster.restored())
        await self._engines.processes.drop_unclaimed()

    def _tell_ready(self) -> None:
        self._restored = True
        settle()
        self._notifier.ready(f"serving {self._http_url}")
        self._events.tell(EventKind.RUNTIME_STARTED, f"version {__version__}, pid {os.getpid()}, {self._http_url}")
        self._log.info("ready", http_url=self._http_url, admin_url=self._admin_url, version=__version__)

    def _watches(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """What goes on beside the requests, by name."""
        watches = {
            "drain": self._drain.watch,
            "memory": self._observed.watch,
            "devices": self._metrics.devices.watch,
            "weights": self._weight_watch().watch,
            "owed": self._jobs.settle,
        }
        if self._credentials.certificate is not None:
            watches["certificate"] = self._credentials.certificate.watch
        if self._config_file is not None:
            watches["file"] = self._config_file.watch
        return watches

    def _hang_up(self) -> None:
        if self._config_file is None or not self._restored:
            self._log.warning("a hangup means nothing here: what is served changes by sbctl apply")
            return

        async def reload(file: ConfigFile) -> None:
            with contextlib.suppress(SbctlError):
                await file.reload("SIGHUP")

        task = asyncio.create_task(reload(self._config_file))
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _wait(self, stop: asyncio.Event) -> None:
        interval_s = self._notifier.watchdog_interval_s
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), interval_s)
            self._notifier.alive()

    async def _shut_down(self) -> None:
        """Within the shutdown deadline: nothing new, what runs finishes or is cut, engines stop."""
        self._notifier.stopping()
        self._log.info("stopping")
        if self._cluster is not None:
            await self._cluster.leave()
        self._ports.refuse_new()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._settings.config.shutdown_deadline_ms / 1000
        await self._ports.see_off(end_s - loop.time())
        self._gateway.stop_admitting()
        await self._reconciler.shutdown(drain_s=max(0.0, end_s - loop.time()))
        await self._ports.close()
        if self._control is not None:
            await cut_off(self._control)
        if self._cluster is not None:
            await self._cluster.close()
        await self._externals.close()
        await self._engines.processes.close()
        remove_file(self._settings.paths.control_socket)
        self._events.tell(EventKind.RUNTIME_STOPPED, f"version {__version__}, pid {os.getpid()}")
        self._events.close()
        self._store.close()
        self._log.info("stopped")

    # Ports

    async def _bind(self) -> None:
        """Every port is taken before anything is served on one; the control socket answers at once, and to the end. The lock says that no
        live daemon has it."""
        self._bind_public()
        if self._settings.config.admin_enabled:
            self._bind_admin()
        control = self._control_app()
        if self._cluster is not None and (plane := self._cluster.peer_plane()) is not None:
            self._ports.add(plane[0], plane[1], tls=plane[2])
        self._control = Listener(control)
        await self._control.start(bind_unix(self._settings.paths.control_socket))
        self._ports.give_up_rest()

    def _bind_public(self) -> None:
        """Where there is a certificate, http offers all but the origins that are served over https alone."""
        config, certificate = self._settings.config, self._credentials.certificate
        data = self._ports.bind(config.http_bind_address, config.http_bind_port)
        self._http_url = base_url(data)
        app: App = self._gateway
        if certificate is not None and config.https_bind_port is not None:
            secured = self._ports.bind(config.http_bind_address, config.https_bind_port)
            self._https_url = base_url(secured, scheme="https")
            self._ports.add(GatewayServer(self._gateway), secured, tls=certificate.tls.context)
            app = HttpsOnly(
                self._gateway,
                self._reconciler,
                port=int(secured.getsockname()[1]),
                bound_to_loopback=is_loopback(config.http_bind_address),
            )
        self._ports.add(GatewayServer(app), data)

    def _bind_admin(self) -> None:
        config = self._settings.config
        tls = admin_tls(config, self._credentials.certificate)
        sock = self._ports.bind(config.admin_bind, config.admin_port)
        self._admin_url = base_url(sock, scheme="http" if tls is None else "https")
        app = admin_app(
            self._settings,
            os.environ,
            self._reconciler,
            self._jobs,
            self._metrics,
            config_file=self._config_file,
            note=self._store.note,
            weights=self._engines.provisioner.cache_calls,
            port=int(sock.getsockname()[1]),
            certificate=tls,
            cluster=None if self._cluster is None else self._cluster.door(self._store.audit),
            seen=self._observed.seen,
        )
        self._ports.add(Listener(app), sock, tls=None if tls is None else tls.context)

    def _control_app(self) -> web.Application:
        app = control_app(self._reconciler, self._jobs, self.status, self._drain, self._store.note)
        app = self._credentials.with_routes(app)
        return app if self._cluster is None else self._cluster.with_routes(app, self._store.audit)


def _lock(paths: NodePaths) -> FileLock:
    prepare_directories(paths, ())
    lock = FileLock(paths.state / "serve.lock")
    if not lock.try_acquire():
        raise LockedError(
            "runtime.already_running",
            "another runtime serves this state directory",
            place=str(paths.state),
            next_step="stop it first (systemctl stop sbctl-runtime, or the process that started it)",
        )
    return lock


def run_serve(argv: list[str]) -> int:
    """Serve until told to stop; 0 after a clean stop. Raises SbctlError when it cannot begin."""
    parser = argparse.ArgumentParser(prog="sbctl-runtime serve", exit_on_error=False)
    parser.add_argument("--config", type=Path, default=None, help="started by hand: read this file, take no bundle")
    parser.add_argument("--locked", action="store_true", help="refuse models that are not as the lockfile has them")
    parsed = parser.parse_args(argv)
    os.umask(0o077)
    configure_logging()
    die_with_supervisor()
    paths = node_paths(os.getuid(), os.environ)
    handed_over = HandedOver.from_environ(os.environ)
    lock = _lock(paths)

    def read() -> Settings:
        found = load_settings(paths, parsed.config)
        if parsed.locked:
            refuse_drifted_models(found, parsed.config)
        return found

    try:
        run_in_loop(Daemon(read(), Notifier(os.environ), handed_over, read).serve())
    finally:
        lock.release()
    return 0
