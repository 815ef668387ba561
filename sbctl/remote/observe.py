"""One snapshot of every host, in parallel: no host is left out of the result, and no host's failure touches another's.

Starts are bounded apart from everything else, because an sshd refuses connections beyond its MaxStartups. What may pass by itself (a
connection that was cut during the handshake, a name server that did not answer) is tried again; a host key or a login never is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from sbctl.base.clock import Clock
from sbctl.base.connection import Connection
from sbctl.base.errors import HostError, SbctlError, UnreachableError
from sbctl.base.limits import CONNECT_MAX_PARALLEL, SETTLE_DEADLINE_S, SNAPSHOT_DEADLINE_S, STARTING_WAIT_S
from sbctl.node.snapshot import NodeSnapshot
from sbctl.remote.secrets import SecretSource, no_secrets
from sbctl.remote.session import HostSession, open_session
from sbctl.remote.transport import PASSING, timed_out

if TYPE_CHECKING:
    from sbctl.remote.ssh_links import SshLinks

__all__ = ["FleetObservation", "observe_fleet"]

_ATTEMPTS: Final = 3
_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class FleetObservation:
    """Every host is in exactly one of `snapshots` and `unreachable`; `sessions` has one for each, open where it answered.

    A context manager: at the end of the block the sessions are closed.
    """

    snapshots: Mapping[str, NodeSnapshot]
    unreachable: Mapping[str, UnreachableError | HostError]
    sessions: Mapping[str, HostSession]
    seconds: float
    """How long asking took."""
    links: SshLinks | None = None
    """The SSH connections of this run, for sessions that are opened later; None when no host is reached over SSH."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every session, then what they shared. Never raises."""
        for session in self.sessions.values():
            session.close()
        if self.links is not None:
            self.links.close()


def observe_fleet(
    connections: Mapping[str, Connection],
    *,
    clock: Clock,
    max_parallel: int = CONNECT_MAX_PARALLEL,
    deadline_s: float = SNAPSHOT_DEADLINE_S,
    pythons: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    settle: Callable[[str], None] | None = None,
    secrets: SecretSource = no_secrets,
) -> FleetObservation:
    """Ask all hosts; returns when each has answered or failed, at most `deadline_s` after its turn came.

    With `settle`, a host whose runtime is starting, or still at work on a bundle, is called by its name and asked again until that is over,
    for at most STARTING_WAIT_S or SETTLE_DEADLINE_S: only for who holds the lock, since then the work is that of an operator who is gone.

    `pythons` names an interpreter for hosts where the operator did; `environ` is the operator's environment, for the local machine only. `secrets` gives
    the passwords that logins ask for.
    """
    named = pythons or {}
    begun = clock.monotonic_s()
    links = _links(connections, clock, secrets)
    sessions = {
        host: open_session(host, connection, clock=clock, python=named.get(host), environ=environ, links=links)
        for host, connection in connections.items()
    }

    def observe(host: str) -> NodeSnapshot | UnreachableError | HostError:
        return _observed(host, sessions[host], clock, deadline_s, settle)

    with ThreadPoolExecutor(
        max_workers=max(1, min(max_parallel, len(connections))), thread_name_prefix="observe"
    ) as pool:
        answers = dict(zip(connections, pool.map(observe, connections), strict=True))
    return FleetObservation(
        {host: answer for host, answer in answers.items() if isinstance(answer, NodeSnapshot)},
        {host: answer for host, answer in answers.items() if not isinstance(answer, NodeSnapshot)},
        sessions,
        clock.monotonic_s() - begun,
        links,
    )


def _observed(
    host: str, session: HostSession, clock: Clock, deadline_s: float, settle: Callable[[str], None] | None
) -> NodeSnapshot | UnreachableError | HostError:
    """What the host says, or why it says nothing; then its session is closed."""
    failure: UnreachableError | HostError
    try:
        found = _snapshot(session, clock, deadline_s)
        if settle is not None and _unrest_s(found):
            settle(host)
            found = _settled(session, clock, deadline_s)
        return found
    except (UnreachableError, HostError) as error:
        failure = error
    except SbctlError as error:
        failure = HostError(error.code, error.message, place=error.place or host, next_step=error.next_step)
    except Exception as error:  # noqa: BLE001 - a fault in one host's answer must not hide the others
        failure = HostError(
            "host.observe_failed",
            f"{type(error).__name__}: {error}",
            place=host,
            next_step="run the command again; if it stays so, see what sbctl doctor says of the host",
        )
    session.close()
    return failure


def _links(connections: Mapping[str, Connection], clock: Clock, secrets: SecretSource) -> SshLinks | None:
    if all(connection.kind == "local" for connection in connections.values()):
        return None
    from sbctl.remote.ssh_links import SshLinks

    return SshLinks(clock, secrets)


def _unrest_s(found: NodeSnapshot) -> float:
    """For how long it is worth waiting, since what is seen will be different by itself."""
    if found.runtime.changing:
        return SETTLE_DEADLINE_S
    return STARTING_WAIT_S if found.runtime.running and not found.runtime.healthy else 0.0


def _settled(session: HostSession, clock: Clock, deadline_s: float) -> NodeSnapshot:
    begun = clock.monotonic_s()
    while True:
        clock.sleep_s(_PAUSE_S)
        found = _snapshot(session, clock, deadline_s)
        if clock.monotonic_s() - begun >= _unrest_s(found):
            return found


def _snapshot(session: HostSession, clock: Clock, deadline_s: float) -> NodeSnapshot:
    deadline = clock.monotonic_s() + deadline_s
    attempt = 1
    while True:
        left = deadline - clock.monotonic_s()
        try:
            return session.snapshot(max(0.0, left))
        except UnreachableError as error:
            if error.code == "remote.timeout":
                raise timed_out(error.place or session.host, deadline_s) from error
            pause = _PAUSE_S * attempt * (0.5 + random.random())  # noqa: S311 - jitter
            if error.code not in PASSING or attempt == _ATTEMPTS or left <= pause:
                raise
            clock.sleep_s(pause)
            attempt += 1
