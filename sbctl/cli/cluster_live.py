"""The cluster as its own nodes see it, over the hosts' lines: from the authority that hears the store, else from whoever answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from sbctl.base.errors import HostError, RefusedError, SbctlError
from sbctl.cli.cluster_words import nobody_answered
from sbctl.cli.host_lines import Lines
from sbctl.config.compiled import CompiledConfig
from sbctl.node.cluster_status import ClusterStatus, StatusNode
from sbctl.node.messages import Method
from sbctl.remote.session import HostSession
from sbctl.remote.transport import no_progress

__all__ = ["Live", "asked_hosts", "live_status", "with_unheard"]

_DEADLINE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Live:
    """`host` answered with `document`, which is `status` as JSON. `silent`: who was asked before it and gave no answer, and why."""

    host: str
    status: ClusterStatus
    document: Mapping[str, Any]
    silent: Mapping[str, SbctlError]


def asked_hosts(config: CompiledConfig, named: str | None) -> tuple[str, ...]:
    """Whom to ask, in this order: authorities, then gateways; or the one that is named.

    Raises RefusedError `cluster.none` where sb.yml has no `proxy.cluster`, `cluster.host_sees_nothing` for a host that keeps no directory.
    """
    cluster = config.cluster
    if cluster is None:
        raise RefusedError(
            "cluster.none",
            "sb.yml makes no cluster of its hosts",
            place="proxy.cluster",
            next_step="add proxy.cluster, or look at the hosts one by one with sbctl status",
        )
    seeing = tuple(dict.fromkeys((*cluster.authorities, *cluster.gateways)))
    if named is None:
        return seeing
    if named not in seeing:
        raise RefusedError(
            "cluster.host_sees_nothing",
            f"{named} is neither an authority nor a gateway of the cluster, and only those know who is in it",
            place=named,
            next_step=f"ask one of {', '.join(seeing)}",
        )
    return (named,)


def live_status(lines: Lines, hosts: Sequence[str]) -> Live:
    """The first answer of a node that hears the store; of those that do not, the first. Raises UnreachableError `cluster.no_answer`."""
    silent: dict[str, SbctlError] = {}
    alone: Live | None = None
    for host in hosts:
        try:
            document = lines.ask(host, _ask)
            status = _read(host, document)
        except SbctlError as error:
            silent[host] = error
            continue
        found = Live(host, status, document, dict(silent))
        if status.store.state == "connected":
            return found
        alone = alone or found
    if alone is not None:
        return alone
    raise nobody_answered("no authority and no gateway says how the cluster is", hosts, silent)


def with_unheard(status: ClusterStatus, members: Mapping[str, Collection[str]]) -> ClusterStatus:
    """With the hosts of sb.yml that the answering node never heard of, by their roles: a host that never got as far as the store tells nobody of
    itself. The same while the store is not heard."""
    known = {node.node_id for node in status.nodes}
    if status.store.state != "connected" or members.keys() <= known:
        return status
    unheard = tuple(
        StatusNode(
            node_id=name,
            unhealthy_reasons=("snapshot_missing",),
            problem=f"it is in sb.yml, and was not applied yet or does not reach the store: sbctl status {name}, sbctl logs {name}",
            roles=tuple(sorted(members[name])),
        )
        for name in sorted(members.keys() - known)
    )
    return status.model_copy(update={"nodes": (*status.nodes, *unheard)})


def _ask(session: HostSession) -> Mapping[str, Any]:
    return session.call(Method.CLUSTER_STATUS, {}, secrets={}, deadline_s=_DEADLINE_S, progress=no_progress)


def _read(host: str, document: Mapping[str, Any]) -> ClusterStatus:
    try:
        return ClusterStatus.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise HostError(
            "cluster.status_invalid",
            f"what it says of the cluster makes no sense: {where}: {first['msg']}",
            place=host,
            next_step="sbctl apply brings the host's runtime to this version",
        ) from None
