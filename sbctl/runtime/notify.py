"""The service manager's notification protocol (sd_notify(3)): readiness, a status line, the watchdog. Silent where none listens."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

__all__ = ["Notifier"]


class Notifier:
    """Sends datagrams to `NOTIFY_SOCKET`. Never raises: a service manager that went away is not our fault."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        watchdog_us = environ.get("WATCHDOG_USEC", "")
        ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_interval_s: float | None = None
        """Seconds between two `alive` calls, half of what the manager allows; None when it does not watch."""
        if self._address and ours and watchdog_us.isdigit() and int(watchdog_us) > 0:
            self.watchdog_interval_s = int(watchdog_us) / 2_000_000

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}\n")

    def status(self, status: str) -> None:
        self._send(f"STATUS={status}\n")

    def alive(self) -> None:
        self._send("WATCHDOG=1\n")

    def stopping(self) -> None:
        self._send("STOPPING=1\n")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out,
        ):
            out.sendto(text.encode(), self._address)
