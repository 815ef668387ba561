"""What hosts with `proxy.cluster` are together: one cluster, whose nodes they are by their names, roles and labels in `fleet.hosts`.

A cluster has one desired state. Hosts may differ in how they run (ports, caches, engines), and not in what it is: a deployment is the same on
all workers that may run it, an origin on all gateways.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from sbctl.base.field_types import is_loopback
from sbctl.config.cluster import ClusterModel
from sbctl.config.compiled import CompiledCluster, CompiledDeployment, CompiledHost, CompiledOrigin
from sbctl.config.diagnose import Report
from sbctl.config.document import Path
from sbctl.config.layers import View

__all__ = ["PEER_PORT_DEFAULT", "compiled_cluster", "peer_address"]

PEER_PORT_DEFAULT: Final = 9443
_CODE: Final = "config.rule"
_WHERE: Final[Path] = ("cluster",)
_OF_A_HOST: Final = ("node_id", "roles", "labels", "model_bind", "model_endpoint", "state_dir")
"""What may differ from host to host."""


def compiled_cluster(
    report: Report,
    hosts: Mapping[str, CompiledHost],
    views: Mapping[str, View],
    *,
    has_identity: bool,
    canary: str | None,
) -> CompiledCluster | None:
    """None without one, and for what is none: then the findings are in `report`. `views`: what each host sees of `proxy`."""
    joined = {name: host for name, host in hosts.items() if host.proxy.cluster is not None}
    if not joined:
        return None
    check = _Check(report, joined, views)
    before = len(report.in_order("error"))
    check.whole(hosts, has_identity=has_identity)
    check.canary(canary)
    for host in joined.values():
        check.node(host)
    deployments, origins = check.deployments(), check.origins()
    if len(report.in_order("error")) > before:
        return None
    first = next(iter(joined.values()))
    assert first.proxy.cluster is not None
    return CompiledCluster(
        cluster_id=first.proxy.cluster.cluster_id,
        deployments=deployments,
        origins=origins,
        authorities=check.having("authority"),
        gateways=check.having("gateway"),
        workers=check.having("worker"),
    )


def peer_address(host: CompiledHost) -> tuple[str, int, str]:
    """Where a worker listens for gateways, its port, and the address they are told. Raises ValueError with a sentence."""
    cluster = host.proxy.cluster
    assert cluster is not None, "a host outside of a cluster has no peers"
    bind, port = ("0.0.0.0", PEER_PORT_DEFAULT) if cluster.model_bind is None else _host_port(cluster.model_bind)  # noqa: S104 - only certificates of the cluster get further than the handshake
    if cluster.model_endpoint is None:
        return bind, port, host.data_address
    scheme, separator, rest = cluster.model_endpoint.partition("://")
    if scheme != "https" or not separator or "@" in rest or "?" in rest or "#" in rest:
        raise ValueError("model_endpoint is an origin as https://10.0.0.2:9443")
    advertise, told = _host_port(rest.removesuffix("/"))
    if told != port:
        raise ValueError(f"model_endpoint has port {told}, and the worker listens at {port} (model_bind)")
    return bind, port, advertise


def _host_port(text: str) -> tuple[str, int]:
    address, separator, port = text.rpartition(":")
    if not separator or not address or not port.isdecimal() or not 0 < int(port) < 65536 or "/" in text:
        raise ValueError(f'"{text[:80]}" is not an address with a port, as 10.0.0.2:9443')
    return address.removeprefix("[").removesuffix("]"), int(port)


class _Check:
    """Findings about the hosts of one cluster."""

    def __init__(self, report: Report, hosts: Mapping[str, CompiledHost], views: Mapping[str, View]) -> None:
        self._report = report
        self._hosts = hosts
        self._views = views
        self._first = next(iter(hosts.values()))

    def having(self, role: str) -> tuple[str, ...]:
        return tuple(sorted(name for name, host in self._hosts.items() if role in host.roles))

    def _add(self, host: str, message: str, note: str, path: Path = ()) -> None:
        self._report.add(_CODE, message, self._views[host].key_span((*_WHERE, *path)), notes=(note,))

    def whole(self, hosts: Mapping[str, CompiledHost], *, has_identity: bool) -> None:
        first = self._first.name
        outside = sorted(hosts.keys() - self._hosts.keys())
        if outside:
            message = (
                f"{', '.join(outside[:5])} {'is' if len(outside) == 1 else 'are'} not in the cluster of the others"
            )
            self._add(first, message, "write cluster in proxy, for all hosts; a fleet is one cluster or none")
        if not has_identity:
            message = "nodes of a cluster know each other by certificates, and the fleet has none"
            self._add(first, message, "sbctl cluster init makes an authority in a second; then add fleet.identity")
        authorities = self.having("authority")
        if len(authorities) not in (1, 3):
            named = f" ({', '.join(authorities[:5])})" if authorities else ""
            message = f"a cluster has one authority, or three to survive the loss of one; this one has {len(authorities)}{named}"
            self._add(first, message, "add authority to the roles of one host or of three (fleet.hosts)")
        for role, what in (("gateway", "nobody answers its API"), ("worker", "nobody runs its models")):
            if not self.having(role):
                self._add(
                    first, f"no host of the cluster has the role {role}: {what}", f"add {role} to roles of a host"
                )
        for host in self._hosts.values():
            if _common(host) != _common(self._first):
                message = f"{host.name} and {first} differ in what is one for the whole cluster"
                self._add(host.name, message, "cluster_id, store and intervals are written once, in proxy.cluster")
                return

    def canary(self, canary: str | None) -> None:
        authorities = self.having("authority")
        if canary in authorities[1:]:
            message = f"the canary {canary} is an authority, and its store changes only after that of {authorities[0]}"
            self._add(self._first.name, message, "name a gateway or a worker in fleet.update.canary")

    def node(self, host: CompiledHost) -> None:
        cluster = host.proxy.cluster
        assert cluster is not None
        if host.model_host.authority == "admin_managed":
            message = "in a cluster its operators own the deployments, not the admin API of a host"
            span = self._views[host.name].value_span(("model_host", "authority"))
            self._report.add(_CODE, message, span, notes=("use cluster_authority, or leave it out",))
        told = {"node_id": cluster.node_id, "roles": frozenset(cluster.roles), "labels": dict(cluster.labels)}
        wanted = {"node_id": host.name, "roles": host.roles, "labels": dict(host.labels)}
        for name, value in told.items():
            if value and value != wanted[name]:
                message = f"{name} of {host.name} says something else than fleet.hosts"
                self._add(host.name, message, "leave it out: it is taken from fleet.hosts", (name,))
        if "worker" in host.roles:
            self._peer(host, cluster)
        self._ports(host, cluster)

    def _ports(self, host: CompiledHost, cluster: ClusterModel) -> None:
        """What its runtime and its store listen on, each for itself."""
        proxy, store = host.proxy, cluster.store
        taken = {proxy.http_bind_port: "http_bind_port"}
        if proxy.https_bind_port is not None:
            taken[proxy.https_bind_port] = "https_bind_port"
        if proxy.admin.enabled:
            taken[proxy.admin.port] = "admin.port"
        wanted: list[tuple[tuple[str, ...], int]] = []
        with suppress(ValueError):  # told by `_peer`
            wanted += [(("model_bind",), peer_address(host)[1])] if "worker" in host.roles else []
        if "authority" in host.roles:
            wanted += [(("store", "port"), store.port), (("store", "monitor_port"), store.monitor_port)]
            wanted += [(("store", "cluster_port"), store.cluster_port)] if len(self.having("authority")) > 1 else []
        for path, port in wanted:
            name = ".".join(("cluster", *path))
            other = taken.setdefault(port, name)
            if other != name:
                message = f"{host.name} would listen twice on port {port}: {other} and {name}"
                span = self._views[host.name].key_span((*_WHERE, *path))
                self._report.add("config.duplicate_port", message, span, notes=(f"give {name} another port",))

    def _peer(self, host: CompiledHost, cluster: ClusterModel) -> None:
        try:
            _, _, advertise = peer_address(host)
        except ValueError as error:
            field = "model_bind" if cluster.model_bind is not None else "model_endpoint"
            self._add(host.name, f"{host.name}: {error}", "the address is the host's own", (field,))
            return
        if len(self._hosts) > 1 and _is_here(advertise):
            message = f"gateways would look for the worker {host.name} at {advertise}, which is themselves"
            self._add(host.name, message, f"write its address: fleet.hosts.{host.name}.data_address")

    def deployments(self) -> dict[str, CompiledDeployment]:
        """Each as the workers see it that may run it."""
        found: dict[str, tuple[str, CompiledDeployment]] = {}
        differing: set[str] = set()
        for host in self._hosts.values():
            for name, each in host.deployments.items():
                one = replace(each, delivery="pull", span=None)
                other, known = found.setdefault(name, (host.name, one))
                if known != one and name not in differing:
                    differing.add(name)
                    message = f'deployment "{name}" is not the same on {other} and on {host.name}; a cluster has one'
                    note = "write it once, or make two of it and tell them apart by required_labels"
                    span = self._views[host.name].key_span(("model_host", "deployments", name))
                    self._report.add(_CODE, message, span, notes=(note,))
        return {name: one for name, (_, one) in sorted(found.items())}

    def origins(self) -> dict[str, CompiledOrigin]:
        gateways = [self._hosts[name] for name in self.having("gateway")]
        for host in gateways[1:]:
            if host.origins != gateways[0].origins:
                message = f"the gateways {gateways[0].name} and {host.name} would not answer the same origins"
                self._add(host.name, message, "a cluster has one set of origins: leave variables of hosts out of it")
                break
        return dict(gateways[0].origins) if gateways else {}


def _is_here(address: str) -> bool:
    try:
        return is_loopback(address)
    except ValueError:
        return address == "localhost"


def _common(host: CompiledHost) -> ClusterModel:
    assert host.proxy.cluster is not None
    return host.proxy.cluster.model_copy(
        update={name: ClusterModel.model_fields[name].get_default(call_default_factory=True) for name in _OF_A_HOST}
    )
