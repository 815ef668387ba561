"""Proof that what answers at an engine's address is that engine: another process may have taken the port, or an old engine kept it.

UNIX socket: the peer's credentials name the pid that called listen(2). Loopback port: the listening socket's inode in /proc/net/tcp
is open in a process of the engine's tree.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Final

from sbctl.base.display import display_safe
from sbctl.base.errors import EngineError
from sbctl.engines.model import EngineAddress

__all__ = ["free_loopback_port", "port_holder", "prove_listener"]

_LISTEN_STATE: Final = "0A"
_LOOPBACK_HEX: Final = "0100007F"
_UCRED: Final = struct.Struct("3i")


def free_loopback_port() -> int:
    """A port that nothing listened on a moment ago. Only a guess: `prove_listener` decides."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _unix_listener(path: Path) -> int:
    """The pid that listens there. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(2.0)
        probe.connect(str(path))
        raw = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        return int(_UCRED.unpack(raw)[0])


def _listening_inodes(port: int) -> tuple[frozenset[str], bool]:
    """Inodes of sockets that listen on the port, and whether any of them listens beyond loopback."""
    inodes, exposed = set(), False
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                address, _, port_hex = fields[1].rpartition(":")
                if fields[3] == _LISTEN_STATE and int(port_hex, 16) == port:
                    inodes.add(fields[9])
                    exposed = exposed or address != _LOOPBACK_HEX
    return frozenset(inodes), exposed


def _open_sockets(pid: int) -> frozenset[str]:
    """Inodes of the sockets that a process holds open."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{entry}")
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return frozenset(found)


def port_holder(port: int) -> str | None:
    """Who listens on a port, as `nginx (pid 4711)`; None when nobody does or we may not see it."""
    inodes, _exposed = _listening_inodes(port)
    if not inodes:
        return None
    for name in os.listdir("/proc"):
        if name.isdigit() and inodes & _open_sockets(int(name)):
            with contextlib.suppress(OSError):
                program = Path(f"/proc/{name}/comm").read_text(encoding="utf-8", errors="replace").strip()
                return f"{display_safe(program, max_chars=32)} (pid {name})"
    return None


def prove_listener(address: EngineAddress, pids: Collection[int]) -> None:
    """Return when one of `pids` listens at `address` and, for a port, on 127.0.0.1 alone.

    Raises EngineError `engine_not_ours` (somebody else answers there) or `engine_exposed` (it listens beyond loopback).
    """
    if address.unix_path is not None:
        try:
            listener = _unix_listener(address.unix_path)
        except OSError as error:
            raise EngineError(
                "engine_health_failed",
                f"the engine's socket does not answer: {error.strerror}",
                place=str(address),
                next_step="sbctl logs has what it printed",
                retryable=True,
            ) from error
        if listener not in pids:
            raise _not_ours(address)
        return
    assert address.port is not None
    inodes, exposed = _listening_inodes(address.port)
    if not any(inodes & _open_sockets(pid) for pid in pids):
        raise _not_ours(address)
    if exposed:
        raise EngineError(
            "engine_exposed",
            "the engine listens on more than 127.0.0.1; it was stopped",
            place=str(address),
            next_step="use an engine build that honours --host",
        )


def _not_ours(address: EngineAddress) -> EngineError:
    return EngineError(
        "engine_not_ours",
        "another process answers at the engine's address",
        place=str(address),
        next_step="each start takes another address; if this comes again, look who listens there (ss -lptn)",
        retryable=True,
    )
