"""The TCP ports of a running daemon: bound first, served when there is something to serve, their callers seen off together at the end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Final

from sbctl.runtime.binding import HandedOver, bind_tcp
from sbctl.runtime.gateway.server import GatewayServer
from sbctl.runtime.listeners import Listener

__all__ = ["OpenPorts", "cut_off"]

_CUT_S: Final = 2.0


async def cut_off(listener: Listener | GatewayServer) -> None:
    """Whatever is open ends, and the listener with it, in two seconds at most."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(listener.close(), _CUT_S)


class OpenPorts:
    """`bind` and `add` each of them, then `serve` them all; in the end `refuse_new`, `see_off`, `close`."""

    def __init__(self, handed_over: HandedOver) -> None:
        self._handed_over = handed_over
        self._added: list[tuple[Listener | GatewayServer, socket.socket, ssl.SSLContext | None]] = []

    @property
    def are_open(self) -> bool:
        return all(listener.is_bound for listener, _sock, _tls in self._added)

    def bind(self, address: str, port: int) -> socket.socket:
        """The one that was handed over, else a new one. Raises HostError `runtime.port_in_use`, `runtime.bind_failed`."""
        return self._handed_over.take(address, port) or bind_tcp(address, port)

    def add(
        self, listener: Listener | GatewayServer, sock: socket.socket, *, tls: ssl.SSLContext | None = None
    ) -> None:
        """Callers of `sock` wait until `serve`."""
        self._added.append((listener, sock, tls))

    def give_up_rest(self) -> None:
        """What was handed over and nobody bound."""
        self._handed_over.close()

    async def serve(self) -> None:
        for listener, sock, tls in self._added:
            await listener.start(sock, tls=tls)

    def refuse_new(self) -> None:
        for listener, _sock, _tls in self._added:
            listener.refuse_new()

    async def see_off(self, deadline_s: float) -> None:
        """As each listener's."""
        await asyncio.gather(*(listener.see_off(deadline_s) for listener, _sock, _tls in self._added))

    async def close(self) -> None:
        for listener, _sock, _tls in self._added:
            await cut_off(listener)
