"""One program on a host over SSH: talked to while it runs (`SshChannel`), or run to its end (`CommandRun`).

Traps of the library that this module is built around: reading one stream after the other deadlocks beyond the window, `recv_exit_status`
ignores timeouts, and a connection that dies under a command gives status -1 and no exception.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

import paramiko

from sbctl.base.clock import Clock
from sbctl.base.limits import REMOTE_OUTPUT_MAX_BYTES
from sbctl.remote.transport import STDERR_TAIL_BYTES, Completed, is_ready, lost, output_too_large, timed_out

__all__ = ["LOST", "PIECE_BYTES", "CommandRun", "SshChannel", "close_quietly"]

PIECE_BYTES: Final = 32 * 1024
SLICE_S: Final = 0.5
_EOF_GRACE_S: Final = 2.0
_NOISE_MAX_BYTES: Final = 64 * 1024
LOST: Final = (paramiko.SSHException, EOFError, OSError)
"""How the library says that a connection is gone."""


def close_quietly(ended: paramiko.Transport | paramiko.Channel) -> None:
    """Never raises: what runs over a jump that is gone cannot say goodbye."""
    with contextlib.suppress(*LOST):
        ended.close()


class SshChannel:
    """A program on the host. Its complaints are drained while its output is read, so that they can never block it."""

    def __init__(self, channel: paramiko.Channel, clock: Clock) -> None:
        self._channel = channel
        self._clock = clock
        self._complaints = b""

    def receive(self, count: int, timeout_s: float) -> bytes:
        deadline = self._clock.monotonic_s() + timeout_s
        while True:
            left = deadline - self._clock.monotonic_s()
            self._drain()
            self._channel.settimeout(max(0.001, min(SLICE_S, left)))
            try:
                return self._channel.recv(count)
            except TimeoutError:
                if left <= 0:
                    raise

    def send(self, data: bytes, timeout_s: float) -> None:
        self._channel.settimeout(max(0.001, timeout_s))
        try:
            self._channel.sendall(data)
        except (paramiko.SSHException, EOFError) as error:
            raise OSError(str(error)) from error

    def ended(self, timeout_s: float) -> int | None:
        if not self._channel.status_event.wait(max(0.0, timeout_s)):
            return None
        status = self._channel.exit_status
        return status if status >= 0 else None

    def stderr_tail(self) -> str:
        self._drain()
        return self._complaints.decode("utf-8", "replace")

    def close(self) -> None:
        with contextlib.suppress(*LOST):
            self._channel.shutdown_write()
        close_quietly(self._channel)

    def skip_to(self, marker: bytes, timeout_s: float, *, hear: Callable[[bytes], bytes]) -> None:
        """Read up to and with `marker`; `hear` gets what is complained meanwhile, and its answer is sent. What was complained until then is
        no complaint of the program that begins behind the marker.

        Raises TimeoutError, OSError; EOFError when the output ends before.
        """
        deadline = self._clock.monotonic_s() + timeout_s
        seen = b""
        while not seen.endswith(marker):
            left = deadline - self._clock.monotonic_s()
            if left <= 0:
                raise TimeoutError
            if self._channel.recv_stderr_ready():
                if answer := hear(self._complaint()):
                    self.send(answer, left)
            elif self._channel.recv_ready():
                seen = (seen + self._channel.recv(1))[-_NOISE_MAX_BYTES:]
            elif self._channel.eof_received or self._channel.closed:
                raise EOFError
            else:
                is_ready(self._channel.fileno(), timeout_s=min(left, SLICE_S))
        self._complaints = b""

    def _drain(self) -> None:
        while self._channel.recv_stderr_ready():
            if not self._complaint():
                return

    def _complaint(self) -> bytes:
        chunk = self._channel.recv_stderr(1 << 16)
        self._complaints = (self._complaints + chunk)[-STDERR_TAIL_BYTES:]
        return chunk


class CommandRun:
    """One command from its start to its status, both streams pumped while its input is sent."""

    def __init__(self, channel: paramiko.Channel, stdin: bytes, clock: Clock, place: str) -> None:
        self._channel = channel
        self._input = memoryview(stdin)
        self._clock = clock
        self._place = place
        self._stdout = bytearray()
        self._stderr = bytearray()
        self._complaint_bytes = 0
        self._status_at_s: float | None = None

    def finish(self, deadline: float, deadline_s: float) -> Completed:
        """Raises UnreachableError, HostError, and what the channel raises."""
        while True:
            moved = self._read_some()
            if not moved and self._is_over() and not self._read_some():
                break
            left = deadline - self._clock.monotonic_s()
            if left <= 0:
                raise timed_out(self._place, deadline_s)
            if self._input and self._channel.send_ready():
                self._write_some()
            elif not moved:
                self._wait(min(left, SLICE_S))
        status = self._channel.exit_status
        if status < 0:
            raise lost(self._place)
        return Completed(status, bytes(self._stdout), bytes(self._stderr))

    def _read_some(self) -> bool:
        moved = False
        if self._channel.recv_ready():
            chunk = self._channel.recv(1 << 16)
            self._stdout += chunk
            moved = bool(chunk)
        if self._channel.recv_stderr_ready():
            chunk = self._channel.recv_stderr(1 << 16)
            self._complaint_bytes += len(chunk)
            self._stderr = (self._stderr + chunk)[-STDERR_TAIL_BYTES:]
            moved = moved or bool(chunk)
        if len(self._stdout) > REMOTE_OUTPUT_MAX_BYTES or self._complaint_bytes > REMOTE_OUTPUT_MAX_BYTES:
            raise output_too_large(self._place, REMOTE_OUTPUT_MAX_BYTES)
        return moved

    def _is_over(self) -> bool:
        """A status is there, and so is the end of the output, or it had its time to come: something else may hold the stream open."""
        if not self._channel.exit_status_ready():
            return False
        now = self._clock.monotonic_s()
        if self._status_at_s is None:
            self._status_at_s = now
        return bool(self._channel.closed or self._channel.eof_received) or now - self._status_at_s > _EOF_GRACE_S

    def _write_some(self) -> None:
        try:
            sent = self._channel.send(bytes(self._input[:PIECE_BYTES]))
        except OSError:
            # The command ended without reading all of it; its status decides.
            self._input = self._input[:0]
            return
        self._input = self._input[sent:]
        if not self._input:
            with contextlib.suppress(*LOST):
                self._channel.shutdown_write()

    def _wait(self, seconds: float) -> None:
        if self._channel.eof_received or self._channel.closed:
            self._channel.status_event.wait(seconds)
        else:
            is_ready(self._channel.fileno(), timeout_s=0.05 if self._input else seconds)
