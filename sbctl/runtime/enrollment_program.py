"""The enrollment server, in the foreground: `sbctl-runtime authority --dir DIR --listen ADDRESS:PORT`, or `… --delegated`.

With a directory it needs the authority's own private keys, so it runs where they are, on the operator's machine. `--delegated` is how an apply
runs it on a host: by keys of its own that the authority signed for, given as systemd credentials, its state in systemd's directory and a
control socket for root. It ends on SIGTERM or SIGINT once what it issues is issued, and tells systemd when it is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
from datetime import timedelta
from pathlib import Path
from typing import Final

from aiohttp import web

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import LockedError, RefusedError, UsageError
from sbctl.base.flock import held
from sbctl.base.limits import ENROLLED_HOURS_MAX
from sbctl.runtime.arguments import Arguments
from sbctl.runtime.binding import HandedOver, bind_tcp, bind_unix
from sbctl.runtime.enrollment_control import enrollment_control
from sbctl.runtime.enrollment_server import EnrollmentMetrics, EnrollmentServer, server_tls
from sbctl.runtime.listeners import Listener, ListenerLimits
from sbctl.runtime.log import configure_logging, get_log
from sbctl.runtime.notify import Notifier
from sbctl.runtime.routes import is_loopback
from sbctl.trust.delegated_files import DelegatedAuthority, DelegatedFiles
from sbctl.trust.enrollment import Enrollment

__all__ = ["run_authority"]

_LIMITS: Final = ListenerLimits(header_s=10.0, connections=256, idle_s=10.0, write_stall_s=10.0)
_SEE_OFF_S: Final = 5.0


def run_authority(argv: list[str]) -> int:
    """Serve until told to stop; 0 after a clean stop. Raises SbctlError when it cannot begin."""
    parser = Arguments(prog="sbctl-runtime authority")
    parser.add_argument(
        "--delegated", action="store_true", help="by the unit that an apply installs; takes no other option"
    )
    parser.add_argument("--dir", type=Path, help="the authority directory, with its private keys")
    parser.add_argument("--listen", metavar="ADDRESS:PORT", help="where hosts reach it, as in 0.0.0.0:8443")
    parser.add_argument("--metrics-listen", metavar="ADDRESS:PORT", help="plain HTTP with /metrics; loopback only")
    parser.add_argument(
        "--validity-hours", type=int, default=24, help="life of what it issues; hosts renew it by themselves"
    )
    parsed = parser.parse_args(argv)
    os.umask(0o077)
    configure_logging()
    if parsed.delegated:
        return _run_delegated()
    if parsed.dir is None or parsed.listen is None:
        raise UsageError("usage", "name --dir and --listen", next_step="sbctl-runtime authority --help")
    if not 1 <= parsed.validity_hours <= ENROLLED_HOURS_MAX:
        raise UsageError("usage", f"--validity-hours is 1 to {ENROLLED_HOURS_MAX}")
    enrollment = Enrollment.open(parsed.dir.absolute(), validity=timedelta(hours=parsed.validity_hours))
    with held(enrollment.authority.directory / ".server.lock") as ours:
        if not ours:
            raise LockedError(
                "enroll.already_serving",
                "another enrollment server has this authority directory",
                place=str(enrollment.authority.directory),
                next_step="stop it first; one serves as many hosts as there are",
            )
        enrollment.authority.renew_own(now=SYSTEM_CLOCK.now())
        asyncio.run(_serve(enrollment, parsed.listen, parsed.metrics_listen))
    return 0


def _run_delegated() -> int:
    """Directories are systemd's: CREDENTIALS_DIRECTORY, STATE_DIRECTORY, RUNTIME_DIRECTORY."""
    found = [os.environ.get(name) for name in ("CREDENTIALS_DIRECTORY", "STATE_DIRECTORY", "RUNTIME_DIRECTORY")]
    supplied, state, runtime = found
    if supplied is None or state is None or runtime is None:
        raise UsageError("usage", "--delegated is for the unit sbctl-enrollment.service, which an apply installs")
    files = DelegatedFiles(Path(state), Path(supplied))
    server = files.settings_of_server
    validity = timedelta(hours=server.validity_hours)
    enrollment = Enrollment(DelegatedAuthority(files), files, validity=validity)
    address = f"[{server.bind_address}]" if ":" in server.bind_address else server.bind_address
    control = (enrollment_control(enrollment, files, SYSTEM_CLOCK), Path(runtime) / "control.sock")
    asyncio.run(_serve(enrollment, f"{address}:{server.port}", None, control))
    return 0


async def _serve(
    enrollment: Enrollment,
    listen: str,
    metrics_listen: str | None,
    control: tuple[web.Application, Path] | None = None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    notifier, log = Notifier(os.environ), get_log("enrollment")
    handed_over = HandedOver.from_environ(os.environ)
    metrics = EnrollmentMetrics()
    server, tls = EnrollmentServer(enrollment, SYSTEM_CLOCK, metrics), server_tls(enrollment.authority)
    listeners = [Listener(server.app(), _LIMITS)]
    try:
        sock = _bound(handed_over, listen)
        await listeners[0].start(sock, tls=tls)
        if metrics_listen is not None:
            told = _bound(handed_over, metrics_listen, loopback=True)
            listeners.append(Listener(metrics.app()))
            await listeners[1].start(told)
        if control is not None:
            listeners.append(Listener(control[0]))
            await listeners[-1].start(_control_socket(control[1]))
        handed_over.close()
        fresh = asyncio.create_task(server.keep_fresh(tls))
        host, port = sock.getsockname()[:2]
        notifier.ready(f"enrolling on {host}:{port}")
        log.info("ready", address=host, port=port, cluster=enrollment.authority.settings.cluster_id)
        await _wait(stop, notifier)
        fresh.cancel()
    finally:
        notifier.stopping()
        for listener in listeners:
            listener.refuse_new()
        await listeners[0].see_off(_SEE_OFF_S)
        for listener in listeners:
            await listener.close()
        server.close()
        log.info("stopped")


async def _wait(stop: asyncio.Event, notifier: Notifier) -> None:
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), notifier.watchdog_interval_s)
        notifier.alive()


def _control_socket(path: Path) -> socket.socket:
    sock = bind_unix(path)
    sock.listen()
    sock.setblocking(False)
    return sock


def _bound(handed_over: HandedOver, written: str, *, loopback: bool = False) -> socket.socket:
    """Raises UsageError, RefusedError `enroll.metrics_exposed`, HostError `runtime.port_in_use`, `runtime.bind_failed`."""
    address, colon, port = written.rpartition(":")
    try:
        address = str(ipaddress.ip_address(address.removeprefix("[").removesuffix("]")))
    except ValueError:
        address = ""
    if not colon or not address or not port.isdecimal() or int(port) > 65535:
        raise UsageError("usage", f'"{written[:100]}" is no ADDRESS:PORT', next_step="as in 0.0.0.0:8443 or [::1]:8443")
    if loopback and not is_loopback(address):
        raise RefusedError(
            "enroll.metrics_exposed",
            "metrics go over plain HTTP without credentials, so only this machine may reach them",
            place=written,
            next_step="use a loopback address, as in 127.0.0.1:9464",
        )
    return handed_over.take(address, int(port)) or bind_tcp(address, int(port))
