"""The runtime's own ports: handed over by systemd or bound here, and finding out beforehand that somebody else has them.

Under systemd a socket unit owns the ports, so that connections wait in its backlog while the daemon restarts (sd_listen_fds(3)).
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Collection, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final, Literal, Self

from sbctl.base.display import display_safe
from sbctl.base.errors import HostError
from sbctl.base.fs import remove_file
from sbctl.engines.model import UNIX_PATH_MAX_BYTES
from sbctl.node.machine import port_holders
from sbctl.node.messages import RuntimeConfig
from sbctl.runtime.listener_proof import port_holder

__all__ = ["HandedOver", "base_url", "bind_tcp", "bind_unix", "holder_text", "overlap", "refuse_taken_ports"]

_FIRST_FD: Final = 3
_FDS_MAX: Final = 64


class HandedOver:
    """Listening sockets that the service manager passed to this process; each is taken once."""

    def __init__(self, sockets: Collection[socket.socket]) -> None:
        self._sockets = list(sockets)

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str], *, first_fd: int = _FIRST_FD) -> Self:
        """What `LISTEN_FDS` promises to this very process. The variables are taken away and the descriptors closed on exec: no engine gets them."""
        pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
        environ.pop("LISTEN_FDNAMES", None)
        if pid != str(os.getpid()) or not count.isdigit():
            return cls(())
        sockets = []
        for fd in range(first_fd, first_fd + min(int(count), _FDS_MAX)):
            os.set_inheritable(fd, False)
            sockets.append(socket.socket(fileno=fd))
        return cls(sockets)

    def take(self, address: str, port: int) -> socket.socket | None:
        """The one that listens on this address and port; None when there is none."""
        for sock in self._sockets:
            if sock.family in (socket.AF_INET, socket.AF_INET6) and _names(sock) == (_plain(address), port):
                self._sockets.remove(sock)
                sock.setblocking(False)
                return sock
        return None

    def close(self) -> None:
        """Give up those that nobody took: they belong to a configuration that is not ours."""
        while self._sockets:
            self._sockets.pop().close()


def _names(sock: socket.socket) -> tuple[str, int]:
    host, port = sock.getsockname()[:2]
    return _plain(str(host)), int(port)


def _plain(address: str) -> str:
    return str(ipaddress.ip_address(address.partition("%")[0]))


def bind_tcp(address: str, port: int) -> socket.socket:
    """A bound socket, close-on-exec. Raises HostError `runtime.port_in_use`, `runtime.bind_failed`."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise _in_use(address, port, port_holder(port)) from error
        raise HostError(
            "runtime.bind_failed",
            f"the runtime cannot listen on {address}:{port}: {error.strerror}",
            place=f"{address}:{port}",
            next_step="choose an address that this host has, and a port that its account may use, in sb.yml",
        ) from error
    return sock


def bind_unix(path: Path) -> socket.socket:
    """For this account and root. What stands there is replaced: the caller has made sure that nobody listens on it.

    Raises HostError `runtime.path_too_long`, SbctlError `disk.*`.
    """
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


def _in_use(address: str, port: int, holder: str | None) -> HostError:
    return HostError(
        "runtime.port_in_use",
        f"the runtime cannot listen on {address}:{port}: {holder or 'another process'} listens there",
        place=f"{address}:{port}",
        next_step=f"{'stop it' if holder else 'find the other process with `ss -ltnp`'}, or choose another port in sb.yml",
    )


def base_url(sock: socket.socket, *, scheme: Literal["http", "https"] = "http") -> str:
    """What a client of this bound socket writes."""
    host, port = sock.getsockname()[:2]
    return f"{scheme}://{_place(str(host), int(port))}"


def refuse_taken_ports(config: RuntimeConfig, ours: Collection[str], *, pid: int | None = None) -> None:
    """Raises HostError `runtime.port_in_use`, `runtime.bind_failed` for a port that the runtime will not get; `ours` are addresses it has now, as
    `127.0.0.1:8080` and `[::1]:8080`, and `pid` is its process, whose other ports nobody tells."""
    for address, port in _wanted(config):
        if not port or _place(address, port) in ours:
            continue
        beside = [one for one in port_holders([port]) if overlap(one["address"], address)]
        foreign = [
            one for one in beside if _place(one["address"], port) not in ours and (pid is None or one.get("pid") != pid)
        ]
        if beside and not foreign:
            continue  # our own listener is in the way, perhaps on another address of this port: it goes before the new one comes
        if foreign and len(foreign) < len(beside):
            raise _in_use(address, port, holder_text(foreign[0]))
        bind_tcp(address, port).close()


def _wanted(config: RuntimeConfig) -> list[tuple[str, int]]:
    wanted = [(config.http_bind_address, config.http_bind_port)]
    if config.https_bind_port is not None:
        wanted.append((config.http_bind_address, config.https_bind_port))
    if config.admin_enabled:
        wanted.append((config.admin_bind, config.admin_port))
    if config.cluster is not None and config.cluster.peer is not None:
        wanted.append((config.cluster.peer.bind, config.cluster.peer.port))
    return wanted


def holder_text(holder: Mapping[str, Any]) -> str | None:
    """One of `machine.port_holders`; None where it may not be seen."""
    pid = holder.get("pid")
    return None if pid is None else f"{display_safe(holder['program'], max_chars=32)} (pid {pid})"


def overlap(one: str, other: str) -> bool:
    """Whether two listeners on one port are in each other's way; addresses, not names."""
    first, second = ipaddress.ip_address(_plain(one)), ipaddress.ip_address(_plain(other))
    return first == second or first.is_unspecified or second.is_unspecified


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
