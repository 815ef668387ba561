"""What an operator asks of a cluster that runs, over the line of whichever authority takes it, and until when it is waited for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from sbctl.base.clock import Clock
from sbctl.base.display import format_duration_s, plural
from sbctl.base.errors import HostError, RefusedError, SbctlError
from sbctl.cli.cluster_live import asked_hosts, live_status
from sbctl.cli.cluster_words import nobody_answered
from sbctl.cli.fleet_hosts import unpinned
from sbctl.cli.host_lines import Lines, fleet_lines
from sbctl.cli.workspace import Workspace
from sbctl.config.compiled import CompiledConfig
from sbctl.node.cluster_actions import REASON_MAX_CHARS, ActionName, ClusterAct, ClusterActed
from sbctl.node.cluster_status import ClusterStatus
from sbctl.node.messages import Method
from sbctl.remote.session import HostSession
from sbctl.remote.transport import no_progress
from sbctl.state.operator import who

__all__ = ["Acted", "act", "evacuated", "left_on", "worker_config"]

_DEADLINE_S: Final = 60.0
_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Acted:
    """`host` took it. `left`: what still runs, or is kept, on a node that is evacuated; None where nobody waited."""

    host: str
    answer: ClusterActed
    left: tuple[str, ...] | None = None


def act(
    workspace: Workspace,
    action: ActionName,
    subject: str,
    *,
    reason: str = "",
    wait_s: float = 0.0,
    taken: Callable[[ClusterActed], None] = lambda _answer: None,
    told: Callable[[str], None] = lambda _text: None,
) -> Acted:
    """Asked of one authority after another until one takes it, which `taken` hears. With `wait_s` an evacuation is waited for, and `told` hears how
    far it is.

    Raises RefusedError `cluster.none` and what an authority refuses; UnreachableError `cluster.no_answer`, HostError.
    """
    config = unpinned(workspace)
    asked_hosts(config, None)
    lines, authorities = _lines(workspace, config)
    params = ClusterAct(
        action=action, subject=subject, by=who(workspace.environ)[:200], reason=reason[:REASON_MAX_CHARS]
    )
    with closing(lines):
        host, answer = _asked(lines, authorities, params)
        taken(answer)
        if action != "evacuate" or not wait_s:
            return Acted(host, answer)
        return Acted(
            host,
            answer,
            _waited(workspace.clock, lambda: live_status(lines, authorities).status, subject, wait_s, told),
        )


def worker_config(workspace: Workspace, host: str) -> CompiledConfig | None:
    """sb.yml, where it has `host` as a worker of a cluster."""
    if not workspace.file.exists():
        return None
    config = unpinned(workspace)
    return config if config.cluster is not None and host in config.cluster.workers else None


def _lines(workspace: Workspace, config: CompiledConfig) -> tuple[Lines, tuple[str, ...]]:
    cluster = config.cluster
    assert cluster is not None, "it was looked at before"
    connections = {name: config.hosts[name].connection for name in cluster.authorities}
    pythons = {name: python for name in cluster.authorities if (python := config.hosts[name].python)}
    return fleet_lines(workspace, connections, pythons), cluster.authorities


def _asked(lines: Lines, authorities: Sequence[str], params: ClusterAct) -> tuple[str, ClusterActed]:
    silent: dict[str, SbctlError] = {}

    def call(session: HostSession) -> dict[str, Any]:
        body = params.model_dump(mode="json")
        return dict(session.call(Method.CLUSTER_ACT, body, secrets={}, deadline_s=_DEADLINE_S, progress=no_progress))

    for host in authorities:
        try:
            return host, _read(host, lines.ask(host, call))
        except RefusedError:
            raise
        except SbctlError as error:
            silent[host] = error
    raise nobody_answered("no authority took it", authorities, silent)


def _read(host: str, document: dict[str, Any]) -> ClusterActed:
    try:
        return ClusterActed.model_validate_json(json.dumps(document))
    except ValidationError:
        raise HostError(
            "cluster.status_invalid",
            "what it says of the action makes no sense",
            place=host,
            next_step="sbctl apply brings the host's runtime to this version",
        ) from None


# Until a node is empty


def evacuated(node: str, left: Sequence[str], wait_s: float) -> None:
    """Raises HostError `cluster.evacuation_unfinished` while something is left on the node."""
    if left:
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        raise HostError(
            "cluster.evacuation_unfinished",
            f"after {format_duration_s(wait_s)} {node} still has {', '.join(left[:3])}{more}; it serves them until they are ready elsewhere",
            place=node,
            next_step=f"the cluster goes on by itself: sbctl cluster status says what is short; sbctl cluster restore {node} takes it back",
            retryable=True,
        )


def left_on(status: ClusterStatus, node: str) -> tuple[str, ...]:
    """What runs on a node, or is placed there still, in words."""
    placed = {
        (one.deployment_id, row.slot)
        for one in status.deployments
        for row in (*one.assignments, *one.retained, *one.draining)
        if row.node_id == node
    }
    shown = {
        (replica.deployment, replica.slot or 0)
        for row in status.nodes
        if row.node_id == node and not row.unhealthy
        for replica in row.replicas
        if replica.state in ("preparing", "ready", "draining")
    }
    short = {one.deployment_id: one.unplaced_replicas for one in status.deployments if one.unplaced_replicas}
    return tuple(
        f"{name} replica {slot}" + (f" (no place for {plural(short[name], 'replica')})" if name in short else "")
        for name, slot in sorted(placed | shown)
    )


def _waited(
    clock: Clock, look: Callable[[], ClusterStatus], node: str, wait_s: float, told: Callable[[str], None]
) -> tuple[str, ...]:
    end_s = clock.monotonic_s() + wait_s
    said = ""
    while True:
        left = left_on(look(), node)
        if not left or clock.monotonic_s() >= end_s:
            return left
        text = f"{node} still has {', '.join(left[:3])}" + (f" and {len(left) - 3} more" if len(left) > 3 else "")
        if text != said:
            told(text)
            said = text
        clock.sleep_s(_LOOK_S)
