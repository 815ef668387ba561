"""Ports that a host of the fleet is to have, and who has them: rules over what hosts told, pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from sbctl.config.cluster_shape import peer_address
from sbctl.config.compiled import CompiledCluster, CompiledHost
from sbctl.node.snapshot import NodeSnapshot, PortHolder
from sbctl.node.store_server import PROGRAM_NAME, STORE_UNIT
from sbctl.views.host_views import Check

__all__ = ["WantedPort", "port_checks", "wanted_ports"]

_ANYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
_LOOPBACK: Final = "127.0.0.1"
_RUNTIME_USER: Final = "sbctl"


class WantedPort(NamedTuple):
    """`field`: where sb.yml says it, below `proxy`."""

    name: str
    address: str
    port: int
    field: tuple[str, ...]


def wanted_ports(host: CompiledHost, cluster: CompiledCluster | None) -> tuple[WantedPort, ...]:
    """What runtime and store of a host will listen on. A port that the kernel chooses is not among them."""
    proxy = host.proxy
    found = [WantedPort("port of the API", proxy.bind_address, proxy.http_bind_port, ("http_bind_port",))]
    if proxy.https_bind_port is not None:
        found.append(
            WantedPort("https port of the API", proxy.bind_address, proxy.https_bind_port, ("https_bind_port",))
        )
    if proxy.admin.enabled:
        found.append(WantedPort("port of the admin API", proxy.admin.bind, proxy.admin.port, ("admin", "port")))
    if cluster is not None:
        found += _of_cluster(host, cluster)
    return tuple(one for one in found if one.port)


def _of_cluster(host: CompiledHost, cluster: CompiledCluster) -> Iterator[WantedPort]:
    if host.name in cluster.workers:
        bind, port, _advertise = peer_address(host)
        yield WantedPort("port for gateways", bind, port, ("cluster", "model_bind"))
    if host.name not in cluster.authorities or host.proxy.cluster is None:
        return
    store = host.proxy.cluster.store
    yield WantedPort("port of the store", store.bind_address, store.port, ("cluster", "store", "port"))
    yield WantedPort(
        "the store's port for the host", _LOOPBACK, store.monitor_port, ("cluster", "store", "monitor_port")
    )
    if len(cluster.authorities) > 1:
        where = store.bind_address
        yield WantedPort(
            "the store's port for its members", where, store.cluster_port, ("cluster", "store", "cluster_port")
        )


def port_checks(
    host: CompiledHost, cluster: CompiledCluster | None, snapshot: NodeSnapshot, holders: Iterable[PortHolder]
) -> Iterator[Check]:
    """Whether the ports are free; nothing is said of one that the host's own runtime or store has, or where that cannot be told."""
    if snapshot.runtime.running and snapshot.runtime.http_url is None:
        return
    own = _own_addresses(snapshot)
    listed = tuple(holders)
    for name, address, port, field in wanted_ports(host, cluster):
        there = [one for one in listed if one.port == port and _overlap(one.address, address)]
        taken = next((one for one in there if not _is_ours(one, snapshot, own)), None)
        if taken is None and (there or _place(address, port) in own):
            continue
        if taken is None:
            yield Check(name, "pass", f"{_place(address, port)} is free", host=host.name)
        else:
            stop = (
                f"systemctl stop {taken.unit} on the host"
                if taken.unit.endswith(".service")
                else "stop what listens there"
            )
            remedy = f"{stop}, or choose another port (proxy.{'.'.join(field)})"
            yield Check(name, "fail", f"{_place(address, port)} is held by {_held_by(taken)}", remedy, host.name)


def _own_addresses(snapshot: NodeSnapshot) -> frozenset[str]:
    """Where the runtime of the host listens, as it says."""
    told = (snapshot.runtime.http_url, snapshot.runtime.https_url, snapshot.runtime.admin_url)
    return frozenset(url.partition("://")[2] for url in told if url)


def _is_ours(holder: PortHolder, snapshot: NodeSnapshot, own: Collection[str]) -> bool:
    """Also what still runs from our directory after its program was removed, so that it tells nothing of itself; and a port that systemd keeps
    for a runtime that is down or tells nothing: whose of systemd's it is cannot be told from outside."""
    runtime = snapshot.runtime
    if _place(holder.address, holder.port) in own or (holder.pid is not None and holder.pid == runtime.pid):
        return True
    if snapshot.paths is not None and holder.started_as.startswith(snapshot.paths.opt + "/"):
        return True
    if _is_store(holder, snapshot):
        return True
    if holder.pid is None and holder.user == _RUNTIME_USER and runtime.running and snapshot.cluster is not None:
        # Its port for gateways, of which it tells nobody.
        return True
    by_systemd = holder.program == "systemd" or (holder.pid is None and holder.user == "root")
    known_here = runtime.unit_path is not None or snapshot.marker is not None
    return by_systemd and known_here and not runtime.running


def _is_store(holder: PortHolder, snapshot: NodeSnapshot) -> bool:
    """Whether it is the store that is installed there, which may run by a program of the host."""
    if snapshot.store is None:
        return False
    by_parent = not holder.unit and holder.program == PROGRAM_NAME and snapshot.store.running
    return holder.unit == STORE_UNIT or by_parent


def _place(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _held_by(holder: PortHolder) -> str:
    user = f"user {holder.user}" if holder.user else "another user"
    if holder.pid is None:
        return f"a process of {user}, which only root may see"
    known = [f"pid {holder.pid}", holder.unit, user if holder.user else ""]
    return f"{holder.program or 'a process'} ({', '.join(part for part in known if part)})"


def _overlap(held: str, wanted: str) -> bool:
    if held in _ANYWHERE or wanted in _ANYWHERE:
        return True
    return held == wanted
