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
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from sbctl import __version__
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import HostError, LockedError, SbctlError
from sbctl.base.flock import FileLock
from sbctl.base.fs import remove_file
from sbctl.engines.model import UNIX_PATH_MAX_BYTES
from sbctl.node.devices import nvidia_devices
from sbctl.node.machine import memory_limit
from sbctl.node.paths import NodePaths, node_paths
from sbctl.node.records import EventKind
from sbctl.runtime.admin_listener import admin_app, admin_tls
from sbctl.runtime.binding import HandedOver, base_url, bind_tcp
from sbctl.runtime.config_file import ConfigFile
from sbctl.runtime.control import control_app
from sbctl.runtime.drain import Drain
from sbctl.runtime.egress import host_fetch_settings, provider_key
from sbctl.runtime.engine_host import ChildEngineHost, EngineHost
from sbctl.runtime.event_log import EventLog, EventSink
from sbctl.runtime.event_loop import run_in_loop, settle
from sbctl.runtime.external.keys import ProviderKeys, with_provider_keys
from sbctl.runtime.external.providers import ExternalProviders
from sbctl.runtime.free_memory import free_memory
from sbctl.runtime.gateway.gateway import Gateway
from sbctl.runtime.gateway.server import App, GatewayServer
from sbctl.runtime.host_devices import HostDevices
from sbctl.runtime.https_only import HttpsOnly
from sbctl.runtime.identity import HeldIdentity, with_identity
from sbctl.runtime.jobs import Jobs
from sbctl.runtime.joining import joined
from sbctl.runtime.key_limits import KeyLimits
from sbctl.runtime.launch import LaunchPorts
from sbctl.runtime.launcher_client import LauncherClient
from sbctl.runtime.listeners import Listener
from sbctl.runtime.locked_models import refuse_drifted_models
from sbctl.runtime.log import configure_logging, get_log
from sbctl.runtime.metrics import RuntimeMetrics
from sbctl.runtime.node_provisioner import NodeProvisioner
from sbctl.runtime.notify import Notifier
from sbctl.runtime.observed_memory import ObservedMemory, running_engines
from sbctl.runtime.ownership import OwnershipRecords
from sbctl.runtime.provision import quiet
from sbctl.runtime.public_tls_service import HeldCertificate, with_certificate
from sbctl.runtime.pull_process import PullProcess
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.replica_messages import ReplicaPorts
from sbctl.runtime.replica_room import budget_of
from sbctl.runtime.residency import Residency
from sbctl.runtime.routes import is_loopback
from sbctl.runtime.settings import Settings, load_settings, load_trust, prepare_directories
from sbctl.runtime.store import RuntimeStore
from sbctl.runtime.supervise import die_with_supervisor
from sbctl.runtime.unit_host import UnitEngineHost
from sbctl.runtime.unit_records import UnitRecords
from sbctl.runtime.watching import keep_watching
from sbctl.runtime.weight_watch import WeightWatch

__all__ = ["Daemon", "run_serve"]

_CUT_S: Final = 2.0
_LAUNCHER_VARIABLE: Final = "SBCTL_ENGINE_LAUNCHER"


class Daemon:
    """Everything between the lock and the exit."""

    def __init__(
        self,
        settings: Settings,
        notifier: Notifier,
        handed_over: HandedOver,
        read_again: Callable[[], Settings] | None = None,
    ) -> None:
        self._settings = settings
        self._notifier = notifier
        self._handed_over = handed_over
        self._log = get_log("daemon")
        self._trust, self._trust_digest = load_trust(settings.paths)
        config, paths = settings.config, settings.paths
        prepare_directories(paths, (paths.engine_records, paths.state / "run"))
        self._metrics = RuntimeMetrics()
        self._store = RuntimeStore(paths.database, paths.bundle)
        self._jobs = Jobs(self._store, SYSTEM_CLOCK)
        self._events = EventLog(paths.database, SYSTEM_CLOCK)
        self._drain = Drain(paths, self._events)
        self._host = _engine_host(paths, os.environ, self._events)
        devices = HostDevices.found(paths.state, nvidia_devices().gpus, config.excluded_devices)
        budget = budget_of(psutil.virtual_memory().total, memory_limit(), devices.usable, config.max_resident_models)
        self._provisioner = provisioner = NodeProvisioner(
            paths,
            settings.cache_directory,
            self._host.new_socket,
            PullProcess(
                settings.cache_directory,
                lambda: config.egress,
                paths.secrets,
                os.environ,
                offline=config.offline,
            ),
            budget_bytes=config.cache_budget_bytes,
            offline=config.offline,
            by_hand=settings.started_by_hand,
            events=self._events,
            metrics=self._metrics.weights,
            devices=budget.devices,
            are_withheld=bool(devices.devices),
            safety_margin=config.safety_margin,
            most_bytes=budget.most_bytes,
        )
        self._reconciler = Reconciler(
            scope=config.host,
            trust=self._trust,
            store=self._store,
            ports=ReplicaPorts(
                LaunchPorts(self._host, provisioner),
                Residency(budget, free_memory),
                launched=self._metrics.launched,
                evicted=self._metrics.evicted,
                events=self._events,
                device_numbers=devices.numbers,
            ),
            clock=SYSTEM_CLOCK,
            drain_s=config.shutdown_deadline_ms / 1000,
            handoff_s=config.handoff_timeout_ms / 1000,
            parallel_prepares=config.max_parallel_prepares,
            by_hand=settings.started_by_hand,
            admin_managed=config.authority == "admin_managed" and not settings.started_by_hand,
        )
        self._observed = ObservedMemory(paths.state, lambda: running_engines(self._reconciler.generations, provisioner))
        self._config_file: ConfigFile | None = None
        if settings.file is not None and read_again is not None:
            self._config_file = ConfigFile(
                settings, read_again, self._reconciler, events=self._events, audit=self._store.audit
            )
        self._metrics.watch(self._reconciler)
        self._identity = HeldIdentity(paths, SYSTEM_CLOCK) if config.identity else None
        if self._identity is not None:
            self._identity.start()
        self._certificate: HeldCertificate | None = None
        if config.has_tls:
            self._certificate = HeldCertificate(paths, config, os.environ, SYSTEM_CLOCK, self._events)
            self._certificate.start()
            self._metrics.watch_certificate(self._certificate.tls)
        self._provider_keys = ProviderKeys(config.provider_keys, lambda name: provider_key(paths, os.environ, name))
        self._externals = ExternalProviders(
            lambda: host_fetch_settings(config, paths, os.environ),
            self._provider_keys.secret,
            SYSTEM_CLOCK,
        )
        self._provider_keys.on_exchange(self._externals.renew)
        self._cluster = joined(
            settings,
            self._reconciler,
            provisioner,
            self._drain,
            self._metrics,
            self._identity,
            budget,
            devices,
            self._events,
        )
        self._data = self._gateway()
        self._listeners: list[Listener | GatewayServer] = []
        """The control socket's last: it answers to the end."""
        self._bound: list[tuple[Listener | GatewayServer, socket.socket, ssl.SSLContext | None]] = []
        self._restored = False
        self._reloads: set[asyncio.Task[None]] = set()
        self._http_url = ""
        self._https_url: str | None = None
        self._admin_url: str | None = None

    def _gateway(self) -> Gateway:
        keys, on_loopback = KeyLimits(), is_loopback(self._settings.config.http_bind_address)
        if self._cluster is not None:
            gateway = self._cluster.gateway(keys, self._externals, bound_to_loopback=on_loopback)
            if gateway is not None:
                return gateway
        return Gateway(
            self._reconciler, self._metrics, keys, self._drain, self._externals, bound_to_loopback=on_loopback
        )

    def status(self) -> dict[str, Any]:
        """The document of GET /control/v1/status."""
        bundle = self._reconciler.bundle()
        return {
            "healthy": self._restored and all(listener.is_bound for listener in self._listeners),
            "pid": os.getpid(),
            "version": __version__,
            "config_sha256": self._settings.config_sha256,
            "trust_digest": self._trust_digest,
            "http_url": self._http_url,
            "https_url": self._https_url,
            "tls": None if self._certificate is None else self._certificate.status(),
            "admin_url": self._admin_url,
            "started_by_hand": self._settings.started_by_hand,
            "changing": self._reconciler.is_changing,
            "identity": None if self._identity is None else self._identity.status(),
            "drain": self._drain.state(),
            "bundle": None if bundle is None else bundle.model_dump(mode="json"),
            "deployments": [state.model_dump(mode="json") for state in self._reconciler.deployments()],
        }

    async def serve(self) -> None:
        """Until SIGTERM or SIGINT. Raises what binding and restoring raise."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        adopted = await self._host.adopt()
        try:
            await self._bind()
            self._handed_over.close()
            if self._settings.content is not None:
                await self._reconciler.apply_content(self._settings.content, quiet)
            else:
                await self._reconciler.restore(adopted, None if self._cluster is None else self._cluster.restored())
            await self._host.drop_unclaimed()
            for listener, sock, tls in self._bound:
                await listener.start(sock, tls=tls)
            self._restored = True
            settle()
            self._notifier.ready(f"serving {self._http_url}")
            self._events.tell(EventKind.RUNTIME_STARTED, f"version {__version__}, pid {os.getpid()}, {self._http_url}")
            self._log.info("ready", http_url=self._http_url, admin_url=self._admin_url, version=__version__)
            if self._cluster is not None:
                await self._cluster.start()
            watches = {
                "drain": self._drain.watch,
                "memory": self._observed.watch,
                "devices": self._metrics.devices.watch,
                "weights": self._weight_watch().watch,
                "owed": self._jobs.settle,
            }
            if self._certificate is not None:
                watches["certificate"] = self._certificate.watch
            if self._config_file is not None:
                watches["file"] = self._config_file.watch
            watching = [asyncio.create_task(keep_watching(what, watch)) for what, watch in watches.items()]
            await self._wait(stop)
            for task in watching:
                task.cancel()
        finally:
            await self._shut_down()

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

    def _weight_watch(self) -> WeightWatch:
        return WeightWatch(
            lambda: tuple(self._reconciler.generations.values()),
            self._provisioner,
            self._provisioner.weights_now,
            self._events,
            self._metrics.weights,
            drain_s=self._settings.config.handoff_timeout_ms / 1000,
        )

    async def _bind(self) -> None:
        config = self._settings.config
        data = self._port(config.http_bind_address, config.http_bind_port)
        self._http_url = base_url(data)
        self._will_listen(GatewayServer(self._secured()), data)
        if config.admin_enabled:
            tls = admin_tls(config, self._certificate)
            admin = self._port(config.admin_bind, config.admin_port)
            self._admin_url = base_url(admin, scheme="http" if tls is None else "https")
            app = admin_app(
                self._settings,
                os.environ,
                self._reconciler,
                self._jobs,
                self._metrics,
                config_file=self._config_file,
                note=self._store.note,
                weights=self._provisioner.cache_calls,
                port=int(admin.getsockname()[1]),
                certificate=tls,
                cluster=None if self._cluster is None else self._cluster.door(self._store.audit),
                seen=self._observed.seen,
            )
            self._will_listen(Listener(app), admin, tls=None if tls is None else tls.context)
        app = with_identity(
            control_app(self._reconciler, self._jobs, self.status, self._drain, self._store.note), self._identity
        )
        app = with_provider_keys(with_certificate(app, self._certificate), self._provider_keys)
        if self._cluster is not None:
            app = self._cluster.with_routes(app, self._store.audit)
            if (plane := self._cluster.peer_plane()) is not None:
                self._will_listen(plane[0], plane[1], tls=plane[2])
        control = Listener(app)
        self._listeners.append(control)
        await control.start(_bind_unix(self._settings.paths.control_socket))

    def _secured(self) -> App:
        """Listen for https where there is a certificate. What http then offers: all but the origins that are served over https alone."""
        config = self._settings.config
        if self._certificate is None or config.https_bind_port is None:
            return self._data
        secured = self._port(config.http_bind_address, config.https_bind_port)
        self._https_url = base_url(secured, scheme="https")
        self._will_listen(GatewayServer(self._data), secured, tls=self._certificate.tls.context)
        return HttpsOnly(
            self._data,
            self._reconciler,
            port=int(secured.getsockname()[1]),
            bound_to_loopback=is_loopback(config.http_bind_address),
        )

    def _port(self, address: str, port: int) -> socket.socket:
        return self._handed_over.take(address, port) or bind_tcp(address, port)

    def _will_listen(
        self, listener: Listener | GatewayServer, sock: socket.socket, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._listeners.append(listener)
        self._bound.append((listener, sock, tls))

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
        for listener, _sock, _tls in self._bound:
            listener.refuse_new()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._settings.config.shutdown_deadline_ms / 1000
        await asyncio.gather(*(listener.see_off(end_s - loop.time()) for listener, _sock, _tls in self._bound))
        self._data.stop_admitting()
        await self._reconciler.shutdown(drain_s=max(0.0, end_s - loop.time()))
        for listener in self._listeners:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(listener.close(), _CUT_S)
        if self._cluster is not None:
            await self._cluster.close()
        await self._externals.close()
        await self._host.close()
        remove_file(self._settings.paths.control_socket)
        self._events.tell(EventKind.RUNTIME_STOPPED, f"version {__version__}, pid {os.getpid()}")
        self._events.close()
        self._store.close()
        self._log.info("stopped")


def _engine_host(paths: NodePaths, environ: Mapping[str, str], events: EventSink) -> EngineHost:
    """Units by the launcher where our own unit names its socket, children everywhere else."""
    children = OwnershipRecords(paths.engine_records)
    socket_path = environ.get(_LAUNCHER_VARIABLE)
    if socket_path:
        records = UnitRecords(paths.engine_records / "units")
        return UnitEngineHost(LauncherClient(Path(socket_path)), records, children, events=events)
    return ChildEngineHost(children, paths.state / "run", logs=paths.engine_logs, events=events)


def _bind_unix(path: Path) -> socket.socket:
    """The socket of a dead daemon is replaced; the serve lock says that no live one has it."""
    if len(os.fsencode(path)) > UNIX_PATH_MAX_BYTES:
        raise HostError(
            "runtime.path_too_long",
            f"a UNIX socket's path has at most {UNIX_PATH_MAX_BYTES} bytes",
            place=str(path),
            next_step="use a shorter state directory",
        )
    remove_file(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    sock.bind(str(path))
    path.chmod(0o600)
    return sock


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
