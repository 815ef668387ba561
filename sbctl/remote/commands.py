"""One command of the operator's on a host, here or over SSH: both streams capped, a deadline for the whole, nothing on its input."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Final

from sbctl.base.clock import Clock
from sbctl.base.connection import Connection
from sbctl.base.errors import HostError
from sbctl.base.limits import REMOTE_OUTPUT_MAX_BYTES
from sbctl.remote.ssh_links import SshLinks
from sbctl.remote.transport import STDERR_TAIL_BYTES, Completed, output_too_large, timed_out

__all__ = ["run_here", "run_on_host"]

_END_GRACE_S: Final = 5.0

Begun = Callable[[Callable[[], None]], None]


def _nobody_ends_it(_end: Callable[[], None]) -> None:
    """For who waits to the end."""


def _end(process: subprocess.Popen[bytes]) -> None:
    """With its whole group; not once it has ended, since its number may be another's by then."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def run_on_host(
    host: str,
    connection: Connection,
    argv: Sequence[str],
    *,
    clock: Clock,
    links: SshLinks,
    environ: Mapping[str, str],
    deadline_s: float,
    begun: Begun = _nobody_ends_it,
) -> Completed:
    """Run `argv` to its end; as root where the login becomes root. `environ` is the operator's environment, for the local machine only;
    `begun` is given what ends the command early, from any thread: then this raises, or returns what a signal left.

    Raises UnreachableError (`remote.timeout`, `remote.lost`, `ssh.*`), HostError `remote.output_too_large`, `exec.not_started`, InputError
    `shell.refused`.
    """
    if connection.kind == "local":
        return run_here(host, argv, environ=environ, deadline_s=deadline_s, begun=begun)
    from sbctl.remote.ssh import SshTransport

    transport = SshTransport(host, connection, clock, links)
    begun(transport.close)
    try:
        return transport.run(argv, stdin=b"", deadline_s=deadline_s)
    finally:
        transport.close()


def run_here(
    host: str,
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    deadline_s: float,
    begun: Begun = _nobody_ends_it,
) -> Completed:
    """On this machine, as its operator; whatever the command started ends with the deadline."""
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            close_fds=True,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        what = (
            error.strerror
            if isinstance(error, OSError) and error.strerror
            else "it holds a character that no command has"
        )
        raise HostError(
            "exec.not_started",
            f"the command could not be started: {what}",
            place=host,
            next_step="see that the program is on this machine and may be executed",
        ) from error
    assert process.stdout is not None
    assert process.stderr is not None
    out, complaints = _Pump(process.stdout, REMOTE_OUTPUT_MAX_BYTES), _Pump(process.stderr, REMOTE_OUTPUT_MAX_BYTES)
    begun(lambda: _end(process))
    try:
        status = process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        raise timed_out(host, deadline_s) from None
    finally:
        _end(process)
        process.wait()
        out.end()
        complaints.end()
    if out.overflowed or complaints.overflowed:
        raise output_too_large(host, REMOTE_OUTPUT_MAX_BYTES)
    return Completed(
        status if status >= 0 else 128 - status, bytes(out.data), bytes(complaints.data[-STDERR_TAIL_BYTES:])
    )


class _Pump:
    """Reads a stream to its end; beyond the cap it reads on and keeps nothing."""

    def __init__(self, stream: IO[bytes], cap_bytes: int) -> None:
        self.data = bytearray()
        self.overflowed = False
        self._stream = stream
        self._cap_bytes = cap_bytes
        self._thread = threading.Thread(target=self._read, daemon=True, name="exec-output")
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(self._stream.fileno(), 1 << 16):
                if len(self.data) + len(chunk) > self._cap_bytes:
                    self.overflowed = True
                else:
                    self.data += chunk

    def end(self) -> None:
        self._thread.join(_END_GRACE_S)
        self._stream.close()
