"""SSH as a transport: one connection a host for the whole run, one channel a command, uploads by SFTP.

Traps of the library that this module is built around: reading one stream after the other deadlocks beyond the window, `recv_exit_status`
ignores timeouts, a request that a host never answers waits for ever, a connection that dies under a command gives status -1 and no
exception, and SFTP cannot fsync (the bootstrap does).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import paramiko

from sbctl.base.clock import Clock
from sbctl.base.connection import Connection
from sbctl.base.errors import HostError, UnreachableError
from sbctl.base.file_slice import ByteSource
from sbctl.base.fs import disk_error
from sbctl.base.limits import REMOTE_OUTPUT_MAX_BYTES, SSH_CONNECT_DEADLINE_S
from sbctl.remote.bootstrap import FACTS, WORKER_PROGRAM, BootstrapWorker, compose_facts, new_marker, read_answer
from sbctl.remote.shell import command_line
from sbctl.remote.ssh_connect import connect, ssh_place
from sbctl.remote.transport import (
    STDERR_TAIL_BYTES,
    Channel,
    ChannelBroken,
    Completed,
    Progress,
    foreign_text,
    is_ready,
    lost,
    output_too_large,
    timed_out,
)

__all__ = ["SshChannel", "SshTransport"]

_PIECE_BYTES: Final = 32 * 1024
_SLICE_S: Final = 0.5
_EOF_GRACE_S: Final = 2.0
_NOISE_MAX_BYTES: Final = 64 * 1024
_STALL_S: Final = 30.0
_LOST: Final = (paramiko.SSHException, EOFError, OSError)

_ANNOUNCED: Final = ["/bin/sh", "-c", 'echo "$0"; exec "$@"']
"""Prints its first argument, then becomes the rest: what a login shell printed before it is not the program's."""


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
            self._channel.settimeout(max(0.001, min(_SLICE_S, left)))
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
        with contextlib.suppress(*_LOST):
            self._channel.shutdown_write()
        self._channel.close()

    def _drain(self) -> None:
        while self._channel.recv_stderr_ready():
            chunk = self._channel.recv_stderr(1 << 16)
            if not chunk:
                return
            self._complaints = (self._complaints + chunk)[-STDERR_TAIL_BYTES:]


class SshTransport:
    """One host over SSH; connected at the first use, and again after a cut."""

    def __init__(self, host: str, connection: Connection, clock: Clock) -> None:
        self._host = host
        self._connection = connection
        self._clock = clock
        self._place = ssh_place(host, connection)
        self._transport: paramiko.Transport | None = None
        self._files: paramiko.SFTPClient | None = None
        self._worker: BootstrapWorker | None = None
        self._worker_python = ""

    def bootstrap(
        self, command: str, params: Mapping[str, Any], *, python: str | None, deadline_s: float
    ) -> Mapping[str, Any]:
        if command == FACTS:
            marker = new_marker()
            done = self.run(
                [python or "python3", "-I", "-"], stdin=compose_facts(params, marker), deadline_s=deadline_s
            )
            return read_answer(done, marker, place=self._place)
        deadline = self._clock.monotonic_s() + deadline_s
        for attempt in range(2):
            left = max(0.0, deadline - self._clock.monotonic_s())
            try:
                return self._worker_on(python or "python3", left).ask(command, params, deadline_s=left)
            except ChannelBroken as broken:
                # One that was found dead when it was written to has lost nothing.
                if broken.sent or attempt:
                    raise
        raise AssertionError("two attempts end in a result or an error")

    def _worker_on(self, python: str, deadline_s: float) -> BootstrapWorker:
        if self._worker is None or not self._worker.open or not self._is_connected() or self._worker_python != python:
            self._end_worker()
            channel = self.open_channel([python, "-I", "-c", WORKER_PROGRAM], None, deadline_s=deadline_s)
            self._worker = BootstrapWorker(
                channel, new_marker(), place=self._place, clock=self._clock, deadline_s=deadline_s
            )
            self._worker_python = python
        return self._worker

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def run(self, argv: Sequence[str], *, stdin: bytes, deadline_s: float) -> Completed:
        """Run a command to its end. Raises UnreachableError (`remote.timeout`, `remote.lost`, `ssh.*`), HostError `remote.output_too_large`."""
        deadline = self._clock.monotonic_s() + deadline_s
        channel = self._start(command_line(argv), deadline_s)
        try:
            return _Run(channel, stdin, self._clock, self._place).finish(deadline, deadline_s)
        except TimeoutError as error:
            raise timed_out(self._place, deadline_s) from error
        except _LOST as error:
            raise lost(self._place) from error
        finally:
            channel.close()

    def open_channel(self, argv: Sequence[str], environment: Mapping[str, str] | None, *, deadline_s: float) -> Channel:
        marker = new_marker()
        line = command_line([*_ANNOUNCED, marker, *argv], environment=environment)
        channel = SshChannel(self._start(line, deadline_s), self._clock)
        try:
            self._skip_noise(channel, marker.encode("ascii") + b"\n", self._clock.monotonic_s() + deadline_s)
        except BaseException as error:
            channel.close()
            if isinstance(error, TimeoutError):
                raise timed_out(self._place, deadline_s) from error
            if isinstance(error, _LOST):
                raise lost(self._place) from error
            raise
        return channel

    def upload(self, source: ByteSource, target: str, *, deadline_s: float, progress: Progress) -> None:
        deadline = self._clock.monotonic_s() + deadline_s
        # Kept for the next file only if all goes well: after a cut in the middle of a pipeline nothing is known about the stream.
        sftp, self._files = self._sftp(deadline_s), None
        try:
            size, reader = source.stat().st_size, source.open("rb")
        except OSError as error:
            raise disk_error(error, str(source)) from error
        try:
            with reader:
                offset = _resumable(sftp, target, size)
                reader.seek(offset)
                with sftp.open(target, "r+b" if offset else "wb") as writer:
                    writer.seek(offset)
                    writer.set_pipelined(True)
                    while piece := reader.read(_PIECE_BYTES):
                        writer.write(piece)
                        offset += len(piece)
                        progress(offset, size)
                        if self._clock.monotonic_s() > deadline:
                            raise TimeoutError
            self._files = sftp
        except TimeoutError as error:
            raise timed_out(self._place, deadline_s) from error
        except (EOFError, paramiko.SSHException, ConnectionError) as error:
            raise lost(self._place) from error
        except (OSError, paramiko.SFTPError) as error:
            if not self._is_connected():
                raise lost(self._place) from error
            raise HostError(
                "put.failed",
                f"the host did not store the bytes: {foreign_text(str(error))}",
                place=f"{self._place}: {target}",
                next_step="check free space, quota and permissions there, then run the command again",
                retryable=True,
            ) from error
        finally:
            if self._files is None:
                with contextlib.suppress(*_LOST):
                    sftp.close()

    def close(self) -> None:
        self._end_worker()
        self._files = None
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def _is_connected(self) -> bool:
        return self._transport is not None and self._transport.is_active()

    def _connected(self) -> paramiko.Transport:
        if self._transport is None or not self._transport.is_active():
            self.close()
            self._transport = connect(self._host, self._connection)
        return self._transport

    def _start(self, line: str, deadline_s: float) -> paramiko.Channel:
        channel, transport = self._session_channel(deadline_s)
        with self._answer_expected(transport, deadline_s):
            try:
                channel.exec_command(line)
            except paramiko.SSHException as error:
                if not transport.is_active():
                    raise
                raise UnreachableError(
                    "ssh.command_refused",
                    "the host does not run commands for this user",
                    place=self._place,
                    next_step="allow the user a shell; a key with a forced command cannot be used",
                ) from error
        return channel

    def _sftp(self, deadline_s: float) -> paramiko.SFTPClient:
        if self._files is None or not self._is_connected():
            self._files = self._open_sftp(deadline_s)
        return self._files

    def _open_sftp(self, deadline_s: float) -> paramiko.SFTPClient:
        channel, transport = self._session_channel(deadline_s)
        with self._answer_expected(transport, deadline_s):
            try:
                channel.invoke_subsystem("sftp")
            except paramiko.SSHException as error:
                if not transport.is_active():
                    raise
                raise UnreachableError(
                    "ssh.no_sftp",
                    "the host offers no SFTP",
                    place=self._place,
                    next_step="enable it in the host's sshd_config: Subsystem sftp internal-sftp",
                ) from error
            channel.settimeout(_STALL_S)
            return paramiko.SFTPClient(channel)

    def _session_channel(self, deadline_s: float) -> tuple[paramiko.Channel, paramiko.Transport]:
        """A channel on which nothing was asked yet; a connection found dead here is opened again, once."""
        seconds = max(0.1, min(deadline_s, SSH_CONNECT_DEADLINE_S))
        for attempt in range(2):
            transport = self._connected()
            try:
                return transport.open_session(timeout=seconds), transport
            except _LOST as error:
                if isinstance(error, paramiko.ChannelException):
                    raise UnreachableError(
                        "ssh.channel_refused",
                        f"the host opens no channel: {foreign_text(error.text)}",
                        place=self._place,
                        next_step="raise MaxSessions in the host's sshd_config",
                    ) from error
                if transport.is_active():
                    self.close()
                    raise timed_out(self._place, seconds) from error
                if attempt:
                    raise lost(self._place) from error
        raise AssertionError("two attempts end in a channel or an error")

    @contextlib.contextmanager
    def _answer_expected(self, transport: paramiko.Transport, deadline_s: float) -> Iterator[None]:
        """The library waits for ever for the answer to a request: past the deadline the connection is closed under it."""
        seconds = max(0.1, min(deadline_s, _STALL_S))
        late = threading.Event()

        def give_up() -> None:
            late.set()
            transport.close()

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        except _LOST as error:
            raise (timed_out(self._place, seconds) if late.is_set() else lost(self._place)) from error
        finally:
            timer.cancel()

    def _skip_noise(self, channel: SshChannel, marker: bytes, deadline: float) -> None:
        seen = b""
        while not seen.endswith(marker):
            byte = channel.receive(1, deadline - self._clock.monotonic_s())
            seen = (seen + byte)[-_NOISE_MAX_BYTES:]
            if not byte:
                raise EOFError


def _resumable(sftp: paramiko.SFTPClient, target: str, size: int) -> int:
    """How many bytes of an earlier upload stand there; more than there should be is no beginning of it."""
    try:
        there = sftp.stat(target).st_size or 0
    except FileNotFoundError:
        return 0
    return there if there <= size else 0


class _Run:
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
                self._wait(min(left, _SLICE_S))
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
            sent = self._channel.send(bytes(self._input[:_PIECE_BYTES]))
        except OSError:
            # The command ended without reading all of it; its status decides.
            self._input = self._input[:0]
            return
        self._input = self._input[sent:]
        if not self._input:
            with contextlib.suppress(*_LOST):
                self._channel.shutdown_write()

    def _wait(self, seconds: float) -> None:
        if self._channel.eof_received or self._channel.closed:
            self._channel.status_event.wait(seconds)
        else:
            is_ready(self._channel.fileno(), timeout_s=0.05 if self._input else seconds)
