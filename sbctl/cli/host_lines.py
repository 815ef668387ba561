"""A line to each host for as long as a command looks at the fleet: opened when first asked, opened anew after it broke."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sbctl.base.connection import Connection
from sbctl.base.errors import HostError, SbctlError
from sbctl.cli.workspace import Workspace
from sbctl.remote.session import HostSession, open_session

if TYPE_CHECKING:
    from sbctl.remote.ssh_links import SshLinks

__all__ = ["HostLines", "Lines", "fleet_lines"]

_Answer = TypeVar("_Answer")


class Lines(Protocol):
    """How a fleet is looked at. Threads: one a host."""

    def ask(self, host: str, work: Callable[[HostSession], _Answer]) -> _Answer:
        """What `work` makes of a session to `host`. Raises SbctlError; the next call begins with a new session then."""
        ...

    def close(self) -> None:
        """End all of them, from any thread: who waits for an answer gets an error. Never raises."""
        ...


class HostLines:
    """As `Lines` promises, by `opened`, which makes a session that connects when first used."""

    def __init__(self, opened: Callable[[str], HostSession], links: SshLinks | None = None) -> None:
        self._opened = opened
        self._links = links
        self._sessions: dict[str, HostSession] = {}
        self._lock = threading.Lock()

    def ask(self, host: str, work: Callable[[HostSession], _Answer]) -> _Answer:
        """Whatever fails in a session ends it; the reason is told, never a traceback of one host."""
        with self._lock:
            session = self._sessions.get(host)
        if session is None:
            session = self._opened(host)
            with self._lock:
                self._sessions[host] = session
        try:
            return work(session)
        except BaseException as error:
            self._drop(host)
            if isinstance(error, SbctlError) or not isinstance(error, Exception):
                raise
            raise HostError(
                "host.observe_failed",
                f"{type(error).__name__}: {error}",
                place=host,
                next_step="run the command again; if it stays so, see what sbctl doctor says of the host",
            ) from error

    def close(self) -> None:
        """The connections go first, so that nobody waits for a host that is slow to say goodbye."""
        if self._links is not None:
            self._links.close()
        with self._lock:
            hosts = list(self._sessions)
        for host in hosts:
            self._drop(host)

    def _drop(self, host: str) -> None:
        with self._lock:
            session = self._sessions.pop(host, None)
        if session is not None:
            session.close()


def fleet_lines(workspace: Workspace, connections: Mapping[str, Connection], pythons: Mapping[str, str]) -> HostLines:
    """For hosts by their connections; whatever a person has to be asked for logins is asked now. `pythons` as in `observe_fleet`."""
    secrets = workspace.login_secrets.prepared(connections.values())
    links: Any = None
    if any(connection.kind == "ssh" for connection in connections.values()):
        from sbctl.remote.ssh_links import SshLinks

        links = SshLinks(workspace.clock, secrets)

    def opened(host: str) -> HostSession:
        return open_session(
            host,
            connections[host],
            clock=workspace.clock,
            python=pythons.get(host),
            environ=workspace.environ,
            links=links,
            secrets=secrets,
        )

    return HostLines(opened, links)
