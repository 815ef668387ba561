"""Binding the runtime's own ports, and finding out beforehand that somebody else has them."""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection

from sbctl.base.errors import HostError
from sbctl.node.messages import RuntimeConfig

__all__ = ["base_url", "bind_tcp", "refuse_taken_ports"]


def bind_tcp(address: str, port: int) -> socket.socket:
    """A bound socket, close-on-exec. Raises HostError `runtime.port_in_use`, `runtime.bind_failed`."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
    except OSError as error:
        sock.close()
        in_use = error.errno == errno.EADDRINUSE
        raise HostError(
            "runtime.port_in_use" if in_use else "runtime.bind_failed",
            f"the runtime cannot listen on {address}:{port}: {error.strerror}",
            place=f"{address}:{port}",
            next_step="find the other process with `ss -ltnp`, or choose another port in sb.yml",
        ) from error
    return sock


def base_url(sock: socket.socket) -> str:
    """What a client of this bound socket writes."""
    host, port = sock.getsockname()[:2]
    return _url(str(host), int(port))


def refuse_taken_ports(config: RuntimeConfig, ours: Collection[str]) -> None:
    """Raises HostError `runtime.port_in_use`, `runtime.bind_failed` for a port that the runtime will not get; `ours` are URLs it has now."""
    wanted = [(config.http_bind_address, config.http_bind_port)]
    if config.admin_enabled:
        wanted.append((config.admin_bind, config.admin_port))
    for address, port in wanted:
        if port and _url(address, port) not in ours:
            bind_tcp(address, port).close()


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
