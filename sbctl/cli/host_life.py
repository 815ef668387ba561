"""A host's life beside applies: out of service and back, given up, taken in again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sbctl.base.connection import Connection
from sbctl.base.display import plural
from sbctl.base.errors import InputError, RefusedError, SbctlError
from sbctl.base.suggest import did_you_mean
from sbctl.base.truths import Recorded
from sbctl.cli.authority import authority_directory, revoke_newest
from sbctl.cli.cluster_acting import act, evacuated, worker_config
from sbctl.cli.fleet_hosts import recorded_connections, shown_address
from sbctl.cli.fleet_setup import held_state, require_yes
from sbctl.cli.last_seen import last_seen
from sbctl.cli.workspace import Workspace
from sbctl.node.messages import Method
from sbctl.remote.session import HostSession, open_session
from sbctl.state.model import Tombstone
from sbctl.state.operator import run_info, who
from sbctl.trust.authority import Authority
from sbctl.views.console import note

__all__ = ["Drained", "drain", "give_up_lost", "host_session", "recorded_on", "resume", "take_in_again"]

_ANSWER_S: Final = 30.0
_NOT_IN_CLUSTER: Final = ("unknown_node", "cluster.not_a_node")


@dataclass(frozen=True, slots=True)
class Drained:
    """`running`: a runtime runs there; `active_requests` still run on it. `evacuated`: as a worker of a cluster it was emptied first."""

    host: str
    running: bool
    active_requests: int
    evacuated: bool = False

    @property
    def finished(self) -> bool:
        return not self.active_requests


def _connection(workspace: Workspace, host: str) -> Connection:
    """By sb.yml, else as the last apply reached it. Raises InputError `host.unknown`."""
    known = recorded_connections(workspace)
    if workspace.file.exists():
        with contextlib.suppress(SbctlError):
            known.update({name: one.connection for name, one in workspace.loaded.hosts.items()})
    if host not in known:
        close = did_you_mean(host, known)
        raise InputError(
            "host.unknown",
            f"there is no host {host}",
            place=str(workspace.file),
            next_step=f'did you mean "{close}"?' if close else "sbctl host list names the hosts",
        )
    return known[host]


@contextlib.contextmanager
def host_session(workspace: Workspace, host: str) -> Iterator[HostSession]:
    """A session with one host, for as long as the block lasts. Raises InputError `host.unknown`, UnreachableError."""
    connection = _connection(workspace, host)
    secrets = workspace.login_secrets.prepared([connection])
    session = open_session(host, connection, clock=workspace.clock, environ=workspace.environ, secrets=secrets)
    try:
        yield session
    finally:
        session.close()


def _call(session: HostSession, method: Method, params: Mapping[str, Any], deadline_s: float) -> Mapping[str, Any]:
    return session.call(method, params, secrets={}, deadline_s=deadline_s, progress=lambda _done, _total: None)


def drain(workspace: Workspace, host: str, *, deadline_s: float) -> Drained:
    """Out of service until `resume`; waits at most `deadline_s` for what runs. A worker of a cluster is evacuated, as by `cluster evacuate`, which
    is no outage; only where it is a gateway or an authority too, requests are then turned away.

    Raises UnreachableError, HostError, with `cluster.evacuation_unfinished`: the host is in service then.
    """
    emptied = _evacuated(workspace, host, deadline_s)
    if emptied and _is_worker_alone(workspace, host):
        return Drained(host, True, 0, evacuated=True)
    params = {"by": who(workspace.environ), "deadline_s": deadline_s}
    with host_session(workspace, host) as session:
        told = _call(session, Method.HOST_DRAIN, params, deadline_s + _ANSWER_S)
    return Drained(host, bool(told.get("running")), int(told.get("active_requests") or 0), evacuated=emptied)


def _evacuated(workspace: Workspace, host: str, deadline_s: float) -> bool:
    """False for a host that is no worker of a cluster, or that its cluster never heard of."""
    if worker_config(workspace, host) is None:
        return False
    try:
        acted = act(workspace, "evacuate", host, reason="host drain", wait_s=deadline_s, told=note)
    except RefusedError as error:
        if error.code in _NOT_IN_CLUSTER:
            return False
        raise
    evacuated(host, acted.left or (), deadline_s)
    return True


def _is_worker_alone(workspace: Workspace, host: str) -> bool:
    config = worker_config(workspace, host)
    return config is not None and set(config.hosts[host].roles) == {"worker"}


def resume(workspace: Workspace, host: str) -> bool:
    """Into service again, in its cluster too; False when it was not out of it. Raises UnreachableError, HostError."""
    restored = False
    if worker_config(workspace, host) is not None:
        try:
            restored = act(workspace, "restore", host, reason="host resume").answer.changed
        except RefusedError as error:
            if error.code not in _NOT_IN_CLUSTER:
                raise
    with host_session(workspace, host) as session:
        was_drained = _call(session, Method.HOST_RESUME, {"persistent": True}, _ANSWER_S).get("was_drained")
    return restored or bool(was_drained)


def recorded_on(workspace: Workspace, host: str) -> tuple[Recorded, ...]:
    """Everything the state knows on a host. Raises InputError `host.unknown` where there is nothing."""
    found = tuple(one for one in workspace.require_state().resources.values() if one.host == host)
    if not found:
        _connection(workspace, host)
        raise InputError(
            "host.nothing_recorded",
            f"nothing was applied to {host}, so there is nothing to forget",
            place=f"host.{host}",
            next_step="take it out of sb.yml",
        )
    return found


def give_up_lost(
    workspace: Workspace, host: str, *, why: str, assume_yes: bool, lock_timeout_s: float
) -> tuple[Recorded, ...]:
    """Forget a host that nobody can reach, without asking it: its identity is revoked, a tombstone stays. Returns what was forgotten.

    Raises LockedError, InputError, RefusedError `apply.not_confirmed`, and what keeps its identity from being revoked: then nothing changed.
    """
    with held_state(workspace, "sbctl host forget", lock_timeout_s):
        found = recorded_on(workspace, host)
        require_yes(
            f"Give up {host} ({shown_address(found[0].connection)}) with {plural(len(found), 'resource')}, without reaching it? (yes/no) ",
            assume_yes=assume_yes,
        )
        certificate = next((one.record for one in found if one.address.kind == "certificate"), {})
        if certificate and not _has_own_pki(workspace):
            authority = Authority.open(authority_directory(workspace))
            revoke_newest(authority, host, certificate, reason=why or "given up as lost", now=workspace.clock.now())
        seen = last_seen(workspace).get(host)
        workspace.store.bury(
            Tombstone(
                host=host,
                lineage=workspace.lineage,
                serial=0,
                at=workspace.clock.now(),
                why=why,
                machine_id=seen.machine_id if seen is not None else "",
                address=found[0].connection.address,
                resources=tuple(sorted(str(one.address) for one in found)),
                certificate=certificate,
            ),
            run_info("host forget", workspace.environ, workspace.directory),
        )
        workspace.forget()
    return found


def _has_own_pki(workspace: Workspace) -> bool:
    """Then revoking is that PKI's to do; the tombstone alone keeps the host out here."""
    identity = workspace.loaded.identity if workspace.file.exists() else None
    return identity is not None and identity.own is not None


def take_in_again(workspace: Workspace, host: str, *, lock_timeout_s: float) -> None:
    """Let a host come back that was given up as lost. Raises LockedError, StateError `state.no_tombstone`."""
    with held_state(workspace, "sbctl host forget --undo", lock_timeout_s):
        tombstone = workspace.require_state().tombstones.get(host)
        if tombstone is not None and tombstone.certificate and not _has_own_pki(workspace):
            Authority.open(authority_directory(workspace)).rotate([host])
        workspace.store.readmit(host, run_info("host forget", workspace.environ, workspace.directory))
        workspace.forget()
