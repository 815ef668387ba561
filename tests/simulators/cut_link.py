"""A TCP relay in front of an SSH server that is cut for good after so many bytes, counted over all connections and both directions.

Whoever uses the link sees a connection that breaks in the middle of a message, and afterwards one that nobody takes, until it is healed.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Final

__all__ = ["CutLink", "cut_link"]

_READ_BYTES: Final = 65536
_RESET: Final = struct.pack("ii", 1, 0)


class CutLink:
    """`port` on loopback leads to `target`."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._left: int | None = None
        self._ends: list[socket.socket] = []
        self.passed_bytes = 0
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def is_cut(self) -> bool:
        return self._left == 0

    def cut_after(self, count: int) -> None:
        """From now on so many bytes pass, and then none."""
        with self._lock:
            self._left = count

    def heal(self) -> None:
        with self._lock:
            self._left = None
            self.passed_bytes = 0

    def close(self) -> None:
        self._listener.close()
        self._reset_all()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        if self.is_cut:
            _reset(near)
            return
        try:
            far = socket.create_connection(self._target, 30)
        except OSError:
            _reset(near)
            return
        far.settimeout(None)
        with self._lock:
            self._ends += [near, far]
        for one, other in ((near, far), (far, near)):
            threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_READ_BYTES):
                sink.sendall(data[: self._grant(len(data))])
                if self.is_cut:
                    self._reset_all()
                    return
            sink.shutdown(socket.SHUT_WR)

    def _grant(self, asked: int) -> int:
        with self._lock:
            granted = asked if self._left is None else min(asked, self._left)
            if self._left is not None:
                self._left -= granted
            self.passed_bytes += granted
            return granted

    def _reset_all(self) -> None:
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            _reset(end)


def _reset(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.shutdown(socket.SHUT_RD)
    sock.close()


@contextlib.contextmanager
def cut_link(address: str, port: int = 22) -> Iterator[CutLink]:
    link = CutLink((address, port))
    try:
        yield link
    finally:
        link.close()
