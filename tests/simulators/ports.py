"""Ports of this machine for programs that a test starts.

None is one that the system gives to outgoing connections, and none is given twice in a row: between the moment a port is chosen and the moment
a program listens on it, nothing else comes by it, however many test runs share the machine.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path

__all__ = ["free_port", "free_ports"]

_FIRST, _COUNT = 12_000, 20_000
"""Below Linux's own range, which begins at 32768."""
_STRIDE = 7
"""The neighbours of a port are nobody's: a test that changes its port takes the next one."""


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many, all different; nobody listens on them on any address."""
    cursor = Path(tempfile.gettempdir()) / f"sbctl-test-ports-{os.getuid()}"
    with cursor.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        at = int(file.read() or os.getpid())
        found: list[int] = []
        while len(found) < count:
            at += _STRIDE
            if _is_free(port := _FIRST + at % _COUNT):
                found.append(port)
        file.truncate(0)
        file.write(str(at))
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
