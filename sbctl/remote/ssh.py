"""SSH as a transport: one connection a host for the whole run, one channel a command, uploads by SFTP.

A request that a host never answers waits for ever in the library, and SFTP cannot fsync (the bootstrap does). With `become` every program
runs as root through sudo, and uploads go through the bootstrap's own process, since SFTP stays the login's.
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
from sbctl.base.limits import SSH_CONNECT_DEADLINE_S
from sbctl.remote.bootstrap import FACTS, WORKER_PROGRAM, BootstrapWorker, compose_facts, new_marker, read_answer
from sbctl.remote.secrets import SecretSource, no_secrets, sudo_question
from sbctl.remote.shell import command_line
from sbctl.remote.ssh_channel import LOST, PIECE_BYTES, CommandRun, SshChannel, close_quietly
from sbctl.remote.ssh_connect import hop_place
from sbctl.remote.ssh_links import SshLinks
from sbctl.remote.sudo import SudoDialogue, sudo_words
from sbctl.remote.transport import Channel, ChannelBroken, Completed, Progress, foreign_text, lost, timed_out
from sbctl.remote.upload import send_blob

__all__ = ["SshTransport"]

_STALL_S: Final = 30.0
_STATUS_WAIT_S: Final = 2.0

_ANNOUNCED: Final = ["/bin/sh", "-c", 'echo "$0"; exec "$@"']
"""Prints its first argument, then becomes the rest: what a login shell printed before it is not the program's."""


class SshTransport:
    """One host over SSH; connected at the first use, and again after a cut."""

    def __init__(
        self,
        host: str,
        connection: Connection,
        clock: Clock,
        links: SshLinks | None = None,
        secrets: SecretSource = no_secrets,
    ) -> None:
        """`links` are those of the run, closed by who made them; without, this transport has its own, which ask `secrets`."""
        self._path = connection.path(host)
        self._connection = connection
        self._clock = clock
        self._links = links or SshLinks(clock, secrets)
        self._owns_links = links is None
        self._place = hop_place(self._path)
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
        if self._connection.become:
            channel = self._start_announced(argv, None, deadline_s)[0]
        else:
            channel = self._start(command_line(argv), deadline_s)
        try:
            return CommandRun(channel, stdin, self._clock, self._place).finish(deadline, deadline_s)
        except TimeoutError as error:
            raise timed_out(self._place, deadline_s) from error
        except LOST as error:
            raise lost(self._place) from error
        finally:
            close_quietly(channel)

    def open_channel(self, argv: Sequence[str], environment: Mapping[str, str] | None, *, deadline_s: float) -> Channel:
        return self._start_announced(argv, environment, deadline_s)[1]

    def _start_announced(
        self, argv: Sequence[str], environment: Mapping[str, str] | None, deadline_s: float
    ) -> tuple[paramiko.Channel, SshChannel]:
        """A program whose output begins here: what a login shell or sudo said before it is read, and sudo has its password."""
        deadline = self._clock.monotonic_s() + deadline_s
        marker, prompt = new_marker(), new_marker() if self._connection.become_password else None
        before = sudo_words(prompt) if self._connection.become else []
        password = self._password() if prompt is not None else b""
        dialogue = SudoDialogue(prompt, place=self._place, user=self._connection.user, password=password)
        line = command_line([*_ANNOUNCED, marker, *argv], environment=environment, before=before)
        started = self._start(line, deadline_s)
        channel = SshChannel(started, self._clock)
        try:
            channel.skip_to(
                marker.encode("ascii") + b"\n",
                deadline - self._clock.monotonic_s(),
                hear=lambda said: password + b"\n" if dialogue.hear(said) else b"",
            )
        except BaseException as error:
            status = channel.ended(_STATUS_WAIT_S) if isinstance(error, EOFError) else None
            channel.close()
            if isinstance(error, TimeoutError):
                raise timed_out(self._place, deadline_s) from error
            if isinstance(error, EOFError) and status is not None and self._connection.become:
                raise dialogue.failure(status) from error
            if isinstance(error, LOST):
                raise lost(self._place) from error
            raise
        return started, channel

    def _password(self) -> bytes:
        question = sudo_question(self._connection.user)
        return self._links.keyring.secrets(self._connection.become_password, question).reveal()

    def upload(self, source: ByteSource, target: str, *, deadline_s: float, progress: Progress) -> None:
        deadline = self._clock.monotonic_s() + deadline_s
        if self._connection.become:
            worker = self._worker_on(self._worker_python or "python3", deadline_s)
            send_blob(worker, source, target, deadline_s=deadline_s, progress=progress)
            return
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
                    while piece := reader.read(PIECE_BYTES):
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
                with contextlib.suppress(*LOST):
                    sftp.close()

    def close(self) -> None:
        self._disconnect()
        if self._owns_links:
            self._links.close()

    def _disconnect(self) -> None:
        self._end_worker()
        self._files = None
        if self._transport is not None:
            close_quietly(self._transport)
            self._transport = None

    def _is_connected(self) -> bool:
        return self._transport is not None and self._transport.is_active()

    def _connected(self, deadline_s: float) -> paramiko.Transport:
        if self._transport is None or not self._transport.is_active():
            self._disconnect()
            self._transport = self._links.connect(self._path, deadline_s=deadline_s)
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
            transport = self._connected(deadline_s)
            asked_at_s = self._clock.monotonic_s()
            try:
                return transport.open_session(timeout=seconds), transport
            except LOST as error:
                if isinstance(error, paramiko.ChannelException):
                    raise UnreachableError(
                        "ssh.channel_refused",
                        f"the host opens no channel: {foreign_text(error.text)}",
                        place=self._place,
                        next_step="raise MaxSessions in the host's sshd_config",
                    ) from error
                # A write may meet the end of a connection before its reader does: only time tells silence from an end.
                self._disconnect()
                if self._clock.monotonic_s() - asked_at_s >= seconds:
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
            close_quietly(transport)

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        except LOST as error:
            raise (timed_out(self._place, seconds) if late.is_set() else lost(self._place)) from error
        finally:
            timer.cancel()


def _resumable(sftp: paramiko.SFTPClient, target: str, size: int) -> int:
    """How many bytes of an earlier upload stand there; more than there should be is no beginning of it."""
    try:
        there = sftp.stat(target).st_size or 0
    except FileNotFoundError:
        return 0
    return there if there <= size else 0
