"""An SSH server on loopback that does what a host should not: strange banners, endless output, silence, sudden ends, lies.

`HostileSsh` speaks real SSH. What happens for a command is decided by a `Behaviour`, a function that owns the channel. `CuttingProxy` stands
before any server and ends each connection after a number of bytes.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

import paramiko

from sbctl.base.connection import Connection

__all__ = [
    "Behaviour",
    "CuttingProxy",
    "HostileSsh",
    "close_without_status",
    "endless",
    "flood_both_streams",
    "never_ends",
    "prints",
    "runs_here",
    "trickles",
    "worker_that_answers",
]

Behaviour = Callable[[paramiko.Channel, str, threading.Event], None]
"""Gets the channel, the command line, and the event that is set when the server ends."""


def prints(stdout: bytes, stderr: bytes = b"", status: int = 0) -> Behaviour:
    def behave(channel: paramiko.Channel, _command: str, _ended: threading.Event) -> None:
        channel.sendall(stdout)
        channel.sendall_stderr(stderr)
        channel.send_exit_status(status)

    return behave


def flood_both_streams(channel: paramiko.Channel, _command: str, _ended: threading.Event) -> None:
    """5 MB on each stream, which deadlocks a reader of one after the other."""
    for _ in range(80):
        channel.sendall(b"o" * 65536)
        channel.sendall_stderr(b"e" * 65536)
    channel.send_exit_status(0)


def endless(channel: paramiko.Channel, _command: str, ended: threading.Event) -> None:
    while not ended.is_set():
        channel.sendall(b"y\n" * 4096)


def trickles(channel: paramiko.Channel, _command: str, ended: threading.Event) -> None:
    while not ended.wait(0.05):
        channel.sendall(b".")


def never_ends(_channel: paramiko.Channel, _command: str, ended: threading.Event) -> None:
    ended.wait()


def close_without_status(channel: paramiko.Channel, _command: str, _ended: threading.Event) -> None:
    channel.sendall(b"almost")


def runs_here(environment: Mapping[str, str]) -> Behaviour:
    """An honest host: the command runs on this machine with this environment, its streams pass as they come."""

    def behave(channel: paramiko.Channel, command: str, _ended: threading.Event) -> None:
        with subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            bufsize=0,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            threading.Thread(target=_feed, args=(channel, process.stdin), daemon=True).start()
            pumps = [
                threading.Thread(target=_pump, args=(process.stdout, channel.sendall), daemon=True),
                threading.Thread(target=_pump, args=(process.stderr, channel.sendall_stderr), daemon=True),
            ]
            for pump in pumps:
                pump.start()
            for pump in pumps:
                pump.join()
            process.wait()
        channel.send_exit_status(process.returncode)

    return behave


def _feed(channel: paramiko.Channel, sink: IO[bytes]) -> None:
    with contextlib.suppress(OSError, EOFError, ValueError, paramiko.SSHException):
        while data := channel.recv(1 << 16):
            sink.write(data)
        sink.close()


def _pump(source: IO[bytes], sink: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        while data := source.read(1 << 16):
            sink(data)


def worker_that_answers(environment: Mapping[str, str], lie: Callable[[paramiko.Channel, bytes], None]) -> Behaviour:
    """Facts are honest; where a worker is asked for, `lie` gets the channel and the marker once a command has arrived."""
    honest = runs_here(environment)

    def behave(channel: paramiko.Channel, command: str, ended: threading.Event) -> None:
        if "exec(sys.stdin" not in command:
            honest(channel, command, ended)
            return
        channel.sendall(_announcement(command) + b"\n")
        received = b""
        while b'"command"' not in received:
            received += channel.recv(1 << 16)
        start = received.rindex(b"last.serve('") + len(b"last.serve('")
        lie(channel, received[start : received.index(b"'", start)])

    return behave


def _announcement(command: str) -> bytes:
    """The word that the client expects before the program's own output."""
    words = shlex.split(command)
    return words[words.index("-c") + 2].encode()


@dataclass
class Seen:
    """What clients did."""

    connections: int = 0
    auth_attempts: list[tuple[str, str, str]] = field(default_factory=list)
    """(method, user, key fingerprint)"""
    agent_requests: int = 0
    commands: list[str] = field(default_factory=list)
    starting: int = 0
    """Connections that nobody has logged in to yet, and the most there were."""
    starting_most: int = 0
    destinations: list[tuple[str, int]] = field(default_factory=list)
    """Where clients wanted to be connected to."""


class _Server(paramiko.ServerInterface):
    def __init__(self, owner: HostileSsh) -> None:
        self._owner = owner
        self.wanted: dict[int, socket.socket] = {}

    def get_banner(self) -> tuple[str | None, str | None]:
        return (self._owner.banner, "en-US") if self._owner.banner else (None, None)

    def get_allowed_auths(self, username: str) -> str:
        return "publickey,password"

    def check_auth_none(self, username: str) -> int:
        self._owner.seen.auth_attempts.append(("none", username, ""))
        return paramiko.AUTH_FAILED

    def check_auth_password(self, username: str, password: str) -> int:
        self._owner.seen.auth_attempts.append(("password", username, ""))
        return paramiko.AUTH_FAILED

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self._owner.seen.auth_attempts.append(("publickey", username, key.fingerprint))
        if self._owner.ends_at_login:
            self._owner.drop_everybody()
        if self._owner.silent_at_login:
            self._owner.ended.wait()
        allowed = key.fingerprint == self._owner.client_key.fingerprint and not self._owner.refuses_everybody
        if allowed:
            with self._owner.lock:
                self._owner.seen.starting -= 1
        return paramiko.AUTH_SUCCESSFUL if allowed else paramiko.AUTH_FAILED

    def check_channel_direct_tcpip_request(
        self, chanid: int, origin: tuple[str, int], destination: tuple[str, int]
    ) -> int:
        owner = self._owner
        owner.seen.destinations.append(destination)
        if owner.never_answers_requests:
            owner.ended.wait()
        if owner.leads_to is None:
            return paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED
        try:
            there = socket.create_connection(owner.leads_to(destination))
        except OSError:
            return paramiko.OPEN_FAILED_CONNECT_FAILED
        self.wanted[chanid] = there
        return paramiko.OPEN_SUCCEEDED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if self._owner.opens_no_channels:
            return paramiko.OPEN_FAILED_RESOURCE_SHORTAGE
        return paramiko.OPEN_SUCCEEDED

    def check_channel_forward_agent_request(self, channel: paramiko.Channel) -> bool:
        self._owner.seen.agent_requests += 1
        return False

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        owner = self._owner
        if owner.never_answers_requests:
            owner.ended.wait()
            return False
        if owner.refuses_commands:
            return False
        line = command.decode()
        owner.seen.commands.append(line)
        owner.start_thread(lambda: self._behave(channel, line))
        return True

    def _behave(self, channel: paramiko.Channel, line: str) -> None:
        # The client must have had its answer to the request first.
        self._owner.ended.wait(0.01)
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._owner.behaviour(channel, line, self._owner.ended)
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            channel.close()


class HostileSsh:
    """A context manager. `connection` is how sbctl reaches it, pinned to its true key."""

    def __init__(self, directory: Path, behaviour: Behaviour = never_ends, *, banner: str = "") -> None:
        self.behaviour = behaviour
        self.banner = banner
        self.refuses_everybody = False
        self.ends_at_login = False
        self.silent_at_login = False
        self.opens_no_channels = False
        self.refuses_commands = False
        self.never_answers_requests = False
        self.leads_to: Callable[[tuple[str, int]], tuple[str, int]] | None = None
        """As a jump: where it connects a client who wants to get to an address; None: it connects nobody."""
        self.lock = threading.Lock()
        self.host_key: paramiko.PKey = paramiko.ECDSAKey.generate()
        self.client_key: paramiko.PKey = paramiko.ECDSAKey.generate()
        self.identity_file = directory / "client_key"
        self.client_key.write_private_key_file(str(self.identity_file))
        self.seen = Seen()
        self.ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._transports: list[paramiko.Transport] = []
        self._listener = socket.create_server(("127.0.0.1", 0))

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def connection(self) -> Connection:
        return Connection("ssh", "127.0.0.1", self.port, "ops", (self.host_key.fingerprint,), str(self.identity_file))

    def drop_everybody(self) -> None:
        """End every connection, as a reboot does."""
        for transport in self._transports:
            transport.close()

    def start_thread(self, work: Callable[[], None]) -> None:
        """The other side may go away at any moment: what then fails is what the test is about, not a fault of its own."""

        def quietly() -> None:
            with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                work()

        thread = threading.Thread(target=quietly, daemon=True)
        self._threads.append(thread)
        thread.start()

    def __enter__(self) -> Self:
        self.start_thread(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for transport in self._transports:
            transport.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while not self.ended.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self.lock:
                self.seen.connections += 1
                self.seen.starting += 1
                self.seen.starting_most = max(self.seen.starting_most, self.seen.starting)
            transport = paramiko.Transport(client)
            transport.add_server_key(self.host_key)
            self._transports.append(transport)
            self.start_thread(lambda transport=transport: self._serve(transport))

    def _serve(self, transport: paramiko.Transport) -> None:
        server = _Server(self)
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            transport.start_server(server=server)
        while self.leads_to is not None and transport.is_active():
            channel = transport.accept(0.05)
            there = server.wanted.pop(channel.get_id(), None) if channel is not None else None
            if channel is not None and there is not None:
                self.start_thread(lambda channel=channel, there=there: _relay(channel, there))


def _relay(channel: paramiko.Channel, there: socket.socket) -> None:
    def back() -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            while data := there.recv(1 << 16):
                channel.sendall(data)
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            channel.close()

    threading.Thread(target=back, daemon=True).start()
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        while data := channel.recv(1 << 16):
            there.sendall(data)
    _end(there)


class CuttingProxy:
    """Passes bytes both ways and ends a connection after `cut_after` of them; None never does. A context manager."""

    def __init__(self, target_port: int) -> None:
        self.cut_after: int | None = None
        self.passed = 0
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for side in self._open:
            _end(side)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                _end(client)
                continue
            self._open += [client, server]
            budget = [self.cut_after]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(source, sink, budget), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, budget: list[int | None]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.passed += len(data)
                left = budget[0]
                if left is not None:
                    budget[0] = left - len(data)
                    if len(data) >= left:
                        sink.sendall(data[:left])
                        break
                sink.sendall(data)
        _end(source)
        _end(sink)


def _end(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)
    side.close()


def honest_environment(prefix: Path) -> dict[str, str]:
    """What commands see on a host whose files live below `prefix`."""
    return {"PATH": os.environ["PATH"], "HOME": str(prefix), "SBCTL_NODE_PREFIX": str(prefix)}
