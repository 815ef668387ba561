"""`host list`: what sb.yml, the state and (when asked) the hosts themselves say of each host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sbctl.base.connection import Connection
from sbctl.base.errors import InputError
from sbctl.cli.workspace import Workspace
from sbctl.config.compiled import CompiledConfig
from sbctl.config.load import load
from sbctl.views.fleet_hosts import HostRow

__all__ = ["host_rows", "recorded_connections", "shown_address", "unpinned", "unreachable"]


def shown_address(connection: Connection) -> str:
    """`10.0.0.1`, `10.0.0.1:2222`, `[fe80::1]:2222`, or `this machine`."""
    if connection.kind == "local":
        return "this machine"
    if connection.port == 22:
        return connection.address
    return (
        f"[{connection.address}]:{connection.port}"
        if ":" in connection.address
        else f"{connection.address}:{connection.port}"
    )


def host_rows(workspace: Workspace, config: CompiledConfig, *, check: bool, parallelism: int) -> tuple[HostRow, ...]:
    """Every host of sb.yml in its order, then hosts that only the state knows. With `check` every host is asked."""
    recorded = recorded_connections(workspace)
    serials = workspace.store.recorded_serials() if workspace.state is not None else {}
    connections = {name: host.connection for name, host in config.hosts.items()}
    for name, connection in recorded.items():
        connections.setdefault(name, connection)
    problems, drained = _asked(workspace, config, connections, parallelism) if check else (None, {})
    return tuple(
        _row(config, name, connection, serials.get(name) if name in recorded else None, problems, drained=drained)
        for name, connection in connections.items()
    )


def unpinned(workspace: Workspace) -> CompiledConfig:
    """sb.yml for who connects to nothing: hosts may lack a pinned key. Raises ConfigError, InputError `file.*`."""
    try:
        return load(workspace.file, environ=workspace.environ, keyed=workspace.keyed, require_pins=False)
    except InputError as error:
        if error.code == "file.missing":
            error.next_step = "sbctl init writes a starter; -f names another file"
        raise


def recorded_connections(workspace: Workspace) -> dict[str, Connection]:
    """Host → how the last apply reached it."""
    state = workspace.state
    return {one.host: one.connection for one in state.resources.values()} if state is not None else {}


def _row(
    config: CompiledConfig,
    name: str,
    connection: Connection,
    serial: int | None,
    problems: Mapping[str, str] | None,
    *,
    drained: Mapping[str, str],
) -> HostRow:
    host = config.hosts.get(name)
    return HostRow(
        name=name,
        address=shown_address(connection),
        jumps=tuple(jump.name for jump in connection.jumps),
        roles=tuple(sorted(host.roles)) if host is not None else (),
        group=host.group if host is not None else None,
        labels=dict(host.labels) if host is not None else {},
        pinned=None if connection.kind == "local" else connection.host_keys,
        serial=serial,
        declared=host is not None,
        reachable=None if problems is None else name not in problems,
        problem="" if problems is None else problems.get(name, ""),
        out_of_service=drained.get(name, ""),
    )


def _asked(
    workspace: Workspace, config: CompiledConfig, connections: Mapping[str, Connection], parallelism: int
) -> tuple[dict[str, str], dict[str, str]]:
    """Host → why it did not answer; host → who drained it since when."""
    from sbctl.remote.observe import observe_fleet

    pythons = {name: host.python for name, host in config.hosts.items() if host.python}
    with observe_fleet(
        connections,
        clock=workspace.clock,
        max_parallel=parallelism,
        pythons=pythons,
        environ=workspace.environ,
        secrets=workspace.login_secrets.prepared(connections.values()),
    ) as fleet:
        problems = {
            name: f"{error.message}. {error.next_step}" if error.next_step else error.message
            for name, error in fleet.unreachable.items()
        }
        drained = {
            name: f"out of service since {one.drain.since}, by {one.drain.by}; back by: sbctl host resume {name}"
            for name, one in fleet.snapshots.items()
            if one.drain is not None and one.drain.persistent
        }
        return problems, drained


def unreachable(rows: Sequence[HostRow]) -> bool:
    """Whether a host that was asked gave no answer."""
    return any(row.reachable is False for row in rows)
